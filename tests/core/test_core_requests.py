"""Requests: window, deadlines, replies, acknowledgements, and what a reconnect makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from machine_driver import RESPONSES, MachineDriver

from statestore_client.core.actions import Acknowledge, Disconnect, Drop, Publish, Reject, Resolve
from statestore_client.core.exchange import MAX_PACKET_SIZE
from statestore_client.core.results import DeleteResult, Item, KeyPage, SetResult
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    CounterOverflowError,
    FencingTokenTooOldError,
    InvalidArgumentError,
    NotAuthorizedError,
    RequestTimeoutError,
    TransportError,
    UnexpectedReplyError,
    UnknownServerError,
)
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Scan, Set, VDel
from statestore_client.wire.hlc import MAX_COUNTER, HlcTimestamp
from statestore_client.wire.messages import Published

SET = Set(b"k", b"v")
VERSION = HlcTimestamp(1_696_374_425_000, 0, "CLIENT")
TS = ("__ts", "1696374425000:0:CLIENT")  # state store protocol, "Versioning and hybrid logical clocks"


# -- what leaves -------------------------------------------------------------------------------------------------------


def test_a_request_is_what_the_official_sdks_send() -> None:
    """Topic, payload and properties of a SET (state store facts, 1.1; state store protocol, "SET request")."""
    driver = MachineDriver().ready()
    driver.submit(Set(b"SETKEY2", b"VALUE5", Condition.NX, 60_000), "w", fencing_token=VERSION)
    message = driver.published[0].message
    assert message.envelope.topic == "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
    assert (
        message.payload
        == b"*6\r\n$3\r\nSET\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n60000\r\n"
    )
    assert message.envelope.response_topic == RESPONSES
    assert len(message.correlation_data) == 16
    assert message.message_expiry_s == 10
    properties = dict(message.user_properties + message.envelope.user_properties)
    assert properties.pop("__ts").endswith(":00000:me")
    assert properties == {
        "__ft": "001696374425000:00000:CLIENT",
        "__srcId": "me",
        "__protVer": "1.0",
        "$partition": "me",
        "$high_priority": "",
    }


@pytest.mark.parametrize(
    ("timeout", "expiry"), [(0.001, 1), (1.0, 1), (1.001, 2), (10, 10), (1e10, 2**31 - 1), (None, 2**31 - 1)]
)
def test_the_deadline_travels_as_message_expiry(timeout: float | None, expiry: int) -> None:
    """Whole seconds, rounded up, at least one."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w", timeout=timeout)
    assert driver.published[0].message.message_expiry_s == expiry


def test_timestamps_of_requests_ascend() -> None:
    """Also when the wall clock steps back."""
    driver = MachineDriver(max_in_flight=10).ready()
    for step in (0, 0, -5000, 3, 0):
        driver.wall_ms += step
        driver.submit(SET, "w")
    stamps = [HlcTimestamp.parse(dict(p.message.user_properties)["__ts"]) for p in driver.published]
    assert stamps == sorted(set(stamps))


def test_a_request_above_the_brokers_limit_is_not_sent() -> None:
    """The check counts every byte: a value that just fits is sent, a longer one by 20 bytes is not."""
    driver = MachineDriver().ready()
    driver.lose()
    driver.reconnect(maximum_packet_size=1000)
    driver.submit(Set(b"k", b"v" * 300), "fits")
    driver.submit(Set(b"k", b"v" * 700), "too long")
    assert driver.outcomes["fits"] == []
    error = driver.outcome("too long")
    assert isinstance(error, InvalidArgumentError)
    assert not error.may_have_been_applied
    driver.lose()
    driver.reconnect()
    assert driver.machine.exchange.max_packet_size == MAX_PACKET_SIZE


def test_an_exhausted_clock_rejects_until_the_next_millisecond() -> None:
    """A clock whose counter is full cannot stamp requests; a later moment can."""
    driver = MachineDriver().ready()
    driver.clock.merge(HlcTimestamp(driver.wall_ms, MAX_COUNTER - 1, "other"), driver.wall_ms)
    driver.submit(SET, "w1")
    assert isinstance(driver.outcome("w1"), CounterOverflowError)
    driver.after(0.001)
    driver.submit(SET, "w2")
    assert driver.outcomes["w2"] == []
    assert len(driver.on_the_wire) == 1


