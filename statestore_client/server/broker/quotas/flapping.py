"""Client identifiers that keep stealing their session from each other.

Two programs with the same client identifier end each other's connection (MQTT-3.1.4-3), connect again at once, and so
on, as fast as they can. The model (NATS, "MQTT implementation overview", "Find and disconnect previous session/client")
holds the newcomer for a second. Here a few take-overs are free: they are what a restart or a change of networks needs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from statestore_client.server.broker.admission import Verification

__all__ = ["Flapping"]

#: Take-overs in a row before the first wait.
_FREE: Final = 5

#: A pause of so many holds ends the row.
_PAUSES: Final = 5


@attrs.define(eq=False)
class Flapping:
    """Counts take-overs of each client identifier, and knows whose CONNECT is held.

    Invariant: of each identifier at most one CONNECT is held, the latest; so many at the same moment leave one.
    """

    hold_s: float
    held: dict[str, Verification] = attrs.Factory(dict)
    _rows: OrderedDict[str, tuple[int, float]] = attrs.Factory(OrderedDict)  # length, latest; oldest first

    def took_over(self, client_id: str, now: float) -> None:
        """A session was taken over."""
        self._forget(now)
        length, _ = self._rows.pop(client_id, (0, now))
        self._rows[client_id] = (length + 1, now)

    def has_to_wait(self, client_id: str, now: float) -> bool:
        """Whether the next take-over is one too many."""
        self._forget(now)
        if not self.hold_s:
            return False
        return client_id in self.held or self._rows.get(client_id, (0, now))[0] >= _FREE

    def _forget(self, now: float) -> None:
        """Rows that have ended; so there are never more than take-overs in a few seconds."""
        rows = self._rows
        while rows:
            client_id, (_, latest) = next(iter(rows.items()))
            if latest + self.hold_s * _PAUSES > now:
                return
            del rows[client_id]
