"""Drivers of one pipeline that share a state store, step by step: the test chooses who acts, dies, or sends late.

The store is the server's own state machine, and the order of steps is the product's. Only Spark is left out: a
micro-batch is a range of rows here, and each of its SETs is a step, which may arrive again at any later time.
Drivers never look at a clock: one whose lease has ended goes on until the store refuses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import attrs

from statestore_client import HlcTimestamp
from statestore_client.errors import FencingError, LeaseLostError
from statestore_client.server.store.keyspace import Outcome, RequestContext
from statestore_client.server.store.store import StateStore
from statestore_client.spark.marker import (
    Marker,
    MarkerGoneError,
    MarkerStep,
    MarkerSteps,
    NextToken,
    ReadMarker,
    WriteMarker,
    WriteRows,
    Written,
    take_over,
    write_batch,
)
from statestore_client.wire.commands import Command, Condition, Del, Get, Set
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.replies import OK, ErrorReply, Found

__all__ = ["DELETED", "Row", "World", "fold", "row_command"]

LOCK, MARKER = b"lock", "marker"
#: The value of a row that deletes its key.
DELETED = b""
_NOW = Instant(1.0, 1_000_000)


@attrs.frozen
class Row:
    """A row of the source; its index is its place in the list."""

    key: bytes
    value: bytes


def fold(rows: list[Row], until: int) -> dict[bytes, int]:
    """The index of each key's last row, of the rows up to ``until``."""
    return {row.key: index for index, row in enumerate(rows[: until + 1])}


def row_command(row: Row) -> Command:
    """What the product sends for a row: deletes leave a tombstone."""
    return Set(row.key, row.value, expiry_ms=86_400_000 if row.value == DELETED else None)


@attrs.define
class Sent:
    """A request of a driver; ``index`` is that of its row, None for the marker."""

    command: Command
    token: HlcTimestamp
    index: int | None = None


class Driver:
    """One driver, and the requests that its tasks have still to send."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.marker: Marker | None = None  # None: it does not lead, as far as it knows
        self.steps: MarkerSteps | None = None
        self.answer: Any = None
        self.tasks: list[Sent] = []


class World:
    """Invariants are checked after each step: see :meth:`check`."""

    def __init__(self, rows: list[Row], row_command: Callable[[Row], Command] = row_command) -> None:
        self.rows = rows
        self.row_command = row_command
        self.drivers = [Driver(b"a"), Driver(b"b"), Driver(b"c")]
        self.refused = 0
        #: By key, the index of the row that the store has accepted last.
        self.stored: dict[bytes, int] = {}
        self._late: list[Sent] = []
        self._highest = -1
        self._store = StateStore(clock=HybridLogicalClock("store", guard=contextlib.nullcontext()))
        self._clock = HybridLogicalClock("client", guard=contextlib.nullcontext())

    # -- what can happen -----------------------------------------------------------------------------------------------

    def act(self, number: int, size: int) -> None:
        """One step of a driver. One that has nothing to do campaigns, or begins a batch of up to ``size`` rows."""
        driver = self.drivers[number]
        try:
            if driver.tasks:
                self._send(driver.tasks.pop())
            elif driver.steps is None:
                self._begin(driver)
            else:
                self._carry_out(driver, driver.steps.send(driver.answer), size)
        except StopIteration as done:
            driver.marker, driver.steps = done.value, None
        except (FencingError, LeaseLostError, MarkerGoneError):
            self.kill(number)  # it campaigns anew; its tasks may not have heard
        self.check()

    def expire(self) -> None:
        """The lease of whoever leads ends on the server; the driver does not notice."""
        self._ask(Del(LOCK))

    def kill(self, number: int) -> None:
        """The driver forgets all it knew. What its tasks had to send may still arrive."""
        self._late += self.drivers[number].tasks
        self.drivers[number] = Driver(self.drivers[number].name)

    def arrive(self, number: int) -> None:
        """A request of long ago arrives once more, or at last."""
        if self._late:
            with contextlib.suppress(FencingError):
                self._send(self._late[number % len(self._late)])
        self.check()

    def arrive_all(self) -> None:
        """All requests of long ago arrive once more."""
        for number in range(len(self._late)):
            self.arrive(number)

    def finish(self) -> None:
        """One driver leads undisturbed until all rows are written; then all late requests arrive."""
        self.expire()
        while self.marker().index < len(self.rows) - 1 or self.drivers[0].steps is not None:
            self.act(0, len(self.rows))
        self.arrive_all()
        last = len(self.rows) - 1
        assert self.marker() == Marker(last, len(self.rows))
        for key, index in fold(self.rows, last).items():
            assert self.value(key) == self.rows[index].value

    def check(self) -> None:
        """The marker never goes back and counts each row once; no key is behind it."""
        marker = self.marker()
        assert marker.index >= self._highest
        assert marker.rows == marker.index + 1
        self._highest = marker.index
        for key, index in fold(self.rows, marker.index).items():
            assert self.stored[key] >= index

    # -- the store -----------------------------------------------------------------------------------------------------

    def marker(self) -> Marker:
        value = self.value(MARKER.encode())
        return Marker() if value is None else Marker.decode(value, MARKER)

    def value(self, key: bytes) -> bytes | None:
        reply = self._ask(Get(key)).reply
        return reply.value if isinstance(reply, Found) else None

    def _ask(self, command: Command, token: HlcTimestamp | None = None) -> Outcome:
        return self._store.apply(command, RequestContext("c", self._clock.tick(_NOW.wall_ms), token, _NOW))

    def _send(self, sent: Sent) -> bool:
        outcome = self._ask(sent.command, sent.token)
        if isinstance(outcome.reply, ErrorReply):
            self.refused += 1
            raise outcome.reply.error
        if sent.index is not None:
            self.stored[sent.command.key] = sent.index
        return outcome.reply == OK

    # -- a driver's steps ----------------------------------------------------------------------------------------------

    def _begin(self, driver: Driver) -> None:
        if driver.marker is not None:
            driver.steps, driver.answer = write_batch(driver.marker), None
        elif self._ask(Set(LOCK, driver.name, Condition.NEX)).reply == OK:
            driver.steps, driver.answer = take_over(MARKER, None), None

    def _carry_out(self, driver: Driver, step: MarkerStep, size: int) -> None:
        if isinstance(step, NextToken):
            outcome = self._ask(Set(LOCK, driver.name, Condition.NEX))
            if outcome.reply != OK:
                raise LeaseLostError("somebody else leads")
            driver.answer = outcome.version
        elif isinstance(step, ReadMarker):
            driver.answer = self.value(MARKER.encode())
        elif isinstance(step, WriteMarker):
            sent = Sent(Set(MARKER.encode(), step.value, Condition.NEX if step.if_unchanged else None), step.token)
            self._late.append(sent)
            driver.answer = self._send(sent)
        else:
            driver.answer = self._plan(driver, step, size)

    def _plan(self, driver: Driver, step: WriteRows, size: int) -> Written:
        last = min(step.after + size, len(self.rows) - 1)
        newest = [index for index in fold(self.rows, last).values() if index > step.after]
        driver.tasks = [Sent(self.row_command(self.rows[index]), step.token, index) for index in newest]
        self._late += driver.tasks  # an attempt of a task that hangs
        return Written(last - step.after, step.after + 1, last)