# -- window ------------------------------------------------------------------------------------------------------------


def test_no_more_requests_than_the_window_are_in_flight() -> None:
    """The fifth waits for the first answer."""
    driver = MachineDriver().ready()
    for i in range(6):
        driver.submit(Set(b"k", b"%d" % i), i)
    assert len(driver.on_the_wire) == 4
    driver.answer(b"+OK\r\n")
    assert [p.message.payload[-3:-2] for p in driver.on_the_wire] == [b"1", b"2", b"3", b"4"]


def test_a_new_request_does_not_overtake_those_that_wait() -> None:
    """First come, first sent."""
    driver = MachineDriver(max_in_flight=1).ready()
    for i in range(4):
        driver.submit(Get(b"%d" % i), i)
    for _ in range(4):
        driver.answer(b"$-1\r\n")
    assert [p.message.payload[-3:-2] for p in driver.published] == [b"0", b"1", b"2", b"3"]


def test_the_brokers_receive_maximum_is_kept_whatever_the_callers_do() -> None:
    """Requests that timed out or were cancelled still count until their PUBACK (MQTT 5.0, 3.3.4)."""
    driver = MachineDriver().ready()
    driver.lose()
    driver.reconnect(receive_maximum=2)
    one = driver.submit(SET, "one")
    driver.submit(SET, "two", timeout=1)
    driver.submit(SET, "three")
    driver.machine.cancel(one, driver.now)
    driver.after(1)
    assert len(driver.on_the_wire) == 2
    driver.puback()
    assert len(driver.on_the_wire) == 2
    driver.submit(SET, "four")
    assert len(driver.on_the_wire) == 2
    driver.puback()
    assert len(driver.on_the_wire) == 2


def test_answered_requests_with_long_deadlines_are_let_go() -> None:
    """One request that is never answered does not keep a hundred thousand answered ones in memory."""
    driver = MachineDriver().ready()
    driver.submit(Get(b"never"), "never", timeout=100)
    driver.puback()
    for i in range(5000):
        driver.submit(Get(b"k"), i, timeout=1000)
        driver.answer(b"$-1\r\n")
    assert len(driver.machine.exchange._deadlines) < 1100


# -- replies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "payload", "result"),
    [
        (SET, b"+OK\r\n", SetResult(True, VERSION)),
        (SET, b":-1\r\n", SetResult(False, VERSION)),
        (SET, b"-1\r\n", SetResult(False, VERSION)),
        (SET, b"$-1\r\n", SetResult(False, VERSION)),
        (SET, b":0\r\n", SetResult(False, VERSION)),
        (Get(b"k"), b"$4\r\n1234\r\n", Item(b"1234", VERSION)),
        (Get(b"k"), b"$-1\r\n", None),
        (Del(b"k"), b":1\r\n", DeleteResult(1, VERSION)),
        (Del(b"k"), b":0\r\n", DeleteResult(0, VERSION)),
        (VDel(b"k", b"v"), b":1\r\n", DeleteResult(1, VERSION)),
        (VDel(b"k", b"v"), b":-1\r\n", DeleteResult(0, VERSION, matched=False)),
        (VDel(b"k", b"v"), b"-1\r\n", DeleteResult(0, VERSION, matched=False)),
        (Scan(b"*"), b"*2\r\n*1\r\n$1\r\nk\r\n$2\r\nto\r\n", KeyPage((b"k",), b"to")),
        (KeyNotify(b"k"), b"+OK\r\n", True),
        (KeyNotify(b"k", stop=True), b":0\r\n", False),
    ],
)
def test_each_reply_becomes_its_result(command: Command, payload: bytes, result: Any) -> None:
    """In either dialect (state store protocol, "Response format"; facts 1.2)."""
    driver = MachineDriver().ready()
    driver.submit(command, "w")
    driver.answer(payload, TS, ("__stat", "200"))
    assert driver.outcome("w") == result


