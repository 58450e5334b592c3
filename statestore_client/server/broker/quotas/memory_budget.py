"""How many bytes the broker holds for its clients, over all sessions: the bound that no number of sessions gets around.

Counted are messages that wait or are in flight, wills, topic aliases, and the identifiers of QoS 2 messages that were
not released. A message that goes to many counts once, and so does a large payload that many messages share (the
notifications about one key): that is how they lie in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.broker.quotas.largest_queues import LargestQueues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.broker.message import Message

__all__ = ["DELIVERY_BYTES", "LARGE_BYTES", "UNRELEASED_BYTES", "MemoryBudget"]

#: A payload from this size on is kept once, and written as it lies; smaller ones are copied into each frame.
LARGE_BYTES: Final = 16 * 1024

#: One more receiver of a message: the object, and its places in queue and dictionary.
DELIVERY_BYTES: Final = 256

#: The packet identifier of one unreleased QoS 2 message.
UNRELEASED_BYTES: Final = 128


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
