"""The real journal and the real store over a simulated disk, and what must hold whatever that does.

A program changes records in a journal, cuts batches, appends and folds them, until the process is killed, the power
fails, the disk fails or is full, or a bit changes; then another process opens what is there. The audit:

* what was acknowledged is there, whole and in order: the content is that after some batch that was handed over, and not
  after an earlier one than the last that was acknowledged;
* without damage, nothing is refused; with damage, it may be refused, and nothing else than the content is ever served.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import attrs
from support.disks import SimulatedDisk

from statestore_client.server.journal import (
    ALL_STREAMS,
    TIME,
    DamagedRecordError,
    Journal,
    Stream,
    Subject,
    Timeline,
    load,
)
from statestore_client.server.runtime.storage.files import log_name
from statestore_client.server.runtime.storage.log_store import LogStore
from statestore_client.wire.instant import Instant

_NOW = Instant(1000.0, 1_700_000_000_000)

Content = dict[tuple[Stream, Subject], tuple[object, ...]]


class DiskAuditError(AssertionError):
    """Something acknowledged is lost, something else is served, or something sound is refused."""


class SmallStore(LogStore):
    """One that folds often, and in small steps."""

    short_bytes = 3000
    small_bytes = 6000
    step_bytes = 500


@attrs.frozen
class _Record:
    values: tuple[object, ...]

    def fields(self, timeline: Timeline) -> Sequence[object]:
        del timeline
        return self.values


def content_of(store: LogStore) -> Content:
    """All that it serves. Raises DamagedRecordError."""
    return {
        (stream, subject): fields
        for stream in ALL_STREAMS
        for subject, fields in load(_Loading(store), stream)
        if subject != TIME  # of the batch
    }


@attrs.frozen
class _Loading:
    """As much of a StreamStorage as is needed to read one."""

    _store: LogStore

    def load(self, stream: Stream):  # type: ignore[no-untyped-def]  # as the store has it
        return self._store.load(stream)

    def append(self, batch: object, done: object) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Life:
    """One disk, and the processes that come and go."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk()
        self._states: list[Content] = [{}]  # after each batch that was handed over since the last start
        self._acknowledged = 0  # of these
        self._numbers = 1
        self.is_damaged = False
        self.refusals = 0
        self.restarts = 0
        self._start()

    def _start(self) -> None:
        self._journal = Journal()
        self._store: LogStore | None = None
        try:
            store = SmallStore(self.disk, self.random.randbytes(16))
            content = content_of(store)
        except DamagedRecordError as error:
            if not self.is_damaged:
                raise DiskAuditError(f"refused without damage: {error}") from error
            self.refusals += 1
            return
        except OSError:
            return  # it fails still
        self.restarts += 1
        allowed = self._states[self._acknowledged :]
        if content not in allowed:
            difference = _difference(content, allowed[0])
            raise DiskAuditError(f"the content is that after none of {len(allowed)} batches: {difference}")
        self._states, self._acknowledged = [content], 0
        self._store = store
        if self.random.random() < 0.8:
            store.forget()

    @property
    def is_over(self) -> bool:
        """What is there is refused."""
        return self.refusals > 0

    # -- what a process does ------------------------------------------------------------------------------------------

    def change(self) -> None:
        """A few records, and a batch of them."""
        content = dict(self._states[-1])
        for _ in range(self.random.randint(1, 6)):
            stream, subject = self._subject(content)
            key = (stream, subject)
            if self.random.random() < 0.4 and key in content:
                del content[key]
                self._journal[stream].remove(subject)
            else:
                values = (self.random.randrange(1000), self.random.randbytes(self.random.choice((0, 10, 700))))
                content[key] = values
                self._journal[stream].put(subject, _Record(values))
        store = self._store
        if store is None:
            self._journal = Journal()
            return
        self._states.append(content)
        batch = self._journal.cut(_NOW)
        try:
            store.append(batch)
        except OSError:
            self._end()  # as a server does: nothing may be written after what failed
            return
        self._acknowledged = len(self._states) - 1

    def _subject(self, content: Content) -> tuple[Stream, Subject]:
        known = list(content)
        if known and self.random.random() < 0.6:
            return self.random.choice(known)
        stream = self.random.choice((Stream.KEYS, Stream.RETAINED, Stream.MESSAGES, Stream.SESSIONS))
        if stream.is_numbered:
            self._numbers += 1
            return stream, self._numbers
        name = f"name-{self.random.randrange(40)}"
        return stream, name.encode() if stream is Stream.KEYS else name

    def work(self) -> None:
        """A step of folding."""
        store = self._store
        if store is not None and store.wants_work_when_quiet:
            try:
                store.work(self.random.choice((0, 0, 3000)))
            except OSError:
                self._end()

    def _end(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = None

    # -- what happens to it -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Close the store in the regular way."""
        if self._store is not None:
            with suppress(OSError):
                self._store.finish()
        self.kill()

    def kill(self) -> None:
        self._end()
        self._start()

    def lose_power(self) -> None:
        self._end()
        self.disk.lose_power(self.random)
        self._start()

    def fail_sync(self) -> None:
        """Some sync soon fails, once; afterwards another process tries."""
        self.disk.syncs_until_failure = self.random.randint(0, 4)
        for _ in range(6):
            self.change()
            self.work()
        self.disk.syncs_until_failure = None
        self.random.choice((self.kill, self.lose_power))()

    def fill_up(self) -> None:
        """The disk is full soon; afterwards there is room."""
        self.disk.room = self.random.randint(0, 4000)
        for _ in range(6):
            self.change()
            self.work()
        if self.random.random() < 0.5:
            self.kill()
        self.disk.room = None
        self.random.choice((self.kill, self.lose_power))()

    def flip(self) -> None:
        """One bit of one file changes while no process is there, after a kill or a power failure.

        A power failure may leave marks that are too old for the last batch: damage to that one looks like what a crash
        leaves, and the audit could not tell, either.
        """
        log, ends = "", [0, 0]
        while len(ends) < 5 or self.random.random() < 0.8:
            self.change()
            if self._store is None:
                return
            log = log_name(self._store._logs[-1].head.generation)
            ends.append(self._store.log_bytes)
        self._end()
        names = sorted(name for name, file in self.disk.files.items() if file.size)
        name = self.random.choice([*names, log])
        limit = self.disk.files[name].size
        if self.random.random() < 0.5:
            self.disk.lose_power(self.random)
            name, limit = log, ends[-2]
        self.disk.flip(name, self.random.randrange(limit), self.random.randrange(8))
        self.is_damaged = True
        self._start()


def _difference(content: Content, other: Content) -> str:
    lost = sorted(map(str, other.keys() - content.keys()))
    more = sorted(map(str, content.keys() - other.keys()))
    changed = sorted(str(key) for key in content.keys() & other.keys() if content[key] != other[key])
    return f"lost {lost[:3]}, more {more[:3]}, changed {changed[:3]}"


def run(seed: int, steps: int = 60) -> Life:
    """One program from one seed. Raises DiskAuditError."""
    life = Life(seed)
    kinds = (life.change, life.work, life.stop, life.kill, life.lose_power, life.fail_sync, life.fill_up)
    for _ in range(steps):
        life.random.choices(kinds, (40, 30, 2, 3, 4, 1, 1))[0]()
    for step in (life.kill, life.lose_power, life.flip):
        if not life.is_over:
            step()
    return life
