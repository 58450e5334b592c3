"""A watch is renewed: a store that is a client of the broker forgets it after a time, or when it is started again."""

from __future__ import annotations

from machine_driver import MachineDriver, Seen

from statestore_client.wire.commands import Get, KeyNotify, Set, decode_command
from statestore_client.wire.protocol import Dialect

LIFETIME_S = 100.0
VALUE = b"$1\r\nv\r\n"
NOBODY = 0x10  # MQTT 5.0, 3.4.2.1


def watching(**options: object) -> tuple[MachineDriver, Seen]:
    """A client with a watch on ``k``, which has the value ``v``."""
    driver = MachineDriver(watch_lifetime=LIFETIME_S, **options).ready()
    seen = driver.watch(b"k", "watch")
    driver.suback()
    driver.answer(b"+OK\r\n")
    driver.notify(b"k", b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n", "1700000000001:0:store")
    driver.take()
    return driver, seen


def commands(driver: MachineDriver) -> list[object]:
    """What is on the wire without a PUBACK."""
    return [decode_command(bytes(p.message.payload), Dialect.SERVICE) for p in driver.on_the_wire]


def renewed(driver: MachineDriver, value: bytes, version: str) -> None:
    """Answer KEYNOTIFY and the read behind it."""
    assert commands(driver) == [KeyNotify(b"k")]
    driver.answer(b"+OK\r\n")
    assert commands(driver) == [Get(b"k")]
    driver.answer(value, ("__ts", version))
    assert not driver.on_the_wire


def test_at_half_of_its_lifetime_a_watch_is_renewed() -> None:
    """KEYNOTIFY and a read, again and again; a key that has not changed makes no event."""
    driver, seen = watching()
    before = len(seen)
    for _ in range(3):
        driver.after(LIFETIME_S / 2 - 0.001)
        assert not driver.on_the_wire
        deadline = driver.machine.next_deadline()
        assert deadline is not None
        driver.at(deadline)
        renewed(driver, VALUE, "1700000000001:0:store")
    assert len(seen) == before


def test_what_was_missed_before_the_renewal_is_told() -> None:
    """The store had forgotten the watch: its next value is an event, with ``missed``."""
    driver, seen = watching()
    driver.after(LIFETIME_S / 2)
    renewed(driver, b"$1\r\nw\r\n", "1700000000009:0:store")
    assert [(event.value, event.missed) for event in seen][-1] == (b"w", True)


def test_a_notification_during_the_renewal_counts() -> None:
    """The store had not forgotten: what it tells meanwhile is told once, in order."""
    driver, seen = watching()
    driver.after(LIFETIME_S / 2)
    driver.notify(b"k", b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nw\r\n", "1700000000009:0:store")
    renewed(driver, b"$1\r\nw\r\n", "1700000000009:0:store")
    assert [event.value for event in seen] == [b"v", b"w"]
    assert not seen[-1].missed


def test_a_renewal_that_finds_the_watch_as_it_was_is_no_error() -> None:
    """``:0`` says *already set*, as the official Go SDK reads it (state store facts, 1.5)."""
    driver, seen = watching()
    driver.after(LIFETIME_S / 2)
    driver.answer(b":0\r\n")
    driver.answer(VALUE, ("__ts", "1700000000001:0:store"))
    assert len(seen) == 1


def test_a_store_that_was_away_is_told_again() -> None:
    """After 0x10 another host may answer, which knows of no watch."""
    driver, seen = watching()
    driver.submit(Set(b"x", b"1"), "set")
    driver.puback(reason_code=NOBODY)
    driver.after(0.1)
    driver.answer(b"+OK\r\n")
    renewed(driver, b"$1\r\nw\r\n", "1700000000009:0:store")
    assert [event.value for event in seen] == [b"v", b"w"]


def test_another_store_is_told_again() -> None:
    """A store in memory that was started again says that it is another one."""
    driver, _ = watching()
    for store in ("a", "a", "b"):
        assert not driver.on_the_wire
        driver.submit(Set(b"x", b"1"), store)
        driver.answer(b"+OK\r\n", ("statestore-id", store))
    renewed(driver, VALUE, "1700000000001:0:store")


def test_nothing_is_renewed_without_watches() -> None:
    """A client that only reads and writes sends nothing of its own."""
    driver, seen = watching()
    driver.unwatch(b"k", seen)
    driver.answer(b"+OK\r\n")
    driver.after(LIFETIME_S)
    assert not driver.on_the_wire


def test_after_a_reconnect_the_time_begins_anew() -> None:
    """The reconnect has renewed every watch."""
    driver, _ = watching()
    driver.after(LIFETIME_S / 2 - 1)
    driver.lose()
    driver.reconnect()
    driver.answer(b"+OK\r\n")
    driver.answer(VALUE, ("__ts", "1700000000001:0:store"))
    driver.after(LIFETIME_S / 2 - 1)
    assert not driver.on_the_wire
    driver.after(1)
    assert commands(driver) == [KeyNotify(b"k")]


def test_more_watches_than_the_window_are_renewed_bit_by_bit() -> None:
    """No more of these requests are under way than the window holds."""
    driver = MachineDriver(watch_lifetime=LIFETIME_S, max_in_flight=4).ready()
    for i in range(10):
        driver.watch(b"k%d" % i, i)
    driver.suback()
    while driver.on_the_wire:
        driver.answer(b"+OK\r\n")
    driver.after(LIFETIME_S / 2)
    most, asked = 0, []
    while driver.on_the_wire:
        most = max(most, len(driver.on_the_wire))
        command = commands(driver)[0]
        asked.append(type(command))
        driver.answer(b"+OK\r\n" if isinstance(command, KeyNotify) else b"$-1\r\n")
    assert most <= 4
    assert asked.count(KeyNotify) == asked.count(Get) == 10
