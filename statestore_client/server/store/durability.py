"""What of the store is written down, and what is left of it after a restart.

Of a key, the disk has its last SET, or its fencing mark alone, or nothing:

==========================================  =========================================================================
a SET that :class:`Persistence` keeps       the value, its version, mark and expiry
another one, of a key that has a mark       the mark, and when it ends: what was kept of an earlier value goes
another one, of a key without a mark        nothing: what was kept of an earlier value goes
DEL, VDEL, expiry                           nothing: whatever was kept goes
==========================================  =========================================================================

Invariant: no older value of a key comes back. A SET that is not kept takes a kept value off the disk, and is answered
when that has happened; the next one finds nothing there and waits for nothing.

Invariant: no mark goes back. A key whose value is forgotten keeps its mark over a restart, and is missing: a SET passes
the fence or is refused as before. It does so for a day at most, the longest lease of a client: whoever has an older
token has lost its lock long ago.

Invariant: no version goes back, also none of a value that is not kept: it may be somebody's fencing token. Such values
do not wait for the disk, so room for their versions is *reserved*: the disk has a version greater than all that are
given out, and a new one is written, and waited for, when that is used up, about once a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf
from sys import intern
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from statestore_client.errors import InvalidArgumentError, RequestSyntaxError
from statestore_client.server.journal import TIME, DamagedRecordError, Stream, TimeRecord, load, records_in
from statestore_client.server.store.glob import Glob, compile_glob
from statestore_client.server.store.keyspace import Durability, Entry, Keyspace
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.journal import Journal, Row, StoredRecords, Timeline, WriteBatch
    from statestore_client.server.timer_heap import TimerHeap
    from statestore_client.wire.commands import Set
    from statestore_client.wire.hlc import HybridLogicalClock
    from statestore_client.wire.instant import Instant

# -- local clock -------------------------------------------------------------------------------------------------------
#
# The local clock, with which the timestamps of requests are compared.
#
# It is the wall clock, as long as that goes forward. When the wall clock is set back, versions stay where they are, and
# so do the clients whose timestamps follow them, or whose clocks are right: a server that compared them with its wall
# clock would refuse the fencing token that it has just given out. So the local clock goes on from where it was, at the
# pace of the monotonic clock, until the wall clock has caught up. It is written down and survives a restart; whoever
# becomes the active server of a replicated log goes on with it as well, however slow its own wall clock is.
#
# Upper bounds: no timestamp of a client moves the local clock, so a client that is always a minute ahead never gets the
# versions further than that minute. And it is at most ``MAX_AHEAD_MS`` ahead of the wall clock: one that is set back
# further was wrong before, and the mistake is not to last.
#
# Source: state store protocol, "Clock skew", which says only "the state store's local clock".


#: A day: more than any mistake with time zones.
MAX_AHEAD_MS: Final = 86_400_000


class LocalClock:
    """Invariant: between two readings it goes on by at least as much as the monotonic clock, unless the wall clock
    falls back by more than ``MAX_AHEAD_MS``.
    """

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        #: The greatest distance of the wall clock from the monotonic one that was seen so far, in milliseconds.
        self.ahead_ms: float = -inf

    def read(self, now: Instant) -> int:
        """Milliseconds since the Unix epoch, never behind the wall clock."""
        wall_ms, monotonic_ms = now.wall_ms, now.monotonic * 1000
        if wall_ms - monotonic_ms >= self.ahead_ms:
            self.ahead_ms = wall_ms - monotonic_ms
            return wall_ms
        return min(max(wall_ms, round(monotonic_ms + self.ahead_ms)), wall_ms + MAX_AHEAD_MS)

    def resume(self, ahead_ms: float) -> None:
        """Go on after a restart: with what an earlier life has seen."""
        self.ahead_ms = max(self.ahead_ms, ahead_ms)


# -- persistence -------------------------------------------------------------------------------------------------------
#
# Which SETs are written down, on a server that writes anything down.
#
# ==============  =====================================================================================================
# ``all``         every SET: the default
# ``asked``       a SET that is marked with the user property ``aio-persistence: true`` (state store facts, 1.1)
# a pattern       a SET of a key that matches this glob, the one of SCAN, marked or not
# ``none``        none
# ==============  =====================================================================================================
#
# ``asked`` and any number of patterns go together: a SET that one of them takes is written down. So it is with the real
# broker, whose operator names keys and may let clients ask (facts, 1.7).


#: Bytes. To match a key takes time in proportion to its length; a longer one is written down without being matched.
_LONGEST_MATCHED: Final = 8192


@attrs.frozen
class Persistence:
    """Which SETs are written down: see the table above."""

    keeps_all: bool = False
    keeps_asked: bool = False
    patterns: tuple[Glob, ...] = ()

    @classmethod
    def of(cls, words: str | Iterable[str]) -> Persistence:
        """``all``, ``asked``, ``none``, a pattern, or several of them. Raises InvalidArgumentError."""
        if not isinstance(words, Iterable):
            raise InvalidArgumentError(f"persist is all, asked, none, or patterns of keys, not {words!r}")
        chosen = (words,) if isinstance(words, str) else tuple(words)
        alone = [word for word in chosen if word in ("all", "none")]
        if not chosen or (alone and len(set(chosen)) > 1):
            raise InvalidArgumentError(
                f"persist is all, asked, none, or patterns of keys, and all and none stand alone; not {words!r}"
            )
        if alone:
            return cls(keeps_all=alone[0] == "all")
        patterns = tuple(_glob(word) for word in chosen if word != "asked")
        return cls(keeps_asked="asked" in chosen, patterns=patterns)

    def keeps(self, command: Set) -> bool:
        """Whether this SET is to be there after a restart."""
        if self.keeps_all or (self.keeps_asked and command.persist):
            return True
        key = command.key
        return bool(self.patterns) and (len(key) > _LONGEST_MATCHED or any(glob.matches(key) for glob in self.patterns))


KEEP_ALL: Final = Persistence(keeps_all=True)


def _glob(word: object) -> Glob:
    try:
        if isinstance(word, str):
            return compile_glob(word.encode())
    except (RequestSyntaxError, UnicodeEncodeError):
        pass
    raise InvalidArgumentError(
        f"{word!r} is not a pattern of keys: * ? [abc] stand for other characters, [*] for a star"
    )


# -- records -----------------------------------------------------------------------------------------------------------
#
# What the state store writes down, as values, and back.


def _stamp_fields(stamp: HlcTimestamp) -> tuple[int, int, str]:
    return (stamp.wall_ms, stamp.counter, stamp.node_id)


@hot_value
class KeyRecord:
    """What is stored under a key. ``expires_at`` is monotonic seconds, and log time on disk.

    Without a value it is the fencing mark of a key whose value does not survive. ``user`` is who has set it; nobody in
    particular has no field for that.
    """

    value: bytes | None
    version: HlcTimestamp
    fence: HlcTimestamp | None
    expires_at: float | None
    user: str | None = None

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        fence = None if self.fence is None else _stamp_fields(self.fence)
        fields = (self.value, _stamp_fields(self.version), fence, timeline.log_ms(self.expires_at))
        return fields if self.user is None else (*fields, self.user)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        value, version, fence, expires_ms, user = fields if len(fields) == 5 else (*fields, None)
        mark = None if fence is None else HlcTimestamp(*fence)
        return cls(value, HlcTimestamp(*version), mark, timeline.monotonic(expires_ms), user and intern(user))

    def mark(self) -> KeyRecord:
        """The same without the value."""
        return KeyRecord(None, self.version, self.fence, self.expires_at)


@attrs.frozen
class ClockRecord:
    """The greatest version that was given out: no later one may be smaller, whatever the wall clock says.

    ``ahead_ms`` is that of the local clock: before the monotonic clock here, and before log time on disk.
    """

    last: HlcTimestamp
    ahead_ms: float

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        return (*_stamp_fields(self.last), self.ahead_ms - timeline.ahead_ms)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        wall_ms, counter, node_id, ahead_ms = fields
        return cls(HlcTimestamp(wall_ms, counter, node_id), ahead_ms + timeline.ahead_ms)


# -- survival ----------------------------------------------------------------------------------------------------------


#: How long the mark of a forgotten value lasts: a lease has at most 86,400 seconds.
MARK_LASTS_S: Final = 86_400.0

#: How far ahead of the versions given out the one on the disk is put. After a restart, versions are at most so far
#: ahead of the clock.
_RESERVED_MS: Final = 1_000


#: Looking a member up in its enumeration takes as long as a call.
_NOTHING: Final = Durability.NOTHING
_VALUE: Final = Durability.VALUE


@attrs.frozen
class Fence:
    """The fencing mark of a key whose value is forgotten. ``expires_at`` is monotonic seconds."""

    fence: HlcTimestamp
    expires_at: float

    def record(self) -> KeyRecord:
        """Nobody looks at a mark's version."""
        return KeyRecord(None, self.fence, self.fence, None if self.expires_at == inf else self.expires_at)


