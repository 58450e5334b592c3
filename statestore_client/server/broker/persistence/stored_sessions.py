"""The sessions and subscriptions of another life, as their records make them, and the wills that are left of others.

There may be ten thousand sessions, and whoever takes the place of the server that has them must not begin with making
them. So a standby has them at once, each record as it comes; a restart goes through the same code with all records.
They stay as they are until :class:`.Recovery` gives them to the clock. What is in flight or waits for them does not:
it changes with each message, and means something only together.

Records come in any order: rows of a snapshot, and batches that are newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from statestore_client.server.broker.persistence.records import GrantRecord, SessionRecord, WillRecord
from statestore_client.server.broker.session.wills import will_bytes
from statestore_client.server.journal import DamagedRecordError, Stream, records_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.broker.persistence.durable_session import SessionPersister
    from statestore_client.server.broker.routing.subscriptions import GrantedSubscription
    from statestore_client.server.broker.session.permissions import SessionPermissions
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.server.journal import Changes, Timeline

__all__ = ["StoredSession", "StoredSessions"]


@attrs.define(eq=False)
class StoredSession:
    """A session that nothing is written of yet, and its record, with deadlines of the machine's clock.
    ``is_permitted``: by these ``rules`` all of its subscriptions are; otherwise they are to be looked at again.
    """

    session: Session
    persister: SessionPersister
    record: SessionRecord
    rules: object
    is_permitted: bool = True


@attrs.define(eq=False)
class StoredSessions:
    """Those in the broker's state, and what more is known of them."""

    _state: State
    _permissions: SessionPermissions
    _persister: Callable[[int], SessionPersister]
    _by_number: dict[int, StoredSession] = attrs.Factory(dict)
    _by_client: dict[str, StoredSession] = attrs.Factory(dict)  # the latest record is the last
    _early: dict[int, dict[str, GrantedSubscription]] = attrs.Factory(dict)  # by number of a session still to come

    def absorb(self, changes: Changes, timeline: Timeline) -> None:
        """What another broker has written. Raises DamagedRecordError."""
        stream = changes.stream
        try:
            if stream is Stream.SESSIONS:
                for client_id in changes.removals:
                    self._remove(str(client_id))
                for client_id, fields in records_in(changes):
                    self.put(client_id, fields, timeline)
            elif stream is Stream.SUBSCRIPTIONS:
                for subject in changes.removals:
                    self._unsubscribe(str(subject))
                for subject, fields in records_in(changes):
                    self.subscribe(subject, fields)
            elif stream is Stream.WILLS:
                for client_id in changes.removals:
                    self._forget_will(str(client_id))
                for client_id, fields in records_in(changes):
                    self.put_will(client_id, fields)
        except (TypeError, ValueError) as error:
            raise DamagedRecordError(f"records of {stream.value}: {error!r}") from error

    def __getitem__(self, number: int) -> StoredSession:
        """Raises KeyError."""
        return self._by_number[number]

    def get(self, number: int) -> StoredSession | None:
        return self._by_number.get(number)

    def hand_over(self) -> list[StoredSession]:
        """All of them, to be forgotten here. Raises ValueError if sessions of subscriptions are missing."""
        if self._early:
            raise ValueError(f"subscriptions of sessions that are not there: {[*self._early][:10]}")
        sessions = [*self._by_client.values()]
        self._by_client.clear()
        self._by_number.clear()
        return sessions

    # -- sessions -----------------------------------------------------------------------------------------------------

    def put(self, client_id: str, fields: Any, timeline: Timeline) -> None:
        """A record of a session. Raises TypeError and ValueError, as the others do."""
        record = SessionRecord.read(fields, timeline)
        stored = self._by_client.pop(client_id, None)
        if stored is not None and stored.record.number != record.number:
            self._end(stored)
            stored = None
        if stored is None:
            if record.number in self._by_number:
                raise ValueError(f"two sessions have the number {record.number}")
            # Nothing is written down while it is read.
            session = self._state.sessions.create(client_id, record.user)
            self._permissions.ask(session)
            stored = StoredSession(session, self._persister(record.number), record, self._permissions.rules)
            self._by_number[record.number] = stored
            for topic_filter, grant in self._early.pop(record.number, {}).items():
                self._subscribe(stored, topic_filter, grant)
        session = self._by_client.setdefault(client_id, stored).session
        if session.user != record.user:
            self._state.sessions.assign(session, record.user)
            stored.is_permitted = False
        stored.record = record
        session.expiry_s = record.expiry_s
        self._state.budget.total += will_bytes(record.will) - will_bytes(session.will)
        session.will = record.will

    def _remove(self, client_id: str) -> None:
        stored = self._by_client.pop(client_id, None)
        if stored is not None:
            self._end(stored)

    def _end(self, stored: StoredSession) -> None:
        """Its subscriptions may be removed by the same batch, and only later."""
        session = stored.session
        del self._by_number[stored.record.number]
        self._state.subscriptions.remove_all(session)
        self._state.budget.total -= will_bytes(session.will)
        self._state.sessions.remove(session)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, subject: str, fields: Any) -> None:
        """A record of a subscription."""
        number, topic_filter = named(subject)
        grant = GrantRecord.read(fields).grant
        stored = self._by_number.get(number)
        if stored is None:
            self._early.setdefault(number, {})[topic_filter] = grant
        else:
            self._subscribe(stored, topic_filter, grant)

    def _subscribe(self, stored: StoredSession, topic_filter: str, grant: GrantedSubscription) -> None:
        permissions = stored.session.permissions
        if permissions is not None and not permissions.may_subscribe(topic_filter):
            stored.is_permitted = False  # the server that wrote this has, or had, other rules
        self._state.subscriptions.put(stored.session, topic_filter, grant)

    def _unsubscribe(self, subject: str) -> None:
        number, topic_filter = named(subject)
        stored = self._by_number.get(number)
        if stored is not None:
            self._state.subscriptions.remove(stored.session, topic_filter)
        elif number in self._early:
            self._early[number].pop(topic_filter, None)
            if not self._early[number]:
                del self._early[number]

    # -- wills --------------------------------------------------------------------------------------------------------

    def put_will(self, client_id: str, fields: Any) -> None:
        """A record of a will whose session ends with the server."""
        self._forget_will(client_id)
        self._state.awaited.wills[client_id] = record = WillRecord.read(fields)
        self._state.budget.total += will_bytes(record.will)

    def _forget_will(self, client_id: str) -> None:
        record = self._state.awaited.wills.pop(client_id, None)
        if record is not None:
            self._state.budget.total -= will_bytes(record.will)


def named(subject: str) -> tuple[int, str]:
    """The number of a session and the filter of its subscription."""
    number, _, topic_filter = subject.partition(" ")
    return int(number), topic_filter
