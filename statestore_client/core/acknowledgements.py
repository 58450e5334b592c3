"""When acknowledgements are held back: while a watch whose reader may miss nothing has no room for another event.

The broker then stops sending once its window is used up. It stops for all watches of the client, and for the answers to
its requests too: acknowledgements leave in the order in which the messages came (MQTT 5.0, 4.6).
"""

from __future__ import annotations

from statestore_client.core.actions import Observer

__all__ = ["HeldAcknowledgements"]


class HeldAcknowledgements:
    """Which watches have no room, and the acknowledgements that wait for them."""

    __slots__ = ("_full", "_held")

    def __init__(self) -> None:
        self._full: set[Observer] = set()
        self._held: list[int] = []

    def is_full(self, observer: Observer) -> None:
        """A watch took its last event for now. From here on nothing is acknowledged, that event's message included."""
        self._full.add(observer)

    def may_leave(self, ack_id: int) -> bool:
        """Whether to acknowledge now; if not, it is kept."""
        if not self._full:
            return True
        self._held.append(ack_id)
        return False

    def has_room(self, observer: Observer) -> list[int]:
        """A watch can take events again, or has ended. Returns what is to be acknowledged now, in this order."""
        self._full.discard(observer)
        if self._full:
            return []
        held, self._held = self._held, []
        return held

    def reconnecting(self) -> None:
        """Another connection: there the broker sends again what was not acknowledged. A watch that is full stays so."""
        self._held.clear()
