"""The figures of a peer for Prometheus, in its text format (version 0.0.4), and the HTTP pages that have them.

``/metrics`` is for Prometheus, ``/ready`` for what replaces peers one by one, ``/health`` for what restarts those that
hang. Sixteen connections at a time; for one more, the oldest goes.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from raft_client._common import event_loops
from raft_client._common.http_server import HttpEndpoint, HttpRequest, HttpResponse
from raft_client.errors import TransportError
from raft_client.server.node.ready import Role
from raft_client.server.runtime.disk import SYNC_BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from raft_client.server.machines.watch_server import WatchServer
    from raft_client.server.node.status import NodeStatus
    from raft_client.server.runtime.peer import RaftPeer

logger: Final = logging.getLogger("raft_client.server")

_CONNECTIONS: Final = 16
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def render(peer: RaftPeer) -> bytes:
    """All of them, now: about seventy lines, and two for each other peer."""
    return "".join(f"{line}\n" for line in _lines(peer)).encode()


def _lines(peer: RaftPeer) -> Iterator[str]:
    status, runner = peer.status(), peer.runner
    roles = {f'role="{role.value}"': int(role is status.role) for role in Role}
    lags = {f'peer="{_escaped(each.peer_id)}"': each.lag for each in status.followers}
    requests = {f'type="{name}"': count for name, count in sorted(peer.requests.items())}
    dropped = {f'reason="{_escaped(reason)}"': count for reason, count in sorted(peer.dropped.items())}
    yield from _metric("role", "1 for the role that the peer has, 0 for the others.", roles)
    yield from _metric("leader_known", "Whether the peer leads, or knows a leader.", int(status.leader_id is not None))
    yield from _metric("term", "The newest term that the peer knows.", status.term)
    yield from _metric("first_index", "The oldest entry in the log.", status.first_index)
    yield from _metric("last_index", "The newest entry in the log.", status.last_index)
    yield from _metric("durable_index", "The newest entry on the disk of the peer.", status.durable_index)
    yield from _metric("commit_index", "The newest entry known to be committed.", status.commit_index)
    yield from _metric("applied_index", "The newest entry that the state machine has applied.", status.applied_index)
    yield from _metric("uncommitted_bytes", "Of entries that a leader has yet to commit.", status.uncommitted_bytes)
    yield from _metric("snapshot_index", "The newest entry that the snapshot replaces, 0: none.", status.snapshot_index)
    yield from _metric("snapshot_bytes", "The length of the snapshot.", status.snapshot_bytes)
    yield from _metric("follower_lag_entries", "Entries that a follower of this leader lacks.", lags)
    yield from _metric("elections_total", "Elections in which the peer stood.", status.elections, "counter")
    yield from _metric("suspicions_total", "Times that the peer asked for votes.", status.suspicions, "counter")
    yield from _metric("sync_peak_seconds", "The longest job of the disk lately.", status.sync_s)
    yield from _metric("lag_peak_seconds", "By which timers of the peer came late lately.", status.lag_s)
    yield from _metric("applied_entries_total", "Entries applied since the start.", runner.applied_entries, "counter")
    yield from _metric("applied_bytes_total", "Their bytes, with headers.", runner.applied_bytes, "counter")
    yield from _metric("restored_snapshots_total", "Snapshots taken over.", runner.restored_snapshots, "counter")
    yield from _metric("requests_total", "Requests of clients and peers that could be read.", requests, "counter")
    yield from _metric("dropped_messages_total", "Messages that were not taken or not answered.", dropped, "counter")
    yield from _watches(runner.watches.server)
    yield from _metric("disk_busy", "Whether the disk has a job.", int(not peer.disk.is_idle))
    yield from _syncs(peer)


def _watches(server: WatchServer | None) -> Iterator[str]:
    """None if the state machine has no keys."""
    if server is None:
        return
    ended = {f'reason="{reason}"': count for reason, count in sorted(server.ended.items())}
    yield from _metric("watches", "Watches of clients.", server.watch_count)
    yield from _metric("watch_sessions", "Clients that watch.", server.session_count)
    yield from _metric("watch_events_total", "Messages with events that were sent.", server.events_sent, "counter")
    yield from _metric("watch_ends_total", "Watches, and clients, that the peer gave up.", ended, "counter")
    yield from _metric("watch_history_bytes", "Of changes that are remembered.", server.history_bytes)
    yield from _metric("watch_oldest_index", "The oldest entry whose changes are remembered.", server.oldest)


def _syncs(peer: RaftPeer) -> Iterator[str]:
    times = peer.disk.sync_times
    counts = list(accumulate(times.counts))
    yield from _head("sync_seconds", "Time of the disk for a job: writing and syncing.", "histogram")
    for bound, count in zip((*map(str, SYNC_BOUNDS_S), "+Inf"), counts, strict=True):
        yield f'zmqraft_sync_seconds_bucket{{le="{bound}"}} {count}'
    yield f"zmqraft_sync_seconds_sum {times.sum_s}"
    yield f"zmqraft_sync_seconds_count {counts[-1]}"


def _metric(name: str, text: str, value: float | Mapping[str, float], kind: str = "gauge") -> Iterator[str]:
    yield from _head(name, text, kind)
    if isinstance(value, (int, float)):
        yield f"zmqraft_{name} {value}"
        return
    for labels, number in value.items():
        yield f"zmqraft_{name}{{{labels}}} {number}"


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP zmqraft_{name} {text}"
    yield f"# TYPE zmqraft_{name} {kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# -- whether the peer has caught up ------------------------------------------------------------------------------------


class Readiness:
    """A peer is ready when it knows a leader and has applied its log.

    Of the log, what was there when it started, and what was committed when it was first asked with a leader: what comes
    later is load, and no reason to call a peer ill.
    """

    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        """``status`` is that of a peer which has just been started."""
        self._status = status
        self._needed = status().last_index
        self._has_seen_leader = False

    def why_not_ready(self) -> str:
        """What the peer waits for, in a line; nothing when it is ready."""
        status = self._status()
        if status.leader_id is None:
            return "no leader is known"
        if not self._has_seen_leader:
            self._has_seen_leader = True
            self._needed = max(self._needed, status.commit_index)
        self._needed = min(self._needed, status.last_index)  # the leader may not have the end of the log
        if status.applied_index < self._needed:
            return f"applied up to {status.applied_index} of {self._needed}"
        return ""


# -- the pages ---------------------------------------------------------------------------------------------------------


class MetricsPage:
    """``render`` gives the figures of now; ``why_not_ready`` what the peer waits for, or nothing when it is ready."""

    def __init__(self, render: Callable[[], bytes], why_not_ready: Callable[[], str]) -> None:
        self._render, self._why_not_ready = render, why_not_ready
        self._endpoint = HttpEndpoint(self._respond, logger, connections=_CONNECTIONS)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; the URL, where port 0 has become a number. Raises TransportError."""
        try:
            self._server = await asyncio.get_running_loop().create_server(self._endpoint, host, port)
        except OSError as error:
            raise TransportError(f"cannot listen at {host}:{port} for metrics: {error}") from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{bound}/metrics"

    async def close(self) -> None:
        """Nobody is answered any more."""
        if self._server is not None:
            await event_loops.stop_accepting(self._server)
        self._endpoint.close()

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/metrics":
            return HttpResponse(self._render(), content_type=_CONTENT_TYPE)
        if request.path not in ("/health", "/ready"):
            return HttpResponse(
                b"The figures are at /metrics; there are /health and /ready, too\n", HTTPStatus.NOT_FOUND, _CONTENT_TYPE
            )
        why_not_ready = self._why_not_ready()
        is_well = not why_not_ready or request.path == "/health"  # that there is an answer is what it says
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return HttpResponse(f"{why_not_ready or 'ready'}\n".encode(), status, _CONTENT_TYPE)
