"""The life of a connection: the machine's diagram, transition by transition."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_driver import NOTIFICATIONS, RESPONSES, MachineDriver, Seen

from statestore_client.core.actions import ConnectionState, Disconnect, Drop, Open, Publish, Subscribe
from statestore_client.core.backoff import Backoff
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    ConnectRefusedError,
    NotAuthorizedError,
    SessionLostError,
    TransportError,
)
from statestore_client.wire.commands import Set
from statestore_client.wire.messages import Connected, IncomingMessage, Subscribed

SET = Set(b"k", b"v")


def test_open_connects_and_subscribes_before_anything_is_sent() -> None:
    """A connection goes through NEW, CONNECTING, SUBSCRIBING and READY, and sends no request before the response topic
    is subscribed."""
    driver = MachineDriver()
    assert driver.open() == [*driver.actions[:1], Open(clean_start=True)]
    driver.submit(SET, "w")
    actions = driver.receive(Connected(False))
    assert actions == [Subscribe(1, (RESPONSES,))]
    assert driver.outcomes["open"] == []
    driver.open("second")
    driver.suback()
    assert driver.outcome("open") is driver.outcome("second") is None
    assert len(driver.on_the_wire) == 1
    assert [state for state, _ in driver.states] == ["connecting", "connected"]
    driver.open("third")
    assert driver.outcome("third") is None


def test_clean_start_is_for_the_first_connection_only() -> None:
    """Only the first connection may be a clean start: a later one would throw away the session with requests in
    flight."""
    driver = MachineDriver(retry_first_connect=True)
    driver.open()
    driver.lose()
    assert Open(clean_start=True) in driver.at(driver.machine.next_deadline() or 0)
    driver.connect()
    driver.lose()
    assert Open(clean_start=False) in driver.at(driver.machine.next_deadline() or 0)
    unclean = MachineDriver(clean_start=False)
    assert Open(clean_start=False) in unclean.open()


def test_a_session_that_is_present_is_not_subscribed_again() -> None:
    """When the broker still has the session, only topics that it lacks are subscribed to."""
    driver = MachineDriver().ready()
    driver.lose()
    assert not any(isinstance(a, Subscribe) for a in driver.reconnect(session_present=True))
    assert driver.machine.state is ConnectionState.CONNECTED
    driver.lose()
    assert any(isinstance(a, Subscribe) for a in driver.reconnect(session_present=False))


def test_a_lost_session_is_told_once_when_the_connection_stands() -> None:
    """A lost session is reported once when a connection stands, even if the connection that found it out broke
    before."""
    driver = MachineDriver().ready()
    driver.lose()
    driver.reconnect(session_present=True)
    assert driver.states[-1] == (ConnectionState.CONNECTED, None)
    driver.lose()
    driver.at(driver.machine.next_deadline() or 0)
    driver.receive(Connected(False))
    driver.lose()
    driver.reconnect(session_present=True)
    state, error = driver.states[-1]
    assert state is ConnectionState.CONNECTED
    assert isinstance(error, SessionLostError)
    driver.lose()
    driver.reconnect(session_present=True)
    assert driver.states[-1] == (ConnectionState.CONNECTED, None)


def test_a_session_of_an_earlier_process_is_subscribed_anew() -> None:
    """When the first connection finds a session of an earlier process, everything is subscribed to again."""
    driver = MachineDriver(clean_start=False)
    driver.open()
    assert any(isinstance(a, Subscribe) for a in driver.connect(session_present=True))


def test_after_a_failed_attempt_nobody_knows_what_the_session_has() -> None:
    """After a failed attempt everything is subscribed to again: its CONNECT may have begun a new session unnoticed."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.lose()
    driver.at(driver.machine.next_deadline() or 0)
    driver.lose(ConnectionLostError("no CONNACK"))
    assert any(isinstance(a, Subscribe) for a in driver.reconnect(session_present=True))
    assert driver.outcomes["w"] == []  # what is in flight goes on: as far as anybody knows, it is the same session
    driver.lose()
    assert any(isinstance(a, Subscribe) for a in driver.reconnect(session_present=True))  # it may arrive late, too
    driver.after(120.0)
    driver.lose()
    assert not any(isinstance(a, Subscribe) for a in driver.reconnect(session_present=True))


