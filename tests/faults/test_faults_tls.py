"""TLS, with both shells: the proxy has the certificate, the embedded server is behind it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from support.keys import Certificates
from support.proxy import Proxy
from support.shells import Shell

from statestore_client import ConnectionLostError, SettingsError, TransportError
from statestore_client.server import EmbeddedServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("tls"))


async def test_everything_works_over_tls(shell: Shell, server: EmbeddedServer, certificates: Certificates) -> None:
    """Small and large answers, pipelines and watches work over TLS, and no decrypted bytes are left unread."""
    async with (
        Proxy(server.port, tls=certificates.server_context()) as proxy,
        shell.client(proxy.url, tls_ca_file=certificates.ca_file) as store,
        store.watch("k", max_queued=10_000) as events,
    ):
        await store.set_many((f"k{i}", b"x" * 100) for i in range(2000))
        items = await store.get_many([f"k{i}" for i in range(2000)], timeout=10)
        assert all(item.value == b"x" * 100 for item in items)
        large = bytes(range(256)) * 8192
        for i in range(3):
            await store.set("k", large + b"%d" % i, timeout=10)
            assert (await events.get(timeout=10)).value == large + b"%d" % i
        for i in range(300):
            await store.set("k", b"%d" % i, timeout=5)
        assert [(await events.get(timeout=5)).value for _ in range(300)] == [b"%d" % i for i in range(300)]


async def test_a_cut_over_tls_is_bridged(shell: Shell, server: EmbeddedServer, certificates: Certificates) -> None:
    """After a cut over TLS each request is applied once."""
    async with Proxy(server.port, tls=certificates.server_context()) as proxy:
        proxy.cuts = [(None, 3000)]
        store = shell.client(proxy.url, tls_ca_file=certificates.ca_file)
        await store.open()
        done = await asyncio.gather(*(store.set(f"k{i}", b"", condition="NX", timeout=20) for i in range(50)))
        assert all(d.applied for d in done)
        assert proxy.connections == 2
        await store.close()


async def test_an_unknown_certificate_is_refused(
    shell: Shell, server: EmbeddedServer, certificates: Certificates
) -> None:
    """An unknown certificate is refused at once, and the message names the setting."""
    async with Proxy(server.port, tls=certificates.server_context()) as proxy:
        with pytest.raises(ConnectionLostError, match=r"certificate is not trusted .*tls_ca_file"):
            await asyncio.wait_for(shell.client(proxy.url).open(), 10)


async def test_tls_towards_a_plain_port_is_an_error(shell: Shell, server: EmbeddedServer) -> None:
    """TLS towards a port without TLS is an error."""
    with pytest.raises(TransportError, match="mqtts://"):
        await asyncio.wait_for(shell.client(f"mqtts://127.0.0.1:{server.port}", connect_timeout=3).open(), 10)


async def test_a_silent_handshake_ends_in_time(shell: Shell, server: EmbeddedServer) -> None:
    """A silent TLS handshake ends after connect_timeout, not after the keep-alive."""
    async with Proxy(server.port) as proxy:
        proxy.hold("up", "down")
        began = time.monotonic()
        with pytest.raises(ConnectionLostError):
            await shell.client(proxy.url.replace("mqtt:", "mqtts:"), connect_timeout=0.5).open()
        assert time.monotonic() - began < 4


async def test_files_that_cannot_be_read_are_named(shell: Shell, server: EmbeddedServer, tmp_path: Path) -> None:
    """A certificate file that cannot be read is a SettingsError that names it."""
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for options in ({"tls_ca_file": str(empty)}, {"tls_cert_file": str(empty), "tls_key_file": "/nowhere"}):
        store = shell.client(f"mqtts://127.0.0.1:{server.port}", **options)
        with pytest.raises(SettingsError, match=next(iter(options))):
            await store.open()
