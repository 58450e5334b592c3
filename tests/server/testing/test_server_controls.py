"""What tests do with a server: look at messages and sessions, wait, publish, clear, restart."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions
from support.server_clients import Paho, Wire
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    Connack,
    ConnectProperties,
    Disconnect,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from statestore_client.server import BrokerLimits, EmbeddedServer

LASTING = ConnectProperties(session_expiry=600)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_published_messages_are_seen(server: EmbeddedServer) -> None:
    """Published messages are recorded with all properties in order, whether or not somebody subscribed."""
    with Wire(server) as wire:
        wire.connect("pump-7")
        properties = PublishProperties(content_type="text/plain", user_properties=(("a", "1"), ("a", "2")))
        wire.send(Publish("t/1", b"one", properties=properties), Publish("t/2", b"\xff", 1, True, packet_id=1))
        wire.receive()
    one, two = server.messages
    assert (one.topic, one.text, one.qos, one.retain, one.client_id) == ("t/1", "one", 0, False, "pump-7")
    assert one.properties.content_type == "text/plain"
    assert one.user_properties == (("a", "1"), ("a", "2"))
    assert (two.topic, two.payload, two.qos, two.retain) == ("t/2", b"\xff", 1, True)


def test_a_message_with_an_alias_is_seen_with_its_topic(server: EmbeddedServer) -> None:
    """A message with an alias is recorded with its topic."""
    with Wire(server) as wire:
        wire.connect("c")
        alias = PublishProperties(topic_alias=1)
        wire.send(Publish("t", b"1", properties=alias), Publish("", b"2", properties=alias))
        assert [server.wait_for("t").payload for _ in range(2)] == [b"1", b"2"]


def test_refused_and_repeated_messages_are_not_seen() -> None:
    """Messages are recorded once, and only if the server accepted them."""
    with EmbeddedServer() as server, Wire(server) as wire:
        wire.connect("c")
        message = Publish("t", b"1", 2, packet_id=1)
        wire.send(
            message, message, Publish("t", b"\xff", 1, packet_id=2, properties=PublishProperties(payload_format=1))
        )
        assert [type(wire.receive()).__name__ for _ in range(3)] == ["Pubrec", "Pubrec", "Puback"]
        assert [m.payload for m in server.messages] == [b"1"]


def test_wills_and_requests_are_seen(server: EmbeddedServer) -> None:
    """A will is recorded when it is sent, and a request to the state store without its answer."""
    with Wire(server) as wire:
        wire.connect("c", will=Will("gone", b"c"))
        assert server.messages == []
    assert server.wait_for("gone").client_id == "c"
    with StateStoreClient(server.url) as store:
        store.set("k", "v")
    (request,) = server.messages[1:]
    assert b"SET" in request.payload


def test_only_the_last_messages_are_kept() -> None:
    """The given number of last messages is recorded; with 0 none is, and waiting is refused."""
    with EmbeddedServer(record_messages=2) as server:
        for payload in "123":
            server.publish("t", payload)
        assert [message.text for message in server.messages] == ["2", "3"]
    assert len(server.messages) == 2
    with EmbeddedServer(record_messages=0) as server, pytest.raises(RuntimeError, match="record_messages"):
        server.wait_for("t")


def test_waiting_walks_through_the_messages(server: EmbeddedServer) -> None:
    """Waiting returns each message once: first those that are there, then those that come."""
    for payload in "12":
        server.publish("a/x", payload)
    server.publish("b", "no")
    timer = threading.Timer(0.02, lambda: server.publish("a/y", "3"))
    timer.start()
    assert [server.wait_for("a/+").text for _ in range(3)] == ["1", "2", "3"]
    timer.join()
    assert server.wait_for("$share/g/b").text == "no"


def test_waiting_in_vain(server: EmbeddedServer) -> None:
    """Waiting in vain is a TimeoutError with what was published instead, and a later message is for the next wait."""
    server.publish("temperature", "1")
    with pytest.raises(TimeoutError, match=r"'temprature'.*\['temperature'\]"):
        server.wait_for("temprature", 0.01)
    server.publish("temprature", "2")
    assert server.wait_for("temprature", 0).text == "2"
    with pytest.raises(InvalidArgumentError):
        server.wait_for("a#")


def test_two_who_wait_get_one_message_each(server: EmbeddedServer) -> None:
    """Two that wait get one message each, in the order in which they began."""
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.wait_for, "t", 10) for _ in range(2)]
        for payload in "12":
            server.publish("t", payload)
        assert sorted(each.result().text for each in waiting) == ["1", "2"]


async def test_waiting_in_an_event_loop() -> None:
    """Waiting works in the server's event loop and in another; the blocking form is refused where it would never
    return."""
    with EmbeddedServer() as threaded:
        async with EmbeddedServer() as server:
            for each in (server, threaded):
                waiting = asyncio.create_task(each.wait_for_async("t"))
                await asyncio.sleep(0)
                each.publish("t", "1")
                assert (await waiting).text == "1"
                with pytest.raises(TimeoutError, match="no message on 't'"):
                    await each.wait_for_async("t", 0.01)
            with pytest.raises(RuntimeError, match="wait_for_async"):
                server.wait_for("t")


async def test_a_cancelled_wait_takes_nothing() -> None:
    """A cancelled wait leaves the message to the next."""
    async with EmbeddedServer() as server:
        waiting = asyncio.create_task(server.wait_for_async("t"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        server.publish("t", "1")
        assert (await server.wait_for_async("t")).text == "1"


# -- publishing --------------------------------------------------------------------------------------------------------


def test_the_server_publishes(server: EmbeddedServer) -> None:
    """The server publishes to subscribers with all properties, and retained for later ones."""
    server.publish("t", "before", retain=True, qos=1)
    with Wire(server) as wire:
        wire.connect("c")
        wire.send(Subscribe(1, (Subscription("t", 1),)))
        assert wire.receive() == Suback(1, (1,))
        retained = wire.receive()
        assert isinstance(retained, Publish)
        assert (retained.payload, retained.retain, retained.qos) == (b"before", True, 1)
        server.publish(
            "t",
            b"after",
            response_topic="r",
            correlation_data=b"7",
            content_type="x",
            message_expiry=60,
            user_properties=[("a", "b")],
        )
        message = wire.receive()
        assert isinstance(message, Publish)
        assert message.properties == PublishProperties(None, 60, "x", "r", b"7", (("a", "b"),))
    assert [m.client_id for m in server.messages] == ["", ""]


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        ("a/+", {}),
        ("", {}),
        ("t", {"qos": 3}),
        ("t", {"user_properties": [("a", "\0")]}),
        ("t", {"message_expiry": -1}),
    ],
)
def test_what_cannot_be_published_is_refused(server: EmbeddedServer, topic: str, options: dict[str, Any]) -> None:
    """What cannot be published is refused before anybody gets it."""
    with pytest.raises(InvalidArgumentError):
        server.publish(topic, "x", **options)
    assert server.messages == []


# -- sessions and hooks ------------------------------------------------------------------------------------------------


def test_sessions_are_values_of_the_moment(server: EmbeddedServer) -> None:
    """The sessions are values of one moment: connected or not, with what waits and what is in flight."""
    with Wire(server) as wire:
        wire.connect("c", properties=ConnectProperties(session_expiry=600, receive_maximum=1), will=Will("w"))
        wire.send(Subscribe(1, (Subscription("a/+", 1), Subscription("b", 2))))
        wire.receive()
        for payload in "123":
            server.publish("a/b", payload, qos=1)
        before = server.sessions["c"]
        assert (before.is_connected, before.in_flight, before.queued) == (True, 1, 2)
        assert before.subscriptions == {"a/+": 1, "b": 2}
        assert (before.expiry_s, before.has_will, before.unreleased) == (600, True, 0)
        wire.send(Disconnect())
        wire.rest()
    eventually(lambda: not server.sessions["c"].is_connected, "the client is gone")
    assert before.is_connected
    assert server.sessions["c"].in_flight + server.sessions["c"].queued == 3


def test_hooks_are_called_for_every_event(server: EmbeddedServer) -> None:
    """Hooks are called for every event in order, whatever one of them raises, and may call the server."""
    events: list[str] = []
    done = threading.Event()
    server.hooks.on_connect = lambda event: events.append(f"+{event.client_id} {event.version}")
    server.hooks.on_subscribe = lambda event: events.append(f"{event.topic_filter} {event.qos}")
    server.hooks.on_unsubscribe = lambda _event: 1 / 0
    server.hooks.on_disconnect = lambda event: (events.append(f"-{event.client_id} {event.by_client}"), done.set())

    def answer(message: Any) -> None:
        events.append(f"{message.topic}={message.text}")
        if message.topic == "question":
            server.publish("answer", "42")

    server.hooks.on_publish = answer
    with Paho(server, "c") as client:
        client.subscribe("answer", 1)
        client.client.unsubscribe("other")
        client.publish("question", b"?", 1)
        assert client.message().payload == b"42"
    assert done.wait(10)
    assert events == ["+c 5", "answer 1", "question=?", "answer=42", "-c True"]


def test_a_hook_hears_of_refused_filters() -> None:
    """A hook is told of refused filters, with None for the QoS."""
    heard: list[Any] = []
    with EmbeddedServer(broker_limits=BrokerLimits(refused_filters=("secret/#",))) as server:
        server.hooks.on_subscribe = heard.append
        with Paho(server, "c") as client:
            client.subscribe([("secret/a", SubscribeOptions(1)), ("b", SubscribeOptions(1))])
            eventually(lambda: len(heard) == 2, "both filters")
    assert [(event.topic_filter, event.qos) for event in heard] == [("secret/a", None), ("b", 1)]


# -- clear and restart -------------------------------------------------------------------------------------------------


def test_clear_forgets_everything(server: EmbeddedServer) -> None:
    """clear() removes sessions, retained messages, keys and recorded messages, closes connections, and keeps the
    port."""
    url = server.url
    with StateStoreClient(url) as store, Wire(server) as wire:
        store.set("k", "v")
        wire.connect("c", properties=LASTING)
        server.publish("t", "old", retain=True)
        server.clear()
        with pytest.raises((ConnectionError, AssertionError)):
            wire.receive()
        assert (server.url, server.messages) == (url, [])
        assert "c" not in server.sessions
        assert store.get("k") is None  # its client came back by itself
    with Wire(server) as wire:
        connack = wire.connect("c", clean_start=False)
        assert isinstance(connack, Connack)
        assert not connack.session_present
        wire.send(Subscribe(1, (Subscription("t"),)), Publish("t", b"new"))
        assert [wire.receive() for _ in range(2)][1] == Publish("t", b"new")


def test_a_restart_with_state_keeps_it(server: EmbeddedServer) -> None:
    """A restart with state keeps lasting sessions with queues, retained messages and keys; other clients leave their
    wills."""
    with StateStoreClient(server.url) as store, Wire(server) as lasting, Wire(server) as passing:
        version = store.set("k", "v").version
        lasting.connect("lasting", properties=LASTING)
        lasting.send(Subscribe(1, (Subscription("#", 1),)))
        lasting.receive()
        passing.connect("passing", will=Will("gone", b"passing", 1))
        server.publish("t", "kept", retain=True)
        server.restart(keep_state=True)
        (goodbye,) = passing.rest()
        assert (type(goodbye), goodbye.reason_code) == (Disconnect, 0x8B)
        item = store.get("k")
        assert item is not None
        assert item.version == version
        assert "lasting" in server.sessions
        assert "passing" not in server.sessions
    with Wire(server) as back:
        connack = back.connect("lasting", clean_start=False, properties=LASTING)
        assert isinstance(connack, Connack)
        assert connack.session_present
        missed = back.receive()
        assert isinstance(missed, Publish)
        assert missed.topic == "gone"
    assert "gone" in [message.topic for message in server.messages]


def test_a_restart_without_state_is_empty(server: EmbeddedServer) -> None:
    """A restart without state sends no wills and keeps what was recorded, and hooks are told that the clients are
    gone."""
    gone: list[str] = []
    server.hooks.on_disconnect = lambda event: gone.append(event.client_id)
    with StateStoreClient(server.url) as store, Wire(server) as wire:
        store.set("k", "v")
        wire.connect("c", will=Will("gone"), properties=LASTING)
        server.restart(keep_state=False)
        (goodbye,) = wire.rest()
        assert (type(goodbye), goodbye.reason_code) == (Disconnect, 0x8B)
        assert store.get("k") is None
    assert "c" in gone
    assert "c" not in server.sessions
    assert server.messages
    assert "gone" not in [message.topic for message in server.messages]


def test_a_server_with_data_restarts_from_it(tmp_path: Path) -> None:
    """A server with data is really stopped and started on its port, and time that was jumped over stays so."""
    with EmbeddedServer(data=tmp_path) as server, StateStoreClient(server.url) as store:
        url = server.url
        version = store.set("k", "v", expiry=60).version
        server.publish("t", "kept", retain=True)
        server.clock.advance(40)
        server.restart(keep_state=True)
        assert server.url == url
        item = store.get("k")
        assert item is not None
        assert item.version == version
        server.clock.advance(21)
        assert store.get("k") is None
        assert [message.text for message in server.messages if message.topic == "t"] == ["kept"]
        server.restart(keep_state=False)
        assert list(store.scan("*")) == []


def test_a_server_with_data_can_be_cleared(tmp_path: Path) -> None:
    """clear() of a server with data erases them."""
    with EmbeddedServer(data=tmp_path) as server:
        with StateStoreClient(server.url) as store:
            store.set("k", "v")
        server.clear()
        assert server.messages == []
    with EmbeddedServer(data=tmp_path) as server, StateStoreClient(server.url) as store:
        assert store.get("k") is None


async def test_a_server_with_data_cannot_restart_in_its_own_loop(tmp_path: Path) -> None:
    """A restart of a server with data in its own event loop is a RuntimeError, because waiting would stop it."""
    async with EmbeddedServer(data=tmp_path) as server:
        with pytest.raises(RuntimeError, match="leave it"):
            server.restart(keep_state=True)
        assert server.sessions == {}


def test_a_server_survives_many_clears(server: EmbeddedServer) -> None:
    """After many clears with clients connected and connecting, stopping does not wait for those of earlier lives."""
    with ExitStack() as clients:
        for number in range(50):
            wire = clients.enter_context(Wire(server))
            wire.begin(f"c{number}")
            if number % 3:
                wire.receive()
            if number % 2:
                server.restart(keep_state=False)
            else:
                server.clear()
        wire = clients.enter_context(Wire(server))
        assert isinstance(wire.connect("last"), Connack)
        assert server.sessions["last"].is_connected
        server.stop()


def test_controls_of_a_server_that_does_not_run() -> None:
    """Controls of a server that does not run are a RuntimeError, but what was recorded can still be read."""
    with EmbeddedServer() as server:
        server.publish("t", "x")
    assert [message.topic for message in server.messages] == ["t"]
    controls = (server.clear, lambda: server.sessions, lambda: server.publish("t"), lambda: server.clock.advance(1))
    for action in (*controls, lambda: server.restart(keep_state=True)):
        with pytest.raises(RuntimeError, match="not running"):
            action()
    with server:
        assert server.messages == []


def test_a_payload_that_is_no_text_is_refused(server: EmbeddedServer) -> None:
    """A text with half a character in it is refused as an argument, and not as an encoding error."""
    with pytest.raises(InvalidArgumentError, match="lone surrogate"):
        server.publish("t", "\ud800")
