"""A broker says that nobody is subscribed to a request: no store, a store that is away, or one inside the broker."""

from __future__ import annotations

import pytest
from machine_driver import MachineDriver, Publish

from statestore_client.core.absence import ABSENT_AFTER_S
from statestore_client.errors import NoStateStoreError, RequestTimeoutError
from statestore_client.wire.commands import Get, KeyNotify, Set

NOBODY = 0x10  # MQTT 5.0, 3.4.2.1: no matching subscribers
OK = b"+OK\r\n"


def write(i: int) -> Set:
    return Set(b"k%d" % i, b"v")


def served() -> MachineDriver:
    """A client that a store has answered once."""
    driver = MachineDriver(max_in_flight=4).ready()
    driver.submit(Get(b"first"), "first")
    driver.answer(b"$-1\r\n")
    return driver


def keys(driver: MachineDriver) -> list[bytes]:
    """What is on the wire without a PUBACK, by key."""
    names = [publish.message.payload.split(b"\r\n")[4] for publish in driver.on_the_wire]
    return [bytes(name) for name in names]


def to_deadline(driver: MachineDriver) -> float:
    """Go to the next moment that the machine names; how long that took."""
    before, deadline = driver.time, driver.machine.next_deadline()
    assert deadline is not None
    driver.at(deadline)
    return deadline - before


# -- no store at all ---------------------------------------------------------------------------------------------------


def test_a_broker_without_a_store_is_told_after_a_second(driver: MachineDriver) -> None:
    """What was sent, and what waits behind it, fails a second after the first 0x10, and says what to do."""
    driver.submit(write(1), 1)
    driver.puback(reason_code=NOBODY)
    driver.submit(write(2), 2)
    assert not driver.on_the_wire
    driver.after(ABSENT_AFTER_S - 0.001)
    assert not driver.outcomes[1]
    driver.after(0.001)
    errors = [driver.outcome(i) for i in (1, 2)]
    assert all(type(error) is NoStateStoreError for error in errors)
    assert [error.may_have_been_applied for error in errors] == [True, False]
    assert "mqtt://broker has no state store" in str(errors[0])
    assert "statestore serve --broker" in str(errors[0])


def test_the_error_is_a_timeout_for_those_who_expect_one(driver: MachineDriver) -> None:
    """Programs that were written for the time-out go on."""
    driver.submit(write(1), 1)
    driver.puback(reason_code=NOBODY)
    driver.after(1)
    assert isinstance(driver.outcome(1), RequestTimeoutError)
    assert isinstance(driver.outcome(1), TimeoutError)


def test_a_shorter_timeout_comes_first(driver: MachineDriver) -> None:
    """A request with less than a second ends with its time-out, which says what is known."""
    driver.submit(write(1), 1, timeout=0.5)
    driver.submit(write(2), 2, timeout=0.5)
    driver.puback(reason_code=NOBODY)
    driver.puback(reason_code=NOBODY)
    driver.submit(write(3), 3, timeout=0.5)
    driver.after(0.5)
    errors = [driver.outcome(i) for i in (1, 2, 3)]
    assert all(type(error) is RequestTimeoutError for error in errors)
    assert all("probably has no state store" in str(error) for error in errors)
    assert [error.may_have_been_applied for error in errors] == [True, True, False]


def test_each_request_gets_its_second(driver: MachineDriver) -> None:
    """After the verdict the next request is tried all the same, and a store that has come is found."""
    driver.submit(write(1), 1)
    driver.puback(reason_code=NOBODY)
    driver.after(1)
    driver.after(60)
    driver.submit(write(2), 2)
    driver.answer(OK)
    assert driver.outcome(2).applied


def test_a_watch_on_a_broker_without_a_store_fails_as_soon(driver: MachineDriver) -> None:
    """KEYNOTIFY is not tried again and again where there is nobody."""
    driver.watch(b"k", "watch")
    driver.suback()
    driver.puback(reason_code=NOBODY)
    driver.after(1)
    assert type(driver.outcome("watch")) is NoStateStoreError
    assert not driver.on_the_wire


def test_without_the_code_it_is_a_timeout(driver: MachineDriver) -> None:
    """A broker that never says 0x10 leaves only the time-out."""
    driver.submit(write(1), 1)
    driver.puback()
    driver.after(9.9)
    assert not driver.outcomes[1]
    driver.after(0.1)
    assert "no state store answered" in str(driver.outcome(1))


