"""Sessions of a standby: they are there before it takes over, and cost nothing then."""

from __future__ import annotations

import attrs
import pytest
from support.broker_driver import Client
from support.durable_broker import DAY
from support.durable_store import Follower, ServedWorld, batch_of

from statestore_client.mqtt.packets import Unsubscribe, Will
from statestore_client.server.journal import DamagedRecordError, Stream


def _lasting(world: ServedWorld, name: str) -> Client:
    client = world.client(name, session_expiry=DAY, will=Will(f"will/{name}", b"w"))
    client.subscribe(f"t/{name}/#", f"{name}/r", "$share/g/t", qos=1)
    return client


def test_sessions_are_there_before_the_standby_takes_over() -> None:
    """A standby has the sessions of the active server, with their subscriptions, as they are now, and no others."""
    world = ServedWorld()
    follower = Follower(world, 0.0)
    clients = [_lasting(world, f"c{number}") for number in range(3)]
    follower.follow()
    assert follower.broker.sessions() == tuple(attrs.evolve(v, is_connected=False) for v in world.broker.sessions())
    clients[0].send(Unsubscribe(clients[0].next_id(), ("c0/r",)))
    world.client("c1", clean_start=True, session_expiry=60).subscribe("new", qos=1)
    world.client("c2", clean_start=True)
    world.work()
    follower.follow()
    filters = {view.client_id: [*view.subscriptions] for view in follower.broker.sessions()}
    assert filters == {"c0": ["t/c0/#", "$share/g/t"], "c1": ["new"]}
    usage, active = follower.broker.usage, world.broker.usage
    assert (usage.subscriptions, usage.subscription_bytes) == (active.subscriptions, active.subscription_bytes)
    follower.take_over(world.journal.timeline)
    assert follower.broker.audit() == ()


def test_sessions_whose_clients_are_away_make_room_first() -> None:
    """When room is short, a new active server ends the session of a client that was away, not of one that it awaits,
    though the record of that one is older."""
    world = ServedWorld(sessions=2)
    follower = Follower(world, 0.0)
    clients = [world.client(name, session_expiry=DAY) for name in ("awaited", "away")]
    clients[1].lose()
    world.sleep(1)
    world.work()
    follower.take_over(world.journal.timeline)
    world.broker = follower.broker
    world.client("new", session_expiry=DAY)
    assert [view.client_id for view in world.broker.sessions()] == ["awaited", "new"]


def test_taking_over_writes_nothing_of_sessions_that_are_idle() -> None:
    """However many sessions there are, the first batch of a new active server has none of them."""
    world = ServedWorld()
    follower = Follower(world, 0.0)
    for number in range(20):
        _lasting(world, f"c{number}")
    world.client("short", will=Will("will/short", b"w"))
    world.work()
    follower.take_over(world.journal.timeline)
    assert [changes.stream for changes in follower.journal.cut(follower.now).changes] == [Stream.CLOCK]


def test_two_sessions_of_one_number_are_refused() -> None:
    """A number stands for one session."""
    standby = Follower(ServedWorld(), 0.0).standby
    fields = (2, 60, None, None, None, None)
    with pytest.raises(DamagedRecordError, match="number 2"):
        standby.absorb(batch_of(Stream.SESSIONS, ("a", fields), ("b", fields)))


def test_a_subscription_whose_session_never_comes_is_refused() -> None:
    """It may come later than its subscription, but not later than the moment when it is needed."""
    follower = Follower(ServedWorld(), 0.0)
    follower.standby.absorb(batch_of(Stream.SUBSCRIPTIONS, ("1 t", (1, False, False, ()))))
    with pytest.raises(DamagedRecordError, match="not there"):
        follower.take_over(follower.journal.timeline)
