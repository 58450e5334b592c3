"""One request of HTTP/1.1 from a stranger, as RFC 9112 has it: what is none is refused, in whatever pieces it comes."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client._common.hosts import host_of
from raft_client._common.http_server import HttpRequest, RequestReader

MOST = 1000


def read(data: bytes, *, step: int = 10_000) -> HttpRequest | HTTPStatus | None:
    """In pieces."""
    reader = RequestReader(("GET", "HEAD", "POST"), MOST)
    for start in range(0, len(data), step):
        if (found := reader.feed(data[start : start + step], "peer")) is not None:
            return found
    return None


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_request(step: int) -> None:
    """Names are in lower case, values without the spaces around; what follows the body is not looked at."""
    data = (
        b"POST /a%20b?x=1&y=%C3%A9 HTTP/1.1\r\nHost: localhost:8080\r\nX-Two: a\r\nx-two:  b \r\n"
        b"Content-Length: 4\r\n\r\nbody and more"
    )
    assert read(data, step=step) == HttpRequest(
        "POST",
        "/a%20b",
        {"x": "1", "y": "é"},
        {"host": "localhost:8080", "x-two": "a, b", "content-length": "4"},
        b"body",
        "peer",
    )


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.0\r\n\r\n", b"HEAD / HTTP/1.0\n\n", b"GET / HTTP/1.1\r\nHost: [::1]:1\r\n\r\n"]
)
def test_others_that_are_good(data: bytes) -> None:
    """HTTP/1.0 has no Host, and RFC 9112 (2.2) lets a line end with a line feed alone."""
    assert isinstance(read(data), HttpRequest)


@pytest.mark.parametrize(
    "separator", [b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8"]
)
@pytest.mark.attack("HTTP", "bytes that Python takes for the end of a line")
def test_nothing_but_a_line_feed_ends_a_line(separator: bytes) -> None:
    """A page may send what Python takes for the end of a line: it adds no header, and changes none."""
    data = b"GET / HTTP/1.1\r\nX-A: a" + separator + b"Host: localhost" + separator + b"Origin: http://localhost\r\n"
    request = read(data + b"Host: evil.example\r\n\r\n")
    if isinstance(request, HttpRequest):
        assert request.headers["host"] == "evil.example"
        assert set(request.headers) == {"x-a", "host"}
    else:
        assert request is HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost]evil.example\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: [::1]evil.example\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost:80:evil.example\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost:80@evil.example\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\x1c\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\x85\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x01b\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x7fb\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n", 400),
        (b"GET / HTTP/1.1\r\n Host: localhost\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n", 400),
        (b"rubbish\r\n", 400),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n", 405),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * MOST, 431),
    ],
)
@pytest.mark.attack("HTTP", "requests that two readers read differently")
def test_what_is_no_request_is_refused(head: bytes, status: int) -> None:
    """With the status that says what is wrong."""
    assert read(head + b"\r\n") == HTTPStatus(status)


def test_a_body_in_chunks_has_the_same_bound() -> None:
    """Its length is known at its end."""
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = read(head + chunk + b"0\r\n\r\n")
    assert isinstance(request, HttpRequest)
    assert request.body == b"x" * 100
    assert read(head + chunk * 11) is HTTPStatus.REQUEST_ENTITY_TOO_LARGE


@given(st.binary(max_size=200), st.integers(1, 50))
def test_anything_is_answered_or_waited_for(data: bytes, step: int) -> None:
    """Nothing is raised, and nothing becomes a request without the two names that each must have."""
    found = read(data + b"\r\n\r\n", step=step)
    assert found is None or isinstance(found, HTTPStatus) or found.path


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("localhost:1883", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("", None),
        ("localhost:", None),
        ("[::1", None),
        ("::1", None),
        (" localhost", None),
        ("user@localhost", None),
    ],
)
def test_the_host_of_an_authority(authority: str, host: str | None) -> None:
    """The name, if there is nothing around it that another reader could take for one."""
    assert host_of(authority) == host
