"""The life of a connection: the machine's diagram, transition by transition."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from machine_driver import NOTIFICATIONS, RESPONSES, MachineDriver, Publish, Seen

from statestore_client.core.actions import Action, ConnectionState, Disconnect, Drop, Open, Subscribe
from statestore_client.core.connection import Subscriptions
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    ConnectRefusedError,
    NotAuthorizedError,
    SessionLostError,
    SettingsError,
    StateStoreError,
    TransportError,
)
from statestore_client.wire.commands import Set, encode_payload
from statestore_client.wire.messages import Closed, Connected, IncomingMessage, OneAddress, Others, Subscribed

SET = Set(b"k", b"v")


def test_open_connects_and_subscribes_before_anything_is_sent() -> None:
    """A connection goes through NEW, CONNECTING, SUBSCRIBING and READY, and sends nothing before SUBACK."""
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
    """Only the first connection may be a clean start: a later one would lose requests in flight."""
    driver = MachineDriver(retry_first_connect=True)
    driver.open()
    driver.lose()
    assert Open(clean_start=True) in driver.at(driver.machine.next_deadline() or 0)
    driver.connect()
    driver.lose()
    assert Open(clean_start=False) in driver.at(driver.machine.next_deadline() or 0)
    unclean = MachineDriver(clean_start=False)
    assert Open(clean_start=False) in unclean.open()


@pytest.mark.parametrize(("retries", "ends"), [(False, [None, None, "closed"]), (True, [None, "pause", "pause"])])
def test_a_first_connection_fails_when_all_addresses_did(retries: bool, ends: list[str | None]) -> None:
    """It waits for those that are late, and each is tried once; with ``retry_first_connect``, round follows round."""
    left = Others.UNTRIED
    driver = MachineDriver(retry_first_connect=retries, alternatives=lambda: OneAddress(True, left))
    driver.open()
    for now_left, end in zip((Others.UNTRIED, Others.PENDING, Others.NONE), ends, strict=True):
        left = now_left
        driver.lose()
        if end == "closed":
            assert driver.machine.state is ConnectionState.CLOSED
            assert isinstance(driver.outcome("open"), ConnectionLostError)
            return
        deadline = driver.machine.next_deadline() or 0
        assert (deadline > driver.time) == (end == "pause")
        assert Open(clean_start=True, new_round=end == "pause") in driver.at(deadline)


@attrs.frozen
class _Several(OneAddress):
    """Others have said something, too."""

    def what_all_said(self, error: StateStoreError) -> StateStoreError:
        return ConnectionLostError(f"{error}; and no")


def test_what_all_addresses_said_is_told_of_attempts_alone() -> None:
    """The error of a connection that stood is what ended it. Within a round each attempt is told with its own, and all
    of them at its end.
    """
    left = Others.UNTRIED
    driver = MachineDriver(alternatives=lambda: _Several(True, left)).ready()
    for text, now_left, told in (
        ("cut", Others.UNTRIED, "cut"),
        ("refused", Others.UNTRIED, "refused"),
        ("refused", Others.NONE, "refused; and no"),
    ):
        left = now_left
        driver.lose(ConnectionLostError(text))
        assert str(driver.states[-1][1]) == told
        assert driver.machine.situation == f"suspended: {'cut' if text == 'cut' else 'refused; and no'}"
        driver.at(driver.machine.next_deadline() or 0)


def test_nobody_waits_for_a_late_address_after_the_first_connection() -> None:
    """What refused is tried again after a pause, in a new round. After a stable connection there is no pause."""
    left = Others.PENDING
    driver = MachineDriver(alternatives=lambda: OneAddress(True, left))
    driver.open()
    driver.connect()
    driver.after(10.0)
    driver.lose()
    assert Open(clean_start=False, new_round=True) in driver.after(0.0)
    driver.lose()
    assert driver.machine.next_deadline() == pytest.approx(driver.time + 0.075, abs=0.026)
    assert Open(clean_start=False, new_round=True) in driver.after(0.1)
    left = Others.UNTRIED
    driver.lose()
    assert Open(clean_start=False, new_round=False) in driver.after(0.0)


@pytest.mark.parametrize(
    ("closed", "goes_on"),
    [
        (Closed(ConnectRefusedError("no", reason_code=0x9D, fatal=True), True, 0x9D), True),
        (Closed(ConnectionLostError("the certificate is not trusted", fatal=True), True), True),
        (Closed(ConnectRefusedError("no", reason_code=0x86, fatal=True), True, 0x86), False),
        (Closed(SettingsError("password_file cannot be read"), True), False),
    ],
)
def test_what_one_server_says_of_itself_ends_no_client(closed: Closed, goes_on: bool) -> None:
    """It has moved, or its certificate is wrong: another address may be better. No other one likes a wrong password."""
    left = Others.UNTRIED
    driver = MachineDriver(alternatives=lambda: OneAddress(True, left))
    driver.open()
    driver.receive(closed)
    assert (driver.machine.state is not ConnectionState.CLOSED) == goes_on
    if goes_on:
        driver.after(0.0)
        left = Others.NONE
        driver.receive(closed)
        assert driver.machine.state is ConnectionState.CLOSED


def test_a_session_that_is_present_is_not_subscribed_again() -> None:
    """When the broker still has the session, only topics that it lacks are subscribed to; of a session of an earlier
    process nobody knows them."""
    driver = MachineDriver(clean_start=False)
    driver.open()
    assert any(isinstance(a, Subscribe) for a in driver.connect(session_present=True))
    driver.lose()
    assert not any(isinstance(a, Subscribe) for a in driver.reconnect(session_present=True))
    assert driver.machine.state is ConnectionState.CONNECTED
    driver.lose()
    assert any(isinstance(a, Subscribe) for a in driver.reconnect(session_present=False))


def test_a_lost_session_is_told_once_when_the_connection_stands(driver: MachineDriver) -> None:
    """A lost session is reported once when a connection stands, not when it is found out."""
    driver.cut(session_present=True)
    assert driver.states[-1] == (ConnectionState.CONNECTED, None)
    driver.lose()
    driver.at(driver.machine.next_deadline() or 0)
    driver.receive(Connected(False))
    driver.cut(session_present=True)
    state, error = driver.states[-1]
    assert state is ConnectionState.CONNECTED
    assert isinstance(error, SessionLostError)
    driver.cut(session_present=True)
    assert driver.states[-1] == (ConnectionState.CONNECTED, None)


def test_after_a_failed_attempt_nobody_knows_what_the_session_has(driver: MachineDriver) -> None:
    """After a failed attempt everything is subscribed to again: its CONNECT may have begun a new session unnoticed."""
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


def test_an_own_attempt_that_arrives_late_ends_nothing(driver: MachineDriver) -> None:
    """An abandoned attempt of our own that takes the session over late does not end the client."""
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
    driver.machine.cancel_open(driver.waiter("hasty"))
    driver.reconnect(session_present=False)
    assert driver.outcome("patient") is None
    assert driver.outcomes["hasty"] == []
    assert [state for state, _ in driver.states] == ["connecting", "connecting", "connected"]


def in_phase(phase: str, **options: Any) -> MachineDriver:
    """A client that goes on trying, in a phase of its life."""
    driver = MachineDriver(retry_first_connect=True, **options)
    if phase != "new":
        driver.open()
    if phase == "subscribing":
        driver.receive(Connected(False))
    elif phase in ("ready", "waiting", "reconnecting"):
        driver.connect()
    if phase in ("waiting", "reconnecting"):
        driver.lose()
    if phase == "reconnecting":
        driver.at(driver.machine.next_deadline() or 0)
    return driver


@pytest.mark.parametrize("phase", ["connecting", "subscribing", "ready", "reconnecting"])
def test_another_holder_of_the_client_id_ends_every_phase(phase: str) -> None:
    """A session that was taken over ends the client in every phase; every caller gets the reason."""
    driver = in_phase(phase)
    driver.submit(SET, "w")
    seen = driver.watch(b"k", "watch")
    error = ConnectionLostError("another holder")
    driver.lose(error, fatal=True, reason_code=0x8E)
    assert driver.states[-1] == (ConnectionState.CLOSED, error)
    assert "another holder" in str(driver.outcome("w"))
    assert isinstance(driver.outcome("watch"), ConnectionLostError)
    assert isinstance(seen[-1], ConnectionLostError)
    driver.after(1000)
    assert not any(isinstance(a, Open) for a in driver.actions[-3:])


#: What the broker or this machine says for some seconds, and takes back: as (error, reason code).
_TAKEN_BACK = [
    (ConnectRefusedError("bad user name or password", reason_code=0x86, fatal=True), 0x86),
    (ConnectRefusedError("banned", reason_code=0x8A, fatal=True), 0x8A),
    (ConnectionLostError("the certificate is not valid yet", fatal=True), None),
    (SettingsError("password_file 'secret' cannot be read"), None),
]


@pytest.mark.parametrize("phase", ["connecting", "subscribing", "ready", "reconnecting"])
@pytest.mark.parametrize(("error", "code"), _TAKEN_BACK)
def test_what_may_pass_ends_nothing(phase: str, error: StateStoreError, code: int | None) -> None:
    """After the first success, and before it with ``retry_first_connect``, the client goes on and says why not yet."""
    driver = in_phase(phase)
    driver.submit(SET, "w", None)
    for _ in range(5):
        driver.lose(error, fatal=True, reason_code=code)
        assert driver.states[-1] == (driver.machine.state, error)
        assert driver.machine.state is not ConnectionState.CLOSED
        driver.at(driver.machine.next_deadline() or 0)
    driver.connect(session_present=True)
    driver.answer(b"+OK\r\n", ("__ts", "1700000000001:0:S"))
    assert driver.machine.state is ConnectionState.CONNECTED
    assert [type(outcome).__name__ for outcome in driver.outcomes["w"]] == ["SetResult"]


@pytest.mark.parametrize("code", [0x84, 0x85])
def test_a_wrong_argument_ends_the_first_attempt(code: int) -> None:
    """A protocol version or client id that the broker cannot take is final before the first success only."""
    driver = in_phase("connecting")
    error = ConnectRefusedError("not valid", reason_code=code, fatal=True)
    driver.lose(error, fatal=True, reason_code=code)
    assert driver.machine.state is ConnectionState.CLOSED
    driver = in_phase("reconnecting")
    driver.lose(error, fatal=True, reason_code=code)
    assert driver.machine.state is ConnectionState.SUSPENDED


def test_what_the_user_gives_up_on_ends_every_phase() -> None:
    """``give_up_on`` ends the client for errors of these classes, if connecting again would not cure them."""
    for phase in ("connecting", "ready", "reconnecting"):
        driver = in_phase(phase, give_up_on=(ConnectRefusedError,))
        for error, fatal in ((SettingsError("no file"), True), (ConnectRefusedError("busy", reason_code=0x89), False)):
            driver.lose(error, fatal=fatal)
            assert driver.machine.state is not ConnectionState.CLOSED
            driver.at(driver.machine.next_deadline() or 0)
        driver.lose(ConnectRefusedError("bad password", reason_code=0x86, fatal=True), fatal=True, reason_code=0x86)
        assert driver.machine.state is ConnectionState.CLOSED


def test_a_refused_subscription_is_tried_again() -> None:
    """A broker whose rules are away refuses even the answers; the connection is made anew, with growing pauses."""
    driver = in_phase("ready")
    driver.lose()
    pauses = []
    for _ in range(6):
        driver.at(driver.machine.next_deadline() or 0)
        driver.receive(Connected(False))
        wanted = driver.subscribing.pop()
        actions = driver.receive(Subscribed(wanted.subscribe_id, (0x87,)))
        assert Drop() in actions
        driver.lose(ConnectionLostError("given up"))
        state, error = driver.states[-1]
        assert state is ConnectionState.SUSPENDED
        assert isinstance(error, NotAuthorizedError)
        pauses.append((driver.machine.next_deadline() or 0) - driver.time)
    assert pauses[-1] > 1.0
    driver.reconnect(session_present=False)
    assert driver.machine.state is ConnectionState.CONNECTED


@pytest.mark.parametrize("phase", ["connecting", "subscribing", "ready", "waiting", "reconnecting"])
def test_a_client_that_has_ended_can_be_opened_again(phase: str) -> None:
    """After an end that was not close(), open() begins anew: nothing of the life before is left."""
    driver = in_phase(phase)
    driver.submit(Set(b"old", b"v"), "old")
    driver.watch(b"k", "watch", poll=1.0)
    if phase == "waiting":
        driver.machine.close(driver.now, ConnectionLostError("entering was interrupted"))
        driver.take()
    else:
        driver.lose(ConnectionLostError("taken over"), fatal=True, reason_code=0x8E)
    with pytest.raises(ClosedError, match=r"open\(\) begins anew"):
        driver.machine.check_open()
    assert len(driver.outcomes["old"]) == len(driver.outcomes["watch"]) == 1
    published = len(driver.published)
    driver.open("again")
    assert driver.states[-1] == (ConnectionState.CONNECTING, None)
    driver.lose(ConnectionLostError("refused"))  # retry_first_connect counts anew
    assert driver.machine.state is ConnectionState.CONNECTING
    driver.reconnect(session_present=False)
    assert driver.outcome("again") is None
    assert driver.machine.state is ConnectionState.CONNECTED
    driver.submit(Set(b"new", b"v"), "new")
    driver.answer(b"+OK\r\n", ("__ts", "1700000000001:0:S"))
    assert len(driver.outcomes["new"]) == 1
    assert [p.message.payload for p in driver.published[published:]] == [encode_payload(Set(b"new", b"v"))]
    driver.close()
    driver.open("closed")
    assert isinstance(driver.outcome("closed"), ClosedError)


def test_a_client_that_nobody_waits_for_goes_on() -> None:
    """Opened without a waiter, a first connection that fails is retried, whatever ``retry_first_connect`` says."""
    driver = MachineDriver()
    driver.open(None)
    driver.submit(SET, "w", 5.0)
    driver.lose()
    assert driver.machine.state is ConnectionState.CONNECTING
    driver.after(5.0)
    assert "not connected (the cable was cut)" in str(driver.outcome("w"))
    driver.open("ready")
    driver.connect()
    assert driver.outcome("ready") is None


@pytest.mark.parametrize("phase", ["new", "connecting", "subscribing", "ready", "waiting", "reconnecting"])
def test_close_ends_every_phase(phase: str) -> None:
    """Closing works in every phase, ends every watch, and sends DISCONNECT on any link."""
    driver = in_phase(phase)
    seen = driver.watch(b"k", "watch")
    actions = driver.close()
    assert (Disconnect() in actions) == (phase not in ("new", "waiting"))
    assert driver.states[-1] == (ConnectionState.CLOSED, None)
    assert isinstance(driver.outcome("watch"), ClosedError)
    assert isinstance(seen[-1], ClosedError)
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


def test_attempts_come_later_and_later_until_a_connection_lasts(driver: MachineDriver) -> None:
    """Attempts come at growing intervals; once a connection has lasted five seconds the next one is made at once."""
    for n in range(4):
        driver.lose()
        delay = (driver.machine.next_deadline() or 0) - driver.time
        assert 0.05 * 2**n <= delay <= 0.1 * 2**n
        driver.reconnect()
    driver.after(5)
    driver.lose()
    assert driver.machine.next_deadline() == driver.time


def test_the_state_is_told_when_it_changes_and_when_an_attempt_fails(driver: MachineDriver) -> None:
    """A new state is reported when it changes and when an attempt fails, with each new reason for being suspended."""
    driver.lose(ConnectionLostError("cut"))
    for reason in ("no route", "refused"):
        driver.at(driver.machine.next_deadline() or 0)
        driver.lose(ConnectionLostError(reason))
    driver.reconnect()
    driver.close()
    assert [str(state) for state, _ in driver.states] == [
        "connecting", "connected", "suspended", "suspended", "suspended", "connected", "closed"
    ]  # fmt: skip
    assert [str(error) for _, error in driver.states if error] == ["cut", "no route", "refused"]
    assert [bool(error) for _, error in driver.states[2:5]] == [True] * 3


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
def test_messages_on_other_topics_are_acknowledged_and_dropped(driver: MachineDriver, topic: str) -> None:
    """A message on an unknown topic is acknowledged and dropped, so that the broker does not send it for ever."""
    seen = driver.watch(b"k", "watch")
    driver.suback()
    message = IncomingMessage(topic, b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n", None, (), 5)
    driver.receive(message)
    assert driver.acknowledged == [5]
    assert seen == []
    assert driver.machine.request_table.stats.late_or_unknown_replies == 1


def test_a_stray_event_changes_nothing(driver: MachineDriver) -> None:
    """A stray event, such as a second CONNACK or an unasked SUBACK, changes nothing in any order."""
    assert driver.receive(Connected(False)) == []
    assert driver.receive(Subscribed(77, (0,))) == []
    seen = Seen()
    driver.machine.unwatch(b"never watched", seen, driver.now)
    assert not any(isinstance(a, Publish) for a in driver.take())


# -- which filters a session has, and which are asked for --------------------------------------------------------------


def test_only_what_is_missing_is_asked_for() -> None:
    """Filters that the session has, and those whose answer is still to come, are not asked for again."""
    actions: list[Action] = []
    subscriptions = Subscriptions(actions)
    subscriptions.ask("a")
    subscriptions.ask("a", "b")
    subscriptions.answered(Subscribed(1, (1,)))
    subscriptions.ask("a", "b", "c")
    assert actions == [Subscribe(1, ("a",)), Subscribe(2, ("b",)), Subscribe(3, ("c",))]
    assert "a" in subscriptions
    assert "b" not in subscriptions


def test_a_suback_grants_and_refuses() -> None:
    """Each filter has a reason code, 0x87 for "not authorized"; a filter without one is neither granted nor refused."""
    subscriptions = Subscriptions([])
    subscriptions.ask("a", "b", "c", "d")
    granted, refused = subscriptions.answered(Subscribed(1, (0, 0x87, 0x97)))
    assert granted == {"a"}
    assert [type(refused[name]) for name in "bc"] == [NotAuthorizedError, TransportError]
    assert "0x97" in str(refused["c"])
    assert [name in subscriptions for name in "abcd"] == [True, False, False, False]
    assert subscriptions.answered(Subscribed(1, (0, 0, 0, 0))) == (set(), {})


def test_a_lost_connection_takes_the_questions_and_a_lost_session_the_answers() -> None:
    """After a lost connection what was granted stays and the rest is asked for again; a lost session loses both."""
    actions: list[Action] = []
    subscriptions = Subscriptions(actions)
    subscriptions.ask("a")
    subscriptions.answered(Subscribed(1, (1,)))
    subscriptions.ask("b")
    subscriptions.disconnected()
    assert subscriptions.answered(Subscribed(2, (1,))) == (set(), {})
    subscriptions.ask("a", "b")
    assert actions[-1] == Subscribe(3, ("b",))
    subscriptions.session_lost()
    subscriptions.ask("a")
    assert actions[-1] == Subscribe(4, ("a",))
