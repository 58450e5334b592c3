"""How many bytes the broker holds for its clients, over all sessions: the bound that no number of sessions gets around.

Counted are messages that wait or are in flight, wills, topic aliases, and the identifiers of QoS 2 messages that were
not released. A message that goes to many counts once, and so does a large payload that many messages share (the
notifications about one key): that is how they lie in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from statestore_client.server.broker.message import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.broker.message import Delivery, Message

#: One more receiver of a message: the object, and its places in queue and dictionary.
DELIVERY_BYTES: Final = 256

#: The packet identifier of one unreleased QoS 2 message.
UNRELEASED_BYTES: Final = 128


# -- largest queues ----------------------------------------------------------------------------------------------------
#
# Which queue holds most: whoever fills the server as a whole is to bear that.
#
# Queues are sorted by the power of two that their bytes reach. A queue moves up when it grows and down when somebody
# looks, so growing and shrinking within one power costs nothing, and the answer is right to within a factor of two.


#: A queue of fewer bytes is in nobody's way.
LARGE_QUEUE_BYTES: Final = 4096

#: Queues that are sorted anew in one turn.
_AT_ONCE: Final = 64


class SizedQueue(Protocol):
    """A queue of a session, for which the sizes count. ``owner`` is the client identifier of the session."""

    owner: str
    bytes: int
    promote_at: int

    def evict(self, *, newest: bool) -> Delivery | None:
        """Take out a message of a client; None if there is none near that end."""


@attrs.define(eq=False)
class LargestQueues:
    """Invariant: a queue of :data:`LARGE_QUEUE_BYTES` or more is in the class of its power of two, or in a higher
    one; its ``promote_at`` is where it leaves that class upwards.
    """

    _classes: dict[int, dict[SizedQueue, None]] = attrs.Factory(dict)

    def promote(self, waiting: SizedQueue) -> None:
        """The queue has reached its ``promote_at``."""
        self.discard(waiting)
        if waiting.bytes >= LARGE_QUEUE_BYTES:
            power = waiting.bytes.bit_length()
            self._classes.setdefault(power, {})[waiting] = None
            waiting.promote_at = 1 << power

    def discard(self, waiting: SizedQueue) -> None:
        """The queue is empty, or to be sorted anew."""
        power = waiting.promote_at.bit_length() - 1
        members = self._classes.get(power)
        if members is not None and members.pop(waiting, members) is None and not members:
            del self._classes[power]
        waiting.promote_at = LARGE_QUEUE_BYTES

    def largest(self) -> SizedQueue | None:
        """A queue of which no other one has twice the bytes; None if there is none worth it, or none was found soon."""
        for _ in range(_AT_ONCE):
            if not self._classes:
                return None
            power = max(self._classes)
            waiting = next(iter(self._classes[power]))
            if waiting.bytes.bit_length() == power:
                return waiting
            self.promote(waiting)
        return None


# -- the budget --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class MemoryBudget:
    """``total`` is held now, ``limit`` is what may be. ``reserve`` is what one session may hold in any case, so that
    nobody can take away everybody's last byte.

    Invariant: ``total`` is 0 when there is no session. ``_payloads`` counts the holders of the large payloads by their
    identity, which is safe, because whoever holds one keeps it alive. ``largest_queues`` tells which queue holds most.
    """

    limit: int
    reserve: int
    total: int = 0
    _payloads: dict[int, int] = attrs.Factory(dict)
    largest_queues: LargestQueues = attrs.Factory(LargestQueues)

    def admits(self, more: int, held: int) -> bool:
        """Whether a session that holds ``held`` bytes may hold more."""
        return self.total + more <= self.limit or held + more <= self.reserve

    def hold(self, message: Message) -> None:
        """One more copy of a message waits or is in flight."""
        holders = message.holders
        message.holders = holders + 1
        if holders:
            self.total += DELIVERY_BYTES
        elif len(message.payload) < LARGE_BYTES:
            self.total += message.size
        else:
            self.total += message.size - len(message.payload)
            self.share(message.payload)

    def release(self, message: Message) -> None:
        """The opposite of :meth:`hold`."""
        message.holders = holders = message.holders - 1
        if holders:
            self.total -= DELIVERY_BYTES
        elif len(message.payload) < LARGE_BYTES:
            self.total -= message.size
        else:
            self.total -= message.size - len(message.payload)
            self.unshare(message.payload)

    def violations(self) -> Iterator[str]:
        """What cannot be. For tests."""
        if any(holders < 1 for holders in self._payloads.values()):
            yield "a large payload without holders is counted"
        if self.total < 0:
            yield f"{self.total} bytes are held for clients"

    def share(self, payload: bytes) -> None:
        """One more holder of a large payload."""
        holders = self._payloads.get(id(payload), 0)
        self._payloads[id(payload)] = holders + 1
        if not holders:
            self.total += len(payload)

    def unshare(self, payload: bytes) -> None:
        """The opposite of :meth:`share`."""
        holders = self._payloads[id(payload)] - 1
        if holders:
            self._payloads[id(payload)] = holders
        else:
            del self._payloads[id(payload)]
            self.total -= len(payload)
