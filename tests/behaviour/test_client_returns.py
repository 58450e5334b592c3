"""A client always comes back: from refusals that are taken back, bad files and clocks, and an open() that failed.

With both shells and both drivers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from support.keys import Certificates
from support.ports import reserved_port
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    BusyError,
    ClosedError,
    ConnectionLostError,
    ConnectionState,
    ConnectRefusedError,
    InvalidArgumentError,
    RequestTimeoutError,
    SettingsError,
    StateStoreError,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.runtime.security.passwords import remove_user, set_password

FAST = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.05}
PUMP = {"username": "pump", "password": "right"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("returns-tls"))


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


class Told:
    """What ``on_state`` is called with."""

    def __init__(self) -> None:
        self.errors: list[StateStoreError] = []
        self.states: list[ConnectionState] = []

    def __call__(self, state: ConnectionState, error: StateStoreError | None) -> None:
        self.states.append(state)
        if error is not None:
            self.errors.append(error)

    def count(self, text: str) -> int:
        return sum(text in str(error) for error in self.errors)


async def refused_meanwhile(store: Any, told: Told, why: str) -> None:
    """Some attempts fail for this reason, and the client goes on; its calls wait, and say why."""
    await until(lambda: told.count(why) >= 3, f"three failures because of {why}; {told.errors}")
    assert why in store.trouble
    with pytest.raises(RequestTimeoutError, match=why.replace("(", r"\(").replace(")", r"\)")):
        await store.get("k", timeout=0.01)


# -- what is taken back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["first", "later"])
async def test_a_user_data_base_that_is_away(shell: Shell, tmp_path: Path, moment: str) -> None:
    """While the broker's user data base is away, a right password is refused; the client goes on until it is back."""
    users, told = tmp_path / "users", Told()
    set_password(users, "pump", b"right")
    options = {"retry_first_connect": moment == "first", "on_state": told, **FAST, **PUMP}
    with EmbeddedServer(passwords=users) as server:
        async with Proxy(server.port) as proxy:
            store = shell.client(proxy.url, **options)
            if moment == "later":
                await store.open()
            remove_user(users, "pump")
            proxy.cut()
            await store.open(wait=False)
            await refused_meanwhile(store, told, "bad user name or password")
            set_password(users, "pump", b"right")
            assert (await store.set("k", "1", timeout=20)).applied
            assert ConnectionState.CLOSED not in told.states
            await store.close()


@pytest.mark.parametrize("content", [None, "", "wrong"])
async def test_a_password_file_that_is_being_replaced(shell: Shell, tmp_path: Path, content: str | None) -> None:
    """A password file that is away, empty or half written just then is read again at the next try."""
    secret, told = tmp_path / "secret", Told()
    secret.write_text("right")
    options = {"username": "pump", "password_file": str(secret), "on_state": told, **FAST}
    with EmbeddedServer(passwords={"pump": "right"}) as server:
        async with Proxy(server.port) as proxy, shell.client(proxy.url, **options) as store:
            secret.unlink()
            if content is not None:
                secret.write_text(content)
            proxy.cut()
            await refused_meanwhile(
                store, told, "bad user name or password" if content is not None else "cannot be read"
            )
            secret.write_text("right")
            assert (await store.set("k", "1", timeout=20)).applied


@pytest.mark.parametrize("moment", ["first", "later"])
@pytest.mark.parametrize("flaw", ["not valid yet", "out of date"])
async def test_a_certificate_that_is_renewed(
    shell: Shell, server: EmbeddedServer, certificates: Certificates, flaw: str, moment: str
) -> None:
    """A broker whose certificate is out of date, or for this machine's clock not valid yet, is tried again until it is
    renewed, or the clock is right."""
    past = datetime(2020, 1, 1, tzinfo=UTC)
    times = {"not_before": past, "not_after": past.replace(year=2021)}
    if flaw == "not valid yet":
        times = {"not_before": past.replace(year=2080), "not_after": past.replace(year=2081)}
    good = (certificates.server_file, certificates.server_key_file)
    bad = certificates.issue("bad-server", "127.0.0.1", **times)
    context, told = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), Told()
    context.load_cert_chain(*(bad if moment == "first" else good))
    options = {"tls_ca_file": certificates.ca_file, "on_state": told, "retry_first_connect": True, **FAST}
    async with Proxy(server.port, tls=context) as proxy:
        store = shell.client(proxy.url, **options)
        await store.open(wait=moment == "later")
        context.load_cert_chain(*bad)
        proxy.cut()
        await refused_meanwhile(store, told, flaw)
        context.load_cert_chain(*good)
        assert (await store.set("k", "1", timeout=20)).applied
        await store.close()


