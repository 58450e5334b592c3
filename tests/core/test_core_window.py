"""How many requests are under way: the setting, the bytes of requests and answers, and what a broker could not bear."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_driver import MachineDriver

from statestore_client.core.arguments import next_commands
from statestore_client.core.request_table import MOST_BYTES, Window
from statestore_client.wire.commands import Command, Get, Scan, Set

MEGABYTE = 1_000_000
QUOTA_EXCEEDED = 0x97  # MQTT 5.0, 2.4
LARGE = b"$8000000\r\n" + bytes(8 * MEGABYTE) + b"\r\n"
SMALL = b"$1\r\nx\r\n"


def asked(driver: MachineDriver) -> int:
    """Requests that left and are not answered."""
    return driver.machine.request_table.window.count


def answer_all(driver: MachineDriver, payload: bytes) -> list[int]:
    """Answer what was published, in order, until nothing is; how many requests were under way each time."""
    depths = []
    while driver.on_the_wire:
        depths.append(asked(driver))
        driver.answer(payload)
    return depths


def test_reads_of_large_values_are_few_at_a_time() -> None:
    """The first reads are eight, and once an answer of 8 MB has come, three at a time."""
    driver = MachineDriver(max_in_flight=64).ready()
    for i in range(20):
        driver.submit(Get(b"k%d" % i), i)
    assert answer_all(driver, LARGE) == [8, 7, 6, 5, 4, 3] + [3] * 12 + [2, 1]
    assert all(len(driver.outcome(i).value) == 8 * MEGABYTE for i in range(20))


def test_reads_of_small_values_fill_the_window() -> None:
    """After the first answer of a few bytes, as many as ``max_in_flight`` are under way."""
    driver = MachineDriver(max_in_flight=64).ready()
    for i in range(200):
        driver.submit(Get(b"k"), i)
    assert answer_all(driver, SMALL)[:3] == [8, 64, 64]


def test_after_a_large_value_small_ones_fill_the_window_again() -> None:
    """One large answer holds later reads back for a while, not for ever."""
    driver = MachineDriver(max_in_flight=64).ready()
    for i in range(200):
        driver.submit(Get(b"k"), i)
    driver.answer(LARGE)
    depths = answer_all(driver, SMALL)
    assert min(depths[8:60]) == 4
    assert max(depths) == 64


def test_writes_of_large_values_are_few_at_a_time() -> None:
    """Requests count with what they carry: three of 8 MB, the last one on top."""
    driver = MachineDriver(max_in_flight=64).ready()
    value = bytes(8 * MEGABYTE)
    for i in range(10):
        driver.submit(Set(b"k", value), i)
    assert max(answer_all(driver, b"+OK\r\n")) == 3
    assert all(driver.outcome(i).applied for i in range(10))


def test_a_broker_without_room_is_asked_for_less_each_time() -> None:
    """After 0x97 half as many reads are asked again; the others follow as answers come."""
    driver = MachineDriver(max_in_flight=16).ready()
    driver.submit(Get(b"first"), "first")
    driver.answer(SMALL)
    for i in range(16):
        driver.submit(Get(b"k%d" % i), i)
        driver.puback()
    for width in (8, 4, 2, 1, 1):
        driver.lose(reason_code=QUOTA_EXCEEDED)
        driver.reconnect()
        assert len(driver.on_the_wire) == asked(driver) == width
    answer_all(driver, SMALL)
    assert all(driver.outcome(i).value == b"x" for i in range(16))


def test_after_another_end_everything_is_asked_again_at_once() -> None:
    """A cut, a restart or a refused connection says nothing of room."""
    driver = MachineDriver(max_in_flight=16).ready()
    driver.submit(Get(b"first"), "first")
    driver.answer(SMALL)
    for i in range(16):
        driver.submit(Get(b"k%d" % i), i, timeout=None)
        driver.puback()
    driver.lose(reason_code=0x8B)
    driver.after(100)
    driver.lose(reason_code=QUOTA_EXCEEDED)  # CONNACK
    driver.reconnect()
    assert len(driver.on_the_wire) == 16


def test_a_narrow_window_widens_each_minute() -> None:
    """Without another 0x97, each minute in which answers come doubles the window, up to the setting."""
    driver = MachineDriver(max_in_flight=16).ready()
    for i in range(8):
        driver.submit(Set(b"k", b"v"), i)
    driver.lose(reason_code=QUOTA_EXCEEDED)
    driver.reconnect()
    answer_all(driver, b"+OK\r\n")
    window = driver.machine.request_table.window
    widths = []
    for i in range(5):
        driver.submit(Set(b"k", b"v"), f"later {i}")
        driver.answer(b"+OK\r\n")
        widths.append(window.width)
        driver.after(60)
    assert widths == [4, 8, 16, 16, 16]


def test_what_is_asked_again_counts_once(driver: MachineDriver) -> None:
    """Cuts, lost sessions and cancelled requests leave nothing counted."""
    driver.ready()
    requests = [driver.submit(Get(b"k") if i % 2 else Set(b"k", b"v"), i) for i in range(8)]
    driver.puback()
    driver.cut(session_present=True)
    driver.machine.request_table.cancel(requests[1], driver.now)
    driver.take()
    driver.cut(session_present=False)
    driver.machine.interrupted(driver.now)
    driver.take()
    driver.reconnect()
    driver.submit(Get(b"k"), "last")
    assert asked(driver) == 1
    driver.answer(SMALL)
    assert driver.outcome("last").value == b"x"
    assert asked(driver) == 0


def test_watches_of_large_values_look_at_a_few_at_a_time() -> None:
    """A hundred watches that begin with values of 8 MB ask for few of them at a time."""
    driver = MachineDriver(max_in_flight=64).ready()
    seen = [driver.watch(b"k%d" % i, f"watch {i}", initial=True) for i in range(100)]
    driver.suback()
    most = 0
    while driver.on_the_wire:
        payload = driver.on_the_wire[0].message.payload
        is_read = b"\r\nGET\r\n" in (payload if isinstance(payload, bytes) else b"".join(payload))
        driver.answer(LARGE if is_read else b"+OK\r\n")
        most = max(most, driver.machine.request_table.window._reads)
    assert most <= 8
    assert all(len(events) == 1 for events in seen)


@pytest.fixture
def driver() -> Any:
    return MachineDriver(max_in_flight=8)


_SIZES = st.sampled_from([0, 10, 100_000, 2 * MEGABYTE, 16 * MEGABYTE, 40 * MEGABYTE])


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), _SIZES), max_size=60), st.data())
def test_each_size_at_any_count(requests: list[tuple[bool, int]], data: st.DataObject) -> None:
    """In any order of answers, all requests leave; those whose answers are alike never exceed the bytes by more than
    one."""
    window, waiting, under_way = Window(64), list(requests), list[tuple[bool, int]]()
    alike = {size for is_read, size in requests if is_read}
    while waiting or under_way:
        while waiting and window.has_room:
            is_read, size = waiting.pop(0)
            under_way.append((is_read, size))
            window.add(_command(is_read, size))
            held = [each for _, each in under_way]
            if len(alike) <= 1 and window._read_bytes is not None:
                assert sum(held) - max(held) <= max(MOST_BYTES, 8 * max(alike, default=0))
            assert len(under_way) <= 64
        assert under_way  # with nothing under way there is always room
        is_read, size = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        window.remove(_command(is_read, size))
        window.answered(_command(is_read, size), size if is_read else 5, 0.0)
        assert 1 <= window.depth <= 64
    assert window.count == window._bytes == window._reads == 0


class _Sized(bytes):
    """Has a length, and not the bytes."""

    size = 0

    def __len__(self) -> int:
        return self.size


def _command(is_read: bool, size: int) -> Command:
    if is_read:
        return Get(b"k") if size % 2 else Scan(b"*", None)
    value = _Sized()
    value.size = size
    return Set(b"k", value)


def test_a_batch_is_read_ahead_by_bytes() -> None:
    """Of large values, no more are taken from the caller's iterable than fill the window."""
    source = iter([Set(b"k", bytes(4 * MEGABYTE)) for _ in range(20)])
    assert len(next_commands(source, 128)) == 5
    assert len(next_commands(source, 3)) == 3
    assert len(next_commands(iter([Get(b"k")] * 200), 128)) == 128
