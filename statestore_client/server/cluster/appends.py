"""Entries on their way into the log, and when each was first sent: a lease is counted from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.cluster.codec import encode
from statestore_client.server.cluster.events import Append

if TYPE_CHECKING:
    from statestore_client.server.cluster.entries import LogEntry

__all__ = ["Appends", "SentEntry"]


@attrs.define(eq=False)
class SentEntry:
    """``ticket`` is that of the newest copy."""

    entry: LogEntry
    data: bytes
    sent_at: float
    ticket: int


class Appends:
    """What the program is to append. No ticket is used twice."""

    def __init__(self) -> None:
        self.output: list[Append] = []
        self._last_ticket = 0

    def send(self, entry: LogEntry, now: float) -> SentEntry:
        """For the first time."""
        sent = SentEntry(entry, encode(entry), now, 0)
        self.repeat(sent)
        return sent

    def repeat(self, sent: SentEntry) -> None:
        """Another copy: of all copies one is valid at most."""
        self._last_ticket += 1
        sent.ticket = self._last_ticket
        self.output.append(Append(sent.ticket, sent.data))
