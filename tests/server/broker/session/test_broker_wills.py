"""Wills: when they go out, and when not (MQTT 5.0, 3.1.2.5, 3.1.3.2)."""

from __future__ import annotations

import pytest
from support.broker_driver import Client, World

from statestore_client.mqtt.packets import MQTT_3_1_1, Disconnect, Pingresp, Publish, Will, WillProperties


def watch(world: World) -> Client:
    watcher = world.client("watcher")
    watcher.subscribe("will/#", qos=2)
    return watcher


def delayed(delay_s: int) -> Will:
    return Will("will/c", b"gone", properties=WillProperties(will_delay=delay_s))


@pytest.mark.parametrize("version", [5, MQTT_3_1_1])
def test_a_lost_connection_sends_the_will(version: int) -> None:
    """A lost connection sends the will with its QoS, properties and retain flag."""
    world = World()
    watcher = watch(world)
    will = Will("will/c", b"gone", 2, True, WillProperties(content_type="text", user_properties=(("a", "b"),)))
    world.client("c", version=version, will=will).lose()
    (message,) = watcher.messages()
    assert (message.topic, message.payload, message.qos) == ("will/c", b"gone", 2)
    assert message.properties.user_properties == (("a", "b"),)
    assert len(world.client("late").subscribe("will/+")) == 1


def test_how_large_a_will_may_be() -> None:
    """A will's properties count once, and the overhead of a message is a few hundred bytes."""
    world = World(will_bytes=64 * 1024)
    properties = WillProperties(correlation_data=bytes(33_000))
    assert world.client("c", will=Will("will/c", bytes(31_000), properties=properties)).connack.reason_code == 0
    too_large = Will("will/c", bytes(33_000), properties=properties)
    assert world.client("d", will=too_large).connack.reason_code == 0x97


@pytest.mark.parametrize(("code", "goes_out"), [(0, False), (4, True), (0x80, True)])
def test_disconnect_discards_the_will_unless_it_asks_for_it(code: int, goes_out: bool) -> None:
    """Only a normal DISCONNECT deletes the will (MQTT-3.14.4-3)."""
    world = World()
    watcher = watch(world)
    client = world.client("c", will=Will("will/c"))
    client.send(Disconnect(code))
    client.lose()
    assert len(watcher.messages()) == goes_out


def test_keep_alive_timeout_sends_the_will() -> None:
    """A client that exceeds its keep-alive leaves its will."""
    world = World()
    watcher = watch(world)
    world.client("c", keep_alive=2, will=Will("will/c"))
    world.sleep(3.1)
    assert len(watcher.messages()) == 1


def test_a_protocol_error_sends_the_will() -> None:
    """A protocol error sends the will, because the client sent no DISCONNECT (3.1.2.5)."""
    world = World()
    watcher = watch(world)
    world.client("c", will=Will("will/c")).send(Pingresp())
    assert len(watcher.messages()) == 1


def test_take_over_sends_the_will() -> None:
    """A takeover sends the will of the old connection (MQTT 5.0, 3.1.4)."""
    world = World()
    watcher = watch(world)
    world.client("c", will=Will("will/c"))
    world.client("c")
    assert len(watcher.messages()) == 1


@pytest.mark.parametrize(("expiry_s", "delay_s", "due_s"), [(60, 5, 5), (5, 60, 5), (0, 60, 0), (0xFFFFFFFF, 7, 7)])
def test_a_delayed_will_goes_out_at_the_earlier_moment(expiry_s: int, delay_s: int, due_s: int) -> None:
    """A delayed will is sent after its delay or at the end of the session, whichever is earlier (MQTT-3.1.3-9)."""
    world = World()
    watcher = watch(world)
    world.client("c", session_expiry=expiry_s, will=delayed(delay_s)).lose()
    if due_s:
        world.sleep(due_s - 0.1)
        assert watcher.messages() == []
        world.sleep(0.2)
    assert len(watcher.messages()) == 1
    world.sleep(1000)
    assert watcher.messages() == []