class StoreJournal:
    """Writes down what is to survive. Without a journal, nothing does, and every call is without effect."""

    __slots__ = (
        "_clock", "_journal", "_keys", "_local_clock", "_policy", "_reserved", "_versions", "is_durable", "is_kept",
        "keeps_all", "marks",
    )  # fmt: skip

    def __init__(
        self,
        journal: Journal | None,
        clock: HybridLogicalClock,
        local_clock: LocalClock,
        policy: Persistence = KEEP_ALL,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._local_clock = local_clock
        self._policy = policy
        self._keys = None if journal is None else journal[Stream.KEYS]
        self._versions = None if journal is None else journal[Stream.CLOCK]
        #: Whether anything is written down.
        self.is_durable: Final = journal is not None
        #: Whether every SET is written down.
        self.keeps_all: Final = policy.keeps_all
        self._reserved: HlcTimestamp | None = None
        #: Of keys that are missing because their values were forgotten.
        self.marks: dict[bytes, Fence] = {}
        #: Whether what the last command changed is there after a restart.
        self.is_kept: bool = True

    def set(self, command: Set, entry: Entry | None, record: KeyRecord) -> Durability:
        """A SET is applied; ``entry`` is as it was before. Returns what the disk has of the key from now on."""
        journal, keys, versions = self._journal, self._keys, self._versions
        if journal is None or keys is None or versions is None:
            return _NOTHING
        key = command.key
        if self.keeps_all:
            keys.put(key, record, len(command.value))
            versions.put(b"", ClockRecord(record.version, self._local_clock.ahead_ms))  # the greatest so far
            return _VALUE
        if self._policy.keeps(command):
            keys.put(key, record, len(command.value))
            self.is_kept = True
            self._note_version(journal, is_urgent=True)
            return _VALUE
        if record.fence is None:
            return self._forget(journal, key, entry)
        if (
            entry is None
            or entry.kept is not Durability.MARK
            or entry.fence != record.fence
            or entry.expires_at != record.expires_at
        ):
            keys.put(key, record.mark())
        self._note_version(journal, is_urgent=False)
        return Durability.MARK

    def removed(self, key: bytes, entry: Entry) -> None:
        """A key was deleted, or has expired; ``entry`` is as it was."""
        journal = self._journal
        if journal is not None:
            self.is_kept = self.is_kept or entry.kept is Durability.VALUE
            self._forget(journal, key, entry)

    def _forget(self, journal: Journal, key: bytes, entry: Entry | None) -> Durability:
        had = entry is not None and entry.kept is not Durability.NOTHING
        if had:
            journal[Stream.KEYS].remove(key)
        self._note_version(journal, is_urgent=had)
        return Durability.NOTHING

    def _note_version(self, journal: Journal, *, is_urgent: bool) -> None:
        """``is_urgent``: the disk is waited for anyway."""
        greatest = self._clock.last
        if not self.keeps_all:
            if self._reserved is None or greatest >= self._reserved:
                self._reserved = HlcTimestamp(greatest.wall_ms + _RESERVED_MS, 0, greatest.node_id)
            elif not is_urgent:
                return
            greatest = self._reserved
        journal[Stream.CLOCK].put(b"", ClockRecord(greatest, self._local_clock.ahead_ms))

    # -- after a restart ----------------------------------------------------------------------------------------------

    def restored_mark(self, key: bytes, record: KeyRecord) -> None:
        """A mark was found without a value."""
        if record.fence is None:
            raise ValueError("neither a value nor a mark")
        self.marks[key] = Fence(record.fence, inf if record.expires_at is None else record.expires_at)

    def shorten_marks(self, stopped_at: float) -> list[tuple[bytes, float]]:
        """The server that had the values wrote last at ``stopped_at`` (monotonic seconds). Returns which marks end
        earlier than they would have, and when that was.
        """
        ends_at = stopped_at + MARK_LASTS_S
        # A second more does no harm, and a mark that was only rounded is not written again.
        long = [(key, mark.expires_at) for key, mark in self.marks.items() if mark.expires_at > ends_at + 1]
        for key, _ in long:
            fence = self.marks[key].fence
            self.marks[key] = Fence(fence, ends_at)
            if self._journal is not None:
                # Written down, so that the next restart does not make it longer.
                self._journal[Stream.KEYS].put(key, self.marks[key].record())
        return long

    def mark_of(self, key: bytes, now: float) -> HlcTimestamp | None:
        """What protects a key that is missing, at ``now`` (monotonic seconds)."""
        mark = self.marks.get(key)
        return None if mark is None or mark.expires_at <= now else mark.fence

    def take_mark(self, key: bytes, kept: Durability) -> float | None:
        """The key is set again, and has a mark of its own or, as the time of this one was over, none.

        Returns when this one would have ended, or has; None if there was none.
        """
        mark = self.marks.pop(key, None)
        if mark is None:
            return None
        if kept is Durability.NOTHING and self._journal is not None:
            self._journal[Stream.KEYS].remove_lazily(key)
        return mark.expires_at

    def drop_mark(self, key: bytes) -> None:
        """Its time is over."""
        del self.marks[key]
        if self._journal is not None:
            self._journal[Stream.KEYS].remove_lazily(key)


# -- recovery ----------------------------------------------------------------------------------------------------------
#
# Keys, fencing marks and the clock from their records: all at once after a restart, or batch by batch while another
# server writes them.
#
# Both come to the same, because a record is the whole state of its subject. Nothing expires here: the removal of a key
# is a change like others, which the server that writes has to make.


#: Keys that are looked at in one go.
_SOME: Final = 256


@attrs.frozen(eq=False)
class StoreRecovery:
    """Fills the parts of a store, and writes nothing down before :meth:`go_on`."""

    _keyspace: Keyspace
    _survival: StoreJournal
    _expiries: TimerHeap[tuple[float, bytes]]
    _clock: HybridLogicalClock
    _local_clock: LocalClock

    def restore(self, storage: StoredRecords, timeline: Timeline) -> None:
        """All that there is. Raises DamagedRecordError."""
        try:
            for key, fields in load(storage, Stream.KEYS):
                self._put(key, KeyRecord.read(fields, timeline))
            for subject, fields in load(storage, Stream.CLOCK):
                self._resume(subject, fields, timeline)
        except (TypeError, ValueError) as error:
            raise _damaged(error) from error

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """What a batch has changed. Raises DamagedRecordError."""
        try:
            for changes in batch.changes:
                if changes.stream is Stream.KEYS:
                    for key in changes.removals:
                        if isinstance(key, bytes):
                            self._remove(key)
                    for key, fields in records_in(changes):
                        self._put(key, KeyRecord.read(fields, timeline))
                elif changes.stream is Stream.CLOCK:
                    for subject, fields in records_in(changes):
                        self._resume(subject, fields, timeline)
        except (TypeError, ValueError) as error:
            raise _damaged(error) from error

    def go_on(self, storage: StoredRecords, timeline: Timeline) -> None:
        """The server that wrote is gone, and this store is in use from now on. ``storage`` has the time of its last
        batch. Raises DamagedRecordError.
        """
        last = TimeRecord.last(storage)
        stopped_at = 0.0 if last is None else timeline.monotonic(last.log_ms) or 0.0
        for key, expires_at in self._survival.shorten_marks(stopped_at):
            self._reschedule(key, expires_at, self._survival.marks[key].expires_at)

    def rows(self) -> Iterator[Row]:
        """What is written of each key, as it is when the iterator comes to it. Keys may come and go in between: each
        that is there all the time comes.
        """
        keyspace, marks = self._keyspace, self._survival.marks
        some = [*islice(keyspace.keys_from(b"", inclusive=True), _SOME)]
        while some:
            for key in some:
                entry = keyspace.get(key)
                yield Stream.KEYS, key, None if entry is None else _kept(entry)
            some = [*islice(keyspace.keys_from(some[-1], inclusive=False), _SOME)]
        for key in [*marks]:
            mark = marks.get(key)
            yield Stream.KEYS, key, None if mark is None else mark.record()

    def _put(self, key: bytes, record: KeyRecord) -> None:
        before, entry = self._deadline(key), self._keyspace.get(key)
        value, after = record.value, record.expires_at
        if value is None:
            self._survival.restored_mark(key, record)
            if entry is not None:
                self._keyspace.remove(key)
        elif entry is None:
            self._survival.marks.pop(key, None)
            self._keyspace.add(key, Entry(value, record.version, record.fence, after, Durability.VALUE, record.user))
        else:
            self._keyspace.replace_value(key, entry, value, record.user)
            entry.version, entry.fence, entry.expires_at, entry.kept = (
                record.version,
                record.fence,
                after,
                Durability.VALUE,
            )
        self._reschedule(key, before, inf if after is None else after)

    def _remove(self, key: bytes) -> None:
        before = self._deadline(key)
        self._survival.marks.pop(key, None)
        if self._keyspace.get(key) is not None:
            self._keyspace.remove(key)
        self._reschedule(key, before, inf)

    def _deadline(self, key: bytes) -> float:
        found = self._keyspace.get(key) or self._survival.marks.get(key)
        return inf if found is None or found.expires_at is None else found.expires_at

    def _reschedule(self, key: bytes, before: float, after: float) -> None:
        if before == after:
            return
        if before != inf:
            self._expiries.forget_one()
        if after != inf:
            self._expiries.add((after, key))

    def _resume(self, subject: bytes, fields: Any, timeline: Timeline) -> None:
        if subject != TIME:
            clock = ClockRecord.read(fields, timeline)
            self._clock.resume(clock.last)
            self._local_clock.resume(clock.ahead_ms)


def _kept(entry: Entry) -> KeyRecord | None:
    record = KeyRecord(entry.value, entry.version, entry.fence, entry.expires_at, entry.user)
    if entry.kept is Durability.NOTHING:
        return None
    return record if entry.kept is Durability.VALUE else record.mark()


def _damaged(error: Exception) -> DamagedRecordError:
    return DamagedRecordError(f"records of the state store: {error!r}")
