"""What the sessions that are written down share: their numbers, the wills of all others, and the messages, for as long
as one of these sessions is to get them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.broker.persistence.durable_session import SessionPersister
from statestore_client.server.broker.persistence.records import MessageRecord, WillRecord
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.journal import Journal

__all__ = ["BrokerPersistence"]


@attrs.define(eq=False)
class _PersistedMessage:
    """A message in the journal, and how many deliveries of it there are."""

    number: int
    deliveries: int


@attrs.define(eq=False)
class BrokerPersistence:
    """What all persisters share.

    Invariant: a message has a record as long as it has a delivery without the message inside.
    """

    journal: Journal
    _messages: dict[Message, _PersistedMessage] = attrs.Factory(dict)
    _wills: set[str] = attrs.Factory(set)
    _last_session: int = 0

    def persister(self) -> SessionPersister:
        """For a new session."""
        self._last_session += 1
        return SessionPersister(self, self._last_session)

    def known_persister(self, number: int) -> SessionPersister:
        """For a session that was loaded."""
        self._last_session = max(self._last_session, number)
        return SessionPersister(self, number)

    def note_will(self, session: Session) -> None:
        """The will of a connected session that nothing else is written of."""
        if session.will is not None and session.persister is None:
            self.await_will(session.client_id, WillRecord(session.user, session.will))

    def await_will(self, client_id: str, record: WillRecord) -> None:
        """It goes out if the server is lost, or its client does not come back."""
        self._wills.add(client_id)
        self.journal[Stream.WILLS].put(client_id, record, len(record.will.payload))

    def wills_loaded(self, client_ids: Iterable[str]) -> None:
        """They are in the journal already."""
        self._wills.update(client_ids)

    def forget_will(self, client_id: str) -> None:
        """It went out, or was discarded."""
        if client_id in self._wills:
            self._wills.discard(client_id)
            self.journal[Stream.WILLS].remove(client_id)

    def hold(self, message: Message) -> int:
        """One more delivery without the message inside; the number of the message."""
        kept = self._messages.get(message)
        if kept is None:
            number = self.journal[Stream.MESSAGES].add(MessageRecord(message), message.size)
            kept = self._messages[message] = _PersistedMessage(number, 0)
        kept.deliveries += 1
        return kept.number

    def hold_loaded(self, message: Message, number: int) -> None:
        """One more delivery, of a message that is in the journal under this number."""
        self._messages.setdefault(message, _PersistedMessage(number, 0)).deliveries += 1

    def release(self, message: Message) -> None:
        """One delivery less."""
        kept = self._messages[message]
        kept.deliveries -= 1
        if not kept.deliveries:
            del self._messages[message]
            self.journal[Stream.MESSAGES].remove_lazily(kept.number)

    def number_of(self, message: Message) -> int:
        return self._messages[message].number
