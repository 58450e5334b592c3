"""What the simulated processes do: contend for a lock and write under it, write without one, watch.

Programs are generators of steps, as those of ``core`` are, and call them with :class:`Run`.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import attrs
from sim_lease import HeldLease
from sim_steps import Run, Stall

from statestore_client.core import edits
from statestore_client.core.actions import EventKind, WatchEvent, WatchOptions
from statestore_client.core.edits import Edit, edit
from statestore_client.core.leases import next_token
from statestore_client.core.locks import LockTerms, acquire, release
from statestore_client.core.steps import Invoke, Pause
from statestore_client.errors import ClosedError, LeaseLostError, StateStoreError
from statestore_client.wire.commands import Condition, Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp

if TYPE_CHECKING:
    from sim_audit import Audit
    from sim_process import Process


LOCK: Final = b"job"
STATE: Final = b"state"  # written under the lock only
COUNT: Final = b"count"  # read and written under the lock only: each value is one more than the one before
PLAIN: Final = (b"plain", b"other")  # written by anybody

Steps = Generator[Any, Any, Any]


@attrs.frozen
class Habits:
    """How the processes of a schedule behave. Seconds, and probabilities."""

    lease: float
    request_timeout: float
    idle: float  # at most this long between two pieces of work
    counting: float = 0.3  # how often a holder counts instead of writing
    stalls: float = 0.0  # a process stands still just where it must not: between looking at its lease and writing


def number_of(count: bytes | None) -> int:
    """The number that a value of the counter begins with."""
    return 0 if count is None else int(count.split()[0])


class Seen:
    """What one watcher has seen; implements :class:`~statestore_client.core.actions.Observer`."""

    def __init__(self, process: Process, audit: Audit, key: bytes) -> None:
        self.key = key
        self.value: bytes | None = None
        self._process = process
        self._audit = audit
        self._version: HlcTimestamp | None = None
        self._is_closed = False
        process.watch(key, self, self, WatchOptions(initial=True, connection_events=True))

    def resolve(self, result: object) -> None:
        """The watch stands."""

    def reject(self, error: StateStoreError) -> None:
        if self._is_closed and isinstance(error, ClosedError):
            return  # it was closed before it stood
        self._audit.violated(f"{self._process.name} could not watch: {error}")

    def push(self, event: WatchEvent | StateStoreError) -> bool:
        if isinstance(event, StateStoreError):
            self._audit.violated(f"a watch of {self._process.name} ended: {event}")
        elif event.kind in (EventKind.SET, EventKind.DELETE):
            self._process.world.note(self._process.name, "saw", event.kind, self.key, event.value, event.version or "")
            if event.version is not None:
                if self._version is not None and event.version <= self._version:
                    self._audit.violated(f"{self._process.name} saw {event.version} after {self._version}")
                self._version = event.version
            self.value = event.value
        return True

    def close(self) -> None:
        self._is_closed = True
        self._process.unwatch(self.key, self)


class Program:
    """The lives of one process. ``is_done``: it has had the lock once more after the faults were over."""

    def __init__(self, process: Process, audit: Audit, habits: Habits) -> None:
        self.process = process
        self.is_done = False
        self.seen = [Seen(process, audit, key) for key in (LOCK, STATE, PLAIN[0]) if process.random.random() < 0.5]
        self._audit = audit
        self._habits = habits
        self._terms = LockTerms(LOCK, process.name.encode(), habits.lease)
        self._values = count(1)

    def _value(self) -> bytes:
        """Never the same twice in a schedule."""
        return b"%b %d" % (self.process.name.encode(), next(self._values))

    def _idle(self) -> Pause:
        return Pause(self._habits.idle * self.process.random.random())

    # -- under the lock ------------------------------------------------------------------------------------------------

    def contend(self) -> Steps:
        """Again and again, until a round that began after the faults was a success."""
        world = self.process.world
        while not self.is_done:
            yield self._idle()
            began_calm = world.is_calm
            has_written = yield from self._round()
            self.is_done = began_calm and has_written

    def _round(self) -> Steps:
        process, random = self.process, self.process.random
        timeout = None if process.world.is_calm or random.random() < 0.7 else random.uniform(0.05, 1.0)
        steps = acquire(
            self._terms,
            now=process.local,
            timeout=timeout,
            request_timeout=self._habits.request_timeout,
            random=random,
        )
        try:
            grant = (yield Run(steps)).value
        except StateStoreError:
            return False
        process.world.note(process.name, "holds the lock until", grant.valid_until)
        lease = HeldLease(process, self._audit, self._terms, grant)
        has_written = yield from self._work(lease)
        was_lost = lease.is_lost
        if lease.end():
            yield Pause(0.1 * random.random())
        if was_lost and random.random() < 0.5:
            # A program that did not look.
            yield from self._write(STATE, self._habits.request_timeout, lease.fencing_token)
        if not was_lost or random.random() < 0.5:
            try:
                yield Run(release(self._terms, min(self._habits.request_timeout, max(0.1, self._terms.lease))))
            except StateStoreError:
                return False
        return has_written

    def _work(self, lease: HeldLease) -> Steps:
        random, habits = self.process.random, self._habits
        has_written = False
        for _ in range(random.choice((1, 1, 2, 3))):
            try:
                lease.check()
                timeout, token = min(habits.request_timeout, lease.remaining), lease.fencing_token
                if random.random() < habits.counting:
                    has_written = (yield from self._count(lease)) or has_written
                    yield self._idle()
                    continue
                if random.random() < 0.1:
                    token = (yield Run(next_token(self._terms, lease, timeout))).value
                if random.random() < habits.stalls:
                    yield Stall(random.uniform(0.0, 2.0 * habits.lease))
                if random.random() < 0.2:
                    work = Edit(STATE, lambda _: self._value(), None, habits.request_timeout)
                    yield Run(edit(self._terms, lease, work))
                    has_written = True
                else:
                    has_written = (yield from self._write(STATE, timeout, token)) or has_written
            except LeaseLostError:
                return False
            except StateStoreError:
                has_written = False
            yield self._idle()
        return has_written

    def _count(self, lease: HeldLease) -> Steps:
        """Add one, as ``lease.store`` reads and writes it, or as an edit. Stands still where it hurts most."""
        random, habits = self.process.random, self._habits
        if random.random() < 0.5:
            work = Edit(COUNT, self._one_more, None, habits.request_timeout)
            yield from self._stalling(edit(self._terms, lease, work))
            return True
        item = yield from self._stalling(edits.read(lease, lease.claims, Set(COUNT, b""), habits.request_timeout))
        command = Set(COUNT, self._one_more(None if item is None else item.value))
        yield self._idle()
        lease.check()
        sent, timeout = lease.claims.to_send(command), min(habits.request_timeout, lease.remaining)
        if random.random() < 3.0 * habits.stalls:
            yield Stall(random.uniform(0.0, 2.0 * habits.lease))
        result = (yield Invoke(sent, timeout, lease.fencing_token)).value
        return lease.claims.written(COUNT, result, was_missing=sent is not command).applied

    def _stalling(self, steps: Steps) -> Steps:
        """The same steps, by a process that stands still before one of its writes now and then."""
        random, habits = self.process.random, self._habits
        try:
            step = next(steps)
            while True:
                if isinstance(step, Invoke) and isinstance(step.command, Set) and random.random() < 3.0 * habits.stalls:
                    yield Stall(random.uniform(0.0, 2.0 * habits.lease))
                try:
                    answer = yield step
                except StateStoreError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def _one_more(self, value: bytes | None) -> bytes:
        """The next number, and whose it is."""
        return b"%d %b" % (number_of(value) + 1, self._value())

    def _write(
        self, key: bytes, timeout: float, token: HlcTimestamp | None, condition: Condition | None = None
    ) -> Steps:
        """Returns whether it was applied, as far as is known; tells the audit what is known for certain."""
        value = self._value()
        try:
            result = (yield Invoke(Set(key, value, condition), timeout, token)).value
        except StateStoreError as error:
            if not error.may_have_been_applied:
                self._audit.told(value, applied=False)
            return False
        self._audit.told(value, applied=result.applied)
        return result.applied

    # -- without it ----------------------------------------------------------------------------------------------------

    def chat(self) -> Steps:
        """Plain requests; some do not wait long for their answers."""
        process, random = self.process, self.process.random
        while not process.world.is_calm:
            yield self._idle()
            key, timeout = random.choice(PLAIN), random.choice((0.05, self._habits.request_timeout))
            try:
                match random.randrange(6):
                    case 0:
                        yield Invoke(Del(key), timeout)
                    case 1:
                        yield Invoke(Get(key), timeout)
                    case 2:
                        yield from self._write(key, timeout, None, random.choice((Condition.NX, Condition.NEX)))
                    case _:
                        yield from self._write(key, timeout, None)
            except StateStoreError:
                pass

    def look_around(self) -> Steps:
        """A watch is closed, and another one begun."""
        random = self.process.random
        while not self.process.world.is_calm:
            yield Pause(random.uniform(0.2, 2.0))
            if self.seen and random.random() < 0.7:
                old = self.seen.pop(random.randrange(len(self.seen)))
                old.close()
                self.seen.append(Seen(self.process, self._audit, old.key))
