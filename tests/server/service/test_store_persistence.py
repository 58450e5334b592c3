"""What of the keys survives, in each mode of persistence. Facts 1.1 and 1.7: who marks what, and what the broker makes
of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from store_life import WALL_MS, living, refusal, value

from statestore_client.errors import FencingTokenRequiredError, FencingTokenTooOldError, InvalidArgumentError
from statestore_client.server.store import KEEP_ALL, Persistence
from statestore_client.server.store.durability import MARK_LASTS_S
from statestore_client.wire.commands import Del, Get, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import COUNT_0, COUNT_1, OK, Found

MARKED = ("aio-persistence", "true")
OLD, NEW = HlcTimestamp(WALL_MS, 6, "a"), HlcTimestamp(WALL_MS, 7, "b")


# -- which SETs are kept -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "key", "plain", "marked"),
    [
        ("all", b"k", True, True),
        ("none", b"k", False, False),
        ("asked", b"k", False, True),
        ("plant/*", b"plant/1", True, True),
        ("plant/*", b"other", False, False),
        ("plant/*", b"plant/\xff", False, False),  # no text: no pattern matches it, as in SCAN
        (("asked", "plant/*", "line[12]"), b"line2", True, True),
        (("asked", "plant/*", "line[12]"), b"line3", False, True),
        ("[a]ll", b"all", True, True),
        ("x", b"x" * 8193, True, True),  # too long to be matched for each SET
    ],
)
def test_each_word_keeps_what_it_says(words: Any, key: bytes, plain: bool, marked: bool) -> None:
    """The words keep all SETs, none, marked ones, or those of matching keys; of several words any may keep a SET."""
    persistence = Persistence.of(words)
    assert persistence.keeps(Set(key, b"v")) == plain
    assert persistence.keeps(Set(key, b"v", persist=True)) == marked


@pytest.mark.parametrize("words", [(), ("all", "none"), ("none", "asked"), ("all", "x*"), "", "[a", "\ud800", [7]])
def test_words_that_mean_nothing_are_refused(words: Any) -> None:
    """The words "all" and "none" stand alone, and any other word is a glob or refused."""
    with pytest.raises(InvalidArgumentError):
        Persistence.of(words)


# -- asked -------------------------------------------------------------------------------------------------------------


def test_what_is_marked_is_there_after_a_restart_and_nothing_else() -> None:
    """After a restart a marked value is there with its version, and an unmarked one is missing."""
    life = living()
    version = life.apply(Set(b"kept", b"1", persist=True)).version
    life.apply(Set(b"lost", b"1"))
    life = life.next()
    found = life.apply(Get(b"kept"))
    assert (found.reply, found.version) == (Found(b"1"), version)
    assert value(life, b"lost") is None


def test_an_older_value_does_not_come_back() -> None:
    """A SET without the mark is answered when the kept value is off the disk, and later ones do not wait for the
    disk."""
    life = living()
    life.apply(Set(b"k", b"old", persist=True))
    life.begin(Set(b"k", b"new"))
    assert life.journal.is_urgent
    life.commit()
    life.begin(Set(b"k", b"newer"))
    assert not life.journal.is_urgent
    assert value(life.next(), b"k") is None


@pytest.mark.parametrize("deletion", [Del(b"k"), VDel(b"k", b"1")])
def test_the_deletion_of_a_kept_key_is_kept(deletion: Del | VDel) -> None:
    """The deletion of a kept key waits for the disk, where nothing of it is left; that of another key does not wait."""
    life = living()
    life.apply(Set(b"k", b"1", persist=True))
    assert life.begin(deletion).reply is COUNT_1
    assert life.journal.is_urgent
    life.commit()
    assert life.storage.count() == {"clock": 1}
    life.apply(Set(b"k", b"1"))
    assert life.begin(deletion).reply is COUNT_1
    assert not life.journal.is_urgent


def test_expiry_takes_a_kept_key_off_the_disk() -> None:
    """A kept key that expires is removed from the disk in time."""
    life = living()
    life.apply(Set(b"k", b"1", expiry_ms=1000, persist=True))
    life.advance(1)
    life.store.tick(life.now)
    life.commit()
    assert life.storage.count() == {"clock": 1}


# -- fencing tokens ----------------------------------------------------------------------------------------------------


def test_a_forgotten_value_leaves_its_mark() -> None:
    """The fence of a forgotten value stays: a SET passes it or is refused as before, and deleting nothing is no
    error."""
    life = living()
    life.apply(Set(b"k", b"1"), NEW)
    life = life.next()
    assert value(life, b"k") is None
    assert refusal(life.apply(Set(b"k", b"2"), OLD).reply) is FencingTokenTooOldError
    assert refusal(life.apply(Set(b"k", b"2")).reply) is FencingTokenRequiredError
    assert life.apply(Del(b"k")).reply is COUNT_0
    life = life.next()
    assert refusal(life.apply(Set(b"k", b"2"), OLD).reply) is FencingTokenTooOldError
    assert life.apply(Set(b"k", b"2"), NEW).reply is OK
    assert life.apply(Del(b"k"), NEW).reply is COUNT_1
    assert life.next().apply(Set(b"k", b"3")).reply is OK


def test_a_new_mark_waits_for_the_disk_and_the_same_one_does_not() -> None:
    """A new fencing mark waits for the disk; further SETs under the same token do not, and cost one record for each
    key."""
    life = living()
    life.begin(Set(b"k", b"1"), OLD)
    assert life.journal.is_urgent
    life.commit()
    life.begin(Set(b"k", b"2"), OLD)
    assert not life.journal.is_urgent
    life.begin(Set(b"k", b"3"), NEW)
    assert life.journal.is_urgent


def test_a_mark_ends_with_the_expiry_of_its_key() -> None:
    """A fencing mark ends with the expiry of its key, on the disk as well, and another key takes its place."""
    life = living()
    life.apply(Set(b"k", b"1", expiry_ms=10_000), NEW)
    life = life.next(after_s=5)
    assert refusal(life.apply(Set(b"k", b"2")).reply) is FencingTokenRequiredError
    life.advance(5)
    assert life.apply(Set(b"k", b"2")).reply is OK  # before any tick
    life.store.tick(life.now)
    life.commit()
    assert value(life, b"k") == b"2"
    assert life.storage.count() == {"clock": 1}


def test_the_mark_of_a_forgotten_value_lasts_a_day() -> None:
    """The fencing mark of a forgotten value lasts a day from the first restart on, however many more restarts there
    are."""
    life = living()
    life.apply(Set(b"k", b"1"), NEW)
    for _ in range(3):
        life = life.next(after_s=MARK_LASTS_S / 4)
        life.commit()
        assert refusal(life.apply(Set(b"k", b"2"), OLD).reply) is FencingTokenTooOldError
    life = life.next(after_s=MARK_LASTS_S / 4)
    assert life.store.next_deadline() is not None
    life.store.tick(life.now)
    life.commit()
    assert life.storage.count() == {"clock": 1}
    assert life.apply(Set(b"k", b"2"), OLD).reply is OK


# -- versions ----------------------------------------------------------------------------------------------------------


def test_room_for_versions_is_written_about_once_a_second() -> None:
    """Room for later versions is reserved on the disk about once a second, not with each value."""
    life = living()
    waits = 0
    for _ in range(500):
        life.begin(Set(b"k", b"1"))
        waits += life.journal.is_urgent
        life.commit()
        life.advance(0.01)
    assert 4 <= waits <= 7


# -- other modes -------------------------------------------------------------------------------------------------------


def test_a_stricter_mode_loses_nothing_at_its_start() -> None:
    """After a start in a stricter mode what is on the disk is served until it is written anew or deleted."""
    life = living(KEEP_ALL)
    for key in (b"a", b"b", b"c"):
        life.apply(Set(key, b"1"))
    life = life.next(persistence=Persistence.of("none"))
    life.apply(Set(b"b", b"2"))
    life.apply(Del(b"c"))
    assert [value(life, key) for key in (b"a", b"b", b"c")] == [b"1", b"2", None]
    life = life.next()
    assert [value(life, key) for key in (b"a", b"b", b"c")] == [b"1", None, None]


# -- the service -------------------------------------------------------------------------------------------------------


def test_the_mark_is_a_user_property() -> None:
    """The mark is ``aio-persistence: true`` and no other text; the answer to a SET that is not kept is not kept
    either."""
    life = living()
    stamp = str(HlcTimestamp(WALL_MS, 0, "client"))
    for key, pair, is_kept in (
        (b"a", MARKED, True),
        (b"b", ("aio-persistence", "false"), False),
        (b"c", ("other", "true"), False),
    ):
        assert life.send(Set(key, b"1"), key, stamp, pair).is_fleeting != is_kept
        life.commit()
    assert life.send(Get(b"a"), b"get", stamp, MARKED).is_fleeting
    assert not life.send(Del(b"a"), b"del", stamp).is_fleeting
    life.commit()
    assert life.send(Del(b"a"), b"again", stamp).is_fleeting


def test_an_answer_is_on_the_disk_before_any_later_change() -> None:
    """An answer is on the disk before any later change, so that a repeated request undoes nothing, and nobody waits for
    it."""
    life = living()
    stamp = str(HlcTimestamp(WALL_MS, 0, "client"))
    life.ask(Set(b"room for versions", b""), b"0", stamp)
    first = life.send(Set(b"k", b"1"), b"1", stamp).message
    assert not life.journal.is_urgent
    assert life.journal
    life.ask(Set(b"k", b"2"), b"2", stamp, MARKED)
    life = life.next()
    assert life.ask(Set(b"k", b"1"), b"1", stamp).payload == first.payload
    assert value(life, b"k") == b"2"
