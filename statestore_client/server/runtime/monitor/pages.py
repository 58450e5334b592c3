"""The pages of the monitor: what its files are, and what a viewer asks for beside the stream."""

from __future__ import annotations

import json
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import attrs

from raft_client._common.http_server import HttpRequest, HttpResponse
from statestore_client.errors import InvalidArgumentError
from statestore_client.server.runtime.monitor.access import MonitorAccess, Viewer
from statestore_client.server.runtime.security.security import Security

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from statestore_client.server.runtime.monitor.api import MonitorCommands, Question

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Nothing from elsewhere, nothing inline: what peers have sent can be no script, whatever mistake the page makes.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
#: Of every answer.
HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


def page_files() -> dict[str, HttpResponse]:
    """Path -> what is there."""
    folder = files(__package__) / "page"
    found = {
        f"/{entry.name}": HttpResponse(entry.read_bytes(), content_type=_TYPES[entry.name.rpartition(".")[2]])
        for entry in folder.iterdir()
        if entry.name.rpartition(".")[2] in _TYPES
    }
    return found | {"/": found["/index.html"]}


class MonitorPages:
    """Answers requests; see :class:`~raft_client._common.http_server.HttpEndpoint`."""

    def __init__(
        self,
        stream: Callable[[Viewer], HttpResponse],
        access: MonitorAccess,
        questions: Mapping[str, Question],
        actions: MonitorCommands | None,
    ) -> None:
        """Without ``actions`` nobody changes anything."""
        self._stream = stream
        self._access = access
        self._questions = questions
        self._actions = actions
        self._files = page_files()

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """What is at this path, for those who may see it."""
        viewer = await self._access.admit(request)
        response = viewer if isinstance(viewer, HttpResponse) else self._respond(request, viewer)
        return attrs.evolve(response, headers=(*HEADERS, *response.headers))

    def _respond(self, request: HttpRequest, viewer: Viewer) -> HttpResponse:
        if request.path == "/events":
            return self._stream(viewer)
        if request.path == "/actions" or request.path in self._questions:
            return self._answer(request, viewer)
        return self._files.get(request.path) or HttpResponse(b"There is no such page\n", HTTPStatus.NOT_FOUND)

    def _answer(self, request: HttpRequest, viewer: Viewer) -> HttpResponse:
        """In JSON; what is wrong with the question as ``error``."""
        try:
            if request.path != "/actions":
                return _json(self._questions[request.path](request.query, viewer))
            if self._actions is None:
                return _json({"error": "this monitor only looks (--monitor-actions)"}, HTTPStatus.FORBIDDEN)
            if request.method != "POST" or not _is_own(request):
                return _json({"error": "actions are for the page itself"}, HTTPStatus.FORBIDDEN)
            return _json(self._actions.carry_out(request.body, viewer, request.peer))
        except InvalidArgumentError as error:
            return _json({"error": error.message}, HTTPStatus.BAD_REQUEST)


def _is_own(request: HttpRequest) -> bool:
    """Whether it comes from this page: a browser lets no other one send JSON here, and names the one that asks."""
    host = urlsplit(request.headers.get("origin", "")).netloc
    is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    return is_json and host == request.headers.get("host")


def _json(answer: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(json.dumps(answer, separators=(",", ":")).encode(), status, "application/json")


# -- replay ------------------------------------------------------------------------------------------------------------
#
# A recording of the monitor, shown by the same page.
#
# A recording has one line for each message, in the order in which they came: ``{"kind": "hello", "message": {...}}``.
# It begins with a ``hello``, and has another one for each time the recorder had to connect again.


#: Of a recording: some days of a calm server. A browser has all of it in its memory.
MOST_BYTES: Final = 128 * 1024 * 1024

_KINDS: Final = ("hello", "tick")


@attrs.frozen(eq=False)
class ReplayPages:
    """Answers requests; see :class:`~raft_client._common.http_server.HttpEndpoint`."""

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
