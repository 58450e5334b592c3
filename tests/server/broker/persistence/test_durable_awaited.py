"""Clients that were connected when the server before this one went: what becomes of their wills and sessions."""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_driver import Allowed, Client
from support.durable_broker import DAY, DurableWorld, messages_in

from statestore_client.mqtt.packets import Disconnect, Will, WillProperties
from statestore_client.server.broker import Admitted
from statestore_client.server.broker.admission import Credentials
from statestore_client.server.broker.session.awaited import GRACE_S


@pytest.fixture
def world() -> DurableWorld:
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
def test_who_comes_back_leaves_no_will(world: DurableWorld, expiry_s: int) -> None:
    """No will goes out of a client that is back while it is awaited, until it is lost again."""
    _with_will(world, "c", session_expiry=expiry_s)
    watcher = _crash(world)
    world.sleep(GRACE_S - 0.1)
    client = _with_will(world, "c", session_expiry=expiry_s, clean_start=False)
    assert client.connack.session_present == (expiry_s > 0)
    world.sleep(1_000)
    assert watcher.messages() == []
    client.lose()
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    assert world.broker.audit() == ()


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_who_comes_back_without_a_will_leaves_none(world: DurableWorld, expiry_s: int) -> None:
    """A client that is back with a clean start and without a will has taken the old one back, on the disk as well."""
    _with_will(world, "c", session_expiry=expiry_s)
    watcher = _crash(world)
    world.client("c").send(Disconnect())
    world.sleep(GRACE_S)
    assert watcher.messages() == []
    watcher = _crash(world, away_s=10)
    world.sleep(GRACE_S)
    assert watcher.messages() == []
    assert world.storage.count().get("wills") is None


@pytest.mark.parametrize(
    ("expiry_s", "delay", "due_s"), [(0, 0, 0), (0, 30, 0), (100, 0, 0), (100, 30, 30), (20, 30, 20)]
)
def test_who_does_not_come_back_leaves_one_will(world: DurableWorld, expiry_s: int, delay: int, due_s: float) -> None:
    """The will goes out once, when its client is no longer awaited and its delay or its session is over after that."""
    _with_will(world, "c", session_expiry=expiry_s, delay=delay)
    watcher = _crash(world, away_s=1_000)
    world.sleep(GRACE_S + due_s - 0.1)
    assert watcher.messages() == []
    world.sleep(0.2)
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    world.sleep(1_000)
    assert watcher.messages() == []
    assert world.broker.usage.sessions == 1
    world.commit()
    assert world.storage.count().keys() <= {"sessions", "subscriptions", "messages", "deliveries"}
    assert world.broker.audit() == ()


def test_a_will_that_went_out_does_not_go_out_after_the_next_crash(world: DurableWorld) -> None:
    """A will that was sent is not sent again by the next server; only its delivery is repeated."""
    for name, expiry_s in (("a", 0), ("b", 100)):
        _with_will(world, name, session_expiry=expiry_s)
    _crash(world)
    world.sleep(GRACE_S)
    for _ in range(2):
        world.work()
        world.crash()
        world.sleep(GRACE_S)
        _, packets = world.back("w")
        assert sorted(m.topic for m in messages_in(packets)) == ["will/a", "will/b"]


def test_a_client_that_left_is_not_awaited(world: DurableWorld) -> None:
    """Only who was connected is awaited: other wills and sessions go on running out."""
    _with_will(world, "c", session_expiry=100, delay=3).lose()
    _with_will(world, "bye", session_expiry=2).send(Disconnect())
    watcher = _crash(world, away_s=1)
    world.sleep(2)
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    assert {view.client_id for view in world.broker.sessions()} == {"w", "c"}


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_another_crash_while_clients_are_awaited(world: DurableWorld, expiry_s: int) -> None:
    """Each server awaits the clients anew, also those that the server before it was awaiting."""
    _with_will(world, "c", session_expiry=expiry_s)
    for _ in range(3):
        _crash(world, away_s=60)
        world.sleep(GRACE_S - 1)
    watcher = _crash(world)
    world.sleep(GRACE_S)
    assert [m.topic for m in watcher.messages()] == ["will/c"]


@pytest.mark.parametrize("expiry_s", [0, 100])
def test_who_comes_back_and_is_lost_again(world: DurableWorld, expiry_s: int) -> None:
    """A client that is lost a second time is not awaited: its will and its session go on as of any other client."""
    _with_will(world, "c", session_expiry=expiry_s)
    watcher = _crash(world)
    _with_will(world, "c", session_expiry=expiry_s, clean_start=False).lose()
    assert [m.topic for m in watcher.messages()] == ["will/c"]
    world.sleep(99)
    assert world.broker.usage.sessions == 1 + (expiry_s > 0)
    world.sleep(1)
    assert world.broker.usage.sessions == 1
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
    assert world.broker.audit() == ()


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


def test_many_wills_go_out_in_turns(world: DurableWorld) -> None:
    """When many clients do not come back, no turn sends all of their wills, and each is sent once."""
    for number in range(200):
        _with_will(world, f"{number}", session_expiry=number % 2)
    watcher = _crash(world)
    world.monotonic += GRACE_S
    turns = []
    while (deadline := world.broker.next_deadline()) is not None and deadline <= world.monotonic:
        world.broker.tick(world.now)
        turns.append(len(watcher.messages()))
    assert max(turns) <= 128
    assert sum(turns) == 200
    assert world.broker.audit() == ()
