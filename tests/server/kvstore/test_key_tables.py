"""Tables of keys: their moments, which come up at the right time, and those that wait to be sent."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.kvstore.area_store import KeyDeadlines
from statestore_client.server.kvstore.sync import PendingKeys

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("drop"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.integers(0, 3)),
        st.tuples(st.just("next"), st.just(""), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_it_is_a_dictionary_of_moments(steps: list[tuple[str, str, int]]) -> None:
    """Whatever is put, put off, brought forward or dropped: what is due comes up once, in order, and nothing else."""
    deadlines, model, now = KeyDeadlines(), dict[str, float](), 0.0
    for step, key, number in steps:
        if step == "put":
            deadlines.put(key, now + number)
            model[key] = now + number
        elif step == "drop":
            deadlines.drop(key)
            model.pop(key, None)
        elif step == "next":
            assert deadlines.next() == min(model.values(), default=None)
        else:
            now += number
            due = [deadlines.at(key) for key in sorted(model) if model[key] <= now]
            found = deadlines.pop_due(now, 1000)
            assert set(found) == {key for key, at in model.items() if at <= now}
            assert [model[key] for key in found] == sorted(at for at in due if at is not None)
            model = {key: at for key, at in model.items() if at > now}
        assert len(deadlines) == len(model)
        assert {key: deadlines.at(key) for key in "abc" if key in deadlines} == model


def test_a_key_that_is_put_off_for_ever_is_in_the_heap_once() -> None:
    """A hundred thousand refreshes of a few keys leave as many items as there are keys."""
    deadlines = KeyDeadlines()
    for turn in range(100_000):
        deadlines.put(str(turn % 10), turn + 300.0)
    assert len(deadlines._heap) == 10
    assert deadlines.next() == 99_990 + 300.0


def test_keys_that_come_and_go_leave_nothing_behind() -> None:
    """Moments that are brought forward or dropped, again and again, do not grow the heap."""
    deadlines = KeyDeadlines()
    longest = 0
    for turn in range(50_000):
        deadlines.put(str(turn), 1e9 - turn)
        deadlines.put("key", 1e8 - turn)
        deadlines.drop(str(turn))
        longest = max(longest, len(deadlines._heap))
    assert longest < 400


def test_work_is_bounded() -> None:
    """A call looks at so many items at most, put off or not, and the next one goes on."""
    deadlines = KeyDeadlines()
    for number in range(100):
        deadlines.put(str(number), 1.0)
    for number in range(50):
        deadlines.put(str(number), 2.0)
    found = [deadlines.pop_due(1.5, 10) for _ in range(10)]
    assert sorted(chain.from_iterable(found), key=int) == [str(number) for number in range(50, 100)]
    assert max(map(len, found)) <= 10
    assert deadlines.next() == 2.0


# -- keys that wait to be sent -----------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(0, 30), max_size=200))
def test_each_key_waits_once_until_it_is_taken(steps: list[int | None]) -> None:
    """Whatever is added and taken (None), what is taken was waiting, and it waits no more."""
    pending, waiting = PendingKeys(), set[str]()
    for step in steps:
        if step is not None:
            pending.add((f"key {step}",))
            waiting.add(f"key {step}")
        elif waiting:
            waiting.remove(pending.take())
        assert len(pending) == len(waiting)
    assert {pending.take() for _ in range(len(pending))} == waiting


def test_nothing_is_taken_where_nothing_waits() -> None:
    """It is an error, not a search without end."""
    with pytest.raises(IndexError):
        PendingKeys().take()


def test_keys_that_change_all_the_time_do_not_keep_others_waiting() -> None:
    """Each time that a key is sent, a hundred others change again: all that waited before are sent nevertheless."""
    pending = PendingKeys()
    waiting = {f"key {n}" for n in range(2_000)}
    pending.add(waiting)
    left = 10_000
    while waiting and left:
        waiting.discard(pending.take())
        pending.add(f"busy {n}" for n in range(100))
        left -= 1
    assert not waiting


def test_no_table_has_a_large_share_of_the_keys() -> None:
    """A table that grows is copied: with all keys in one, a single step would take as long as there are keys."""
    pending = PendingKeys()
    pending.add(f"key {n}" for n in range(20_000))
    assert max(len(table) for table in pending._tables) < 200
