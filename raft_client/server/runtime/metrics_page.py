"""Three pages about a peer over HTTP: ``/metrics``, ``/ready`` and ``/health``.

``/metrics`` is for Prometheus, ``/ready`` for what replaces peers one by one, ``/health`` for what restarts those that
hang.

Sixteen connections at a time; for one more, the oldest goes.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from raft_client._common import event_loops
from raft_client._common.http_server import HttpEndpoint, HttpRequest, HttpResponse
from raft_client.errors import TransportError
from raft_client.server.runtime.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client.server.node.status import NodeStatus

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


_CONNECTIONS: Final = 16

logger: Final = logging.getLogger("raft_client.server")


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
            return HttpResponse(self._render(), content_type=CONTENT_TYPE)
        if request.path not in ("/health", "/ready"):
            return HttpResponse(
                b"The figures are at /metrics; there are /health and /ready, too\n", HTTPStatus.NOT_FOUND, CONTENT_TYPE
            )
        why_not_ready = self._why_not_ready()
        is_well = not why_not_ready or request.path == "/health"  # that there is an answer is what it says
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return HttpResponse(f"{why_not_ready or 'ready'}\n".encode(), status, CONTENT_TYPE)