# -- a store that is away ----------------------------------------------------------------------------------------------


def test_a_store_that_comes_within_the_second_is_found(driver: MachineDriver) -> None:
    """A lost request leaves again with the same correlation data, before it is given up."""
    driver.submit(write(1), 1)
    (lost,) = driver.on_the_wire
    driver.puback(reason_code=NOBODY)
    assert to_deadline(driver) == pytest.approx(0.1)
    (again,) = driver.on_the_wire
    assert again.message.correlation_data == lost.message.correlation_data
    assert again.message.user_properties == lost.message.user_properties
    assert again.delivery_id != lost.delivery_id
    assert not again.again  # a new publication: the broker has acknowledged the first
    driver.answer(OK)
    assert driver.outcome(1).applied
    assert driver.machine.request_table.stats.resent == 1


def test_a_store_that_has_answered_gets_the_whole_timeout() -> None:
    """Pauses grow to half a second; at its time the request ends with a time-out, not as if there were no store."""
    driver = served()
    driver.submit(write(1), 1, timeout=4)
    began, asked_at = driver.time, []
    while not driver.outcomes[1]:
        if driver.on_the_wire:
            asked_at.append(driver.time - began)
            driver.puback(reason_code=NOBODY)
        to_deadline(driver)
    assert asked_at[:6] == pytest.approx([0, 0.1, 0.3, 0.7, 1.2, 1.7])
    assert len(asked_at) == 10
    error = driver.outcome(1)
    assert type(error) is RequestTimeoutError
    assert "has answered before" in str(error)


def test_the_order_of_requests_is_kept() -> None:
    """One message at a time asks for the store; when it is taken, all others follow in the order of the calls."""
    driver = served()
    for i in range(3):
        driver.submit(write(i), i)
    for _ in range(3):
        driver.puback(reason_code=NOBODY)
    driver.submit(write(3), 3)
    assert keys(driver) == []
    to_deadline(driver)
    assert keys(driver) == [b"k0"]
    driver.puback(reason_code=NOBODY)
    to_deadline(driver)
    assert keys(driver) == [b"k0"]
    first = driver.on_the_wire[0]
    driver.puback()
    assert keys(driver) == [b"k1", b"k2", b"k3"]
    driver.reply(first, OK)
    for _ in range(3):
        driver.answer(OK)
    assert all(driver.outcome(i).applied for i in range(4))


def test_an_answer_before_the_puback_is_a_sign_as_well() -> None:
    """The broker may forward the answer first."""
    driver = served()
    for i in range(2):
        driver.submit(write(i), i)
    driver.puback(reason_code=NOBODY)
    driver.puback(reason_code=NOBODY)
    to_deadline(driver)
    (asked,) = driver.on_the_wire
    driver.reply(asked, OK)
    assert keys(driver) == [b"k0", b"k1"]
    driver.puback(asked)
    driver.answer(OK)
    assert [driver.outcome(i).applied for i in range(2)] == [True, True]


def test_a_request_that_nobody_waits_for_any_longer_does_not_stand_in_the_way() -> None:
    """Cancelled before, or timed out after it left again: the next one asks."""
    driver = served()
    cancelled = driver.submit(write(0), 0)
    driver.submit(write(1), 1, timeout=0.15)
    driver.submit(write(2), 2)
    for _ in range(3):
        driver.puback(reason_code=NOBODY)
    driver.machine.request_table.cancel(cancelled, driver.now)
    to_deadline(driver)
    assert keys(driver) == [b"k1"]
    driver.after(0.05)
    assert isinstance(driver.outcome(1), RequestTimeoutError)
    driver.puback(reason_code=NOBODY)
    to_deadline(driver)
    assert keys(driver) == [b"k2"]
    driver.answer(OK)
    assert driver.outcome(2).applied


def test_when_all_have_gone_new_requests_leave_at_once() -> None:
    """Nothing is held back once nothing is lost."""
    driver = served()
    request = driver.submit(write(0), 0)
    driver.puback(reason_code=NOBODY)
    driver.submit(write(1), 1)
    driver.machine.request_table.cancel(request, driver.now)
    driver.take()
    assert keys(driver) == [b"k1"]