async def test_tls_files_are_read_again(
    shell: Shell, server: EmbeddedServer, certificates: Certificates, tmp_path: Path
) -> None:
    """A file of authorities that is away, or empty, while the client connects again is read at the next try."""
    ca, told, text = tmp_path / "ca.pem", Told(), certificates.ca_text
    ca.write_text(text)
    async with (
        Proxy(server.port, tls=certificates.server_context()) as proxy,
        shell.client(proxy.url, tls_ca_file=str(ca), on_state=told, **FAST) as store,
    ):
        for change in (ca.unlink, lambda: ca.write_text("")):
            told.errors.clear()
            change()
            proxy.cut()
            await refused_meanwhile(store, told, "tls_ca_file")
            ca.write_text(text)
            assert (await store.set("k", "1", timeout=20)).applied


async def test_on_state_may_end_it(shell: Shell) -> None:
    """A program that wants to give up closes the client in ``on_state``; what waits gets ClosedError."""
    with EmbeddedServer(passwords={"pump": "other"}) as server:
        stores: list[Any] = []

        def on_state(_state: ConnectionState, error: StateStoreError | None) -> Any:
            if isinstance(error, ConnectRefusedError):
                return stores[0].close()  # which the asyncio client awaits
            return None

        store = shell.client(server.url, on_state=on_state, **FAST, **PUMP)
        stores.append(getattr(store, "target", store))
        await store.open(wait=False)
        with pytest.raises(ClosedError):
            await store.get("k", timeout=20)
        await store.close()


async def test_wrong_classes_to_give_up_on(shell: Shell) -> None:
    """``give_up_on`` takes classes of errors of this package, alone or in a tuple."""
    for wrong in (OSError, "fatal", [ConnectRefusedError], (ConnectRefusedError, None), lambda _error: True):
        with pytest.raises(InvalidArgumentError, match="give_up_on must be a class of errors"):
            shell.client("mqtt://127.0.0.1", give_up_on=wrong)
    for right in (ConnectRefusedError, (), (SettingsError, ConnectRefusedError)):
        shell.client("mqtt://127.0.0.1", give_up_on=right)


# -- open() again ------------------------------------------------------------------------------------------------------


async def test_open_tries_again(shell: Shell) -> None:
    """After open() has failed, the next one really tries: it meets the new reason, and then the server."""
    port = reserved_port()
    store = shell.client(f"mqtt://127.0.0.1:{port}", **PUMP)
    lock = store.lock("l", lease=5)
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="connection refused"):
            await store.open()
    with EmbeddedServer(port=port, passwords={"pump": "other"}), pytest.raises(ConnectRefusedError, match="password"):
        await store.open()
    with EmbeddedServer(port=port, passwords={"pump": "right"}):
        await store.open()
        assert (await store.set("k", "1")).applied
        async with store.watch("k") as events, lock as lease:
            await store.set("k", "2", fencing_token=lease.fencing_token)
            assert (await events.get(timeout=5)).value == b"2"
        await store.close()
        with pytest.raises(ClosedError):
            await store.open()


async def test_a_with_block_tries_again(shell: Shell) -> None:
    """The same client may be entered again after entering failed; a client that was left is closed."""
    port = reserved_port()
    store = shell.client(f"mqtt://127.0.0.1:{port}")
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="connection refused"):
            async with store:
                pytest.fail("it cannot be entered")
    with EmbeddedServer(port=port):
        async with store:
            assert (await store.set("k", "1")).applied
    with pytest.raises(ClosedError):
        await store.open()


async def test_closing_after_a_failed_open_is_for_good(shell: Shell) -> None:
    """close() is the end also of a client that had ended before."""
    store = shell.client(f"mqtt://127.0.0.1:{reserved_port()}")
    with pytest.raises(ConnectionLostError):
        await store.open()
    await store.close()
    with pytest.raises(ClosedError, match="make a new one"):
        await store.open()


