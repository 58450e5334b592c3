"""``zmqraft snapshot | trim``: short logs, asked of peers that run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import attrs
import click

from raft_client.cli import exits
from raft_client.cli.cluster import known_members, member_named
from raft_client.cli.connection import connection_options, open_client
from raft_client.cli.option_types import Index
from raft_client.cli.output import print_json, print_line, print_table, warn
from raft_client.core.calls import TakenSnapshot
from raft_client.errors import RaftError
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.configuration import Peer

_json = click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
_HEADING: Final = ["peer", "url", "up_to", "bytes"]


@click.command("snapshot")
@click.argument("peers", metavar="[PEER]...", nargs=-1)
@_json
@connection_options
def snapshot(peers: tuple[str, ...], *, json_output: bool, settings: RaftSettings) -> int:
    """Let the peers (ids or URLs), or all of them, make snapshots of their state machines now; print what each has.

    A snapshot takes the place of the log before it when no request id there can be repeated any more, 8 hours later as
    a rule. Meanwhile no other one is made, and this prints the one that waits. Exit code 1 when a peer made none.
    """
    with open_client(settings) as client:
        known = known_members(client)
        wanted = [member_named(name, known) for name in peers] or known
        with ThreadPoolExecutor(len(wanted)) as pool:
            taken = list(pool.map(lambda peer: _ask(client, peer), wanted))
    rows = [_HEADING]
    for peer, found in zip(wanted, taken, strict=True):
        if isinstance(found, RaftError):
            warn(f"{peer.id} at {peer.url}: {found}")
        if json_output:
            result = {"error": str(found)} if isinstance(found, RaftError) else attrs.asdict(found)
            print_json(attrs.asdict(peer) | result)
        elif isinstance(found, TakenSnapshot):
            rows.append([peer.id, peer.url, str(found.index), str(found.size)])
    if len(rows) > 1:
        print_table(rows, left=2)
    return exits.NEGATIVE if any(isinstance(found, RaftError) for found in taken) else exits.DONE


def _ask(client: RaftClient, peer: Peer) -> TakenSnapshot | RaftError:
    try:
        return client.take_snapshot(peer.url)
    except RaftError as error:
        return error


@click.command("trim")
@click.argument("index", type=Index())
@_json
@connection_options
def trim(index: int, *, json_output: bool, settings: RaftSettings) -> int:
    """Say that nobody needs the entries up to INDEX any more; print the highest index that was said so far.

    The peers drop them when no request id in them can be repeated any more, 8 hours later as a rule. For state machines
    that keep nothing, such as that of serve --machine broadcast. What is dropped is lost.
    """
    with open_client(settings) as client:
        told = client.trim(index)
    if json_output:
        print_json({"index": told})
    else:
        print_line(f"entries up to {told} are dropped when their request ids have expired")
    return exits.DONE
