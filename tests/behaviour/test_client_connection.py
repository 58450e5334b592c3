"""Opening, closing, failing to connect, settings, and requests that take too long, with both shells."""

from __future__ import annotations

import asyncio
import copy
import pickle
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.ports import reserved_port
from support.server_clients import Gate
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    BatchError,
    BusyError,
    ClosedError,
    ConnectionLostError,
    ConnectionSettings,
    ConnectionState,
    ConnectRefusedError,
    HlcTimestamp,
    HybridLogicalClock,
    InvalidArgumentError,
    Lease,
    PickleRefusedError,
    RequestTimeoutError,
    SettingsError,
    StateStoreClient,
    TransportError,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.broker import BrokerLimits


@contextmanager
def listener(answer: bytes = b"", *, close: bool = False) -> Iterator[str]:
    """Something that listens and is no broker: it says ``answer`` to everyone, and hangs up or stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                peer.recv(65536)
                peer.sendall(answer)
                held.append(peer)
                if close:
                    peer.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for peer in held:
            peer.close()


CALLS: list[Callable[[Any], Awaitable[Any]]] = [
    lambda store: store.get("k"),
    lambda store: store.set("k", b""),
    lambda store: store.get_many(["k"]),
    lambda store: store.watch("k").start(),
    lambda store: store.lock("k").acquire(),
    lambda store: store.lock("k").try_acquire(),
    lambda store: store.lock("k").observe().start(),
    lambda store: anext(store.scan("*")),
]


async def test_a_client_that_was_not_opened_says_so(shell: Shell, server: EmbeddedServer) -> None:
    """A request of a client that was not opened raises an error at once, because nobody makes a connection."""
    store = shell.client(server.url)
    for call in CALLS:
        with pytest.raises(BusyError, match="not opened"):
            await call(store)
    with pytest.raises(BusyError, match="not started; use it as"):
        await store.watch("k").get()
    await store.close()


async def test_a_closed_client_says_so(shell: Shell, server: EmbeddedServer) -> None:
    """Every call of a closed client raises ClosedError at once, and closing again is harmless."""
    store, never_opened = shell.client(server.url), shell.client(server.url)
    async with store:
        await store.get("k")
    await never_opened.close()
    for client in (store, store, never_opened):
        for call in (*CALLS, lambda store: store.open(), lambda store: store.open(timeout=1)):
            with pytest.raises(ClosedError, match=r"^the client is closed; make a new one$"):
                await call(client)
        await client.close()


async def test_a_wrong_port_is_an_error_at_once(shell: Shell) -> None:
    """Opening on a port without a server fails at once, names the address and what to check, and closes the client."""
    url = f"mqtt://127.0.0.1:{reserved_port()}"
    store = shell.client(url)
    with pytest.raises(ConnectionLostError, match=f"cannot connect to {url}: .*is the port right") as caught:
        await store.open()
    assert not caught.value.may_have_been_applied
    assert store.state is ConnectionState.CLOSED
    with pytest.raises(ClosedError, match="is the port right"):
        await store.get("k")


async def test_a_host_without_an_address_is_an_error(shell: Shell) -> None:
    """A host name that cannot be resolved, or cannot be a name, is an error."""
    for host in ("nowhere.invalid", "a" * 300, "a..b"):
        with pytest.raises(TransportError, match="mqtt://"):
            await shell.client(ConnectionSettings(host=host)).open()


@pytest.mark.parametrize(
    ("answer", "close"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"", True),
        (b"\x00" * 100, False),
        (b"\xff" * 100, False),
        (b"\x20\x03\x00\x00", False),  # a CONNACK that ends too early
        (b"\x20\x06\x00\x00\x03\x21\x00\x00", False),  # Receive Maximum 0 is a protocol error (MQTT 5.0, 3.2.2.3.3)
    ],
)
async def test_a_server_that_is_no_broker_is_an_error(shell: Shell, answer: bytes, close: bool) -> None:
    """Opening fails with a TransportError in time, whatever a server that is not a broker says."""
    with listener(answer, close=close) as url:
        store = shell.client(url, connect_timeout=0.5)
        with pytest.raises(TransportError):
            await asyncio.wait_for(store.open(), 5)
        await store.close()


async def test_a_server_that_says_nothing_is_an_error(shell: Shell) -> None:
    """Opening fails when no CONNACK comes within connect_timeout."""
    with listener() as url:
        began = time.monotonic()
        with pytest.raises(ConnectionLostError, match=r"did not answer CONNECT within 0.3 s"):
            await shell.client(url, connect_timeout=0.3).open()
        assert 0.25 < time.monotonic() - began < 3


async def test_closing_while_connecting_is_prompt(shell: Shell) -> None:
    """close() does not wait for a broker that does not answer, and a caller that waits in open() gets an error."""
    with listener() as url:
        store = shell.client(url, connect_timeout=30)
        opening = asyncio.ensure_future(store.open())
        await until(lambda: store.state is ConnectionState.CONNECTING and not opening.done())
        await asyncio.wait([opening], timeout=0.1)
        began = time.monotonic()
        await store.close()
        with pytest.raises(ClosedError):
            await asyncio.wait_for(opening, 5)
        assert time.monotonic() - began < 3


async def test_open_gives_up_in_time_and_the_client_connects_later(shell: Shell) -> None:
    """With retry_first_connect, open(timeout) raises while connecting goes on, and a later open() succeeds."""
    port = reserved_port()
    store = shell.client(f"mqtt://127.0.0.1:{port}", retry_first_connect=True)
    began = time.monotonic()
    with pytest.raises(RequestTimeoutError, match=r"within 0\.3 s \(connecting: .*is the port right"):
        await store.open(timeout=0.3)
    assert time.monotonic() - began < 3
    with pytest.raises(RequestTimeoutError, match=r"was not sent: not connected .*is the port right") as caught:
        await store.set("k", b"1", timeout=0.1)
    assert not caught.value.may_have_been_applied
    with EmbeddedServer(port=port):
        await store.open(timeout=10)
        assert (await store.set("k", b"1")).applied
        await store.close()


async def test_a_failed_entry_leaves_nothing_behind(shell: Shell) -> None:
    """When entering a client is interrupted, the client is closed, and no thread, task or socket is left."""
    threads = threading.active_count()
    store = shell.client(f"mqtt://127.0.0.1:{reserved_port()}")
    with pytest.raises(ConnectionLostError):
        async with store:
            pass
    assert store.state is ConnectionState.CLOSED
    await until(lambda: threading.active_count() <= threads + 1)


async def test_two_clients_with_one_id_cannot_live_together(shell: Shell, server: EmbeddedServer) -> None:
    """A client whose id another client uses is taken over, says why, and does not connect again by itself."""
    async with shell.client(server.url, client_id="twin") as one:
        events = await one.watch("k").start()
        async with shell.client(server.url, client_id="twin") as two:
            await until(lambda: one.state is ConnectionState.CLOSED)
            for _ in range(2):
                with pytest.raises(ClosedError, match="another connection uses the same client id"):
                    await one.set("k", b"1")
                with pytest.raises(ConnectionLostError, match="same client id"):
                    await events.get(timeout=1)
            assert (await two.set("k", b"1")).applied
            assert two.state is ConnectionState.CONNECTED
            await one.open()
            assert (await one.set("k", b"1")).applied
            await until(lambda: two.state is ConnectionState.CLOSED)


async def test_a_refused_connect_names_the_reason(shell: Shell) -> None:
    """Without retries, a broker that refuses CONNECT because it is full makes open() raise an error with the reason."""
    with EmbeddedServer(broker_limits=BrokerLimits(connections=1)) as server:
        async with shell.client(server.url):
            with pytest.raises(ConnectRefusedError, match="0x") as caught:
                await shell.client(server.url).open()
            assert caught.value.reason_code >= 0x80


async def test_bad_settings_are_refused(shell: Shell) -> None:
    """The constructor raises an error that names the wrong setting."""
    for name, value in (("port", 0), ("client_id", "a/+/b"), ("driver", "carrier pigeon"), ("nonsense", 1)):
        with pytest.raises(SettingsError, match=name):
            shell.client("mqtt://127.0.0.1", **{name: value})
    with pytest.raises(SettingsError, match="a URL is text, not NoneType"):
        shell.client(None)


async def test_a_missing_password_file_is_named(shell: Shell, server: EmbeddedServer) -> None:
    """A missing password file is noticed at connecting; the error names it and ends the first attempt."""
    store = shell.client(server.url, username="u", password_file="/nowhere/secret")
    with pytest.raises(SettingsError, match="password_file '/nowhere/secret'"):
        await store.open()


async def test_a_client_id_may_contain_a_colon(shell: Shell, server: EmbeddedServer) -> None:
    """A client id may contain colons, as MAC addresses do, although a colon separates parts of a timestamp."""
    async with shell.client(server.url, client_id="00:1A:2B") as store, store.watch("k") as events:
        assert (await store.set("k", b"1")).applied
        assert (await events.get(timeout=5)).value == b"1"
        async with store.lock("l") as lease:
            assert lease.valid


async def test_clients_refuse_to_be_pickled(shell: Shell, server: EmbeddedServer) -> None:
    """A client refuses to be pickled and names its settings, which can be pickled instead."""
    async with shell.client(server.url) as store:
        client = getattr(store, "target", store)
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(PickleRefusedError, match=r"client\.settings"):
                attempt(client)
        assert pickle.loads(pickle.dumps(store.settings)) == store.settings  # noqa: S301 - our own bytes
        assert "connected" in repr(store)


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda store: store.lock("l").acquire(), r"send its token, str\(lease\.fencing_token\)"),
        (lambda store: store.lock("l"), "send the fencing token of its lease"),
        (lambda store: store.election("e"), "send the fencing token of its lease"),
        (lambda store: store.watch("k"), r"send client\.settings"),
        (lambda store: store.watch_prefix("k"), r"send client\.settings"),
        (lambda store: store.lock("l").observe(), r"send client\.settings"),
    ],
)
def test_what_a_client_makes_refuses_to_be_pickled(
    server: EmbeddedServer, make: Callable[[StateStoreClient], object], remedy: str
) -> None:
    """What holds a connection refuses to travel, in the closure of a Spark task say, and names what can be sent."""
    with StateStoreClient(server.url) as store:
        made = make(store)
        with pytest.raises(PickleRefusedError, match=remedy):
            pickle.dumps(made)
        if isinstance(made, Lease):
            made.release()


async def test_a_request_that_is_not_answered_ends_in_time(shell: Shell) -> None:
    """Without answers each request, alone or in a batch, fails when its time-out is over, and may have been applied."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url) as store:
            try:
                began = time.monotonic()
                alone, batch = await asyncio.gather(
                    store.set("k", b"1", timeout=0.3), store.get_many(["k", "l"], timeout=0.3), return_exceptions=True
                )
                assert 0.29 < time.monotonic() - began < 5  # half of the default
            finally:
                gate.open()
            assert isinstance(alone, RequestTimeoutError)
            assert isinstance(alone, TimeoutError)
            assert alone.may_have_been_applied
            assert isinstance(batch, (BatchError, RequestTimeoutError))
            assert await store.get("fine", timeout=10) is None
            assert store.stats.timeouts >= 1


