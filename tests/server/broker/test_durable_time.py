"""Time while a broker with a journal is away, by the monotonic clock: sessions that expire, and wills. What becomes of
clients that were connected when the server before this one went.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_driver import Allowed, Client
from support.broker_invariants import audit
from support.durable_broker import DAY, DurableWorld, messages_in

from statestore_client.mqtt.packets import (
    Disconnect,
    Publish,
    Will,
    WillProperties,
)
from statestore_client.server.broker import Admitted
from statestore_client.server.broker.admission import Credentials
from statestore_client.server.broker.lifecycle import GRACE_S
from statestore_client.server.broker.limits import NEVER_EXPIRES


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


# -- clients that were connected ---------------------------------------------------------------------------------------


@pytest.fixture
def watched() -> DurableWorld:
    """Somebody watches for wills."""
    world = DurableWorld()
    world.client("w", session_expiry=DAY).subscribe("will/#", qos=1)
    return world


def _with_will(world: DurableWorld, name: str, *, delay: int = 0, **connect: Any) -> Client:
    return world.client(
        name, will=Will(f"will/{name}", b"w", 1, properties=WillProperties(will_delay=delay)), **connect
    )


def _crash(world: DurableWorld, away_s: float = 0.0) -> Client:
    """The watcher, who is back at once."""
    world.commit()
    world.crash(away_s)
    watcher, packets = world.back("w")
    assert messages_in(packets) == []
    return watcher


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_who_comes_back_leaves_no_will(watched: DurableWorld, expiry_s: int) -> None:
    """No will goes out of a client that is back while it is awaited, until it is lost again."""
    _with_will(watched, "c", session_expiry=expiry_s)
    watcher = _crash(watched)
    watched.sleep(GRACE_S - 0.1)
    client = _with_will(watched, "c", session_expiry=expiry_s, clean_start=False)
    assert client.connack.session_present == (expiry_s > 0)
    watched.sleep(1_000)
    assert watcher.messages() == []
    client.lose()
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    assert audit(watched.broker) == ()


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_who_comes_back_without_a_will_leaves_none(watched: DurableWorld, expiry_s: int) -> None:
    """A client that is back with a clean start and without a will has taken the old one back, on the disk as well."""
    _with_will(watched, "c", session_expiry=expiry_s)
    watcher = _crash(watched)
    watched.client("c").send(Disconnect())
    watched.sleep(GRACE_S)
    assert watcher.messages() == []
    watcher = _crash(watched, away_s=10)
    watched.sleep(GRACE_S)
    assert watcher.messages() == []
    assert watched.storage.count().get("wills") is None


@pytest.mark.parametrize(
    ("expiry_s", "delay", "due_s"), [(0, 0, 0), (0, 30, 0), (100, 0, 0), (100, 30, 30), (20, 30, 20)]
)
def test_who_does_not_come_back_leaves_one_will(watched: DurableWorld, expiry_s: int, delay: int, due_s: float) -> None:
    """The will goes out once, when its client is no longer awaited and its delay or its session is over after that."""
    _with_will(watched, "c", session_expiry=expiry_s, delay=delay)
    watcher = _crash(watched, away_s=1_000)
    watched.sleep(GRACE_S + due_s - 0.1)
    assert watcher.messages() == []
    watched.sleep(0.2)
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    watched.sleep(1_000)
    assert watcher.messages() == []
    assert watched.broker.usage.sessions == 1
    watched.commit()
    assert watched.storage.count().keys() <= {"sessions", "subscriptions", "messages", "deliveries"}
    assert audit(watched.broker) == ()


def test_a_will_that_went_out_does_not_go_out_after_the_next_crash(watched: DurableWorld) -> None:
    """A will that was sent is not sent again by the next server; only its delivery is repeated."""
    for name, expiry_s in (("a", 0), ("b", 100)):
        _with_will(watched, name, session_expiry=expiry_s)
    _crash(watched)
    watched.sleep(GRACE_S)
    for _ in range(2):
        watched.work()
        watched.crash()
        watched.sleep(GRACE_S)
        _, packets = watched.back("w")
        assert sorted(m.topic for m in messages_in(packets)) == ["will/a", "will/b"]


def test_a_client_that_left_is_not_awaited(watched: DurableWorld) -> None:
    """Only who was connected is awaited: other wills and sessions go on running out."""
    _with_will(watched, "c", session_expiry=100, delay=3).lose()
    _with_will(watched, "bye", session_expiry=2).send(Disconnect())
    watcher = _crash(watched, away_s=1)
    watched.sleep(2)
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    assert {view.client_id for view in watched.broker.sessions()} == {"w", "c"}


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_another_crash_while_clients_are_awaited(watched: DurableWorld, expiry_s: int) -> None:
    """Each server awaits the clients anew, also those that the server before it was awaiting."""
    _with_will(watched, "c", session_expiry=expiry_s)
    for _ in range(3):
        _crash(watched, away_s=60)
        watched.sleep(GRACE_S - 1)
    watcher = _crash(watched)
    watched.sleep(GRACE_S)
    assert [m.topic for m in watcher.messages()] == ["will/c"]


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_who_comes_back_and_is_lost_again(watched: DurableWorld, expiry_s: int) -> None:
    """A client that is lost a second time is not awaited: its will and its session go on as of any other client."""
    _with_will(watched, "c", session_expiry=expiry_s)
    watcher = _crash(watched)
    _with_will(watched, "c", session_expiry=expiry_s, clean_start=False).lose()
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    watched.sleep(99)
    assert watched.broker.usage.sessions == 1 + (expiry_s > 0)
    watched.sleep(1)
    assert watched.broker.usage.sessions == 1
    assert watcher.messages() == []


class _Users:
    """Everybody is whom their password names; a will may go to two topics, and no longer to the third."""

    def authenticate(self, credentials: Credentials) -> Admitted:
        return Admitted((credentials.password or b"").decode() or None)

    def permissions(self, user: str | None, client_id: str) -> Allowed:
        del client_id
        return Allowed(frozenset(("will/#", "will/c", *([] if self.is_strict else ["will/gone"]))))

    is_strict = False

    @property
    def rules(self) -> bool:
        return self.is_strict


def test_another_user_does_not_take_a_will_back() -> None:
    """The will of a user goes out when another one comes under the same client identifier: the first is not back."""
    world = DurableWorld(gatekeeper=_Users())
    world.client("w", session_expiry=DAY).subscribe("will/#", qos=1)
    _with_will(world, "c", password=b"one")
    watcher = _crash(world)
    world.client("c", password=b"two")
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    world.sleep(GRACE_S)
    assert watcher.messages() == []
    assert audit(world.broker) == ()


def test_what_a_client_may_do_counts_for_its_will() -> None:
    """A will that is no longer permitted is not sent, also if nothing else is left of its client."""
    users = _Users()
    world = DurableWorld(gatekeeper=users)
    world.client("w", session_expiry=DAY).subscribe("will/#", qos=1)
    for name in ("c", "gone"):
        _with_will(world, name)
    users.is_strict = True
    watcher = _crash(world)
    world.sleep(GRACE_S)
    assert [m.topic for m in watcher.messages()] == ["will/c"]


def test_many_wills_go_out_in_turns(watched: DurableWorld) -> None:
    """When many clients do not come back, no turn sends all of their wills, and each is sent once."""
    for number in range(200):
        _with_will(watched, f"{number}", session_expiry=number % 2)
    watcher = _crash(watched)
    watched.monotonic += GRACE_S
    turns = []
    while (deadline := watched.broker.next_deadline()) is not None and deadline <= watched.monotonic:
        watched.broker.tick(watched.now)
        turns.append(len(watcher.messages()))
    assert max(turns) <= 128
    assert sum(turns) == 200
    assert audit(watched.broker) == ()
