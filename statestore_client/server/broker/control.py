"""The sessions and retained messages of a running broker, for people: to look at, some at a time, and to remove.

Each call takes about a millisecond, however much there is: it gives a page, or does a part, and says where to go on.
What changes between two pages is seen as it is then; whatever is there all the time is seen once. A session that is
removed ends as it would by itself: in one step, with all that it holds, and its will goes out.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker.limits import NEVER_EXPIRES
from statestore_client.server.broker.retained import RetainedCursor
from statestore_client.server.broker.state import PendingDisconnect
from statestore_client.wire.administration import RetainedInfo, SessionInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

__all__ = ["PAYLOAD_BYTES", "Control", "Removal"]

#: What one call looks at, at most.
_SESSIONS: Final = 64
_SUBSCRIPTIONS: Final = 256  # of all sessions of a page
_TOPICS: Final = 64

#: Sessions that one call ends: until they held so much, messages and subscriptions. Each one ends as a whole.
_ENDED: Final = 32
_ENDED_HOLDINGS: Final = 128

#: Retained messages that one call removes. Each moves the topics behind it in a sorted list.
_REMOVED: Final = 32

#: Names and payloads of a page, in bytes; one more always goes.
_PAGE_BYTES: Final = 64 * 1024

#: A larger payload comes in parts of this size.
PAYLOAD_BYTES: Final = 64 * 1024


@attrs.define
class Removal:
    """What became of the sessions that were to be removed; ``rest`` is for the next call."""

    removed: list[str] = attrs.Factory(list)
    missing: list[str] = attrs.Factory(list)
    connected: list[str] = attrs.Factory(list)
    rest: list[str] = attrs.Factory(list)


@attrs.frozen(eq=False)
class Control:
    """A broker's. Like everything of the broker, one thread at a time may call it."""

    _state: State

    def is_here(self, client_id: str) -> bool:
        """Whether this client is connected."""
        session = self._state.sessions.get(client_id)
        return session is not None and session.connection is not None

    # -- sessions -----------------------------------------------------------------------------------------------------

    def session(self, client_id: str, skip: int, now: Instant) -> tuple[list[SessionInfo], tuple[str, int] | None]:
        """One of them, as :meth:`sessions` gives it."""
        session = self._state.sessions.get(client_id)
        if session is None:
            return [], None
        found, rest = _info(session, skip, _SUBSCRIPTIONS, now)
        return [found], None if rest is None else (client_id, rest)

    def sessions(self, at: str, skip: int, now: Instant) -> tuple[list[SessionInfo], tuple[str, int] | None]:
        """A page in the order of client identifiers, from ``at`` on, and the place of the next one.

        A session with many subscriptions comes in parts: ``skip`` are those of ``at`` that were given already.
        """
        found: list[SessionInfo] = []
        subscriptions = size = 0
        for session in self._state.sessions.in_order(at, _SESSIONS + 1):
            client_id = session.client_id
            if len(found) == _SESSIONS or subscriptions >= _SUBSCRIPTIONS or size >= _PAGE_BYTES:
                return found, (client_id, 0)
            info, rest = _info(session, skip if client_id == at else 0, _SUBSCRIPTIONS - subscriptions, now)
            found.append(info)
            if rest is not None:
                return found, (client_id, rest)
            subscriptions += len(info.subscriptions)
            size += _size(info)
        return found, None

    def remove_sessions(self, client_ids: Sequence[str], *, force: bool) -> Removal:
        """End those that are there. One with a client that is connected only by ``force``: its connection ends, too."""
        done = Removal()
        budget = _Budget()
        for number, client_id in enumerate(client_ids):
            if budget.is_spent:
                done.rest.extend(client_ids[number:])
                break
            session = self._state.sessions.get(client_id)
            if session is None:
                done.missing.append(client_id)
            elif session.connection is not None and not force:
                done.connected.append(client_id)
            else:
                done.removed.append(client_id)
                self._end(session)
                budget.spend(session)
        return done

    def prune_sessions(self, at: str, away_s: float | None, now: Instant) -> tuple[list[str], str | None]:
        """End those whose time is over and, if ``away_s`` is not None, those whose clients left before that. Which, and
        where to go on.
        """
        removed: list[str] = []
        budget = _Budget()
        for number, session in enumerate(self._state.sessions.in_order(at, _SESSIONS + 1)):
            if number == _SESSIONS or budget.is_spent:
                return removed, session.client_id
            info, _ = _info(session, 0, 0, now)
            if info.is_dispensable(now.wall_ms / 1000, away_s):
                removed.append(session.client_id)
                self._end(session)
                budget.spend(session)
        return removed, None

    def _end(self, session: Session) -> None:
        """When the present call into the broker is done."""
        code, reason = ReasonCode.ADMINISTRATIVE_ACTION, "the session was removed"
        self._state.pending_disconnects.append(PendingDisconnect(session, code, reason, ends_session=True))

    # -- retained messages --------------------------------------------------------------------------------------------

    def retained(
        self, topic_filter: str | None, at: str, now: Instant, *, payloads: bool
    ) -> tuple[list[RetainedInfo], str | None]:
        """A page of those that the filter matches; None for all that clients have published. And where the next one
        begins.
        """
        retained = self._state.retained
        cursor = RetainedCursor(topic_filter or "", 0, no_local=False, ids=(), at=at)
        found: list[RetainedInfo] = []
        size = 0
        for _ in range(_TOPICS):
            message = retained.step(cursor, now) if topic_filter is None else retained.advance(cursor, now)
            if message is not None:
                with_payload = payloads and len(message.payload) <= PAYLOAD_BYTES
                found.append(_message(message, message.payload if with_payload else None, now))
                size += len(message.topic) + (len(message.payload) if with_payload else 0)
            if cursor.at is None or size >= _PAGE_BYTES:
                break
        return found, cursor.at

    def message(self, topic: str) -> Message | None:
        """The retained message of a topic. It does not change: another one takes its place."""
        return self._state.retained.get(topic)

    def part(self, message: Message, offset: int, now: Instant) -> RetainedInfo:
        """A message with a part of its payload."""
        return _message(message, bytes(message.payload[offset : offset + PAYLOAD_BYTES]), now)

    def remove_retained(self, topics: Sequence[str]) -> tuple[list[str], Sequence[str]]:
        """Remove the messages of these topics: those that were there, and the topics that are for the next call."""
        retained = self._state.retained
        removed = []
        for topic in topics[:_REMOVED]:
            if retained.get(topic) is not None:
                retained.discard(topic)
                removed.append(topic)
        return removed, topics[_REMOVED:]


