"""A recording of the monitor, shown by the same page.

A recording has one line for each message, in the order in which they came: ``{"kind": "hello", "message": {...}}``. It
begins with a ``hello``, and has another one for each time the recorder had to connect again.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.runtime.monitor.access import MonitorAccess
from statestore_client.server.runtime.monitor.pages import HEADERS, page_files
from statestore_client.server.runtime.observability.http_endpoint import HttpResponse
from statestore_client.server.runtime.security.security import Security

if TYPE_CHECKING:
    from pathlib import Path

    from raft_client._common.http_requests import HttpRequest

__all__ = ["MOST_BYTES", "ReplayPages"]

#: Of a recording: some days of a calm server. A browser has all of it in its memory.
MOST_BYTES: Final = 128 * 1024 * 1024

_KINDS: Final = ("hello", "tick")


@attrs.frozen(eq=False)
class ReplayPages:
    """Answers requests; see :class:`~statestore_client.server.runtime.observability.http_endpoint.HttpEndpoint`."""

    _recording: bytes
    _files: dict[str, HttpResponse] = attrs.field(factory=page_files)
    _access: MonitorAccess = attrs.field(factory=lambda: MonitorAccess(Security(), "127.0.0.1", 0))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises InvalidArgumentError for a file that is not a recording, and names the line."""
        if path.stat().st_size > 2 * MOST_BYTES:
            raise InvalidArgumentError("this file is too large for a recording")
        lines = path.read_bytes().split(b"\n")[:-1]  # what has no end was being written when the recorder was killed
        for number, line in enumerate(lines, 1):
            problem = _problem(line, is_first=number == 1)
            if problem is not None:
                raise InvalidArgumentError(f"line {number} {problem}: this is not a recording of the monitor")
        if not lines:
            raise InvalidArgumentError("there is nothing in it")
        return cls(b"[" + b",".join(lines) + b"]")

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """What is at this path."""
        viewer = await self._access.admit(request)
        response = viewer if isinstance(viewer, HttpResponse) else self._respond(request.path)
        return attrs.evolve(response, headers=(*HEADERS, *response.headers))

    def _respond(self, path: str) -> HttpResponse:
        if path == "/events":  # says that there is nothing live, and never goes on
            return HttpResponse(
                b"event: replay\ndata: {}\n\n", content_type="text/event-stream", opened=lambda _: _gone
            )
        if path == "/recording":
            return HttpResponse(self._recording, content_type="application/json")
        return self._files.get(path) or HttpResponse(b"There is no such page\n", HTTPStatus.NOT_FOUND)


def _gone() -> None:
    pass


def _problem(line: bytes, *, is_first: bool) -> str | None:
    try:
        kind, message = (json.loads(line)[name] for name in ("kind", "message"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return "cannot be read"
    if kind not in _KINDS or not isinstance(message, dict) or not isinstance(message.get("now"), int):
        return "is not a message"
    return "is not the beginning" if is_first and kind != "hello" else None