async def test_open_again_over_an_applications_connection(shell: Shell, server: EmbeddedServer) -> None:
    """Over paho as well; a with block that failed leaves the paho client to others, and takes it again."""
    paho = Client(CallbackAPIVersion.VERSION2, client_id="app", protocol=MQTTProtocolVersion.MQTTv5)
    store = shell.over(paho, connect_timeout=0.05)
    with pytest.raises(ConnectionLostError, match="did not connect within"):
        await store.open()
    with pytest.raises(ConnectionLostError, match="did not connect within"):
        async with store:
            pytest.fail("it cannot be entered")
    other = shell.over(paho)
    with pytest.raises(BusyError, match="shared already"):
        await store.open()
    await other.close()
    paho.connect(server.host, server.port)
    paho.loop_start()
    try:
        async with store:
            assert (await store.set("k", "1", timeout=20)).applied
    finally:
        paho.disconnect()
        paho.loop_stop()


# -- in the background -------------------------------------------------------------------------------------------------


async def test_connecting_in_the_background(shell: Shell) -> None:
    """open(wait=False) returns at once; calls wait for their time-out, state and trouble tell how it stands, and
    another open() waits until the server is there."""
    port = reserved_port()
    store = shell.client(f"mqtt://127.0.0.1:{port}", **FAST)
    began = time.monotonic()
    assert await store.open(wait=False) is store
    assert time.monotonic() - began < 5
    assert store.state is ConnectionState.CONNECTING
    await until(lambda: "connection refused" in store.trouble)
    with pytest.raises(RequestTimeoutError, match=r"not connected .*connection refused"):
        await store.get("k", timeout=0.05)
    with pytest.raises(RequestTimeoutError, match="not connected to"):
        await store.open(timeout=0.05)
    waiting = asyncio.ensure_future(store.set("k", "1", timeout=20))
    with EmbeddedServer(port=port):
        assert (await waiting).applied
        await store.open(timeout=20)
        assert store.trouble is None
        await store.close()
    assert store.trouble == "closed"


async def test_entering_what_connects_in_the_background(shell: Shell) -> None:
    """A client that was opened in the background is entered at once, and closed when the block is left."""
    store = shell.client(f"mqtt://127.0.0.1:{reserved_port()}", **FAST)
    async with asyncio.timeout(10), await store.open(wait=False) as same:
        assert same.state is ConnectionState.CONNECTING
    assert store.state is ConnectionState.CLOSED


async def test_closing_while_connecting_in_the_background(shell: Shell, server: EmbeddedServer) -> None:
    """close() ends it at once, whatever the attempt waits for: an address, CONNACK, or the next attempt."""
    async with Proxy(server.port) as proxy:
        proxy.hold("up", "down")
        for url in (proxy.url, f"mqtt://127.0.0.1:{reserved_port()}", "mqtt://10.255.255.1:1883"):
            store = shell.client(url, connect_timeout=60, reconnect_delay=30)
            await store.open(wait=False)
            waiting = asyncio.ensure_future(store.get("k", timeout=60))
            await until(lambda store=store: store.stats.requests)
            began = time.monotonic()
            await store.close()
            assert time.monotonic() - began < 10  # what it waits for takes half a minute or more
            with pytest.raises(ClosedError):
                await waiting


async def test_a_wrong_argument_in_the_background_is_logged(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """What ends an attempt that nobody waits for is an ERROR in the log, and calls name it."""
    with EmbeddedServer(passwords={"pump": "other"}) as server:
        store = shell.client(server.url, give_up_on=ConnectRefusedError, **PUMP)
        await store.open(wait=False)
        await until(lambda: any("closed for good" in record.getMessage() for record in caplog.records))
        assert "bad user name or password" in store.trouble
        with pytest.raises(ClosedError, match="bad user name or password"):
            await store.get("k")
        await store.close()


async def test_a_wait_that_is_no_flag(shell: Shell) -> None:
    """``wait`` is True or False."""
    with pytest.raises(InvalidArgumentError, match="wait must be True or False"):
        await shell.client("mqtt://127.0.0.1").open(wait="no")