def test_a_client_that_returns_cancels_its_will() -> None:
    """A client that returns cancels its delayed will, and the new CONNECT has its own or none."""
    world = World()
    watcher = watch(world)
    world.client("c", session_expiry=60, will=delayed(10)).lose()
    world.sleep(5)
    world.client("c", clean_start=False, session_expiry=60)
    world.sleep(100)
    assert watcher.messages() == []


def test_take_over_with_a_delay_and_a_resumed_session_is_no_reason_for_a_will() -> None:
    """A takeover with clean start 0 sends no will that has a delay (MQTT 5.0, 3.1.4)."""
    world = World()
    watcher = watch(world)
    world.client("c", session_expiry=60, will=delayed(10))
    world.client("c", clean_start=False, session_expiry=60)
    world.sleep(100)
    assert watcher.messages() == []


def test_clean_start_takes_a_waiting_will_back() -> None:
    """A clean start before the end of the delay cancels the old will (MQTT-3.1.2-8), and the new one counts."""
    world = World()
    watcher = watch(world)
    world.client("c", session_expiry=60, will=delayed(10)).lose()
    client = world.client("c", will=Will("will/c", b"new"))
    world.sleep(100)
    assert watcher.messages() == []
    client.lose()
    assert [message.payload for message in watcher.messages()] == [b"new"]


def test_clean_start_at_a_take_over_sends_a_delayed_will() -> None:
    """A takeover with clean start sends a delayed will, because it ends the session (3.1.3.2.2)."""
    world = World()
    watcher = watch(world)
    world.client("c", session_expiry=60, will=delayed(10))
    world.client("c", session_expiry=60)
    assert len(watcher.messages()) == 1


def test_disconnect_with_expiry_and_will_keeps_the_delay() -> None:
    """DISCONNECT 0x04 with an expiry keeps the will's delay."""
    world = World()
    watcher = watch(world)
    world.client("c", session_expiry=60, will=delayed(10)).send(Disconnect(4))
    assert watcher.messages() == []
    world.sleep(10.1)
    assert len(watcher.messages()) == 1


def test_the_expiry_of_a_will_starts_when_it_is_published() -> None:
    """The expiry of a will starts when it is published."""
    world = World()
    watcher = watch(world)
    client = world.client("c", will=Will("will/c", properties=WillProperties(message_expiry=10)))
    world.sleep(1000)
    client.lose()
    (message,) = watcher.messages()
    assert message.properties.message_expiry == 10


def test_wills_that_cause_disconnects_that_cause_wills() -> None:
    """A chain of wills that disconnect slow watchers, each with a will, ends without recursion."""
    world = World(queued_messages=1, when_full="refuse")
    clients = [world.client(f"c{i}", receive_maximum=1, will=Will(f"will/{i}", b"x", qos=1)) for i in range(1500)]
    for i, client in enumerate(clients[1:]):
        client.subscribe("fill", f"will/{i}", qos=1)
    sender = world.client("p")
    for _ in range(2):
        sender.publish("fill", b"x", 1)
        world.work()
    clients[0].lose()
    world.work()
    assert all(client.is_ended for client in clients)
    assert not any(isinstance(packet, Publish) for packet in sender.received())


def test_wills_of_a_restart_go_out_in_the_order_of_arrival() -> None:
    """Wills of a restart are sent in the order in which their clients connected."""
    world = World()
    names = [f"c{number}" for number in range(40)]
    clients = [world.client(name, will=Will(f"will/{name}", b"gone"), session_expiry=60) for name in names]
    watcher = world.client("watcher", session_expiry=60)
    watcher.subscribe("will/#", qos=1)
    world.broker.disconnect_all(world.now)
    assert all(isinstance(client.one(Disconnect), Disconnect) for client in clients)
    assert [packet.topic for packet in watcher.messages()] == [f"will/{name}" for name in names]


def test_the_goodbyes_of_the_end_are_said_in_the_order_of_arrival() -> None:
    """At the end clients are disconnected in the order in which they connected, those without a session too."""
    world = World()
    connections = [world.client(f"c{number}").connection for number in range(20)]
    connections += [world.broker.connection_opened(world.now, peer="silent") for _ in range(20)]
    world.broker.take_dirty()
    world.broker.shut_down()
    assert world.broker.take_dirty() == connections
