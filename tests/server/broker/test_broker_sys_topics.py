"""``$SYS``: the broker's figures, under mosquitto's names, while somebody listens."""

from __future__ import annotations

from support.broker_driver import Client, World

from statestore_client.mqtt.packets import Puback, Publish, Will


def figures(client: Client) -> dict[str, str]:
    """What came, by the end of its topic."""
    messages = [packet for packet in client.received() if isinstance(packet, Publish)]
    assert all(message.topic.startswith("$SYS/broker/") for message in messages)
    return {message.topic.removeprefix("$SYS/broker/"): message.payload.decode() for message in messages}


def subscribe(client: Client, topic_filter: str = "$SYS/#") -> dict[str, str]:
    messages = [packet for packet in client.subscribe(topic_filter, qos=1) if isinstance(packet, Publish)]
    assert all(message.retain and not message.qos for message in messages)
    return {message.topic.removeprefix("$SYS/broker/"): message.payload.decode() for message in messages}


def test_the_figures_are_there_at_once() -> None:
    """A subscriber gets all figures as retained messages, then what has changed every ten seconds."""
    world = World()
    world.broker.started(world.now, version=lambda: "1.2.3")
    world.client("other").publish("t", b"x", retain=True)
    client = world.client("c")
    world.monotonic += 5
    first = subscribe(client)
    assert first["version"] == "statestore 1.2.3"
    assert first["uptime"] == "5 seconds"
    assert (first["clients/connected"], first["clients/total"], first["clients/maximum"]) == ("2", "2", "2")
    assert first["publish/messages/received"] == "1"
    world.sleep(9.9)
    assert figures(client) == {}
    world.sleep(0.1)
    later = figures(client)
    assert later["uptime"] == "15 seconds"
    assert later["subscriptions/count"] == "1"
    assert "version" not in later


def test_nothing_happens_while_nobody_listens() -> None:
    """Before the first and after the last subscription there are neither timer nor retained figures."""
    world = World()
    assert world.broker.next_deadline() is None
    client = world.client("c")
    client.subscribe("#")
    client.subscribe("+/broker/uptime")
    assert world.broker.usage.retained_messages == 0
    subscribe(client, "$SYS/broker/uptime")
    assert world.broker.usage.retained_messages > 10
    client.lose()
    world.sleep(20)
    assert world.broker.usage.retained_messages == 0
    assert world.broker.next_deadline() is None


def test_a_shared_subscription_listens_too() -> None:
    """A shared subscription gets no retained figures (MQTT 5.0, 4.8.2), but the changes."""
    world = World()
    client = world.client("c")
    assert client.subscribe("$share/operators/$SYS/broker/uptime") == []
    world.sleep(10)
    assert figures(client) == {"uptime": "1010 seconds"}


def test_they_can_be_switched_off() -> None:
    """An interval of 0 switches the figures off."""
    world = World(sys_interval_s=0)
    client = world.client("c")
    assert subscribe(client) == {}
    world.sleep(60)
    assert figures(client) == {}


def test_nobody_else_speaks_there() -> None:
    """Neither a client nor its will may publish the broker's figures; other topics with $ are free."""
    world = World()
    listener = world.client("listener")
    subscribe(listener)
    listener.subscribe("$other/#")
    liar = world.client("liar")
    liar.publish("$SYS/broker/uptime", b"never", qos=1)
    assert liar.one(Puback).reason_code == 0x87
    liar.publish("$other/t", b"fine", qos=1)
    assert [message.payload for message in listener.messages()] == [b"fine"]
    liar.publish("$SYS/broker/uptime", b"never")
    world.client("dying", will=Will("$SYS/broker/uptime", b"never")).lose()
    assert b"never" not in [message.payload for message in listener.messages()]


def test_a_listener_that_is_away_costs_nothing() -> None:
    """The queue of an absent listener does not grow, because figures are QoS 0."""
    world = World()
    client = world.client("c", session_expiry=1000)
    subscribe(client)
    client.lose()
    held = world.broker.usage.held_bytes
    world.sleep(500)
    assert world.broker.usage.held_bytes == held
