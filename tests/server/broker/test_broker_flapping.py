"""Programs with the same client identifier that steal the session from each other: held for a second, then let in."""

from __future__ import annotations

from support.broker_driver import Client, World
from support.broker_invariants import audit

from statestore_client.mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, ReasonCode


def come(world: World, client_id: str = "same") -> Client:
    """A new connection that says CONNECT, and PINGREQ without waiting for an answer."""
    client = Client(world)
    client.send(Connect(client_id), Pingreq())
    return client


def test_two_that_fight_are_slowed_down() -> None:
    """Two clients that take over from each other have five free takeovers, then each takes a second, and none is
    refused."""
    world = World(flapping_hold_s=1)
    began, newest = world.monotonic, come(world)
    for number in range(20):
        newest.received()
        oldest, newest = newest, come(world)
        if newest.connection.session is None:
            assert number >= 5
            assert newest.received() == []
            assert newest.connection.is_held
            world.sleep(1.0)
        assert [type(packet) for packet in newest.received()] == [Connack, Pingresp]
        (farewell,) = oldest.received()
        assert isinstance(farewell, Disconnect)
        assert farewell.reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert world.monotonic - began == 15.0
    assert world.broker.counters.held_connects == 15


def test_fifty_at_the_same_moment_leave_one() -> None:
    """Of fifty clients at the same moment only the latest waits on, the others get 0x9F, and after a second one is
    left."""
    world = World(flapping_hold_s=1)
    clients = [come(world) for _ in range(50)]
    world.sleep(1.1)
    assert [client.is_ended for client in clients] == [True] * 49 + [False]
    assert clients[-1].connection.session is not None
    told = [client.received()[-1] for client in clients[6:49]]
    assert {packet.reason_code for packet in told if isinstance(packet, Connack)} == {0x9F}
    assert world.broker.usage.sessions == 1


def test_a_pause_ends_the_row() -> None:
    """A client that takes over every six seconds is never held, and a clean reconnect is no takeover."""
    world = World(flapping_hold_s=1)
    for _ in range(20):
        assert come(world).connection.session is not None
        world.sleep(6.0)
    for _ in range(20):
        client = come(world, "other")
        assert client.connection.session is not None
        client.lose()


def test_whoever_is_held_may_leave() -> None:
    """A client that is held may leave: its CONNECT is forgotten, and the connected one stays."""
    world = World(flapping_hold_s=1)
    clients = [come(world) for _ in range(7)]
    assert clients[-1].connection.session is None
    clients[-1].lose()
    world.sleep(2.0)
    assert clients[-2].connection.session is not None
    assert not clients[-2].is_ended
    assert world.broker.next_deadline() is None
    assert audit(world.broker) == ()  # without a deadline, nobody is held any more


def test_the_one_that_is_in_may_leave() -> None:
    """If the connected client leaves, the held one comes in after its second."""
    world = World(flapping_hold_s=1)
    clients = [come(world) for _ in range(7)]
    clients[-2].lose()
    world.sleep(1.1)
    assert clients[-1].connection.session is not None