@pytest.mark.parametrize(
    "payload", [b"$4\r\n1234\r\n", b":7\r\n", b"", b"nonsense", b"*1\r\n", b"$99\r\nx\r\n", b"+\xff\r\n"]
)
def test_a_reply_to_something_else_may_mean_anything(payload: bytes) -> None:
    """The command was executed, or not; the reply cannot tell."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.answer(payload)
    error = driver.outcome("w")
    assert isinstance(error, UnexpectedReplyError)
    assert error.may_have_been_applied


@pytest.mark.parametrize("stamp", ["NotValid", "1:2", "-1:0:x", "99999999999999999999:0:x", ""])
def test_a_version_that_cannot_be_read_does_not_mean_not_applied(stamp: str) -> None:
    """The SET was executed; only its version is unknown."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.answer(b"+OK\r\n", ("__ts", stamp))
    error = driver.outcome("w")
    assert isinstance(error, UnexpectedReplyError)
    assert error.may_have_been_applied


@pytest.mark.parametrize("stamp", ["9999999999999:0:server", f"1700000000000:{MAX_COUNTER}:server"])
def test_a_version_that_our_clock_cannot_follow_is_still_a_version(stamp: str) -> None:
    """A drifting server's answer counts; our own clock stays where it is."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    before = driver.clock.last
    driver.answer(b"+OK\r\n", ("__ts", stamp))
    assert driver.outcome("w") == SetResult(True, HlcTimestamp.parse(stamp))
    assert driver.clock.last == before
    assert driver.machine.exchange.stats.clock_drift == 1


def test_our_clock_follows_the_servers() -> None:
    """The next request is stamped later than the version that was seen."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.answer(b"+OK\r\n", ("__ts", f"{driver.wall_ms + 5000}:3:server"))
    driver.submit(SET, "w2")
    stamp = HlcTimestamp.parse(dict(driver.published[1].message.user_properties)["__ts"])
    assert stamp > HlcTimestamp(driver.wall_ms + 5000, 3, "server")


def test_a_refusal_is_its_typed_error() -> None:
    """And certainly not applied."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.answer(
        b"-ERR the request fencing token is a lower version that the fencing token protecting the resource\r\n"
    )
    assert isinstance(driver.outcome("w"), FencingTokenTooOldError)
    driver.submit(SET, "w2")
    driver.answer(b"-ERR the moon is full\r\n")
    assert isinstance(driver.outcome("w2"), UnknownServerError)
    assert driver.outcome("w2").message == "the moon is full"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("200", SetResult),
        ("204", SetResult),
        ("399", SetResult),
        ("9" * 5000, UnknownServerError),
        ("404", UnknownServerError),
        ("abc", UnexpectedReplyError),
    ],
)
def test_the_status_decides_before_the_payload(status: str, kind: type) -> None:
    """``__stat`` from 400 is an error (state store facts, 1.2 and "Variants tried")."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.answer(b"+OK\r\n", ("__stat", status), ("__stMsg", "why"))
    assert isinstance(driver.outcome("w"), kind)


def test_late_repeated_and_foreign_replies_reach_nobody() -> None:
    """They are acknowledged, counted and dropped."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    request = driver.on_the_wire[0]
    driver.reply(request, b"+OK\r\n", ack_id=1)
    driver.reply(request, b":-1\r\n", ack_id=2)
    driver.reply(b"somebody else's.", b"+OK\r\n", ack_id=3)
    driver.reply(b"", b"+OK\r\n", ack_id=4)
    assert driver.outcome("w") == SetResult(True, None)
    assert driver.machine.exchange.stats.late_or_unknown_replies == 3
    assert driver.acknowledged == [1, 2, 3, 4]


def test_a_qos_0_reply_is_not_acknowledged() -> None:
    """There is nothing to acknowledge."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    actions = driver.reply(driver.on_the_wire[0], b"+OK\r\n", ack_id=0)
    assert [type(a) for a in actions] == [Resolve]


