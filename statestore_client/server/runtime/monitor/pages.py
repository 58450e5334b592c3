"""The pages of the monitor: what its files are, and what a viewer asks for beside the stream."""

from __future__ import annotations

import json
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from raft_client._common.http_requests import HttpRequest
from statestore_client.errors import InvalidArgumentError
from statestore_client.server.runtime.monitor.access import Viewer
from statestore_client.server.runtime.observability.http_endpoint import HttpResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore_client.server.runtime.monitor.access import MonitorAccess
    from statestore_client.server.runtime.monitor.actions import Actions
    from statestore_client.server.runtime.monitor.monitor import Monitor
    from statestore_client.server.runtime.monitor.questions import Question

__all__ = ["HEADERS", "MonitorPages", "page_files"]

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
    """Answers requests; see :class:`~statestore_client.server.runtime.observability.http_endpoint.HttpEndpoint`."""

    def __init__(
        self,
        monitor: Monitor,
        access: MonitorAccess,
        questions: Mapping[str, Question],
        actions: Actions | None,
    ) -> None:
        """Without ``actions`` nobody changes anything."""
        self._monitor = monitor
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
            return self._monitor.stream(viewer)
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
