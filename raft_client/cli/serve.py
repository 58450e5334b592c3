"""``zmqraft serve``: one peer of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from functools import partial
from pathlib import Path
from typing import Final

import click

from raft_client._common import event_loops, exits
from raft_client._common.command_line import AddressError, print_line
from raft_client._common.hosts import is_local
from raft_client._common.process import handle_signals, raise_file_limit
from raft_client.cli.options import cluster_option, members_option
from raft_client.errors import InvalidArgumentError, TransportError
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.metrics import MetricsPage, Readiness, render
from raft_client.server.runtime.peer import CLUSTER_LOGGER, PeerOptions, RaftPeer, open_peer
from raft_client.server.runtime.storage.disk_log import Fsync
from raft_client.wire.configuration import Peers, host_of

#: How many more objects make one search for garbage among the new ones, and how many such searches one among all.
#: Python's own numbers, 700, 10 and 10, are for programs with few objects. A peer has tens of thousands of entries in
#: memory, and keys beside them: to look through all took up to 30 ms, in which nothing was answered.
_COLLECT_AT: Final = (10_000, 20, 100)

_MACHINES: Final = {"key-value": KeyValueStateMachine, "broadcast": BroadcastStateMachine}


@click.command("serve")
@click.option("--id", "peer_id", required=True, metavar="ID", help="Which of the peers this is.")
@members_option(
    "A member of the cluster, at the URL that the others see; once for each. It counts when the data directory is "
    "made; later the log says who the members are.",
    required=True,
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, readable=False, path_type=Path),  # the peer itself says what is wrong with it
    required=True,
    help="The directory of this peer's log. It is made if there is none.",
)
@cluster_option("The cluster ident ('secret' of Node peers), the same for all.")
@click.option("--bind", metavar="URL", help="Where to listen. Default: the URL of this peer's --peer.")
@click.option(
    "--publish", metavar="URL", help="Where to broadcast what is applied. Default: a free port of the same address."
)
@click.option(
    "--curve-keys",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Encrypt everything, and accept only peers and clients whose public keys are in this directory: ID.key of "
    "each peer, clients/NAME.key of clients. This peer's own pair is ID.key_secret. Default: no encryption.",
)
@click.option("--insecure", is_flag=True, help="Listen beyond this machine and accept everybody, without --curve-keys.")
@click.option(
    "--machine",
    type=click.Choice(list(_MACHINES)),
    default="key-value",
    show_default=True,
    help="The state machine: keys and values that clients can read, or broadcasts alone.",
)
@click.option(
    "--fsync",
    type=click.Choice([each.value for each in Fsync]),
    default=Fsync.GROUP.value,
    show_default=True,
    help="When an entry is on the disk. With off, a machine that stops can lose what was acknowledged.",
)
@click.option(
    "--compact-bytes",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Compact the log: whenever so much of it was applied, the state machine makes a snapshot, which replaces "
    "it when the request ids in it have expired. Default: never. What the machine does not keep is lost then.",
)
@click.option(
    "--trim-forgets-ids",
    is_flag=True,
    help="Drop trimmed entries at once, also those whose request ids have not expired; a repetition is then appended "
    "again. For the log of 'statestore serve --log', whose servers know a repeated entry.",
)
@click.option(
    "--setting",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="A time or limit of the peer, by its name in the page on limits, such as election_timeout_min_s=1.0; once for "
    "each. Times in seconds. All peers have times of the same magnitude.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="For /metrics (Prometheus), /health and /ready.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of the metrics port.")
@click.option(
    "--verbose",
    is_flag=True,
    help="Also log compactions to standard error. Changes of the role, the leader and the connections to other peers "
    "are logged in any case.",
)
def serve(
    *,
    peer_id: str,
    peers: Peers,
    data: Path,
    cluster: str,
    bind: str | None,
    publish: str | None,
    curve_keys: Path | None,
    insecure: bool,
    machine: str,
    fsync: str,
    compact_bytes: int | None,
    trim_forgets_ids: bool,
    changes: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    verbose: bool,
) -> int:
    """Run one peer of a cluster. It prints its address when it listens, and ends on SIGTERM or Ctrl-C.

    A peer whose ID is in no --peer copies the log, and waits until zmqraft add-peer makes it a member.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    CLUSTER_LOGGER.setLevel(logging.INFO)
    own = next((peer.url for peer in peers if peer.id == peer_id), None)
    url = bind or own
    for each in (bind, publish):
        if each is not None and not each.startswith("tcp://"):
            raise click.UsageError(f"a peer listens at tcp://ADDRESS:PORT, not at {each!r}")
    if url is None:
        raise click.UsageError(f"--id {peer_id!r} is none of the peers; say with --bind where it listens")
    if curve_keys is None and not insecure:
        _check_exposure(url, publish)
    raise_file_limit()
    try:
        options = PeerOptions(
            cluster=cluster,
            machine=_MACHINES[machine],
            fsync=Fsync(fsync),
            curve_keys=curve_keys,
            compact_bytes=compact_bytes,
            trim_forgets_ids=trim_forgets_ids,
            settings=NodeSettings.changes_in(changes),
        )
    except InvalidArgumentError as error:
        raise click.UsageError(f"--setting: {error}") from None
    try:
        peer = open_peer(
            options,
            peer_id,
            peers,
            data,
            url=url,
            publisher_url=publish or _any_port(url),
            public_host=None if own is None or publish else host_of(own),
        )
    except TransportError as error:
        raise AddressError(str(error)) from error
    return event_loops.run(_serve(peer, None if metrics_port is None else (metrics_host, metrics_port)))


def _check_exposure(*urls: str | None) -> None:
    """Raises click's UsageError if other machines reach one of these."""
    for url in urls:
        if url is not None and not is_local(host_of(url)):
            raise click.UsageError(
                f"everybody who can reach {url} could read the log, append to it, and change its members: give keys to "
                "those who may with --curve-keys, or say --insecure if that is meant"
            )


def _any_port(url: str) -> str:
    return f"{url.rpartition(':')[0]}:*"


def _collect_seldom() -> None:
    """Of this process, which is the command's own: what it has imported stays, and peers leave few cycles behind."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)


async def _serve(peer: RaftPeer, metrics: tuple[str, int] | None) -> int:
    stop = asyncio.Event()
    handle_signals({"SIGTERM": stop.set, "SIGINT": stop.set})
    try:
        await peer.start()
    except TransportError as error:
        raise AddressError(str(error)) from error
    page, metrics_url = MetricsPage(partial(render, peer), Readiness(peer.status).why_not_ready), ""
    if metrics is not None:
        try:
            metrics_url = await page.start(*metrics)
        except TransportError as error:
            await peer.close()
            raise AddressError(str(error)) from error
    with contextlib.suppress(OSError):  # nobody reads it; the peer still runs
        print_line(f"listening on {peer.url}")
        if metrics_url:
            print_line(f"metrics at {metrics_url}")
    _collect_seldom()
    waiting = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(peer.ended.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()
    await page.close()
    await peer.close()
    if peer.failure is not None:
        raise peer.failure
    return exits.DONE
