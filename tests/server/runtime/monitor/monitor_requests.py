"""Requests to the monitor of a server, as a browser makes them."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from statestore_client.server import EmbeddedServer

__all__ = ["act", "answer", "ask", "events_of"]


def _request(
    server: EmbeddedServer, method: str, path: str, user: str | None, headers: dict[str, str], body: bytes | None = None
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(server.monitor_url).netloc, timeout=20)
    if user is not None:
        headers["Authorization"] = "Basic " + b64encode(user.encode()).decode()
    connection.request(method, path, body=body, headers=headers)
    return connection.getresponse()


def ask(server: EmbeddedServer, path: str, user: str | None = None, **headers: str) -> http.client.HTTPResponse:
    """A GET. The stream of events goes on as long as the response is read."""
    return _request(server, "GET", path, user, headers)


def answer(server: EmbeddedServer, path: str, user: str | None = None, **query: str) -> dict[str, Any]:
    """What a question is answered with; ``status`` is that of HTTP."""
    with ask(server, f"{path}?{urlencode(query)}", user) as response:
        return json.load(response) | {"status": response.status}


def act(
    server: EmbeddedServer, action: str, what: str, user: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """An action, with the headers of the page itself unless others are given."""
    own = {"Content-Type": "application/json", "Origin": server.monitor_url}
    body = json.dumps({"action": action, "what": what}).encode()
    with _request(server, "POST", "/actions", user, own if headers is None else headers, body) as response:
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.load(response) if is_json else {}


def events_of(response: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of a stream: names and messages."""
    name = ""
    for line in response:
        word, _, text = line.decode().rstrip("\n").partition(": ")
        if word == "event":
            name = text
        elif word == "data":
            yield name, json.loads(text)