def test_a_reply_is_taken_in_before_it_is_acknowledged() -> None:
    """A crash in between makes the broker send it again."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    assert [type(a) for a in driver.reply(driver.on_the_wire[0], b"+OK\r\n")] == [Resolve, Acknowledge]


def test_replies_find_their_own_waiters() -> None:
    """In whatever order they come, also before their PUBACK."""
    driver = MachineDriver().ready()
    for i in range(4):
        driver.submit(Get(b"%d" % i), i)
    publishes = list(driver.on_the_wire)
    for i in (2, 0, 3, 1):
        driver.reply(publishes[i], b"$1\r\n%d\r\n" % i)
    for publish in reversed(publishes):
        driver.puback(publish)
    assert [driver.outcome(i).value for i in range(4)] == [b"0", b"1", b"2", b"3"]


# -- PUBACK ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), [(0x87, NotAuthorizedError), (0x97, TransportError), (0x83, TransportError)])
def test_a_refused_publication_was_not_applied(code: int, kind: type) -> None:
    """PUBACK with an error: the broker did not take the request."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.puback(reason_code=code)
    error = driver.outcome("w")
    assert isinstance(error, kind)
    assert not error.may_have_been_applied


def test_a_refused_repetition_may_have_been_applied_the_first_time() -> None:
    """Nobody knows what became of the copy on the connection before."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.lose()
    driver.reconnect()
    driver.puback(reason_code=0x97)
    assert driver.outcome("w").may_have_been_applied


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_each_deadline_names_what_was_missing() -> None:
    """Not acknowledged, not answered, no state store, not sent: only the last is surely unapplied."""
    driver = MachineDriver(max_in_flight=3).ready()
    for i in range(4):
        driver.submit(SET, i, timeout=5)
    driver.puback(driver.on_the_wire[1])
    driver.puback(driver.on_the_wire[1], 0x10)
    driver.after(4.999)
    assert not any(driver.outcomes[i] for i in range(4))
    driver.after(0.001)
    errors = [driver.outcome(i) for i in range(4)]
    assert all(isinstance(e, RequestTimeoutError) for e in errors)
    assert [e.may_have_been_applied for e in errors] == [True, True, True, False]
    assert "did not acknowledge" in str(errors[0])
    assert "took the request but no state store answered" in str(errors[1])
    assert "has no subscriber" in str(errors[2])
    assert "max_in_flight" in str(errors[3])
    assert driver.machine.exchange.stats.timeouts == 4


def test_a_deadline_passes_also_while_disconnected() -> None:
    """What was sent may have been applied; what waits for a connection was not; both errors say what is wrong."""
    driver = MachineDriver().ready()
    driver.submit(SET, "sent", timeout=3)
    driver.lose()
    driver.submit(SET, "queued", timeout=2)
    driver.after(3)
    assert driver.outcome("sent").may_have_been_applied
    assert not driver.outcome("queued").may_have_been_applied
    assert "the cable was cut" in str(driver.outcome("sent"))
    assert "the cable was cut" in str(driver.outcome("queued"))


def test_no_timeout_means_no_deadline() -> None:
    """It waits through everything."""
    driver = MachineDriver().ready()
    driver.submit(Get(b"k"), "w", timeout=None)
    driver.lose()
    driver.at(2_000_000)
    driver.connect(session_present=False)
    driver.answer(b"$-1\r\n")
    assert driver.outcome("w") is None


def test_a_cancelled_request_is_forgotten_at_any_stage() -> None:
    """Queued, sent, accepted or done; its answer is late then, and its place is free."""
    driver = MachineDriver(max_in_flight=2).ready()
    requests = [driver.submit(SET, i) for i in range(4)]
    driver.puback(driver.on_the_wire[1])
    publishes = list(driver.published)
    driver.reply(publishes[0], b"+OK\r\n")
    for request in requests:
        driver.machine.cancel(request, driver.now)
        driver.take()
    assert driver.machine.exchange.pending == 0
    driver.after(100)
    assert {i: len(driver.outcomes[i]) for i in range(4)} == {0: 1, 1: 0, 2: 0, 3: 0}


def test_all_requests_of_one_kind_are_cancelled_together() -> None:
    """The others stay, in order."""
    driver = MachineDriver(max_in_flight=2).ready()
    for i in range(6):
        driver.submit(SET, i)
    driver.machine.cancel_all(lambda waiter: waiter % 2 == 0, driver.now)
    driver.take()
    for _ in range(4):
        driver.answer(b"+OK\r\n")
    assert [i for i in range(6) if driver.outcomes[i]] == [1, 3, 5]


# -- reconnecting ------------------------------------------------------------------------------------------------------


def test_a_resumed_session_repeats_only_what_was_not_acknowledged() -> None:
    """In the old order, with the old correlation data and timestamp, and what is left of the time."""
    driver = MachineDriver().ready()
    for i in range(3):
        driver.submit(Set(b"k", b"%d" % i), i)
    first = [p.message for p in driver.published]
    driver.puback(driver.on_the_wire[1])
    driver.lose()
    driver.reconnect()
    again = [p.message for p in driver.on_the_wire]
    assert [m.correlation_data for m in again] == [first[0].correlation_data, first[2].correlation_data]
    assert [m.user_properties for m in again] == [first[0].user_properties, first[2].user_properties]
    assert all(m.message_expiry_s == 10 for m in again)
    driver.reply(first[1], b"+OK\r\n")
    driver.reply(again[1], b"+OK\r\n")
    assert driver.outcome(1).applied
    assert driver.outcome(2).applied
    assert driver.machine.exchange.stats.resent == 2


def test_repeating_keeps_to_a_smaller_receive_maximum() -> None:
    """The rest follows as PUBACKs come, before anything new."""
    driver = MachineDriver().ready()
    for i in range(4):
        driver.submit(Set(b"k", b"%d" % i), i)
    driver.lose()
    driver.reconnect(receive_maximum=1)
    driver.submit(Set(b"k", b"4"), 4)
    sent = []
    while driver.on_the_wire:
        assert len(driver.on_the_wire) == 1
        sent.append(driver.on_the_wire[0].message.payload[-3:-2])
        driver.answer(b"+OK\r\n")
    assert sent == [b"0", b"1", b"2", b"3", b"4"]


def test_a_lost_session_fails_writes_and_repeats_reads() -> None:
    """Nothing is executed twice: a write in flight may have been applied; reads are sent anew, before what waits."""
    driver = MachineDriver(max_in_flight=7).ready()
    commands = [SET, Get(b"1"), Del(b"k"), Scan(b"2"), VDel(b"k", b"v"), KeyNotify(b"3")]
    for i, command in enumerate(commands):
        driver.submit(command, i)
    driver.puback(driver.on_the_wire[1])
    driver.lose()
    driver.submit(Get(b"4"), "later")
    driver.reconnect(session_present=False)
    for i in (0, 2, 4):
        error = driver.outcome(i)
        assert isinstance(error, ConnectionLostError)
        assert error.may_have_been_applied
    repeated = [p.message.payload for p in driver.on_the_wire]
    assert [p[-3:-2] for p in repeated] == [b"1", b"2", b"3", b"4"]
    correlations = {p.message.correlation_data for p in driver.published}
    assert len(correlations) == len(driver.published)


def test_a_first_connection_has_no_session_to_lose() -> None:
    """Requests made before the client was ever connected are simply sent."""
    driver = MachineDriver()
    driver.open()
    driver.submit(SET, "w")
    driver.connect()
    driver.answer(b"+OK\r\n")
    assert driver.outcome("w").applied


def test_a_packet_that_breaks_the_connection_is_not_sent_again() -> None:
    """The broker says PACKET_TOO_LARGE (0x95): what it did not acknowledge is given up."""
    driver = MachineDriver().ready()
    driver.submit(SET, "accepted")
    driver.puback()
    driver.submit(SET, "too large")
    driver.lose(reason_code=0x95)
    error = driver.outcome("too large")
    assert isinstance(error, TransportError)
    assert error.may_have_been_applied
    driver.reconnect()
    assert driver.on_the_wire == []
    assert driver.outcomes["accepted"] == []


def test_unknown_pubacks_change_nothing() -> None:
    """A PUBACK for what nobody published does not accept anything."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    driver.receive(Published(driver.on_the_wire[0].delivery_id + 1))
    driver.lose()
    driver.reconnect()
    assert len(driver.on_the_wire) == 1


