"""The watches of one connection, and how much is on its way to it. Pure."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.core.selectors import Key, Prefix

if TYPE_CHECKING:
    from raft_client.core.selectors import Selector
    from raft_client.server.machines.watch_passes import Pass
    from raft_client.wire.log_entry import Position
    from raft_client.wire.watch_messages import BeginWatch

#: Places of watches that were discarded are given back when there are so many of them, and more than others.
_SLACK: Final = 1_000


@attrs.frozen(kw_only=True)
class WatchServerLimits:
    """Sizes in bytes, times in seconds."""

    #: What is remembered, for watches that begin at an earlier index or are behind.
    history_bytes: int = 32 * 1024 * 1024
    sessions: int = 10_000
    watches: int = 100_000
    watches_of_a_session: int = 10_000
    #: Of keys and request ids.
    key_bytes: int = 32 * 1024 * 1024
    key_bytes_of_a_session: int = 1024 * 1024
    #: What one client is sent before it says that something arrived: messages, and bytes; but always one message.
    window_messages: int = 256
    window_bytes: int = 1024 * 1024
    #: The same, of all clients.
    window_bytes_of_all: int = 64 * 1024 * 1024
    #: A client that says nothing for this long is gone.
    silence_s: float = 30.0


@attrs.define(eq=False)
class Session:
    """The watches of one connection."""

    route: bytes
    number: int
    heard_at: float
    watches: dict[bytes, Watch] = attrs.field(factory=dict)
    #: Those that wait until the client has taken some of what is on its way, in this order.
    waiting: dict[Watch, None] = attrs.field(factory=dict)
    #: Those that are not live, and a position that none of them is before; None if there are none.
    behind: dict[Watch, None] = attrs.field(factory=dict)
    behind_from: Position | None = None
    #: Messages with events that were sent, those that the client has said to have, and the sizes of the others.
    sent: int = 0
    seen: int = 0
    on_their_way: deque[int] = attrs.field(factory=deque)
    bytes_on_their_way: int = 0
    #: Bytes of their keys and request ids.
    key_bytes: int = 0
    is_over: bool = False

    def is_full(self, limits: WatchServerLimits, key_bytes: int) -> bool:
        """Whether a watch with a key and request id of these bytes is one too many."""
        return (
            len(self.watches) >= limits.watches_of_a_session
            or self.key_bytes + key_bytes > limits.key_bytes_of_a_session
        )

    def has_sent(self, size: int) -> None:
        """A message with events is on its way."""
        self.on_their_way.append(size)
        self.bytes_on_their_way += size
        self.sent += 1

    def has_seen(self, messages: int) -> int:
        """So many have arrived in all. Returns how many bytes are not on their way any more.

        More than were sent is a mistake of the client, which counts as all.
        """
        before = self.bytes_on_their_way
        while self.seen < min(messages, self.sent):
            self.seen += 1
            self.bytes_on_their_way -= self.on_their_way.popleft()
        return before - self.bytes_on_their_way

    def has_room(self, limits: WatchServerLimits, bytes_of_all: int) -> bool:
        """Where nothing is on its way, one message may always be, so nobody waits for ever for others."""
        return not self.on_their_way or (
            len(self.on_their_way) < limits.window_messages
            and self.bytes_on_their_way < limits.window_bytes
            and bytes_of_all < limits.window_bytes_of_all
        )

    def falls_behind(self, watch: Watch, position: Position) -> None:
        """It is not live; it was told everything up to this position."""
        if watch not in self.behind:
            self.behind[watch] = None
            self.behind_from = position if self.behind_from is None else min(self.behind_from, position)

    def caught_up(self, watch: Watch) -> None:
        """It is live, or over."""
        if self.behind.pop(watch, watch) is None and not self.behind:
            self.behind_from = None


@attrs.define(eq=False)
class Watch:
    """One watch: everything that it wants of entries up to the index ``told`` was sent, and perhaps of more."""

    session: Session
    request_id: bytes
    request: BeginWatch
    told: int
    #: The pass that it is in; None: it waits, or is over.
    way: Pass | None = None

    @property
    def selector(self) -> Selector:
        return Prefix(self.request.key) if self.request.is_prefix else Key(self.request.key)

    @property
    def key_bytes(self) -> int:
        return len(self.request_id) + len(self.request.key)


class IndexQueue:
    """Watches by an index, the lowest first. Each is in it once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Watch]] = []
        self._numbers: dict[Watch, int] = {}
        self._count = count()

    def all(self) -> list[Watch]:
        """All, in the order in which they came."""
        return list(self._numbers)

    @property
    def lowest(self) -> int | None:
        """The lowest index; None if there is none."""
        self._drop_discarded()
        return self._heap[0][0] if self._heap else None

    def add(self, index: int, watch: Watch) -> None:
        """It must not be in it."""
        number = self._numbers[watch] = next(self._count)
        heappush(self._heap, (index, number, watch))

    def discard(self, watch: Watch) -> None:
        """Also if it is not in it."""
        if self._numbers.pop(watch, None) is None:
            return
        if len(self._heap) > 2 * len(self._numbers) + _SLACK:
            self._heap = [each for each in self._heap if self._numbers.get(each[2]) == each[1]]
            heapify(self._heap)

    def pop(self, most: int) -> Watch | None:
        """Take out the watch of the lowest index, if that is not above ``most``."""
        self._drop_discarded()
        if not self._heap or self._heap[0][0] > most:
            return None
        watch = heappop(self._heap)[2]
        del self._numbers[watch]
        return watch

    def _drop_discarded(self) -> None:
        while self._heap and self._numbers.get(self._heap[0][2]) != self._heap[0][1]:
            heappop(self._heap)
