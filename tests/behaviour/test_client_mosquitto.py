"""A broker without a state store: Debian's mosquitto, over TCP, TLS and WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.keys import Certificates
from support.ports import reserved_port
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import eventually, until

from statestore_client import ConnectionSettings, NoStateStoreError, RequestTimeoutError
from statestore_client.wire.protocol import COMMAND_TOPIC

pytestmark = pytest.mark.interop

SCHEMES = ("mqtt", "mqtts", "ws", "wss")


class Mosquitto:
    """One mosquitto with a listener for each scheme."""

    def __init__(self, program: str, folder: Path) -> None:
        self.certificates = Certificates(folder)
        self.ports = {scheme: reserved_port() for scheme in SCHEMES}
        config = folder / "mosquitto.conf"
        config.write_text("".join(map(self._lines, self._head(), SCHEMES)))
        self.process = subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL)
        for port in self.ports.values():
            eventually(lambda port=port: _listens(port), "mosquitto has started", every_s=0.02)

    def _head(self) -> Iterator[str]:
        user = f"user {os.environ.get('USER', 'root')}\n" if os.geteuid() == 0 else ""
        yield f"allow_anonymous true\n{user}"
        yield from ("" for _ in SCHEMES)

    def _lines(self, head: str, scheme: str) -> str:
        lines = f"{head}listener {self.ports[scheme]} 127.0.0.1\n"
        if scheme.startswith("ws"):
            lines += "protocol websockets\n"
        if scheme in ("mqtts", "wss"):
            files = self.certificates
            lines += f"certfile {files.server_file}\nkeyfile {files.server_key_file}\n"
        return lines

    def settings(self, scheme: str) -> ConnectionSettings:
        url = f"{scheme}://127.0.0.1:{self.ports[scheme]}"
        ca_file = self.certificates.ca_file if scheme in ("mqtts", "wss") else None
        return ConnectionSettings.from_url(url, tls_ca_file=ca_file)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Mosquitto]]:
    """The mosquitto of this file, once it was started."""
    started: list[Mosquitto] = []
    yield started
    for mosquitto in started:
        mosquitto.process.terminate()
        mosquitto.process.wait(10)


@pytest.fixture
def mosquitto(
    running: list[Mosquitto], require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Mosquitto:
    """A broker without a state store."""
    if not running:
        running.append(Mosquitto(require_tool("mosquitto"), tmp_path_factory.mktemp("mosquitto")))
    return running[0]


@pytest.fixture(params=["mqtt", "ws"])
def url(request: pytest.FixtureRequest, mosquitto: Mosquitto) -> str:
    """Where mosquitto listens."""
    return mosquitto.settings(request.param).url


@contextlib.contextmanager
def store_of_one_key(mosquitto: Mosquitto) -> Iterator[Counter[bytes]]:
    """A state store of one key, ``k``, as a client of the broker; how often it was asked with each correlation data.

    It is gone for the broker, too, when this ends: what the broker passes to a connection that is being closed has no
    answer.
    """
    asked: Counter[bytes] = Counter()
    value = [b""]

    def answer(client: Client, _userdata: Any, message: MQTTMessage) -> None:
        verb, *words = re.findall(rb"\$\d+\r\n(.*?)\r\n", message.payload, re.DOTALL)
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = message.properties.CorrelationData
        properties.UserProperty = [("__stat", "200"), ("__ts", f"{time.time_ns() // 1_000_000:015}:00001:store")]
        if verb == b"SET":
            value[0] = words[1]
        reply = b"+OK\r\n" if verb != b"GET" else b"$%d\r\n%b\r\n" % (len(value[0]), value[0])
        asked[message.properties.CorrelationData] += 1
        client.publish(message.properties.ResponseTopic, reply, qos=1, properties=properties)

    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_message = answer
    ready, left = threading.Event(), threading.Event()
    client.on_subscribe = lambda *_: ready.set()
    client.on_unsubscribe = lambda *_: left.set()
    client.on_connect = lambda *_: client.subscribe(COMMAND_TOPIC, qos=1)
    client.connect("127.0.0.1", mosquitto.ports["mqtt"])
    client.socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.loop_start()
    assert ready.wait(10)
    try:
        yield asked
    finally:
        client.unsubscribe(COMMAND_TOPIC)
        assert left.wait(10)
        client.disconnect()
        client.loop_stop()


@pytest.fixture
def responder(mosquitto: Mosquitto) -> Iterator[Counter[bytes]]:
    """See :func:`store_of_one_key`."""
    with store_of_one_key(mosquitto) as asked:
        yield asked


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_requests_and_answers_pass_through(
    shell: Shell, mosquitto: Mosquitto, responder: Counter[bytes], scheme: str
) -> None:
    """Over each transport small requests, a pipeline beyond mosquitto's receive maximum of 20 and a large request are
    answered."""
    async with shell.client(mosquitto.settings(scheme)) as store:
        assert (await store.set("k", b"1")).applied
        assert all(r.applied for r in await store.set_many(("k", b"%d" % i) for i in range(40)))
        large = b"abcd" * (1_000 if scheme.startswith("ws") else 25_000)  # mosquitto's WebSocket sends 40 kB a second
        await store.set("k", large)
        assert (await store.get("k")).value == large
    assert sum(responder.values()) == 43


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
async def test_a_session_in_mosquitto_survives_a_cut(
    shell: Shell, mosquitto: Mosquitto, responder: Counter[bytes], scheme: str
) -> None:
    """Answers to requests that were cut off wait in mosquitto's session, and each request gets its own."""
    async with Proxy(mosquitto.ports[scheme]) as proxy:
        settings = mosquitto.settings(scheme).evolve(port=int(proxy.url.rpartition(":")[2]))
        async with shell.client(settings) as store:
            await store.set("k", b"1")
            proxy.hold("down")
            before = len(responder)
            waiting = [asyncio.ensure_future(store.set("k", b"%d" % i, timeout=20)) for i in range(10)]
            await until(lambda: len(responder) >= before + 10)
            proxy.cut()
            proxy.flow("down")
            assert all([(await w).applied for w in waiting])
            assert proxy.connections == 2