def test_an_own_attempt_that_arrives_late_ends_nothing() -> None:
    """An abandoned attempt of our own that takes the session over late does not end the client."""
    driver = MachineDriver().ready()
    driver.lose()
    driver.at(driver.machine.next_deadline() or 0)
    driver.lose(ConnectionLostError("no CONNACK"))
    driver.reconnect()
    driver.lose(ConnectionLostError("session taken over"), fatal=True, reason_code=0x8E)
    assert driver.machine.state is ConnectionState.SUSPENDED
    driver.reconnect()
    driver.after(120.0)
    driver.lose(ConnectionLostError("session taken over"), fatal=True, reason_code=0x8E)
    assert driver.machine.state is ConnectionState.CLOSED


def test_a_failed_first_connection_is_the_end() -> None:
    """A failed first connection ends the client, unless it was asked to retry."""
    driver = MachineDriver()
    driver.open()
    driver.submit(SET, "w")
    driver.lose(ConnectionLostError("refused"))
    assert str(driver.outcome("open")) == str(driver.outcome("w")) == "refused"
    assert driver.machine.state is ConnectionState.CLOSED
    assert driver.machine.next_deadline() is None


def test_a_retried_first_connection_keeps_its_waiters() -> None:
    """While the first connection is retried, a caller in open() waits on, until its own time-out."""
    driver = MachineDriver(retry_first_connect=True)
    driver.open("patient")
    driver.open("hasty")
    driver.lose()
    driver.machine.cancel_open("hasty")
    driver.reconnect(session_present=False)
    assert driver.outcome("patient") is None
    assert driver.outcomes["hasty"] == []
    assert [state for state, _ in driver.states] == ["connecting", "connecting", "connected"]


@pytest.mark.parametrize("phase", ["connecting", "subscribing", "ready", "waiting"])
def test_a_fatal_reason_ends_every_phase(phase: str) -> None:
    """A fatal reason ends the client in every phase: there is no new attempt, and every caller gets the reason."""
    driver = MachineDriver(retry_first_connect=True)
    driver.open()
    if phase == "subscribing":
        driver.receive(Connected(False))
    elif phase != "connecting":
        driver.connect()
    if phase == "waiting":
        driver.lose()
        driver.at(driver.machine.next_deadline() or 0)
    driver.submit(SET, "w")
    seen = driver.watch(b"k", "watch")
    error = ConnectRefusedError("banned", reason_code=0x8A)
    driver.lose(error, fatal=True)
    assert driver.machine.state is ConnectionState.CLOSED
    assert driver.states[-1] == (ConnectionState.CLOSED, error)
    assert "banned" in str(driver.outcome("w"))
    assert isinstance(driver.outcome("watch"), ConnectRefusedError)
    assert isinstance(seen[-1], ConnectRefusedError)
    driver.after(1000)
    assert not any(isinstance(a, Open) for a in driver.actions[-3:])


@pytest.mark.parametrize("phase", ["new", "connecting", "subscribing", "ready", "waiting"])
def test_close_ends_every_phase(phase: str) -> None:
    """Closing works in every phase, and sends DISCONNECT on a link that stands or may come to stand."""
    driver = MachineDriver(retry_first_connect=True)
    if phase != "new":
        driver.open()
    if phase == "subscribing":
        driver.receive(Connected(False))
    elif phase in ("ready", "waiting"):
        driver.connect()
    if phase == "waiting":
        driver.lose()
    actions = driver.close()
    assert (Disconnect() in actions) == (phase in ("connecting", "subscribing", "ready"))
    assert driver.states[-1] == (ConnectionState.CLOSED, None)
    if phase in ("connecting", "subscribing"):
        assert isinstance(driver.outcome("open"), ClosedError)
    assert driver.lose() == driver.after(1000) == driver.receive(Connected(False)) == []


@pytest.mark.parametrize(("code", "kind"), [(0x87, NotAuthorizedError), (0x97, TransportError), (0x80, TransportError)])
def test_a_refused_response_subscription_is_the_end(code: int, kind: type) -> None:
    """When the subscription of the response topic is refused, the client ends, because it could get no answers."""
    driver = MachineDriver()
    driver.open()
    driver.receive(Connected(False))
    actions = driver.receive(Subscribed(1, (code,)))
    assert Disconnect() in actions
    assert isinstance(driver.outcome("open"), kind)
    assert f"0x{code:02X}" in str(driver.outcome("open"))


