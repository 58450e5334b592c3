"""What paho lets pass, whether the paho client is ours (``driver="paho"``) or the application's (``over()``)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from evil_broker import EvilBroker, Say
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from support.shells import Shell
from support.waiting import until

from statestore_client import ConnectionLostError, ConnectionSettings, ConnectionState, StateStoreError
from statestore_client.mqtt import paho_listener
from statestore_client.mqtt.packets import Connack, Packet, Publish, Suback, Subscribe, encode
from statestore_client.mqtt.paho_driver import SharedConnector
from statestore_client.wire.messages import Closed, Connected, IncomingMessage

TIMEOUT_S = 20.0


@pytest.fixture(params=["sync", "aio"])
def either(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """The shells on paho."""
    return Shell(request.param, "paho", executor)


@pytest.fixture
def application() -> Iterator[Callable[[EvilBroker], Client]]:
    """Makes applications that have connected their own paho client and run its loop."""
    clients: list[Client] = []

    def start(broker: EvilBroker) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, f"app-{len(clients)}", protocol=MQTTProtocolVersion.MQTTv5)
        clients.append(client)
        client.connect("127.0.0.1", int(broker.url.rpartition(":")[2]))
        client.loop_start()
        return client

    yield start
    for client in clients:
        client.disconnect()
        client.loop_stop()


async def test_a_second_connack_costs_the_connection(either: Shell) -> None:
    """A second CONNACK makes the client reconnect and say why (MQTT 5.0, 3.2)."""
    told: list[StateStoreError] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish) and broker.connections == 1:
            say(encode(Connack(), 5))
            return True
        return False

    async with (
        EvilBroker(behave) as broker,
        either.client(broker.url, on_state=lambda _, error: error and told.append(error)) as store,
    ):
        with pytest.raises(ConnectionLostError) as caught:
            await store.set("k", b"1", timeout=TIMEOUT_S)
        assert caught.value.may_have_been_applied
        assert (await store.set("k", b"2", timeout=TIMEOUT_S)).applied
        assert broker.connections == 2
        assert "sent a packet that MQTT does not allow: a second CONNACK" in str(told[0])


async def test_a_suback_for_other_filters_is_asked_for_again(
    either: Shell, application: Callable[[EvilBroker], Client]
) -> None:
    """After a SUBACK for other filters the broker is asked again [MQTT-3.8.4-6]; an application's connection stays, and
    our client is told that it is suspended, and why."""
    told: list[StateStoreError] = []
    asked: list[Packet] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Subscribe):
            asked.append(packet)
            if len(asked) == 1:
                say(encode(Suback(packet.packet_id, (1, 1, 1)), 5))
                return True
        return False

    async with EvilBroker(behave) as broker:
        client = await asyncio.to_thread(application, broker)
        store = either.over(client, retry_first_connect=True, on_state=lambda _, error: error and told.append(error))
        async with store:
            assert (await store.set("k", b"1", timeout=TIMEOUT_S)).applied
            assert store.state is ConnectionState.CONNECTED
        assert len(asked) == 2
        assert broker.connections == 1
        assert "MQTT does not allow: SUBACK has 3 reason codes for" in str(told[0])


async def test_what_comes_after_a_violation_is_for_the_next_connection(
    application: Callable[[EvilBroker], Client],
) -> None:
    """A driver that saw the broker break a rule hears no more: what paho takes in is kept for the next one."""
    says: list[Say] = []
    all_came = threading.Event()

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Subscribe):
            says.append(say)
            say(encode(Suback(packet.packet_id, (1, 1, 1)), 5))
        return isinstance(packet, Subscribe)

    async with EvilBroker(behave) as broker:
        client = await asyncio.to_thread(application, broker)
        client.on_message = lambda *_: all_came.set()
        await until(client.is_connected)
        connector = SharedConnector(client, ConnectionSettings.from_url(broker.url))
        first = connector.open(clean_start=False)
        first.connect()
        first.subscribe(1, ["ours"])
        events: list[object] = []
        await until(lambda: events.extend(first.poll()) or any(isinstance(event, Closed) for event in events))
        says[0](b"".join(encode(Publish("ours", b"%d" % i, 0), 5) for i in range(5)) + encode(Publish("end"), 5))
        assert await asyncio.to_thread(all_came.wait, TIMEOUT_S)
        assert not first.poll()
        second = connector.open(clean_start=False)
        second.connect()
        assert [m.payload for m in second.poll() if isinstance(m, IncomingMessage)] == [b"%d" % i for i in range(5)]
        second.abort()
        second.poll()
        connector.close()


async def test_events_that_nobody_takes_have_a_bound(
    application: Callable[[EvilBroker], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the application's paho keeps taking messages in, a client that is held up ends, keeps few of them, and goes
    on."""
    monkeypatch.setattr(paho_listener, "MOST_EVENTS", 100)
    all_came = threading.Event()

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Subscribe):
            say(encode(Suback(packet.packet_id, (1,)), 5))
            say(b"".join(encode(Publish("ours", b"%d" % i, 0), 5) for i in range(1000)) + encode(Publish("end"), 5))
        return isinstance(packet, Subscribe)

    async with EvilBroker(behave) as broker:
        client = await asyncio.to_thread(application, broker)
        client.on_message = lambda *_: all_came.set()
        await until(client.is_connected)
        connector = SharedConnector(client, ConnectionSettings.from_url(broker.url))
        first = connector.open(clean_start=False)
        first.connect()
        first.subscribe(1, ["ours"])
        assert await asyncio.to_thread(all_came.wait, TIMEOUT_S)
        events = first.poll()
        assert len(events) == 102
        assert isinstance(events[0], Connected)
        assert isinstance(events[-1], Closed)
        assert not events[-1].fatal
        assert "more than 100 events came in before this program took them" in str(events[-1].error)
        second = connector.open(clean_start=False)
        second.connect()
        connected, *late = second.poll()
        assert isinstance(connected, Connected)
        assert connected.session_present
        assert [m.payload for m in late if isinstance(m, IncomingMessage)] == [b"%d" % i for i in range(900, 1000)]
        second.abort()
        second.poll()
        connector.close()
