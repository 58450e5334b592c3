"""How many requests may be under way: a number of them, and the bytes that they and their answers hold.

A broker keeps the answers that a client has not taken yet, and throws out a client for whom it keeps too many (reason
code 0x97, *quota exceeded*): a client that then asked for the same again would be thrown out again, for ever. So

* what is under way holds no more than :data:`MOST_BYTES`, and one request of any size more. What a request holds is
  known; what the answer to a read will hold is not, so it is taken to be as large as earlier ones were;
* when the broker throws the client out, half as many requests as were under way then may be under way from now on. A
  minute without such an end doubles that again, up to the setting ``max_in_flight``.

Invariant: with nothing under way there is always room, so that each size up to the packet limit goes through.
"""

from __future__ import annotations

from typing import Final

from statestore_client.wire.commands import Command, Get, Scan, Set, VDel

#: Of requests and answers together. The reference server sends no more to one client without an acknowledgement.
MOST_BYTES: Final = 16 * 1024 * 1024
#: What the answer to a read is taken to hold before there was one: eight of them fit.
_UNKNOWN_BYTES: Final = 2 * 1024 * 1024
#: A smaller answer than expected lowers what is expected by this part of the difference. Large ones are rare among
#: small ones, mostly, and the next one may be near.
_LOWER: Final = 1 / 16
#: Seconds after which a window that was narrowed is made twice as wide.
_WIDEN_S: Final = 60.0

_READS: Final = (Get, Scan)


def request_bytes(command: object) -> int:
    """What a command holds beside its key."""
    return len(command.value) if isinstance(command, (Set, VDel)) else 0


class Window:
    """See the module. ``width`` is the number that may be under way now, ``count`` the number that is."""

    __slots__ = ("_bytes", "_most", "_read_bytes", "_reads", "_widen_at", "_write_bytes", "count", "width")

    def __init__(self, most: int) -> None:
        """``most``: the setting ``max_in_flight``."""
        self._most: int = most
        self.width: int = most
        self.count: int = 0
        self._bytes = 0  # of the requests
        self._reads = 0
        self._read_bytes: float | None = None  # of one answer
        self._write_bytes: float | None = None  # of one request
        self._widen_at = 0.0  # monotonic seconds

    @property
    def has_room(self) -> bool:
        """Whether one more may leave."""
        count = self.count
        if count >= self.width:
            return False
        expected = _UNKNOWN_BYTES if self._read_bytes is None else self._read_bytes
        return not count or self._bytes + self._reads * expected < MOST_BYTES

    @property
    def request_bytes(self) -> int:
        """What the requests under way hold."""
        return self._bytes

    @property
    def depth(self) -> int:
        """How many requests of the present size may be under way. As many more may wait behind them, at most: their
        time runs.
        """
        read, write = self._read_bytes, self._write_bytes
        if read is None:
            read = _UNKNOWN_BYTES if self._reads or write is None else 0
        return max(1, min(self.width, int(MOST_BYTES / max(read, write or 0, 1))))

    def add(self, command: Command) -> None:
        """A request leaves."""
        self.count += 1
        if isinstance(command, _READS):
            self._reads += 1
        else:
            size = request_bytes(command)
            self._bytes += size
            self._write_bytes = _learned(self._write_bytes, size)

    def remove(self, command: Command) -> None:
        """A request that left is over, or has to leave again."""
        self.count -= 1
        if isinstance(command, _READS):
            self._reads -= 1
        else:
            self._bytes -= request_bytes(command)

    def answered(self, command: Command, size: int, now: float) -> None:
        """An answer of so many bytes came."""
        if isinstance(command, _READS):
            self._read_bytes = _learned(self._read_bytes, size)
        if self.width < self._most and now >= self._widen_at:
            self.width = min(self._most, 2 * self.width)
            self._widen_at = now + _WIDEN_S

    def thrown_out(self, now: float) -> None:
        """The broker had no room for what was under way."""
        self.width = max(1, min(self.count, self.width) // 2)
        self._widen_at = now + _WIDEN_S


def _learned(expected: float | None, size: int) -> float:
    return size if expected is None or size >= expected else expected - (expected - size) * _LOWER
