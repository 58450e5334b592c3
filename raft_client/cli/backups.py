"""``zmqraft backup | restore``: copies of a peer's directory, and the new cluster that one is restored as."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from raft_client._common.hosts import is_local
from raft_client.cli import exits
from raft_client.cli.output import print_line
from raft_client.cli.peer_options import to_peer
from raft_client.request_id_factory import new_request_id
from raft_client.server.runtime.storage.backup import back_up, restore
from raft_client.wire.configuration import host_of

if TYPE_CHECKING:
    from raft_client.server.runtime.storage.inspection import Inspection
    from raft_client.wire.configuration import Peer


@click.command("backup")
@click.argument("directory", metavar="DIR", type=click.Path())
@click.argument("target", metavar="TARGET", type=click.Path())
def backup(directory: str, target: str) -> int:
    """Copy the data directory DIR of a peer to the new directory TARGET. The peer may be running.

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
    """Make the new directory DIR of the backup SOURCE: that of a peer which is alone in a new cluster.

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
