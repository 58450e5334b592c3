"""Requests when no answer comes: deadlines, reconnects, silent links, and the end of the client."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from machine_driver import MachineDriver, Publish

from statestore_client.core.actions import Disconnect, Drop
from statestore_client.core.request import Request, Stage
from statestore_client.core.request_table import Deadlines
from statestore_client.errors import (
    CallbackReplacedError,
    ClosedError,
    ConnectionLostError,
    RequestTimeoutError,
    SessionLostError,
    TransportError,
)
from statestore_client.wire.commands import Del, Get, KeyNotify, Scan, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import Published

SET = Set(b"k", b"v")
VERSION = HlcTimestamp(1_696_374_425_000, 0, "CLIENT")
TS = ("__ts", "1696374425000:0:CLIENT")  # state store protocol, "Versioning and hybrid logical clocks"


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_each_deadline_names_what_was_missing() -> None:
    """The time-out error names what was missing; only a request that was not sent is surely not applied."""
    driver = MachineDriver(max_in_flight=3).ready()
    for i in range(4):
        driver.submit(SET, i, timeout=5)
    driver.puback(driver.on_the_wire[1])
    driver.after(4.999)
    assert not any(driver.outcomes[i] for i in range(4))
    driver.after(0.001)
    errors = [driver.outcome(i) for i in range(4)]
    assert all(isinstance(e, RequestTimeoutError) for e in errors)
    assert [e.may_have_been_applied for e in errors] == [True, True, True, False]
    assert "did not acknowledge" in str(errors[0])
    assert "took the request but no state store answered" in str(errors[1])
    assert "did not acknowledge" in str(errors[2])
    assert "max_in_flight" in str(errors[3])
    assert driver.machine.request_table.stats.timeouts == 4


def test_a_deadline_passes_also_while_disconnected(driver: MachineDriver) -> None:
    """A deadline passes while disconnected too: only what was sent may have been applied."""
    driver.submit(SET, "sent", timeout=3)
    driver.lose()
    driver.submit(SET, "queued", timeout=2)
    driver.after(3)
    assert driver.outcome("sent").may_have_been_applied
    assert not driver.outcome("queued").may_have_been_applied
    assert "the cable was cut" in str(driver.outcome("sent"))
    assert "the cable was cut" in str(driver.outcome("queued"))


def test_a_cancelled_request_is_forgotten_at_any_stage() -> None:
    """A request can be cancelled when queued, sent, accepted or done; its place is then free."""
    driver = MachineDriver(max_in_flight=2).ready()
    requests = [driver.submit(SET, i) for i in range(4)]
    driver.puback(driver.on_the_wire[1])
    publishes = list(driver.published)
    driver.reply(publishes[0], b"+OK\r\n")
    for request in requests:
        driver.machine.request_table.cancel(request, driver.now)
        driver.take()
    assert driver.machine.request_table.pending == 0
    driver.after(100)
    assert {i: len(driver.outcomes[i]) for i in range(4)} == {0: 1, 1: 0, 2: 0, 3: 0}


def test_all_requests_of_one_kind_are_cancelled_together() -> None:
    """All requests of one kind can be cancelled together, and the others stay in order."""
    driver = MachineDriver(max_in_flight=2).ready()
    for i in range(6):
        driver.submit(SET, i)
    driver.machine.request_table.cancel_all(lambda waiter: waiter.name % 2 == 0, driver.now)
    driver.take()
    for _ in range(4):
        driver.answer(b"+OK\r\n")
    assert [i for i in range(6) if driver.outcomes[i]] == [1, 3, 5]


# -- deadlines in order ------------------------------------------------------------------------------------------------

_steps = st.lists(st.tuples(st.sampled_from(["add", "add", "finish", "due"]), st.integers(0, 40)), max_size=60)


def request(deadline: float) -> Request:
    return Request(Get(b"k"), "w", deadline, None, None)


@given(_steps)
def test_they_come_up_in_order_and_once(steps: list[tuple[str, int]]) -> None:
    """The first deadline is that of a request without an answer, and each such request is handed out at its time."""
    deadlines = Deadlines()
    live: list[Request] = []
    for name, number in steps:
        if name == "add":
            live.append(request(number))
            deadlines.add(live[-1])
        elif name == "finish" and live:
            live.pop(number % len(live)).stage = Stage.DONE
        elif name == "due":
            due = deadlines.take_due(number)
            assert [one.deadline for one in due] == sorted(one.deadline for one in live if one.deadline <= number)
            live = [one for one in live if one not in due]
        assert deadlines.first() == min((one.deadline for one in live), default=None)


def test_answered_ones_do_not_pile_up_behind_one_that_is_not() -> None:
    """A request with a long time limit holds about a thousand of them at most; one without a limit is not kept."""
    deadlines = Deadlines()
    deadlines.add(request(math.inf))
    assert (len(deadlines), deadlines.first()) == (0, None)
    deadlines.add(request(1.0))
    for _ in range(5000):
        done = request(2.0)
        deadlines.add(done)
        done.stage = Stage.DONE
        assert len(deadlines) < 1030
    assert deadlines.first() == 1.0
    deadlines.clear()
    assert deadlines.first() is None


# -- reconnecting ------------------------------------------------------------------------------------------------------


def test_a_resumed_session_repeats_only_what_was_not_acknowledged(driver: MachineDriver) -> None:
    """After a resumed session only unacknowledged requests are repeated, in order, with their old stamp and remaining
    time, and as the same deliveries, so that the driver knows their packet ids (MQTT-4.4.0-1)."""
    for i in range(3):
        driver.submit(Set(b"k", b"%d" % i), i)
    first = list(driver.published)
    driver.puback(driver.on_the_wire[1])
    driver.cut()
    again = list(driver.on_the_wire)
    assert [p.again for p in first + again] == [False] * 3 + [True] * 2
    assert [p.delivery_id for p in again] == [first[0].delivery_id, first[2].delivery_id]
    assert [p.message.correlation_data for p in again] == [first[i].message.correlation_data for i in (0, 2)]
    assert [p.message.user_properties for p in again] == [first[i].message.user_properties for i in (0, 2)]
    assert all(p.message.message_expiry_s == 10 for p in again)
    driver.reply(first[1], b"+OK\r\n")
    driver.reply(again[1], b"+OK\r\n")
    assert driver.outcome(1).applied
    assert driver.outcome(2).applied
    assert driver.machine.request_table.stats.resent == 2


def test_a_resumed_session_reads_again(driver: MachineDriver) -> None:
    """After a resumed session a read that was acknowledged and not answered is sent anew, as a broker that was
    restarted has forgotten its answer; whichever answer comes first counts. What was not acknowledged is repeated
    first: a new publication before it would be out of order [MQTT-4.6.0-1]."""
    for i, command in enumerate([Get(b"k"), SET, Scan(b"*"), Get(b"k")]):
        driver.submit(command, i)
    for publish in driver.on_the_wire[:3]:
        driver.puback(publish)
    first = list(driver.published)
    driver.cut()
    again = list(driver.on_the_wire)
    assert [each.again for each in again] == [True, False, False]
    assert [each.message.correlation_data for each in again] == [first[i].message.correlation_data for i in (3, 0, 2)]
    assert again[1].delivery_id not in {publish.delivery_id for publish in first}
    driver.reply(first[0].message, b"$1\r\nv\r\n")
    driver.reply(again[1].message, b"$1\r\nw\r\n")
    assert driver.outcome(0).value == b"v"
    assert driver.machine.request_table.stats.late_or_unknown_replies == 1


def test_repeating_keeps_to_a_smaller_receive_maximum(driver: MachineDriver) -> None:
    """Repeating keeps to a smaller Receive Maximum; the rest follows as PUBACKs come, before anything new, without what
    was answered meanwhile."""
    for i in range(4):
        driver.submit(Set(b"k", b"%d" % i), i)
    first = list(driver.published)
    driver.cut(receive_maximum=1)
    driver.submit(Set(b"k", b"4"), 4)
    driver.reply(first[2], b"+OK\r\n")
    sent = []
    while driver.on_the_wire:
        assert len(driver.on_the_wire) == 1
        sent.append(driver.on_the_wire[0].message.payload[-3:-2])
        driver.answer(b"+OK\r\n")
    assert sent == [b"0", b"1", b"3", b"4"]
    assert all(driver.outcome(i).applied for i in range(5))


def test_a_lost_session_fails_writes_and_repeats_reads() -> None:
    """After a lost session a write in flight fails as maybe applied, and a read is sent again before what waits."""
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
        assert isinstance(error, SessionLostError)
        assert error.may_have_been_applied
    repeated = [p.message.payload for p in driver.on_the_wire]
    assert [p[-3:-2] for p in repeated] == [b"1", b"2", b"3", b"4"]
    correlations = {p.message.correlation_data for p in driver.published}
    assert len(correlations) == len(driver.published)


def test_a_packet_that_breaks_the_connection_is_not_sent_again(driver: MachineDriver) -> None:
    """When the broker closes with PACKET_TOO_LARGE (0x95), what it did not acknowledge is given up."""
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


def test_unknown_pubacks_change_nothing(driver: MachineDriver) -> None:
    """A PUBACK for an unknown packet changes nothing."""
    driver.submit(SET, "w")
    driver.receive(Published(driver.on_the_wire[0].delivery_id + 1))
    driver.cut()
    assert len(driver.on_the_wire) == 1


# -- silent links ------------------------------------------------------------------------------------------------------


def test_a_silent_link_is_dropped_when_a_request_times_out_over_it(driver: MachineDriver) -> None:
    """A link that was silent for five seconds is dropped when a request times out on it."""
    driver.submit(SET, "w", timeout=5)
    assert Drop() in driver.after(5)
    driver.submit(SET, "w2", timeout=1)
    assert Drop() not in driver.after(1)  # it was told already
    driver.lose(ConnectionLostError("given up"))
    assert "does not answer" in str(driver.states[-1][1])


def test_a_link_that_was_idle_is_not_dropped_over_a_short_timeout(driver: MachineDriver) -> None:
    """The five seconds count from the oldest unacknowledged request, so an idle link survives a short time-out."""
    driver.after(3600)
    driver.submit(SET, "w", timeout=0.1)
    assert Drop() not in driver.after(0.1)
    for i in range(49):
        driver.submit(SET, i, timeout=0.1)
        dropped = Drop() in driver.after(0.1)
    assert dropped


def test_a_link_that_says_anything_is_not_dropped(driver: MachineDriver) -> None:
    """A link that brings PUBACKs without answers is not dropped: the state store is at fault, not the link."""
    driver.submit(SET, "w", timeout=6)
    driver.submit(SET, "w2", timeout=6)
    driver.after(4)
    driver.puback()
    assert Drop() not in driver.after(2)


def test_a_broker_that_answers_and_never_acknowledges_is_left() -> None:
    """A broker that answers and never acknowledges is left; requests that wait for it say so."""
    driver = MachineDriver().open_with(receive_maximum=1)
    driver.submit(SET, "answered")
    driver.reply(driver.on_the_wire[0], b"+OK\r\n")
    driver.submit(SET, "hasty", timeout=1)
    assert Drop() not in driver.after(1)
    assert "the broker takes 1 at a time, and did not acknowledge" in str(driver.outcome("hasty"))
    assert not driver.outcome("hasty").may_have_been_applied
    driver.submit(SET, "waits", timeout=4)
    assert Drop() in driver.after(4)
    driver.lose(ConnectionLostError("given up"))
    driver.submit(SET, "next")
    driver.reconnect(receive_maximum=1)
    driver.answer(b"+OK\r\n")
    assert driver.outcome("next").applied


def test_notifications_do_not_stand_for_acknowledgements() -> None:
    """A broker that notifies but acknowledges nothing is left after a minute, and a slow one is not."""
    for acknowledges in (True, False):
        driver = MachineDriver(max_in_flight=60).open_with(receive_maximum=20)
        driver.watch(b"k", "watch")
        driver.suback()
        driver.answer(b"+OK\r\n")
        for i in range(20):
            driver.submit(SET, i, timeout=100)
        dropped = []
        for i in range(59):
            driver.submit(SET, f"hasty {i}", timeout=1)
            dropped.append(Drop() in driver.after(1))
            driver.notify(b"k", b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n")
            if acknowledges and i % 10 == 9:
                driver.puback()
        assert not any(dropped)
        driver.submit(SET, "last", timeout=1)
        assert (Drop() in driver.after(1)) is not acknowledges


# -- the end -----------------------------------------------------------------------------------------------------------


def test_closing_answers_everybody() -> None:
    """Closing answers every request (sent ones as maybe applied, waiting ones as not), then disconnects."""
    driver = MachineDriver(max_in_flight=1).ready()
    driver.submit(SET, "sent")
    driver.submit(SET, "queued")
    actions = driver.close()
    assert isinstance(driver.outcome("sent"), ConnectionLostError)
    assert driver.outcome("sent").may_have_been_applied
    assert isinstance(driver.outcome("queued"), ClosedError)
    assert isinstance(actions[-1], Disconnect)
    assert driver.close() == []
    assert driver.submit(SET, "later").stage is Stage.DONE
    assert isinstance(driver.outcome("later"), ClosedError)
    driver.open("open later")
    driver.watch(b"k", "watch later")
    driver.after(100)
    driver.connect()
    assert isinstance(driver.outcome("open later"), ClosedError)
    assert isinstance(driver.outcome("watch later"), ClosedError)
    assert not any(isinstance(a, Publish) for a in driver.actions[-5:])


def test_a_fatal_end_gives_each_caller_an_error_of_his_own(driver: MachineDriver) -> None:
    """When the client ends, each caller gets the reason as an error of its own: a shared instance would mix up the
    threads' tracebacks."""
    driver.submit(SET, 0)
    driver.submit(SET, 1)
    driver.submit(SET, 2)
    driver.lose(ConnectionLostError("taken over"), fatal=True, reason_code=0x8E)
    assert "taken over before the answer came" in str(driver.outcome(0))
    one, two = driver.outcome(1), driver.outcome(2)
    assert type(one) is type(two) is ConnectionLostError
    assert one is not two


