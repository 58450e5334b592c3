"""Three pages: ``/metrics`` for Prometheus, ``/ready`` for load balancers, ``/health`` for what restarts servers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from statestore_client.clocks import monotonic
from statestore_client.server.runtime.observability.http_endpoint import HttpResponse
from statestore_client.server.runtime.observability.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client._common.http_requests import HttpRequest

__all__ = ["MetricsPages"]

#: An answer is as good as new for this long: asking all the time costs little.
_FRESH_S: Final = 0.05


class MetricsPages:
    """Answers requests; see :class:`~.http_endpoint.HttpEndpoint`."""

    def __init__(self, render: Callable[[], bytes], is_ready: Callable[[], bool]) -> None:
        """``is_ready``: whether clients had better come here than elsewhere."""
        self._render = render
        self._is_ready = is_ready
        self._page = b""
        self._rendered_at = float("-inf")

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """What is at this path."""
        match request.path:
            case "/metrics":
                return _page(HTTPStatus.OK, self._figures())
            case "/health":  # that there is an answer is what it says
                return _page(HTTPStatus.OK, b"ready\n" if self._is_ready() else b"stands by\n")
            case "/ready" if self._is_ready():
                return _page(HTTPStatus.OK, b"ready\n")
            case "/ready":
                return _page(HTTPStatus.SERVICE_UNAVAILABLE, b"stands by\n")
            case _:
                return _page(HTTPStatus.NOT_FOUND, b"The figures are at /metrics; there are /health and /ready, too\n")

    def _figures(self) -> bytes:
        """A moment old at most."""
        now = monotonic()
        if now - self._rendered_at > _FRESH_S:
            self._page, self._rendered_at = self._render(), now
        return self._page


def _page(status: HTTPStatus, body: bytes = b"") -> HttpResponse:
    return HttpResponse(body, status, CONTENT_TYPE)