async def test_the_timeout_says_that_there_is_no_state_store(shell: Shell, url: str) -> None:
    """When mosquitto answers PUBLISH with "no matching subscribers", the time-out error says that there is no state
    store."""
    async with shell.client(url) as store:
        for call in (store.get("k", timeout=0.3), store.watch("k", timeout=0.3).start()):
            with pytest.raises(RequestTimeoutError, match=r"probably has no state store|could not be started"):
                await call
        with pytest.raises(
            RequestTimeoutError, match=r"whether it is free is not known: .*probably has no state store"
        ):
            await store.lock("k").acquire(timeout=0.3)


async def test_a_broker_without_a_store_is_told_after_a_second(shell: Shell, url: str) -> None:
    """Requests, watches and locks with long time-outs fail after a second, and the error says what to do."""
    async with shell.client(url) as store:
        began = time.monotonic()
        calls = (
            store.set("k", b"v", timeout=20),
            store.watch("k", timeout=20).start(),
            store.lock("k").acquire(timeout=None),
        )
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert type(error) is NoStateStoreError
            assert "statestore serve --broker" in str(error)
        assert 0.9 < time.monotonic() - began < 10
        assert store.state == "connected"


async def test_all_of_a_pipeline_is_told_after_a_second(shell: Shell, url: str) -> None:
    """Beyond mosquitto's receive maximum of 20, too: what could not leave does not wait a second of its own."""
    async with shell.client(url, max_in_flight=200) as store:
        began = time.monotonic()
        results = await asyncio.gather(*(store.set("k", b"x", timeout=20) for _ in range(100)), return_exceptions=True)
        assert {type(r) for r in results} == {NoStateStoreError}
        assert time.monotonic() - began < 10


async def test_a_store_that_comes_late_is_found(shell: Shell, mosquitto: Mosquitto, url: str) -> None:
    """A request that nobody took is answered by a store that subscribes half a second later; and what waited for one
    that went away is answered by the next."""
    async with shell.client(url) as store:
        setting = asyncio.ensure_future(store.set("k", b"1", timeout=20))
        await asyncio.sleep(0.4)  # the fault itself: the store is away for as long
        with store_of_one_key(mosquitto):
            assert (await setting).applied
            assert (await store.get("k")).value == b"1"
        waiting = asyncio.ensure_future(store.set_many((("k", b"%d" % i) for i in range(30)), timeout=20))
        await asyncio.sleep(1.6)  # the fault itself: longer than one that has never answered may be away
        with store_of_one_key(mosquitto):
            assert all(result.applied for result in await waiting)
            assert (await store.get("k")).value == b"29"


async def test_its_receive_maximum_of_20_is_kept(shell: Shell, url: str) -> None:
    """200 unanswered requests keep to mosquitto's receive maximum of 20, so the connection survives (0x93 would end
    it)."""
    async with shell.client(url, max_in_flight=200) as store:
        results = await asyncio.gather(*(store.set("k", b"x", timeout=0.3) for _ in range(200)), return_exceptions=True)
        assert all(isinstance(r, RequestTimeoutError) for r in results)
        assert store.state == "connected"
