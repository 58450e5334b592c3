"""An HTTP server that knows three pages: ``/metrics`` for Prometheus, ``/ready`` for what replaces peers one by one,
``/health`` for what restarts those that hang.

It trusts nobody: a request of 8 KiB at most, five seconds for everything, sixteen connections at a time (for one more,
the oldest goes), one request for each.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from raft_client._common import event_loops
from raft_client._common.http_requests import RequestReader
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


_MAX_REQUEST: Final = 8 * 1024
_TIMEOUT_S: Final = 5.0
_CONNECTIONS: Final = 16


class MetricsPage:
    """``render`` gives the figures of now; ``why_not_ready`` what the peer waits for, or nothing when it is ready."""

    def __init__(self, render: Callable[[], bytes], why_not_ready: Callable[[], str]) -> None:
        self._render, self._why_not_ready = render, why_not_ready
        self._server: asyncio.Server | None = None
        #: In the order in which they came.
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def start(self, host: str, port: int) -> str:
        """Listen; the URL, where port 0 has become a number. Raises TransportError."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            raise TransportError(f"cannot listen at {host}:{port} for metrics: {error}") from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{bound}/metrics"

    async def close(self) -> None:
        """Nobody is answered any more."""
        if self._server is not None:
            await event_loops.stop_accepting(self._server)
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*filter(None, self._open.values()))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _CONNECTIONS:
            next(iter(self._open)).transport.abort()
        self._open[writer] = asyncio.current_task()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                writer.write(await self._answer(reader))
                writer.write_eof()
                await writer.drain()
                await reader.read()  # until the other side closes: otherwise what it still sends resets the answer
        except (OSError, EOFError):
            pass  # it was too slow, or is gone
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        requests = RequestReader(("GET", "HEAD"), _MAX_REQUEST)
        request = None
        while request is None:
            data = await reader.read(_MAX_REQUEST)
            if not data:
                raise EOFError
            request = requests.feed(data, "")
        if isinstance(request, HTTPStatus):
            return _response(request)
        return _response(*self._page(request.path), has_body=not requests.is_head)

    def _page(self, path: str) -> tuple[HTTPStatus, bytes]:
        if path == "/metrics":
            return HTTPStatus.OK, self._render()
        if path not in ("/health", "/ready"):
            return HTTPStatus.NOT_FOUND, b"The figures are at /metrics; there are /health and /ready, too\n"
        why_not_ready = self._why_not_ready()
        is_well = not why_not_ready or path == "/health"  # that there is an answer is what it says
        return HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE, f"{why_not_ready or 'ready'}\n".encode()


def _response(status: HTTPStatus, body: bytes = b"", *, has_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return head + body if has_body else head
