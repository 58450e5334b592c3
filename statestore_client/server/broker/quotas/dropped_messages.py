"""What sessions lost because their queue was full: how many messages and since when, until their client was told.

An acknowledgement tells a publisher that the server has the message, not that each subscriber had room for it. So who
bears a full queue, the subscriber, has to hear of it: in the CONNACK of its next connection. The count survives its
session, and a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.broker.persistence.records import DroppedMessagesRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.journal import JournalStream
    from statestore_client.wire.instant import Instant

__all__ = ["DROPPED_MESSAGES", "DroppedMessages", "QueueOverflow"]

#: The user property of CONNACK: ``21504 since 2026-01-31T12:00:00.000Z``.
DROPPED_MESSAGES: Final = "dropped-messages"

#: A queue that stays full is told to the log now and then, not with each message.
_LOG_PAUSE_S: Final = 60.0

#: Publishers that are refused try again.
_REFUSAL_PAUSE_S: Final = 1.0

#: Longer client identifiers are not remembered once their session has ended: nothing else bounds their bytes then.
_LONG_NAME: Final = 1024


@attrs.frozen(eq=False)
class QueueOverflow:
    """For the log: this session loses messages. ``dropped`` is how many so far, ``since`` a time in ISO 8601."""

    session: Session
    dropped: int
    since: str


@attrs.define(eq=False)
class _Dropped:
    """``since_ms`` is wall clock; ``log_again_at`` monotonic."""

    user: str | None
    count: int
    since_ms: int
    log_again_at: float = float("-inf")


@attrs.define(eq=False)
class DroppedMessages:
    """By client identifier, at most ``limit``: those whose first loss is oldest are forgotten first.

    ``overflows`` are for the log.
    """

    _limit: int
    _stream: JournalStream | None = None
    _by_client: OrderedDict[str, _Dropped] = attrs.Factory(OrderedDict)
    overflows: list[QueueOverflow] = attrs.Factory(list)
    _refusal_again_at: float = float("-inf")

    def __len__(self) -> int:
        """Clients that were not told yet."""
        return len(self._by_client)

    def note(self, session: Session, now: Instant, count: int = 1) -> None:
        """The session does not get this many messages."""
        client_id = session.client_id
        loss = self._by_client.get(client_id)
        if loss is None or loss.user != session.user:
            loss = _Dropped(session.user, 0, now.wall_ms)
            self._put(client_id, loss)
        loss.count += count
        if self._stream is not None:
            self._stream.put(client_id, DroppedMessagesRecord(loss.user, loss.count, loss.since_ms))
        if now.monotonic >= loss.log_again_at:
            loss.log_again_at = now.monotonic + _LOG_PAUSE_S
            self.overflows.append(QueueOverflow(session, loss.count, _text(loss.since_ms)))

    def note_refusal(self, session: Session, now: Instant) -> None:
        """The session loses nothing, but a publisher is refused because of it: now and then the log says so."""
        if now.monotonic >= self._refusal_again_at:
            self._refusal_again_at = now.monotonic + _REFUSAL_PAUSE_S
            self.overflows.append(QueueOverflow(session, 0, _text(now.wall_ms)))

    def _put(self, client_id: str, loss: _Dropped) -> None:
        self._by_client[client_id] = loss
        if len(self._by_client) > max(1, self._limit):
            self.forget(next(iter(self._by_client)))

    def notice_for(self, client_id: str, user: str | None) -> str | None:
        """What CONNACK says to this client, None for nothing. Call :meth:`forget` when it does."""
        loss = self._by_client.get(client_id)
        return None if loss is None or loss.user != user else f"{loss.count} since {_text(loss.since_ms)}"

    def forget(self, client_id: str) -> None:
        """The client was told."""
        if self._by_client.pop(client_id, None) is not None and self._stream is not None:
            self._stream.remove(client_id)

    def ended(self, session: Session) -> None:
        """The session is over. Its client is still told, if it comes again."""
        if len(session.client_id) > _LONG_NAME:
            self.forget(session.client_id)

    def load(self, records: Iterable[tuple[str, DroppedMessagesRecord]]) -> None:
        """They are in the journal already. A server that may remember fewer than the one before forgets the oldest."""
        for client_id, record in sorted(records, key=_since):
            self._put(client_id, _Dropped(record.user, record.count, record.since_ms))


def _since(item: tuple[str, DroppedMessagesRecord]) -> int:
    return item[1].since_ms


def _text(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
