"""Which client is served next. One client, or one message to thousands, must not stop everybody else.

The event loop hands over whatever the sockets have, all of them in one round. What arrives is served at once, but only
for a moment (:data:`SLICE_S`); who has more to do then queues here, and in each round of the event loop the queue gets
about as long as one of them. So whoever sends little waits for little, however many others send a lot.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from statestore_client.mqtt.packets import Publish, Subscribe, Unsubscribe

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from typing import Self

    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.broker import BrokerLimits

#: How long one is served before the others get their turn, in seconds. Longer only by the last packet.
SLICE_S: Final = 0.002

#: What all that queue get together, in one round of the event loop.
_ROUND_S: Final = 0.004

#: So many clients within such a moment (in seconds) are many.
_CONCURRENT: Final = 4
_MOMENT_S: Final = 0.001

#: Works for one turn; True if there is more that can be done now.
Turn: TypeAlias = Callable[[], bool]


class RoundRobin:
    """A queue of those who have more to do. Invariant: nobody is in it twice; whoever adds sees to it."""

    __slots__ = ("_is_scheduled", "_loop", "_queue")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Turn] = deque()
        self._is_scheduled = False

    def add(self, turn: Turn) -> None:
        """Queue."""
        self._queue.append(turn)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        queue = self._queue
        ends = time.monotonic() + _ROUND_S
        try:
            while queue:
                turn = queue.popleft()
                if turn():
                    queue.append(turn)
                if time.monotonic() >= ends:
                    break
        finally:
            self._is_scheduled = bool(queue)
            if queue:
                self._loop.call_soon(self._round)


class ConcurrencyProbe:
    """Whether several clients are served in the same moment, so that waiting for the others pays."""

    __slots__ = ("_ends", "_is_there", "_served")

    def __init__(self) -> None:
        self._served: set[int] = set()
        self._ends = 0.0
        self._is_there = False

    def is_high(self, client: int, now: float) -> bool:
        """Called for each one that is served; ``client`` is the identity of its connection."""
        if now >= self._ends:
            self._is_there = len(self._served) >= _CONCURRENT
            self._served.clear()
            self._ends = now + _MOMENT_S
        self._served.add(client)
        return self._is_there


# -- throttle ----------------------------------------------------------------------------------------------------------
#
# Something that peers do, by address: some are free, then they come one by one, slowly. Attempts to log in that fail,
# and lines of the log about one peer, for example.


#: After this many seconds an address that tried wrong passwords has one attempt more.
PAUSE_S: Final = 5.0

#: Addresses that are remembered. An attacker with more of them is not stopped by counting them.
_MOST: Final = 10_000


class Throttle:
    """Knows which addresses have used up their attempts. ``free`` is how many they have at once, 0 for any number;
    after ``pause_s`` there is one more.

    Each address has a moment up to which its attempts are used; it is forgotten when that moment is over. Invariant:
    there are at most ``_MOST``, those that used one longest ago in front.
    """

    def __init__(self, free: int, pause_s: float = PAUSE_S) -> None:
        self._free = free
        self._pause_s = pause_s
        self._used_until: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """How many addresses are remembered."""
        return len(self._used_until)

    def is_used_up(self, address: str, now: float) -> bool:
        """Whether the next attempt is one too many. ``now`` is monotonic seconds."""
        return bool(self._free) and self._used_until.get(address, now) - now > (self._free - 1) * self._pause_s

    def used(self, address: str, now: float) -> None:
        """One attempt more."""
        if not self._free:
            return
        used_until = self._used_until
        used_until[address] = max(used_until.pop(address, now), now) + self._pause_s
        while used_until:
            oldest = next(iter(used_until))
            if used_until[oldest] > now and len(used_until) <= _MOST:
                return
            del used_until[oldest]


# -- rate limiter ------------------------------------------------------------------------------------------------------
#
# How fast one connection may send. A faster one is not read for a while: its socket fills up, nothing is lost.


#: What may come at once, in seconds of the rate.
_BURST_S: Final = 1.0

#: What makes work. Acknowledgements are the answers to what we send.
_MESSAGES: Final = frozenset((Publish, Subscribe, Unsubscribe))


class RateLimiter:
    """Two rates, of bytes and of messages; 0 for any.

    Each has a moment up to which it is used; a moment in the future is what has to be waited for.
    """

    __slots__ = ("_bytes_per_s", "_bytes_until", "_messages_per_s", "_messages_until")

    def __init__(self, bytes_per_s: int, messages_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._messages_per_s = messages_per_s
        self._bytes_until = self._messages_until = 0.0

    @classmethod
    def of(cls, limits: BrokerLimits) -> Self | None:
        """None if there is nothing to measure."""
        if limits.received_bytes_per_s or limits.received_messages_per_s:
            return cls(limits.received_bytes_per_s, limits.received_messages_per_s)
        return None

    def took_bytes(self, size: int, now: float) -> None:
        """So many bytes came. They are served whatever the rate is; what comes behind them waits."""
        if self._bytes_per_s:
            self._bytes_until = max(self._bytes_until, now - _BURST_S) + size / self._bytes_per_s

    def wait_s(self, now: float) -> float:
        """How long nothing more may be served; not above 0 for now."""
        return max(self._bytes_until, self._messages_until) - now

    def count(self, packets: Iterator[Packet], now: float) -> Iterator[Packet]:
        """The packets, up to the one after which the rate of messages is used up."""
        for packet in packets:
            if self._messages_per_s and type(packet) in _MESSAGES:
                self._messages_until = max(self._messages_until, now - _BURST_S) + 1 / self._messages_per_s
                yield packet
                if self._messages_until > now:
                    return
            else:
                yield packet
