"""``zmqraft backup | restore | import-log | check``: commands on a directory that a peer starts with.

A backup is a copy of one; it is restored as a new cluster.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import as_json, print_json, print_line, warn
from raft_client._common.hosts import is_local
from raft_client.cli.options import cluster_option, members_option, to_peer
from raft_client.errors import StorageError
from raft_client.request_id_factory import new_request_id
from raft_client.server.runtime.storage.backup import back_up, inspect_directory, restore
from raft_client.server.runtime.storage.log_import import import_log
from raft_client.wire.configuration import host_of

if TYPE_CHECKING:
    from raft_client.server.runtime.storage.backup import Inspection
    from raft_client.wire.configuration import Peer, Peers


@click.command("backup")
@click.argument("directory", metavar="DIR", type=click.Path())
@click.argument("target", metavar="TARGET", type=click.Path())
def backup(directory: str, target: str) -> int:
    """Copy the data directory DIR of a peer into TARGET. TARGET must not exist. The peer may run meanwhile.

    What the peer had on its disk when the command began is in the copy, which is read again in the end. No peer starts
    with a backup: zmqraft restore makes a new cluster of it.
    """
    print_line(f"{target} has {contents(back_up(directory, target))}")
    return exits.DONE


@click.command("restore")
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option(
    "--peer",
    callback=to_peer,
    metavar="ID=URL",
    required=True,
    help="The only member of the new cluster, under an ID that the old one never had.",
)
@click.option(
    "--cluster",
    required=True,
    help="The ident of the new cluster, another one than that of the backup. The environment is not asked for it.",
)
def restore_backup(source: str, directory: str, *, peer: Peer, cluster: str) -> int:
    """Make a new cluster of one peer from the backup SOURCE. DIR is the directory of that peer, and must not exist.

    It has the entries, request ids and the snapshot of the backup. Other members are added to it later. Only when the
    majority of a cluster is lost for ever: another peer that is lost is replaced by a new one, which needs no backup.
    """
    found = restore(source, directory, peer=peer, ident=cluster.encode(), request_id=new_request_id())
    keys = "" if is_local(host_of(peer.url)) else " --curve-keys or --insecure, and"
    print_line(f"{directory} has {contents(found)}; start it with{keys}")
    words = ["--cluster", cluster, "--id", peer.id, "--peer", f"{peer.id}={peer.url}", "--data", directory]
    print_line(shlex.join(["zmqraft", "serve", *words]))
    return exits.DONE


def contents(found: Inspection) -> str:
    """What a directory has, in words."""
    entries = f"the entries {found.first_index} to {found.last_index}" if found.entry_count else "no entries"
    return entries if found.snapshot is None else f"{entries} and a snapshot up to {found.snapshot.index}"


# -- import-log --------------------------------------------------------------------------------------------------------


@click.command("import-log")
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option("--id", "peer_id", required=True, metavar="ID", help="Which of the peers it is: as the Node peer's.")
@members_option(
    "A member of the cluster, as the Node peer was configured; once for each. Not needed if the members were "
    "changed since: then the folder says who they are."
)
@cluster_option("The cluster ident ('secret' of the Node peer).")
def import_node_log(source: str, directory: str, *, peer_id: str, peers: Peers, cluster: str) -> int:
    """Make a data directory from that of a Node peer. SOURCE is the Node peer's folder, DIR the new directory of the
    peer that replaces it.

    It has the same entries, request ids, term and vote, and the snapshot. Stop the Node peer first, and never start it
    again: two peers would vote under one ID.
    """
    found = import_log(source, directory, peer_id=peer_id, ident=cluster.encode(), peers=peers)
    print_line(f"{directory} has {contents(found)}")
    if found.snapshot is not None and not found.members_known:
        warn(
            "the folder does not say for certain who the members are: the peer votes, but does not stand for election "
            "until the log has a list of them (zmqraft add-peer)"
        )
    return exits.DONE


# -- check -------------------------------------------------------------------------------------------------------------


@click.command("check")
@click.argument("directory", metavar="DIR", type=click.Path(readable=False))
@click.option("--json", "json_output", is_flag=True, help="One JSON object on a line.")
def check_data(directory: str, *, json_output: bool) -> int:
    """Check the data directory DIR of a peer. Print what is wrong. The command reads everything in it.

    Changes nothing. The peer must not be running. Exit code 0 when a peer can start with it, 6 when it cannot, or when
    some entry or snapshot in it cannot be read.
    """
    found = inspect_directory(directory)
    if found.owner is None and not found.problems:
        raise StorageError(f"{directory} is not the data directory of a peer: there is no file meta in it")
    if json_output:
        print_json(_as_json(found))
    else:
        _print(directory, found)
    return exits.DATA if found.problems else exits.DONE


def _print(directory: str, found: Inspection) -> None:
    print_line(f"{directory} is {'damaged' if found.problems else 'sound'}")
    for problem in found.problems:
        print_line(f"problem: {problem.message}")
    for name, value in _described(found):
        print_line(f"{name}:", value)


def _described(found: Inspection) -> list[tuple[str, str]]:
    """What a peer that starts with it would know; nothing if none can."""
    if found.owner is None or found.hard_state is None:
        return []
    state, snapshot = found.hard_state, found.snapshot
    vote = f", voted for {state.voted_for}" if state.voted_for else ""
    lines = [
        ("backup of the peer" if found.is_backup else "peer", found.owner.peer_id),
        ("cluster", found.owner.ident.decode(errors="backslashreplace") or "(no name)"),
        ("term", f"{state.term}{vote}"),
        ("entries", f"{found.first_index} to {found.last_index}" if found.entry_count else "none"),
    ]
    if snapshot is not None:
        lines.append(("snapshot", f"up to {snapshot.index}, {snapshot.size} bytes"))
    if found.torn_bytes:
        lines.append(("never synced", f"{found.torn_bytes} bytes at the end, which the next start cuts off"))
    if found.stale:
        lines.append(("left over", f"{', '.join(found.stale)}, which the next start removes"))
    return lines


def _as_json(found: Inspection) -> dict[str, Any]:
    owner, state, snapshot = found.owner, found.hard_state, found.snapshot
    return {
        "problems": [attrs.asdict(problem) for problem in found.problems],
        "peer": None if owner is None else owner.peer_id,
        "is_backup": found.is_backup,
        **as_json("cluster", None if owner is None else owner.ident),
        "term": None if state is None else state.term,
        "voted_for": None if state is None else state.voted_for,
        "first_index": found.first_index,
        "last_index": found.last_index,
        "snapshot_index": None if snapshot is None else snapshot.index,
        "snapshot_bytes": None if snapshot is None else snapshot.size,
        "torn_bytes": found.torn_bytes,
        "stale": list(found.stale),
    }
