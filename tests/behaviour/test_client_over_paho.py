"""``StateStoreClient.over``: both shells on the connection of an application that uses paho-mqtt already."""

from __future__ import annotations

import asyncio
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    BusyError,
    CallbackReplacedError,
    ClosedError,
    ConnectionLostError,
    ConnectionState,
    InvalidArgumentError,
    RequestTimeoutError,
    SettingsError,
    StateStoreClient,
    StateStoreError,
)
from statestore_client.server import EmbeddedServer


class App:
    """An application as paho's documentation shows it: callbacks, ``loop_start()``, reconnecting by paho."""

    def __init__(
        self, port: int, *, manual_ack: bool = False, receive_maximum: int | None = None, max_queued: int = 0
    ) -> None:
        self.client_id = f"app-{uuid.uuid4().hex}"
        self.told: list[str] = []
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._port = port
        self._receive_maximum = receive_maximum
        self.paho = paho = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=manual_ack,
        )
        paho.reconnect_delay_set(0.05, 0.2)
        paho.max_queued_messages = max_queued
        paho.on_connect = self.on_connect
        paho.on_disconnect = self.on_disconnect
        paho.on_publish = self.on_publish
        paho.on_message = self.on_message

    def start(self) -> App:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 60
        if self._receive_maximum is not None:
            properties.ReceiveMaximum = self._receive_maximum
        self.paho.connect("127.0.0.1", self._port, properties=properties)
        self.paho.loop_start()
        return self

    def stop(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    def on_connect(self, client: Client, *_: Any) -> None:
        self.told.append("connect")
        client.subscribe("app/#", qos=1)

    def on_disconnect(self, *_: Any) -> None:
        self.told.append("disconnect")

    def on_publish(self, _client: Client, _userdata: Any, mid: int, *_: Any) -> None:
        self.told.append(f"publish {mid}")

    def on_message(self, client: Client, _userdata: Any, message: Any) -> None:
        client.ack(message.mid, message.qos)
        self.messages.put((message.topic, message.payload))


@pytest.fixture(params=["sync", "aio"])
def shell(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """The two shells; which driver they would use by themselves does not matter here."""
    return Shell(request.param, "paho", executor)


@pytest.fixture
def start(server: EmbeddedServer) -> Iterator[Callable[..., App]]:
    """Starts applications."""
    apps: list[App] = []

    def start(port: int | None = None, **options: Any) -> App:
        apps.append(App(port or server.port, **options).start())
        return apps[-1]

    yield start
    for app in apps:
        app.stop()


async def test_application_and_state_store_share_a_connection(shell: Shell, start: Callable[..., App]) -> None:
    """Requests, pipelines, watches and locks work beside the application's own messages on one connection."""
    app = start()
    async with shell.over(app.paho) as store, store.watch("k") as events:
        assert store.client_id == app.client_id
        assert (await store.set("k", b"1")).applied
        assert (await events.get(timeout=5)).value == b"1"
        app.paho.publish("app/hello", b"2", qos=1)
        await store.set_many((f"k{i}", b"%d" % i) for i in range(300))
        assert [item.value for item in await store.get_many([f"k{i}" for i in range(300)])] == [
            b"%d" % i for i in range(300)
        ]
        async with store.lock("l", lease=5) as lease:
            assert lease.valid
        assert app.messages.get(timeout=5) == ("app/hello", b"2")
        assert app.messages.empty()
    assert app.told[0] == "connect"


async def test_close_leaves_the_connection_as_it_was(shell: Shell, start: Callable[..., App]) -> None:
    """close() restores the application's callbacks, removes our subscriptions and leaves paho connected."""
    app = start()
    paho = app.paho
    before = (paho.on_connect, paho.on_disconnect, paho.on_publish, paho.on_subscribe)
    for _ in range(2):  # a second client may follow the first
        async with shell.over(paho) as store:
            await store.set("k", b"1")
            assert paho.on_connect != before[0]
        assert (paho.on_connect, paho.on_disconnect, paho.on_publish, paho.on_subscribe) == before
        assert paho.is_connected()
        with pytest.raises(ClosedError):
            await store.get("k")
    paho.publish(f"clients/{app.client_id}/services/statestore/_any_/command/invoke/response", b"", qos=1)
    app.paho.publish("app/alive", b"", qos=1)
    assert app.messages.get(timeout=5)[0] == "app/alive"


async def test_callbacks_that_were_set_meanwhile_stay(shell: Shell, start: Callable[..., App]) -> None:
    """close() keeps callbacks that the application set after it shared its connection."""
    app = start()
    async with shell.over(app.paho):
        app.paho.on_publish = None
    assert app.paho.on_publish is None


async def repeat(call: Callable[[], Any]) -> None:
    """More often than paho has in flight at most."""
    for _ in range(30):
        await call()


def answers_to(app: App) -> str:
    return (
        f"clients/{app.client_id}/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response"
    )


@pytest.mark.parametrize(
    ("name", "take"),
    [
        ("on_publish", lambda app: setattr(app.paho, "on_publish", app.on_publish)),
        ("on_subscribe", lambda app: setattr(app.paho, "on_subscribe", None)),
        ("on_connect", lambda app: setattr(app.paho, "on_connect", app.on_connect)),
        ("on_disconnect", lambda app: setattr(app.paho, "on_disconnect", app.on_disconnect)),
        ("message", lambda app: app.paho.message_callback_add(answers_to(app), lambda *_: None)),
        ("message", lambda app: app.paho.message_callback_remove(answers_to(app))),
    ],
    ids=["publish", "subscribe", "connect", "disconnect", "answers taken", "answers refused"],
)
@pytest.mark.ci
async def test_a_callback_that_was_taken_away_is_told(
    shell: Shell, server: EmbeddedServer, start: Callable[..., App], name: str, take: Callable[[App], None]
) -> None:
    """When the application replaces one of our callbacks, the error names it and what to do, and not the broker."""
    async with Proxy(server.port) as proxy:
        app = await asyncio.to_thread(start, int(proxy.url.rpartition(":")[2]))
        async with shell.over(app.paho, max_in_flight=4, request_timeout=2.0) as store:
            await store.set("k", b"1", timeout=20)
            take(app)
            if name == "on_connect":
                proxy.cut()
                await until(lambda: store.state is ConnectionState.SUSPENDED)
                await until(app.paho.is_connected)
            elif name == "on_disconnect":
                app.paho.disconnect()
                await until(lambda: not app.paho.is_connected())
            watch = store.watch("k", timeout=2.0)
            what = "the message callback for clients/" if name == "message" else name
            with pytest.raises(CallbackReplacedError, match=f"replaced or removed {what}") as caught:
                await repeat(watch.start if name == "on_subscribe" else lambda: store.set("k", b"2"))
            assert "before over(), or let a new one call the one that it replaces" in str(caught.value)


async def test_a_callback_that_calls_ours_is_no_trouble(shell: Shell, start: Callable[..., App]) -> None:
    """A callback that calls ours works, and a time-out for another reason gives that reason."""
    app = start()
    async with shell.over(app.paho, max_in_flight=4) as store:
        for name in ("on_connect", "on_disconnect", "on_publish", "on_subscribe"):
            before = getattr(app.paho, name)
            setattr(app.paho, name, lambda *arguments, before=before: before(*arguments))
        await store.set_many((f"k{i}", b"1") for i in range(20))
        async with store.watch("k") as events:
            await store.set("k", b"1")
            assert (await events.get(timeout=20)).value == b"1"
        app.paho.disconnect()
        await until(lambda: store.state is ConnectionState.SUSPENDED)
        with pytest.raises(RequestTimeoutError, match="not connected") as caught:
            await store.get("k", timeout=0.3)
        assert not isinstance(caught.value, CallbackReplacedError)


async def test_a_cut_is_bridged_by_the_application(shell: Shell, server: EmbeddedServer, start: Any) -> None:
    """When paho reconnects and resumes the session, each request is applied once, watches go on, and states are
    reported."""
    states: list[str] = []
    async with Proxy(server.port) as proxy:
        app = await asyncio.to_thread(start, int(proxy.url.rpartition(":")[2]))
        store = shell.over(app.paho, on_state=lambda state, _: states.append(str(state)))
        async with store, store.watch("k", max_queued=10_000) as events:
            proxy.cuts = [(None, 40_000), (None, None)]
            for _ in range(3):
                proxy.cut()
                done = await asyncio.gather(
                    *(store.set(f"k{uuid.uuid4()}", b"x", condition="NX", timeout=20) for _ in range(100))
                )
                assert all(d.applied for d in done)
            await store.set("k", b"end", timeout=20)
            while (await events.get(timeout=10)).value != b"end":
                pass
        assert proxy.connections >= 4
    assert "suspended" in states
    assert states[-1] == "closed"
    assert app.told.count("connect") >= 4
    assert app.told.count("disconnect") >= 3


async def test_a_lost_session_is_noticed(shell: Shell, start: Any) -> None:
    """After a new server starts at the address, requests in flight fail as maybe applied, and then everything goes
    on."""
    with EmbeddedServer() as first, EmbeddedServer() as second:
        async with Proxy(first.port) as proxy:
            app = await asyncio.to_thread(start, int(proxy.url.rpartition(":")[2]))
            async with shell.over(app.paho) as store:
                await store.set("k", b"1")
                proxy.hold("down")
                lost = asyncio.ensure_future(store.set("k", b"2", timeout=20))
                engine = getattr(store, "target", store)._engine
                await until(lambda: engine._machine.request_table.in_flight >= 1)
                proxy.target_port = second.port
                proxy.cut()
                proxy.flow("down")
                with pytest.raises(ConnectionLostError) as caught:
                    await lost
                assert caught.value.may_have_been_applied
                assert (await store.set("k3", b"3", timeout=10)).applied


async def test_a_client_that_acknowledges_by_hand(shell: Shell, start: Callable[..., App]) -> None:
    """With manual_ack our messages are acknowledged by us, so that a receive maximum of 5 is not used up."""
    app = start(manual_ack=True, receive_maximum=5)
    async with shell.over(app.paho) as store:
        for i in range(4):
            await store.set_many((f"k{i}", b"") for i in range(10 * i, 10 * i + 10))
        app.paho.publish("app/x", b"", qos=1)
        assert app.messages.get(timeout=5)[0] == "app/x"


async def test_an_application_that_does_not_connect(shell: Shell, server: EmbeddedServer) -> None:
    """When the application does not connect, open() fails after connect_timeout, or with retry_first_connect waits for
    it."""
    app = App(server.port)
    store = shell.over(app.paho, connect_timeout=0.2)
    began = time.monotonic()
    with pytest.raises(ConnectionLostError, match=r"paho client did not connect within 0\.2 s"):
        await store.open()
    assert 0.15 < time.monotonic() - began < 3
    await store.close()
    patient = shell.over(app.paho, connect_timeout=0.1, retry_first_connect=True)
    opening = asyncio.ensure_future(patient.open(timeout=20))
    await asyncio.wait([opening], timeout=0.3)
    app.start()
    try:
        await opening
        assert (await patient.set("k", b"1")).applied
    finally:
        await patient.close()
        app.stop()


async def test_an_application_that_disconnects_suspends_the_client(shell: Shell, start: Callable[..., App]) -> None:
    """When the application disconnects, requests wait, nothing is sent, and the client does not end."""
    app = start()
    async with shell.over(app.paho, connect_timeout=0.2) as store:
        app.paho.disconnect()
        await until(lambda: store.state is ConnectionState.SUSPENDED)
        waiting = asyncio.ensure_future(store.set("k", b"1", timeout=20))
        await asyncio.wait([waiting], timeout=0.5)
        app.paho.reconnect()
        loop = asyncio.get_running_loop().run_in_executor(None, app.paho.loop_forever)
        assert (await waiting).applied
        app.paho.disconnect()
        await loop


async def test_a_full_queue_of_the_application_is_an_error(shell: Shell, start: Callable[..., App]) -> None:
    """A request that the application's full queue refuses was not sent, and the error says so."""
    app = start(max_queued=1)
    async with shell.over(app.paho) as store:
        done = await asyncio.gather(*(store.set("k", b"1") for _ in range(50)), return_exceptions=True)
        failed = [d for d in done if isinstance(d, Exception)]
        assert len(failed) < 50
        assert all(isinstance(e, StateStoreError) and not e.may_have_been_applied for e in failed)


@pytest.mark.filterwarnings("ignore:Callback API version 1:DeprecationWarning")
def test_what_cannot_be_shared_is_refused(shell: Shell) -> None:
    """A paho client that cannot be shared, and options that paho decides, are refused with the reason."""
    new, mqtt5 = CallbackAPIVersion.VERSION2, MQTTProtocolVersion.MQTTv5
    for client, why in (
        (Client(new, "a", protocol=MQTTProtocolVersion.MQTTv311), "MQTT 5"),
        (Client(new, "", protocol=mqtt5), "no client id"),
        (Client(CallbackAPIVersion.VERSION1, "a", protocol=mqtt5), "VERSION2"),  # it is called with other arguments
        (object(), r"takes a paho\.mqtt\.client\.Client"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            shell.over(client)
    paho = Client(new, "a", protocol=mqtt5)
    with pytest.raises(SettingsError, match="keep_alive"):
        shell.over(paho, keep_alive=5)
    store = shell.over(paho)
    with pytest.raises(BusyError, match="shared already"):
        StateStoreClient.over(paho)
    assert store.settings.client_id is None  # a connection made from them would take this one over