def test_a_broker_that_never_answers_subscribe_is_left() -> None:
    """A broker that does not answer SUBSCRIBE within ten seconds of CONNACK is left."""
    driver = MachineDriver()
    driver.open()
    driver.receive(Connected(False))
    assert Drop() not in driver.after(9.9)
    assert driver.machine.next_deadline() == pytest.approx(driver.time + 0.1)
    assert Drop() in driver.after(0.1)
    assert driver.machine.next_deadline() is None
    driver.lose(ConnectionLostError("given up"))
    assert "did not answer SUBSCRIBE" in str(driver.outcome("open"))


def test_a_short_suback_does_not_count_as_granted() -> None:
    """A SUBACK with too few reason codes grants only the topics that it covers."""
    driver = MachineDriver()
    driver.open()
    driver.receive(Connected(False))
    driver.receive(Subscribed(1, ()))
    assert driver.outcomes["open"] == []
    assert driver.receive(Subscribed(99, (0,))) == []


def test_attempts_come_later_and_later_until_a_connection_lasts() -> None:
    """Attempts come at growing intervals with jitter; once a connection has lasted five seconds they start again, the
    first at once."""
    driver = MachineDriver().ready()
    delays = []
    for _ in range(12):
        driver.lose()
        delays.append((driver.machine.next_deadline() or 0) - driver.time)
        driver.reconnect()
    for n, delay in enumerate(delays):
        assert 0.5 * min(30, 0.1 * 2**n) <= delay <= min(30, 0.1 * 2**n)
    driver.after(5)
    driver.lose()
    assert driver.machine.next_deadline() == driver.time


def test_the_state_is_told_when_it_changes_and_when_an_attempt_fails() -> None:
    """A new state is reported when it changes and when an attempt fails, with each new reason for being suspended."""
    driver = MachineDriver().ready()
    driver.lose(ConnectionLostError("cut"))
    for reason in ("no route", "refused"):
        driver.at(driver.machine.next_deadline() or 0)
        driver.lose(ConnectionLostError(reason))
    driver.reconnect()
    driver.close()
    told = [(str(state), str(error) if error else None) for state, error in driver.states]
    assert told == [
        ("connecting", None),
        ("connected", None),
        ("suspended", "cut"),
        ("suspended", "no route"),
        ("suspended", "refused"),
        ("connected", None),
        ("closed", None),
    ]


def test_nothing_is_published_while_the_link_is_down() -> None:
    """While the link is down and until SUBACK, neither requests nor KEYNOTIFY are published."""
    driver = MachineDriver().ready()
    driver.lose()
    before = len(driver.published)
    driver.submit(SET, "w")
    seen = driver.watch(b"k", "watch")
    driver.unwatch(b"k", seen)
    driver.at(driver.machine.next_deadline() or 0)
    driver.receive(Connected(False))
    assert len(driver.published) == before
    driver.suback()
    assert len(driver.published) == before + 1


@pytest.mark.parametrize(
    "topic",
    [
        "nonsense",
        NOTIFICATIONS,
        NOTIFICATIONS + "GG",
        NOTIFICATIONS.replace("6D65", "6D66") + "6B",
        RESPONSES + "/x",
        "",
    ],
)
def test_messages_on_other_topics_are_acknowledged_and_dropped(topic: str) -> None:
    """A message on an unknown topic is acknowledged and dropped, so that the broker does not send it for ever."""
    driver = MachineDriver().ready()
    seen = driver.watch(b"k", "watch")
    driver.suback()
    message = IncomingMessage(topic, b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n", None, (), 5)
    driver.receive(message)
    assert driver.acknowledged == [5]
    assert seen == []
    assert driver.machine.exchange.stats.late_or_unknown_replies == 1


@given(st.integers(0, 10**6), st.integers(0, 2**32), st.floats(0.001, 10), st.floats(10, 100), st.floats(0, 1))
def test_delays_stay_within_their_bounds(attempt: int, seed: int, first: float, cap: float, jitter: float) -> None:
    """A delay never exceeds the cap and never falls below what jitter may leave."""
    delay = Backoff(first, cap, jitter).delay(attempt, Random(seed))
    full = min(cap, first * 2 ** min(attempt, 64))
    assert full * (1 - jitter) * 0.999 <= delay <= full


def test_a_stray_event_changes_nothing() -> None:
    """A stray event, such as a second CONNACK or an unasked SUBACK, changes nothing in any order."""
    driver = MachineDriver().ready()
    assert driver.receive(Connected(False)) == []
    assert driver.receive(Subscribed(77, (0,))) == []
    seen = Seen()
    driver.machine.unwatch(b"never watched", seen, driver.now)
    assert not any(isinstance(a, Publish) for a in driver.take())
