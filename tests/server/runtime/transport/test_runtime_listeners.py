"""Several endpoints to one broker: TCP, TLS, WebSocket, Unix sockets; all or none of them open."""

from __future__ import annotations

import errno
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.keys import Certificates
from support.ports import reserved_port
from support.server_clients import Wire
from support.websocket_wire import RawWebSocket

from statestore_client import StateStoreClient
from statestore_client.errors import SettingsError
from statestore_client.mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription
from statestore_client.server import EmbeddedServer, ServerTls

# CONNECT of MQTT 5.0: clean start, keep alive 60, no properties, client identifier "c"
CONNECT = bytes.fromhex("100e00044d5154540502003c00000163")


@pytest.fixture
def path() -> Iterator[Path]:
    """Of a Unix socket; those of pytest's own folders may be longer than the 107 bytes that Linux allows."""
    with tempfile.TemporaryDirectory(prefix="endpoints") as folder:
        yield Path(folder, "mqtt.sock")


def greet(path: Path) -> bytes:
    """Connect through a Unix socket; returns the first bytes of the answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(CONNECT)
        return sock.recv(4)[:1]


def test_one_broker_behind_all_endpoints(tmp_path: Path, path: Path) -> None:
    """A message from any endpoint reaches clients of the others, and the URLs tell where they are."""
    certificates = Certificates(tmp_path)
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    context = ssl.create_default_context(cafile=certificates.ca_file)
    with EmbeddedServer(tls=tls, tls_port=0, ws_port=0, wss_port=0, unix_socket=path) as server:
        endpoints = server._running().endpoints
        assert server.urls == {
            "mqtt": f"mqtt://127.0.0.1:{server.port}",
            "mqtts": f"mqtts://127.0.0.1:{endpoints.tls_port}",
            "ws": f"ws://127.0.0.1:{endpoints.ws_port}/mqtt",
            "wss": f"wss://127.0.0.1:{endpoints.wss_port}/mqtt",
            "unix": f"unix:{path}",
        }
        assert server.url == server.urls["mqtt"]
        with (
            Wire(server) as plain,
            RawWebSocket(endpoints.ws_port or 0) as web,
            RawWebSocket(endpoints.wss_port or 0, tls=context) as secure_web,
        ):
            for name, wire in (("plain", plain), ("web", web), ("secure web", secure_web)):
                wire.connect(name)
                wire.send(Subscribe(1, (Subscription("t", 0),)))
                assert isinstance(wire.receive(), Suback)
            secure_web.send(Publish("t", b"x", 1, packet_id=7))
            assert secure_web.receive() == Puback(7)
            assert all(isinstance(wire.receive(), Publish) for wire in (plain, web, secure_web))
        assert greet(path) == b"\x20"
        with StateStoreClient(server.urls["mqtts"], tls_ca_file=certificates.ca_file) as store:
            assert store.set("k", b"v").applied


def test_the_socket_file_comes_and_goes(path: Path) -> None:
    """A socket file that a killed server left is replaced; one with a listener, and any other file, is not."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with EmbeddedServer(unix_socket=path):
        assert greet(path) == b"\x20"
        with pytest.raises(OSError, match="another server"), EmbeddedServer(unix_socket=path):
            pass
        assert greet(path) == b"\x20"
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(OSError, match="is not a socket"), EmbeddedServer(unix_socket=path):
        pass
    assert path.read_text() == "precious"


def test_all_doors_or_none(path: Path) -> None:
    """When one address is taken, no endpoint is opened."""
    free = reserved_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            EmbeddedServer(free, ws_port=taken.getsockname()[1], unix_socket=path).start()
        with EmbeddedServer(free, unix_socket=path):
            assert greet(path) == b"\x20"


def test_an_address_that_cannot_be_had() -> None:
    """The message about an address names it and says what to do, if the port is taken or the address is not local."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"'127\.0\.0\.1', {port}.* in use; choose another port, or 0") as caught:
            EmbeddedServer(port).start()
    assert caught.value.errno == errno.EADDRINUSE
    # RFC 5737: of documents, never of a machine
    with pytest.raises(OSError, match=r"192\.0\.2\.1.*; this machine has no such address") as caught:
        EmbeddedServer(host="192.0.2.1").start()
    assert caught.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("endpoint", ["tls_port", "wss_port"])
def test_doors_that_need_a_certificate(endpoint: Any) -> None:
    """An endpoint that needs a certificate is refused without one, instead of opened without TLS."""
    with pytest.raises(SettingsError, match="certificate"):
        EmbeddedServer(**{endpoint: 0}).start()
