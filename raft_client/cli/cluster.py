"""``zmqraft config | info | add-peer | remove-peer | transfer | trim | snapshot``: what is asked of the peers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, print_json, print_line, print_table, warn
from raft_client.cli.options import Index, connection_options, open_client
from raft_client.core.calls import ClusterConfig, LogInfo, TakenSnapshot
from raft_client.errors import ClusterBusyError, InvalidArgumentError, NoLeaderError, RaftError, TransportError
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.configuration import Peer, is_tcp_url

_json = click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
#: A peer that is up answers at once; who asks for all of them does not want to wait for the dead ones.
_PEER_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.05


@click.command("config")
@_json
@connection_options
def config(*, json_output: bool, settings: RaftSettings) -> int:
    """Print the peers of the cluster. Each line is ID URL, with a star after the leader."""
    with open_client(settings) as client:
        _print_config(client.config(), json_output)
    return exits.DONE


def _print_config(found: ClusterConfig, json_output: bool) -> None:
    if json_output:
        peers = [attrs.asdict(peer) for peer in found.peers]
        print_json({"leader_id": found.leader_id, "leader_url": found.leader_url, "peers": peers})
        return
    for peer in found.peers:
        print_line(peer.id, peer.url, *(["*"] if peer.id == found.leader_id else []))


# -- the logs of the peers ---------------------------------------------------------------------------------------------


@click.command("info")
@click.argument("peers", nargs=-1, metavar="[PEER]...")
@_json
@connection_options
def info(peers: tuple[str, ...], *, json_output: bool, settings: RaftSettings) -> int:
    """Print the state of the log of each PEER, or of all peers. PEER is an id or a URL.

    Works without a leader, too. Exit code 1 when a peer does not answer.
    """
    client = open_client(settings)
    try:
        known = known_members(client)
        wanted = [member_named(name, known) for name in peers] or known
        with ThreadPoolExecutor(len(wanted)) as pool:
            answers = list(pool.map(lambda peer: _ask(client, peer), wanted))
    finally:
        client.close()
    found = list(zip(wanted, answers, strict=True))
    _print_info(found, json_output)
    return exits.DONE if all(answers) else exits.NEGATIVE


def known_members(client: RaftClient) -> list[Peer]:
    """The peers of the cluster; without a leader, as any peer knows it; and if none answers, the seeds."""
    timeout = min(client.settings.request_timeout, _PEER_TIMEOUT_S)
    try:
        return list(client.open(timeout=timeout).config(timeout=timeout).peers)
    except NoLeaderError:
        warn("no leader; this is what each peer says")
    return [Peer(name, url) for name, url in client.peers.items()] or [Peer("?", url) for url in client.settings.seeds]


def member_named(name: str, known: Iterable[Peer]) -> Peer:
    """The one of them with this id or URL, or a stranger at this URL. Raises InvalidArgumentError."""
    found = next((peer for peer in known if name in (peer.id, peer.url)), None)
    if found is None and "://" not in name:
        raise InvalidArgumentError(f"there is no peer {name!r}; there are {', '.join(p.id for p in known)}")
    return found or Peer("?", name)


def _ask(client: RaftClient, peer: Peer) -> LogInfo | None:
    try:
        return client.log_info(peer.url, timeout=min(client.settings.request_timeout, _PEER_TIMEOUT_S))
    except TransportError:
        return None


#: Heading of the table -> field of LogInfo.
_FIGURES: Final = {
    "term": "current_term",
    "first": "first_index",
    "applied": "last_applied",
    "committed": "commit_index",
    "last": "last_index",
    "snapshot_bytes": "snapshot_bytes",
    "prunable": "prune_index",
}


def _print_info(found: list[tuple[Peer, LogInfo | None]], json_output: bool) -> None:
    if json_output:
        for peer, answer in found:
            print_json(attrs.asdict(peer) | {"answered": answer is not None} | _figures(answer))
        return
    rows = [["peer", "url", "role", *_FIGURES]]
    for peer, answer in found:
        numbers = _figures(answer)
        role = "no answer" if answer is None else "leader" if answer.is_leader else "follower"
        rows.append([peer.id, peer.url, role, *(str(numbers.get(field, "")) for field in _FIGURES.values())])
    print_table(rows, left=3)


def _figures(answer: LogInfo | None) -> dict[str, Any]:
    return {} if answer is None else attrs.asdict(answer)


@click.command("ping")
@click.option("--wait", type=Seconds(min=0), help="Keep trying for this time, while a cluster starts.")
@_json
@connection_options
def ping(*, wait: float | None, json_output: bool, settings: RaftSettings) -> int:
    """Send one request to the leader. Print its URL and the time. Exit code 4 if no leader answers."""
    with open_client(settings if wait is None else settings.evolve(request_timeout=max(wait, _POLL_S))) as client:
        asked = time.monotonic()
        url = client.config().leader_url
        answered_ms = (time.monotonic() - asked) * 1000
    if json_output:
        print_json({"url": url, "answered_ms": round(answered_ms, 3)})
    else:
        print_line(url or "?", f"answered in {answered_ms:.2f} ms")
    return exits.DONE


# -- membership --------------------------------------------------------------------------------------------------------


@click.command("add-peer")
@click.argument("peer_id")
@click.argument("url")
@_json
@connection_options
def add_peer(peer_id: str, url: str, *, json_output: bool, settings: RaftSettings) -> int:
    """Add the peer PEER_ID to the cluster. Print the new list of peers. URL is tcp://, an IP address, and a port.

    Start the peer first: it waits until it is a member. Exit code 1 if it is one already.
    """

    if not is_tcp_url(url):
        raise click.UsageError(f"a peer's URL is tcp://ADDRESS:PORT, as tcp://10.0.0.1:8047, and not {url!r}")

    def with_it(peers: tuple[Peer, ...]) -> tuple[Peer, ...] | None:
        if any(peer.id == peer_id or peer.url == url for peer in peers):
            warn(f"{peer_id} at {url} is not new: the cluster has {_names(peers)}")
            return None
        return (*peers, Peer(peer_id, url))

    with open_client(settings) as client:
        return _change(client, with_it, json_output)


@click.command("remove-peer")
@click.argument("peer_id")
@_json
@connection_options
def remove_peer(peer_id: str, *, json_output: bool, settings: RaftSettings) -> int:
    """Remove the peer PEER_ID from the cluster. Print the new list of peers. Stop its process afterwards, and if the
    peers have keys, remove PEER_ID.key from the directory of each.

    Exit code 1 when there is no such peer.
    """

    def without_it(peers: tuple[Peer, ...]) -> tuple[Peer, ...] | None:
        rest = tuple(peer for peer in peers if peer.id != peer_id)
        if len(rest) == len(peers):
            warn(f"there is no peer {peer_id!r}; the cluster has {_names(peers)}")
            return None
        if not rest:
            raise InvalidArgumentError(f"{peer_id} is the only peer; a cluster cannot be without one")
        return rest

    with open_client(settings) as client:
        return _change(client, without_it, json_output)


def _change(client: RaftClient, edit: Callable[[tuple[Peer, ...]], tuple[Peer, ...] | None], json_output: bool) -> int:
    """Returns when the new list alone is in force: until then the cluster reports the old peers and the new ones.

    So only a list that was read while no change is under way may be edited, and when one came in between, it has to be
    read again.
    """
    deadline = time.monotonic() + client.settings.request_timeout
    while True:
        left = max(_POLL_S, deadline - time.monotonic())
        wanted = edit(client.config(settled=True, timeout=left).peers)
        if wanted is None:
            return exits.NEGATIVE
        try:
            client.update_config(wanted, wait=False, timeout=left)
            break
        except ClusterBusyError as error:
            if error.may_have_been_applied or time.monotonic() >= deadline:
                raise
    while (found := client.config()).peers != wanted and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # peers do not tell when a change of the configuration is complete: one has to ask
    if found.peers != wanted:
        warn("the cluster has taken the list, but it is not in force yet")
    _print_config(found, json_output)
    return exits.DONE


def _names(peers: Iterable[Peer]) -> str:
    return ", ".join(f"{peer.id} at {peer.url}" for peer in peers)


# -- leadership --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_errors_are_logged() -> Iterator[None]:
    logger = logging.getLogger("raft_client")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@click.command("transfer")
@click.argument("peer_id", required=False)
@_json
@connection_options
def transfer(peer_id: str | None, *, json_output: bool, settings: RaftSettings) -> int:
    """Make the peer PEER_ID the leader, or any other than now. Print the peers of the cluster as config does.

    Returns when it leads, before its machine is taken away for example. Exit code 3 when it did not take over.
    """
    with _only_errors_are_logged(), open_client(settings) as client:  # a leader that is lost is what was asked for
        client.transfer_leadership(peer_id)
        _print_config(client.config(), json_output)
    return exits.DONE


# -- trim and snapshot -------------------------------------------------------------------------------------------------


_HEADING: Final = ["peer", "url", "up_to", "bytes"]


@click.command("snapshot")
@click.argument("peers", metavar="[PEER]...", nargs=-1)
@_json
@connection_options
def snapshot(peers: tuple[str, ...], *, json_output: bool, settings: RaftSettings) -> int:
    """Make snapshots of the state machines of PEERs, or of all. PEER is an id or a URL. Print what each peer has.

    A snapshot takes the place of the log before it when no request id there can be repeated any more, 8 hours later as
    a rule. Meanwhile no other one is made, and this prints the one that waits. Exit code 1 when a peer made none.
    """
    with open_client(settings) as client:
        known = known_members(client)
        wanted = [member_named(name, known) for name in peers] or known
        with ThreadPoolExecutor(len(wanted)) as pool:
            taken = list(pool.map(lambda peer: _take_snapshot_of(client, peer), wanted))
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


def _take_snapshot_of(client: RaftClient, peer: Peer) -> TakenSnapshot | RaftError:
    try:
        return client.take_snapshot(peer.url)
    except RaftError as error:
        return error


@click.command("trim")
@click.argument("index", type=Index())
@_json
@connection_options
def trim(index: int, *, json_output: bool, settings: RaftSettings) -> int:
    """Drop the entries up to INDEX at all peers. Print the highest index that was named so far.

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
