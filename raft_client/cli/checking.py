"""``zmqraft check``: whether the data directory of a peer is sound, and what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from raft_client.cli import exits
from raft_client.cli.output import as_json, print_json, print_line
from raft_client.errors import StorageError
from raft_client.server.runtime.storage.inspection import inspect_directory

if TYPE_CHECKING:
    from raft_client.server.runtime.storage.inspection import Inspection


@click.command("check")
@click.argument("directory", metavar="DIR", type=click.Path(readable=False))
@click.option("--json", "json_output", is_flag=True, help="One JSON object on a line.")
def check_data(directory: str, *, json_output: bool) -> int:
    """Say whether the data directory DIR of a peer is sound; if not, what is wrong. Everything in it is read.

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
