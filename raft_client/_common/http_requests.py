"""Reads one HTTP/1.1 request from a stranger, by the parser of h11: what every HTTP door of both packages goes by.

A request is what RFC 9112 says, or it is refused: lines end where the RFC says (not where ``str.splitlines()`` would),
there is one Host, and no header has control characters. What pages and proxies in front of a door believe about a
request, such as which page sent it, is then what the door reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import attrs
import h11

from raft_client._common.hosts import host_of

__all__ = ["HttpRequest", "RequestReader"]

#: C0 and DEL, but for the tab. h11 refuses some of them.
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@attrs.frozen
class HttpRequest:
    """``headers`` have names in lower case; values of one name are joined with commas. ``peer`` is address and port."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: str


class RequestReader:
    """Of one connection. Head and body have ``most`` bytes each."""

    def __init__(self, methods: Collection[str], most: int) -> None:
        self._methods = methods
        self._most = most
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=most)
        self._request: h11.Request | None = None
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._received = 0

    @property
    def is_head(self) -> bool:
        """Whether only the head of an answer is wanted."""
        return self._request is not None and self._request.method == b"HEAD"

    def feed(self, data: bytes, peer: str) -> HttpRequest | HTTPStatus | None:
        """The request, what is wrong with it, or None if more has to come. Call it no more after either."""
        room = 2 * self._most - self._received  # head and body; what comes behind them is not looked at
        self._received += len(data)
        found = self._read(data[:room], peer) if room > 0 else None
        if found is None and len(data) > room:
            has_head = self._request is not None
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if has_head else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        return found

    def _read(self, data: bytes, peer: str) -> HttpRequest | HTTPStatus | None:
        try:
            self._parser.receive_data(data)
            while True:
                event = self._parser.next_event()
                if isinstance(event, h11.Request):
                    self._request = event
                    if (refusal := self._look_at(event)) is not None:
                        return refusal
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > self._most:
                        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                    return self._whole(self._request, peer)
                else:
                    return None  # more has to come, or nothing will
        except h11.RemoteProtocolError as error:
            return HTTPStatus(error.error_status_hint)

    def _look_at(self, request: h11.Request) -> HTTPStatus | None:
        if request.method.decode("ascii") not in self._methods:
            return HTTPStatus.METHOD_NOT_ALLOWED
        for name, value in request.headers:
            if _CONTROLS.search(value):
                return HTTPStatus.BAD_REQUEST
            key, text = name.decode("ascii"), value.decode("latin-1")
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text
        if "host" in self._headers and host_of(self._headers["host"]) is None:
            return HTTPStatus.BAD_REQUEST
        length = self._headers.get("content-length", "0")
        is_too_large = len(length) > len(str(self._most)) or int(length) > self._most
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_too_large else None

    def _whole(self, request: h11.Request, peer: str) -> HttpRequest:
        path, _, query = request.target.decode("latin-1").partition("?")
        return HttpRequest(
            request.method.decode("ascii"), path, dict(parse_qsl(query)), self._headers, bytes(self._body), peer
        )