async def test_every_driver_says_in_connect_what_the_official_sdks_say(shell: Shell) -> None:
    """Every driver sends ``metriccategory``, and ``aio-persistence`` if set, as CONNECT's user properties (facts,
    1.1)."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4096))
        writer.close()

    broker = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with broker:
        url = f"mqtt://127.0.0.1:{broker.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionLostError):
            await shell.client(url, persist_session=True, metric_category="mine").open()
        with pytest.raises(ConnectionLostError):
            await shell.client(url, metric_category=None).open()
    asked, plain = heard
    assert b"\x26\0\x0emetriccategory\0\x04mine\x26\0\x0faio-persistence\0\x04true" in asked
    assert b"\x26" not in plain


@pytest.mark.parametrize("topic", ["clients/{client_id}/services/statestore/_any_/command/invoke/response", "a/b"])
async def test_answers_come_where_the_client_wants_them(shell: Shell, server: EmbeddedServer, topic: str) -> None:
    """A setting names the response topic, as a broker's rules may demand; notifications come where they always do."""
    async with shell.client(server.url, client_id="me", response_topic=topic) as store, store.watch("key") as events:
        assert await store.set("key", b"1")
        assert (await events.get(timeout=5)).value == b"1"
    asked = {message.properties.response_topic for message in server.messages} - {None}
    assert asked == {topic.replace("{client_id}", "me")}


async def test_clients_may_share_the_clock_of_their_versions(shell: Shell, server: EmbeddedServer) -> None:
    """What one client asks is stamped later than what another one has seen, from one node."""
    with pytest.raises(InvalidArgumentError, match="hlc must be a HybridLogicalClock, not str"):
        shell.client(server.url, hlc="program")
    hlc = HybridLogicalClock("program", guard=threading.RLock())
    async with shell.client(server.url, hlc=hlc) as one, shell.client(server.url, hlc=hlc) as two:
        version = (await one.set("key", b"1")).version
        assert hlc.last > version
        await two.set("other", b"1")
    stamps = [dict(m.user_properties)["__ts"] for m in server.messages if m.payload.startswith(b"*3")]
    assert HlcTimestamp.parse(stamps[0]) < version < HlcTimestamp.parse(stamps[-1])
    assert stamps[-1].endswith(":program")
