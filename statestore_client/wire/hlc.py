"""Hybrid logical clocks: the versions, request timestamps and fencing tokens of the state store.

A timestamp is a wall clock in milliseconds, a counter that tells events within a millisecond apart, and the node that
issued it. Timestamps are ordered by wall clock, then counter, then node.

Rules of :class:`HybridLogicalClock`:

* *tick* (something happens here): a wall clock ahead of the last timestamp gives (wall, 0), otherwise counter + 1.
* *merge* (a timestamp of another node arrives): wall ahead of both gives (wall, 0); otherwise the greater of the two
  timestamps with its counter + 1, for equal wall clocks the greater counter + 1. Our own node's timestamps change
  nothing.
* Only the future counts as drift: a merge that would end more than ``max_drift_ms`` ahead of the wall clock is refused.
* After any error the clock is as it was.

Source: state store protocol, "Versions as Hybrid Logical Clocks"; Kulkarni et al., "Logical Physical Clocks", 2014.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Self

import attrs

from statestore_client.errors import ClockDriftError, CounterOverflowError, TimestampError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

#: Wall clocks and counters are 64-bit numbers in the official SDKs: the first signed, the second not.
MAX_WALL_MS: Final = 2**63 - 1
MAX_COUNTER: Final = 2**64 - 1

#: The greatest counter that the .NET SDK can read.
CARRY_COUNTER: Final = 2**31 - 1

#: "Have a clock that is within one minute of the MQTT broker's clock."
MAX_DRIFT_MS: Final = 60_000

# 20 digits hold every 64-bit number: longer digit strings never reach int(), whose cost grows with the square.
_TIMESTAMP: Final = re.compile(r"([0-9]{1,20}):([0-9]{1,20}):([^:]*)")


@attrs.frozen(init=False)
class HlcTimestamp:
    """``{wall_ms}:{counter}:{node_id}``; ordered by wall clock, counter, node.

    The comparisons are written out: those of attrs take twenty times as long, and every fenced request needs one.
    """

    wall_ms: int  # since the Unix epoch
    counter: int
    node_id: str  # any text without a colon
    #: As it was read, if we would write it otherwise. Not for evolve(): another timestamp has another text.
    _text: str | None = attrs.field(default=None, init=False, eq=False, repr=False)

    def __init__(self, wall_ms: int, counter: int, node_id: str, text: str | None = None) -> None:
        # What the __init__ of a frozen class does, without looking for each field by name: every request makes two.
        _set_wall_ms(self, wall_ms)
        _set_counter(self, counter)
        _set_node_id(self, node_id)
        _set_text(self, text)

    def __lt__(self, other: Self) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return (self.wall_ms, self.counter, self.node_id) < (other.wall_ms, other.counter, other.node_id)

    def __le__(self, other: Self) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return (self.wall_ms, self.counter, self.node_id) <= (other.wall_ms, other.counter, other.node_id)

    def __gt__(self, other: Self) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return (self.wall_ms, self.counter, self.node_id) > (other.wall_ms, other.counter, other.node_id)

    def __ge__(self, other: Self) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return (self.wall_ms, self.counter, self.node_id) >= (other.wall_ms, other.counter, other.node_id)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a timestamp, zero-padded or not; ``str()`` of it is ``text`` again.

        An empty node is read, as the Go and Rust SDKs do. Raises TimestampError for anything that is not two numbers of
        64 bits, without sign, and a node.
        """
        match = _TIMESTAMP.fullmatch(text)
        if match is None:
            raise TimestampError(f"{text[:80]!r} is not a timestamp of the form wall:counter:node")
        wall, counter, node_id = match.groups()
        wall_ms, count = int(wall), int(counter)
        if wall_ms > MAX_WALL_MS or count > MAX_COUNTER:
            raise TimestampError(f"{text[:80]!r} has a number beyond 64 bits")
        # Padded, as nearly all are, it needs no copy of its text.
        return cls(wall_ms, count, node_id, None if len(wall) == 15 and len(counter) == 5 else text)

    def __str__(self) -> str:
        """The text that it was read from, byte for byte: a version goes back as a fencing token "unmodified".

        Zero-padded, as the official SDKs write it, if it was made here: ``001696374425000:00000:CLIENT``. (State store
        protocol, "Use the fencing tokens on SET requests")
        """
        if self._text is not None:
            return self._text
        return f"{str(self.wall_ms).zfill(15)}:{str(self.counter).zfill(5)}:{self.node_id}"

    def unpadded(self) -> str:
        """As the published document writes it: ``1696374425000:0:CLIENT``."""
        return f"{self.wall_ms}:{self.counter}:{self.node_id}"


_set_wall_ms: Final = HlcTimestamp.__dict__["wall_ms"].__set__
_set_counter: Final = HlcTimestamp.__dict__["counter"].__set__
_set_node_id: Final = HlcTimestamp.__dict__["node_id"].__set__
_set_text: Final = HlcTimestamp.__dict__["_text"].__set__


