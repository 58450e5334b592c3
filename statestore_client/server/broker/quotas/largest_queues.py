"""Which queue holds most: whoever fills the server as a whole is to bear that.

Queues are sorted by the power of two that their bytes reach. A queue moves up when it grows and down when somebody
looks, so growing and shrinking within one power costs nothing, and the answer is right to within a factor of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from statestore_client.server.broker.session.inflight import MessageQueue

__all__ = ["LARGE_QUEUE_BYTES", "LargestQueues"]

#: A queue of fewer bytes is in nobody's way.
LARGE_QUEUE_BYTES: Final = 4096

#: Queues that are sorted anew in one turn.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class LargestQueues:
    """Invariant: a queue of :data:`LARGE_QUEUE_BYTES` or more is in the class of its power of two, or in a higher
    one; its ``promote_at`` is where it leaves that class upwards.
    """

    _classes: dict[int, dict[MessageQueue, None]] = attrs.Factory(dict)

    def promote(self, waiting: MessageQueue) -> None:
        """The queue has reached its ``promote_at``."""
        self.discard(waiting)
        if waiting.bytes >= LARGE_QUEUE_BYTES:
            power = waiting.bytes.bit_length()
            self._classes.setdefault(power, {})[waiting] = None
            waiting.promote_at = 1 << power

    def discard(self, waiting: MessageQueue) -> None:
        """The queue is empty, or to be sorted anew."""
        power = waiting.promote_at.bit_length() - 1
        members = self._classes.get(power)
        if members is not None and members.pop(waiting, members) is None and not members:
            del self._classes[power]
        waiting.promote_at = LARGE_QUEUE_BYTES

    def largest(self) -> MessageQueue | None:
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