def test_what_is_sent_again_keeps_its_delivery() -> None:
    """The driver learns that it has sent this before, and under which id (MQTT-4.4.0-1)."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    (first,) = driver.on_the_wire
    driver.lose()
    driver.reconnect()
    (second,) = driver.on_the_wire
    assert (first.again, second.again) == (False, True)
    assert second.delivery_id == first.delivery_id
    driver.lose()
    driver.reconnect(session_present=False)
    assert driver.on_the_wire == []


# -- silent links ------------------------------------------------------------------------------------------------------


def test_a_silent_link_is_dropped_when_a_request_times_out_over_it() -> None:
    """Five seconds without PUBACK or anything else."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w", timeout=5)
    assert Drop() in driver.after(5)
    driver.submit(SET, "w2", timeout=1)
    assert Drop() not in driver.after(1)  # it was told already
    driver.lose(ConnectionLostError("given up"))
    assert "does not answer" in str(driver.states[-1][1])


def test_a_link_that_was_idle_is_not_dropped_over_a_short_timeout() -> None:
    """The five seconds start when the oldest unacknowledged request leaves."""
    driver = MachineDriver().ready()
    driver.after(3600)
    driver.submit(SET, "w", timeout=0.1)
    assert Drop() not in driver.after(0.1)
    for i in range(49):
        driver.submit(SET, i, timeout=0.1)
        dropped = Drop() in driver.after(0.1)
    assert dropped


