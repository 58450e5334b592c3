"""The topic aliases that the broker uses towards one client (MQTT 5.0, 3.3.2.3.4).

The first message of a topic carries the topic and a new alias, the following ones the alias alone. Aliases go to the
first topics that come, and stay with them: which topics will come again nobody knows, and a receiver that is told new
meanings all the time saves nothing. They end with the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from statestore_client.server.broker.quotas.memory_budget import MemoryBudget

__all__ = ["Alias", "OutgoingAliases"]


@attrs.frozen
class Alias:
    """``is_known``: the peer has been told the topic, so that the alias can stand for it."""

    number: int
    is_known: bool


@attrs.define(eq=False)
class OutgoingAliases:
    """Invariants: at most ``maximum`` topics, numbered from 1 in the order of :meth:`remember`. ``bytes`` is what they
    hold; that much of the budget is theirs.
    """

    maximum: int
    _budget: MemoryBudget
    bytes: int = 0
    _known: dict[str, Alias] = attrs.Factory(dict)

    def of(self, topic: str) -> Alias | None:
        """The alias to send this topic with; None if there is none, or no memory to remember it."""
        known = self._known
        alias = known.get(topic)
        if alias is None and len(known) < self.maximum and self._budget.admits(len(topic), self.bytes):
            alias = Alias(len(known) + 1, is_known=False)
        return alias

    def remember(self, topic: str, alias: Alias) -> int:
        """The topic was sent with a new alias. Returns the bytes that are now in the budget for it."""
        self._known[topic] = attrs.evolve(alias, is_known=True)
        self.bytes += len(topic)
        self._budget.total += len(topic)
        return len(topic)