@attrs.define
class _Budget:
    """How much more one call may end."""

    sessions: int = _ENDED
    holdings: int = _ENDED_HOLDINGS

    @property
    def is_spent(self) -> bool:
        return self.sessions <= 0 or self.holdings <= 0

    def spend(self, session: Session) -> None:
        self.sessions -= 1
        self.holdings -= len(session.subscriptions) + sum(_holdings(session))


def _holdings(session: Session) -> tuple[int, int, int]:
    """Messages that wait for it, that are under way to it, and from it."""
    waiting = len(session.outbound.waiting.items) + len(session.waiting0.items)
    return waiting, len(session.outbound.in_flight), len(session.inbound.unreleased)


def _info(session: Session, skip: int, most: int, now: Instant) -> tuple[SessionInfo, int | None]:
    """The session with at most this many subscriptions, and how many have been given by then if there are more."""
    names: Iterable[str] = islice(session.subscriptions, skip, skip + most)
    given, size = [], 0
    for name in names:
        given.append((name, session.subscriptions[name].qos))
        size += len(name)
        if size >= _PAGE_BYTES:
            break
    end = skip + len(given)
    info = SessionInfo(
        session.client_id,
        session.user,
        None if session.expiry_s == NEVER_EXPIRES else session.expiry_s,
        session.connection is not None,
        _wall_s(session.left_at, now),
        None if session.will is None else session.will.topic,
        tuple(given),
        *_holdings(session),
    )
    return info, end if end < len(session.subscriptions) else None


def _size(info: SessionInfo) -> int:
    return (
        len(info.client_id)
        + len(info.user or "")
        + len(info.will_topic or "")
        + sum(len(n) for n, _ in info.subscriptions)
    )


def _message(message: Message, payload: bytes | None, now: Instant) -> RetainedInfo:
    expires_at = _wall_s(message.expires_at, now)
    return RetainedInfo(message.topic, message.qos, message.publisher, expires_at, len(message.payload), payload)


def _wall_s(monotonic: float | None, now: Instant) -> float | None:
    """Seconds since the Unix epoch, by the wall clock of now."""
    return None if monotonic is None else now.wall_ms / 1000 + monotonic - now.monotonic