def test_a_link_that_says_anything_is_not_dropped() -> None:
    """PUBACKs without answers mean that the state store is at fault, not the link."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w", timeout=6)
    driver.submit(SET, "w2", timeout=6)
    driver.after(4)
    driver.puback()
    assert Drop() not in driver.after(2)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_closing_answers_everybody() -> None:
    """What was sent may have been applied, what waits was not; then DISCONNECT; later calls are refused."""
    driver = MachineDriver(max_in_flight=1).ready()
    driver.submit(SET, "sent")
    driver.submit(SET, "queued")
    actions = driver.close()
    assert isinstance(driver.outcome("sent"), ConnectionLostError)
    assert driver.outcome("sent").may_have_been_applied
    assert isinstance(driver.outcome("queued"), ClosedError)
    assert isinstance(actions[-1], Disconnect)
    assert driver.close() == []
    assert driver.submit(SET, "later") is None
    assert isinstance(driver.outcome("later"), ClosedError)
    driver.machine.open("open later")
    driver.watch(b"k", "watch later")
    driver.after(100)
    driver.connect()
    assert isinstance(driver.outcome("open later"), ClosedError)
    assert isinstance(driver.outcome("watch later"), ClosedError)
    assert not any(isinstance(a, Publish) for a in driver.actions[-5:])


def test_a_fatal_end_gives_each_caller_an_error_of_his_own() -> None:
    """Raising one instance in many threads would mix up their tracebacks."""
    driver = MachineDriver().ready()
    driver.lose(ConnectionLostError("taken over"), fatal=True)
    driver.submit(SET, 1)
    driver.submit(SET, 2)
    one, two = driver.outcome(1), driver.outcome(2)
    assert type(one) is type(two) is ConnectionLostError
    assert str(one) == str(two) == "taken over"
    assert one is not two


def test_rejections_say_why_the_client_ended() -> None:
    """In-flight requests of a client that ended fatally name the reason."""
    driver = MachineDriver().ready()
    driver.submit(SET, "w")
    actions = driver.lose(ConnectionLostError("taken over"), fatal=True)
    assert any(isinstance(a, Reject) for a in actions)
    assert "taken over before the answer came" in str(driver.outcome("w"))
