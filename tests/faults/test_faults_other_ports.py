"""Ports where something else than MQTT is spoken, with both shells and drivers: the error asks about the port."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.keys import Certificates
from support.shells import Shell

from statestore_client import ConnectionLostError

#: What they say at once, whatever they hear; taken from nginx 1.22 and OpenSSH 9.2, and an end without a word.
ANSWERS = {
    "nginx": b"HTTP/1.1 400 Bad Request\r\nServer: nginx/1.22.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
    "nothing": b"",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("other-ports"))


@asynccontextmanager
async def saying(answer: bytes, certificates: Certificates | None):
    """A port that answers the first bytes so, and hangs up."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        writer.close()

    context = None if certificates is None else certificates.server_context()
    async with await asyncio.start_server(meet, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_port_that_speaks_something_else(
    shell: Shell, certificates: Certificates, answer: str, with_tls: bool
) -> None:
    """The error about a port that speaks something else asks whether it is an MQTT port, with or without TLS."""
    async with saying(ANSWERS[answer], certificates if with_tls else None) as port:
        url = f"mqtts://127.0.0.1:{port}" if with_tls else f"mqtt://127.0.0.1:{port}"
        trust = {"tls_ca_file": certificates.ca_file} if with_tls else {}
        kind = "with" if with_tls else "without"
        with pytest.raises(ConnectionLostError, match=rf"is this an MQTT port\? It must be one for MQTT 5 {kind} TLS"):
            await asyncio.wait_for(shell.client(url, **trust).open(), 20)


@pytest.fixture
def web_port(tmp_path: Path) -> Iterator[int]:
    """A web server that waits for the end of a line, which never comes."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.daemon_threads = True
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


async def test_a_web_server_that_waits(shell: Shell, web_port: int) -> None:
    """The time-out at a silent web server, which looks like a slow broker, asks the same."""
    with pytest.raises(ConnectionLostError, match=r"is this an MQTT port\?"):
        await asyncio.wait_for(shell.client(f"mqtt://127.0.0.1:{web_port}", connect_timeout=1).open(), 20)