def test_a_client_that_has_ended_raises_no_transport_errors(driver: MachineDriver) -> None:
    """Calls after the end raise ClosedError: a loop that tries again after each TransportError would spin."""
    driver.lose(ConnectionLostError("taken over"), fatal=True, reason_code=0x8E)
    driver.submit(SET, 1)
    driver.watch(b"k", 2)
    for outcome in (driver.outcome(1), driver.outcome(2)):
        assert isinstance(outcome, ClosedError)
        assert "taken over" in str(outcome)
        assert isinstance(outcome.__cause__, ConnectionLostError)


def test_a_complaint_of_the_driver_comes_before_the_brokers_silence() -> None:
    """A complaint of the driver about the application's own connection is reported in place of guesses."""
    complaints = ["on_publish was replaced"]
    driver = MachineDriver(max_in_flight=1, complaint=lambda: complaints[0] if complaints else None).ready()
    driver.submit(Set(b"k", b"v"), "sent", timeout=1.0)
    driver.submit(Set(b"k", b"v"), "unsent", timeout=1.0)
    driver.after(1.0)
    for name, may_have_been_applied in (("sent", True), ("unsent", False)):
        error = driver.outcome(name)
        assert type(error) is CallbackReplacedError
        assert str(error) == "no answer within 1 s: on_publish was replaced"
        assert error.may_have_been_applied is may_have_been_applied
    assert type(driver.machine.too_late("nothing came")) is CallbackReplacedError
    complaints.clear()
    driver.submit(Set(b"k", b"v"), "later", timeout=1.0)
    driver.after(1.0)
    assert type(driver.outcome("later")) is RequestTimeoutError
    assert type(driver.machine.too_late("nothing came")) is RequestTimeoutError
