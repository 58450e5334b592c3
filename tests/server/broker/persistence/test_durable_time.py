"""Time while a broker with a journal is away: sessions that expire, and wills. It is that of the monotonic clock."""

from __future__ import annotations

import pytest
from support.durable_broker import DAY, DurableWorld, messages_in

from statestore_client.mqtt.packets import (
    Disconnect,
    Publish,
    Will,
    WillProperties,
)
from statestore_client.server.broker.limits import NEVER_EXPIRES
from statestore_client.server.broker.session.awaited import GRACE_S


@pytest.fixture
def world() -> DurableWorld:
    return DurableWorld()


# -- time --------------------------------------------------------------------------------------------------------------


def test_sessions_expire_while_the_server_is_away(world: DurableWorld) -> None:
    """The session of an absent client expires while the server is away, and that of a connected one from the moment on
    when it is no longer awaited."""
    for name in ("away", "here"):
        world.client(name, session_expiry=100).subscribe("t", qos=1)
    world.client("away", clean_start=False, session_expiry=100).lose()
    world.commit()
    world.crash(away_s=101)
    assert world.broker.usage.sessions == 1
    world.sleep(99)
    world.commit()
    world.crash(away_s=0)
    assert world.client("here", clean_start=False, session_expiry=100).connack.session_present
    world.commit()
    world.crash()
    world.sleep(GRACE_S + 99)
    assert world.broker.usage.sessions == 1
    world.sleep(2)
    assert world.broker.usage.sessions == 0
    world.commit()
    assert world.storage.count() == {}


@pytest.mark.parametrize("expiry_s", [1000, NEVER_EXPIRES])
def test_a_lower_limit_holds_for_sessions_that_are_stored(expiry_s: int) -> None:
    """Under a lower limit stored sessions, endless ones included, end when it has passed since their clients left."""
    world = DurableWorld(session_expiry_s=NEVER_EXPIRES)
    for name in ("away", "here"):
        world.client(name, session_expiry=expiry_s)
    world.client("away", clean_start=False, session_expiry=expiry_s).lose()
    world.commit()
    world.limits["session_expiry_s"] = 100
    world.crash(away_s=60)
    world.sleep(39)
    assert world.broker.usage.sessions == 2
    world.commit()
    world.limits["session_expiry_s"] = NEVER_EXPIRES  # what has been lowered stays
    world.crash()
    world.sleep(2)
    assert world.broker.usage.sessions == 1
    world.sleep(GRACE_S + 98)
    assert world.broker.usage.sessions == 0
    world.commit()
    assert world.storage.count() == {}


def test_a_limit_of_nothing_ends_stored_sessions(world: DurableWorld) -> None:
    """A limit of zero ends stored sessions at the start, before any client connects, or when it is not awaited any
    longer."""
    world.client("here", session_expiry=100)
    world.client("away", session_expiry=100).lose()
    world.commit()
    world.limits["session_expiry_s"] = 0
    world.crash()
    assert [view.client_id for view in world.broker.sessions()] == ["here"]
    world.sleep(GRACE_S)
    assert world.broker.usage.sessions == 0


def test_wills_that_were_waiting(world: DurableWorld) -> None:
    """A will's delay goes on while the server is away, and a client that is back in time, or its DISCONNECT, cancels
    it."""
    watcher = world.client("w", session_expiry=DAY)
    watcher.subscribe("will/#", qos=1)
    for name in ("late", "back", "bye"):
        will = Will(f"will/{name}", b"w", 1, properties=WillProperties(will_delay=50))
        client = world.client(name, session_expiry=100, will=will)
        if name == "bye":
            client.send(Disconnect())
        client.lose()
    world.commit()
    world.crash(away_s=40)
    world.client("back", clean_start=False, session_expiry=100)
    world.commit()
    world.crash(away_s=20)
    assert [m.topic for m in messages_in(world.back("w")[1])] == ["will/late"]


# -- clocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [-DAY, DAY])
def test_setting_the_wall_clock_ends_no_session_and_no_message(world: DurableWorld, step_s: int) -> None:
    """Setting the wall clock does not change the remaining time of sessions, queued and retained messages, and
    wills."""
    world.client("away", session_expiry=100).subscribe("t", qos=1)
    world.client("away", clean_start=False, session_expiry=100).lose()
    will = Will("will", b"w", 1, properties=WillProperties(will_delay=50))
    world.client("will", session_expiry=1_000, will=will).lose()
    publisher = world.client("p")
    publisher.publish("t", b"m", 1, retain=True, message_expiry=30)
    publisher.received()
    world.commit()
    world.wall_ahead_ms = step_s * 1000
    world.crash(away_s=10)
    client, packets = world.back("away", session_expiry=100)
    assert [m.properties.message_expiry for m in messages_in(packets)] == [20]
    (retained,) = client.subscribe("t", "will", qos=1)
    assert isinstance(retained, Publish)
    assert retained.properties.message_expiry == 20
    world.sleep(39)
    assert client.messages() == []
    world.sleep(1)
    assert [m.topic for m in client.messages()] == ["will"]


def test_after_a_restart_of_the_machine_the_time_away_does_not_count(world: DurableWorld) -> None:
    """After a restart of the machine the time away does not count: a session has what was left at the last batch."""
    world.client("away", session_expiry=100).lose()
    world.commit()
    world.crash(away_s=60, boot=2)
    world.sleep(99)
    assert world.broker.usage.sessions == 1
    world.sleep(1)
    assert world.broker.usage.sessions == 0