def test_after_a_reconnect_what_was_lost_leaves_again() -> None:
    """The broker had acknowledged it, and will not deliver it: it is a new publication, and the search begins anew."""
    driver = served()
    driver.submit(write(0), 0)
    driver.puback(reason_code=NOBODY)
    driver.lose()
    driver.reconnect()
    (again,) = driver.on_the_wire
    assert not again.again
    driver.puback(reason_code=NOBODY)
    assert to_deadline(driver) == pytest.approx(0.1)
    driver.answer(OK)
    assert driver.outcome(0).applied


def test_a_store_that_was_there_before_the_cut_is_not_taken_for_absent() -> None:
    """The broker was restarted, and this client was faster than the store's: it waits for it."""
    driver = served()
    driver.lose()
    driver.reconnect(session_present=False)
    driver.submit(KeyNotify(b"k"), "notify", timeout=5)
    driver.puback(reason_code=NOBODY)
    driver.after(4)
    assert not driver.outcomes["notify"]


def test_a_full_receive_maximum_delays_the_repetition() -> None:
    """A repetition is a publication like others (MQTT 5.0, 3.3.4)."""
    driver = MachineDriver(max_in_flight=4).open_with(receive_maximum=2)
    driver.submit(Get(b"first"), "first")
    driver.answer(b"$-1\r\n")
    driver.submit(write(0), 0)
    driver.submit(write(1), 1)
    waiting: Publish = driver.on_the_wire[1]
    driver.puback(reason_code=NOBODY)
    to_deadline(driver)
    assert keys(driver) == [b"k1", b"k0"]
    driver.puback(waiting)
    driver.answer(OK)
    driver.reply(waiting, OK)
    assert [driver.outcome(i).applied for i in range(2)] == [True, True]


# -- a store inside the broker -----------------------------------------------------------------------------------------


def test_a_store_inside_the_broker_is_learned_from_its_first_answer(driver: MachineDriver) -> None:
    """It says 0x10 and answers: nothing is sent twice, and from then on nothing waits."""
    for i in range(3):
        driver.submit(write(i), i)
    first, *others = list(driver.on_the_wire)
    for _ in range(3):
        driver.puback(reason_code=NOBODY)
    driver.reply(first, OK)
    assert not driver.on_the_wire
    driver.submit(write(3), 3)
    assert keys(driver) == [b"k3"]
    driver.puback(reason_code=NOBODY)
    for publish in (*others, driver.published[-1]):
        driver.reply(publish, OK)
    driver.after(5)
    assert all(driver.outcome(i).applied for i in range(4))
    assert driver.machine.request_table.stats.resent == 0


def test_an_answer_before_its_puback_shows_a_store_inside(driver: MachineDriver) -> None:
    """The same when the answer is faster than the PUBACK."""
    driver.submit(write(0), 0)
    (publish,) = driver.on_the_wire
    driver.reply(publish, OK)
    driver.puback(reason_code=NOBODY)
    driver.submit(write(1), 1)
    driver.puback(reason_code=NOBODY)
    driver.after(2)
    assert not driver.on_the_wire
    assert not driver.outcomes[1]


def test_a_slow_store_inside_the_broker_is_learned_as_well(driver: MachineDriver) -> None:
    """Its answer comes after a repetition, which it knows by the correlation data."""
    driver.submit(write(0), 0)
    driver.puback(reason_code=NOBODY)
    to_deadline(driver)
    driver.puback(reason_code=NOBODY)
    driver.reply(driver.published[0], OK)
    driver.submit(write(1), 1)
    driver.puback(reason_code=NOBODY)
    driver.after(2)
    assert len(driver.published) == 3


def test_the_client_opened_again_begins_anew() -> None:
    """It may be beside another store then, or beside none."""
    driver = MachineDriver(give_up_on=(Exception,)).ready()
    driver.submit(Get(b"first"), "first")
    driver.answer(b"$-1\r\n")
    driver.machine.close(driver.now, RequestTimeoutError("given up"))
    driver.take()
    driver.open("again")
    driver.connect()
    driver.submit(write(1), 1)
    driver.puback(reason_code=NOBODY)
    driver.after(1)
    assert type(driver.outcome(1)) is NoStateStoreError