_EXHAUSTED: Final = "the counter of the hybrid logical clock is exhausted"


class HybridLogicalClock:
    """The clock of one node.

    Invariant: every timestamp of ``tick`` and ``advance_past`` is greater than all before it, whatever the wall clock
    does, until :meth:`forget`. ``guard`` is entered around every change; a shell whose threads share the clock passes a
    ``threading.Lock``. Wall clocks are milliseconds since the Unix epoch.
    """

    __slots__ = ("_guard", "_last", "_max_drift_ms", "_node_id")

    def __init__(
        self, node_id: str, *, guard: AbstractContextManager[object], max_drift_ms: int = MAX_DRIFT_MS
    ) -> None:
        if ":" in node_id:
            raise TimestampError("a node id cannot contain a colon")
        self._node_id = node_id
        self._guard = guard
        self._max_drift_ms = max_drift_ms
        self._last = HlcTimestamp(0, 0, node_id)

    @property
    def node_id(self) -> str:
        """The node that all timestamps of this clock carry."""
        return self._node_id

    @property
    def last(self) -> HlcTimestamp:
        """The greatest timestamp issued or merged so far; wall clock 0 before the first."""
        return self._last

    def resume(self, last: HlcTimestamp) -> None:
        """Go on after a restart: every timestamp from now on is greater than ``last``, of an earlier life."""
        with self._guard:
            if last > self._last:
                self._last = last

    def forget(self) -> None:
        """Begin anew: the next timestamp is the wall clock's, and may be smaller than those before.

        For a client whose timestamp was refused as too far in the future: nothing came of it, and once the wall clock
        has been set right, it must not keep the client in that future.
        """
        with self._guard:
            self._last = HlcTimestamp(0, 0, self._node_id)

    def tick(self, wall_ms: int) -> HlcTimestamp:
        """A new timestamp, greater than all before it.

        It is issued even when the wall clock fell far behind: only timestamps of others are checked for drift, because
        refusing our own would stop this node until the wall clock has caught up. Raises CounterOverflowError.
        """
        with self._guard:
            last = self._last
            if wall_ms > last.wall_ms:
                self._last = issued = HlcTimestamp(wall_ms, 0, self._node_id)
            elif last.counter < MAX_COUNTER:
                self._last = issued = HlcTimestamp(last.wall_ms, last.counter + 1, self._node_id)
            else:
                raise CounterOverflowError(_EXHAUSTED)
            return issued

    def merge(self, other: HlcTimestamp, wall_ms: int) -> HlcTimestamp:
        """Take a received timestamp into account; returns the clock's new last timestamp.

        Raises ClockDriftError when the clock would end too far in the future, and CounterOverflowError.
        """
        if other.node_id == self._node_id:
            return self._last
        with self._guard:
            last = self._last
            if wall_ms > last.wall_ms and wall_ms > other.wall_ms:
                ahead_ms, counter = wall_ms, 0
            elif last.wall_ms == other.wall_ms:
                ahead_ms, counter = last.wall_ms, max(last.counter, other.counter) + 1
            elif last.wall_ms > other.wall_ms:
                ahead_ms, counter = last.wall_ms, last.counter + 1
            else:
                ahead_ms, counter = other.wall_ms, other.counter + 1
            if counter > MAX_COUNTER:
                raise CounterOverflowError(_EXHAUSTED)
            # When the wall clock won, the difference is zero.
            if ahead_ms - wall_ms > self._max_drift_ms:
                ahead_s = (ahead_ms - wall_ms) / 1000
                raise ClockDriftError(f"the timestamp is {ahead_s:.1f} s ahead of this machine's clock")
            self._last = merged = HlcTimestamp(ahead_ms, counter, self._node_id)
            return merged

    def advance_past(self, other: HlcTimestamp, wall_ms: int) -> HlcTimestamp:
        """A new timestamp greater than ``other`` and than all issued before: the version of a write.

        As ``merge``, but it always succeeds. The server has checked ``other`` for drift. A client that calls itself
        as the server does must not get a version older than its request. And where the counter would pass
        ``CARRY_COUNTER``, a millisecond is added instead: a single client that sends a huge counter from a minute ahead
        would otherwise stop all writes, and every client with a 32-bit counter (.NET), for that minute.
        """
        with self._guard:
            last, counter = self._last, 0
            ahead_ms = last.wall_ms if last.wall_ms > other.wall_ms else other.wall_ms
            if wall_ms > ahead_ms:
                ahead_ms = wall_ms
            else:
                if last.wall_ms == ahead_ms:
                    counter = last.counter + 1
                if other.wall_ms == ahead_ms and other.counter >= counter:
                    counter = other.counter + 1
                if counter > CARRY_COUNTER:
                    ahead_ms, counter = ahead_ms + 1, 0
            self._last = issued = HlcTimestamp(ahead_ms, counter, self._node_id)
            return issued
