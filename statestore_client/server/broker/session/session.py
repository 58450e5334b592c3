"""Sessions: what the broker keeps for a client identifier while its client is away (MQTT 5.0, 4.1)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.qos import Inbound
from statestore_client.server.broker.limits import NEVER_EXPIRES
from statestore_client.server.broker.quotas.memory_budget import UNRELEASED_BYTES
from statestore_client.server.broker.session.inflight import BoundedOutbound, MessageQueue
from statestore_client.server.key_index import KeyIndex
from statestore_client.server.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.mqtt.packets import Will
    from statestore_client.server.broker.admission import Permissions
    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.limits import BrokerLimits
    from statestore_client.server.broker.persistence.durable_session import SessionPersister
    from statestore_client.server.broker.persistence.persister import BrokerPersistence
    from statestore_client.server.broker.quotas.memory_budget import MemoryBudget
    from statestore_client.server.broker.routing.retained import Walk
    from statestore_client.server.broker.routing.shared import SharedSubscription
    from statestore_client.server.broker.routing.subscriptions import GrantedSubscription
    from statestore_client.server.broker.timers import Timer

__all__ = ["SESSIONS", "Session", "Sessions", "name_bytes"]

#: The name of the quota of all of them.
SESSIONS: Final = "sessions"

#: Shorter client identifiers are not counted: the limit for sessions bounds them.
_SHORT_NAME: Final = 1024

#: How often the name of a client is in memory, at most: it is part of the topics that are its own, once in hexadecimal.
_COPIES: Final = 8


@attrs.define(eq=False)
class Session:
    """The state of one client identifier.

    ``connection`` is None while the client is away. ``waiting0`` has the QoS 0 messages that a slow but connected
    client could not take yet; QoS 0 for a client that is away is not kept (MQTT 5.0, 4.1 lets us choose).
    Invariant: of ``connection`` and ``expiry_timer`` at most one is set.
    """

    client_id: str
    outbound: BoundedOutbound
    waiting0: MessageQueue
    inbound: Inbound = attrs.Factory(Inbound)
    subscriptions: dict[str, GrantedSubscription] = attrs.Factory(dict)
    connection: Connection | None = None
    expiry_s: int = 0
    expiry_timer: Timer | None = None
    left_at: float | None = None  # monotonic seconds, while its client is away
    will: Will | None = None
    will_timer: Timer | None = None
    user: str | None = None  # who its client proved to be
    permissions: Permissions | None = None  # None for everything
    has_lost_rights: bool = False  # perhaps: what waits is looked at, as it may be of a topic that is forbidden by now
    shares: dict[SharedSubscription, None] = attrs.Factory(dict)  # that it is a member of
    waits_in: dict[SharedSubscription, None] = attrs.Factory(dict)  # those that give it nothing before it has caught up
    walks: dict[str, Walk] = attrs.Factory(dict)  # retained messages that it is still to get, by filter
    subscription_bytes: int = 0  # what its subscriptions cost
    has_ids: bool = False  # has given a subscription identifier, once
    persister: SessionPersister | None = attrs.field(default=None, init=False)  # see persist()
    is_over: bool = False  # ended; work that was begun for it is dropped

    def persist(self, persister: SessionPersister | None) -> None:
        """Have all that happens to it written down from now on; with None, no longer."""
        self.persister = self.outbound.persister = self.outbound.waiting.persister = persister

    @property
    def ends_with_connection(self) -> bool:
        return self.expiry_s == 0

    @property
    def ends_at(self) -> float | None:
        """Monotonic seconds; None while its client is here, and for never."""
        return None if self.left_at is None or self.expiry_s == NEVER_EXPIRES else self.left_at + self.expiry_s

    @property
    def held_bytes(self) -> int:
        """The messages that it makes the broker hold."""
        return self.waiting0.bytes + self.outbound.waiting.bytes + self.outbound.bytes

    def may_get(self, topic: str) -> bool:
        """Whether what waits, of this topic, is still to be sent."""
        return not self.has_lost_rights or self.permissions is None or self.permissions.may_subscribe(topic)

    @property
    def is_flowing(self) -> bool:
        """Connected and taking messages as they come."""
        return self.connection is not None and self.outbound.is_open


class _Away:
    """Sessions whose clients are away and for whom no message waits: who left first comes first, of all and of each
    user. Whoever has used his quota up asks for one of his own at each CONNECT, and costs no look at those of others.
    """

    __slots__ = ("_all", "_of")

    def __init__(self) -> None:
        self._all: OrderedDict[Session, None] = OrderedDict()
        self._of: dict[str | None, OrderedDict[Session, None]] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(self._all)

    def __contains__(self, session: Session) -> bool:
        return session in self._all

    def add(self, session: Session) -> None:
        """At the end, unless it is here already."""
        if session not in self._all:
            self._all[session] = None
            self._of.setdefault(session.user, OrderedDict())[session] = None

    def discard(self, session: Session) -> None:
        """If it is here."""
        if session in self._all:
            del self._all[session]
            own = self._of[session.user]
            del own[session]
            if not own:
                del self._of[session.user]

    def first(self) -> Session | None:
        """Of all."""
        return next(iter(self._all), None)

    def first_of(self, user: str | None) -> Session | None:
        """Of this user."""
        return next(iter(self._of.get(user, ())), None)


@attrs.define(eq=False)
class Sessions:
    """All sessions by client identifier. Invariant: one session per identifier, one connection per session."""

    _limits: BrokerLimits
    _budget: MemoryBudget
    _persistence: BrokerPersistence | None = None
    _by_client: dict[str, Session] = attrs.Factory(dict)
    #: The same client identifiers, for what looks at all of them, some at a time.
    _sorted: KeyIndex[str] = attrs.Factory(KeyIndex)
    _away: _Away = attrs.Factory(_Away)
    #: Whose they are.
    shares: Shares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shares = Shares(SESSIONS, self._limits.sessions, self._limits.sessions_per_user)

    def __len__(self) -> int:
        return len(self._by_client)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._by_client

    def get(self, client_id: str) -> Session | None:
        return self._by_client.get(client_id)

    def all(self) -> tuple[Session, ...]:
        return tuple(self._by_client.values())

    def in_order(self, at: str, count: int) -> list[Session]:
        """So many, by client identifier, from ``at`` on."""
        some = islice(self._sorted.keys_from(at, inclusive=True), count)
        return [self._by_client[client_id] for client_id in some]

    def lacking(self, client_id: str, user: str | None) -> str | None:
        """The name of the quota that does not allow this client a session, and no other session can make room."""
        if client_id in self._by_client:
            return None
        quota = self.shares.lacking(user, 1, 1)
        return None if quota is None or self.dispensable(user, quota) is not None else quota

    def create(self, client_id: str, user: str | None = None, *, is_lasting: bool = False) -> Session:
        """A new session of a user; ``is_lasting`` if it is to outlive its connections."""
        outbound = BoundedOutbound(self._queue(), self._budget, self._limits.in_flight_bytes)
        session = Session(client_id, outbound, self._queue())
        session.waiting0.owner = session.outbound.waiting.owner = session
        if is_lasting and self._persistence is not None:
            session.persist(self._persistence.persister())
        session.user = user
        self.shares.add(user, 1)
        self._by_client[client_id] = session
        self._sorted.add(client_id)
        self._budget.total += name_bytes(client_id)
        return session

    def assign(self, session: Session, user: str | None) -> None:
        """The session is of another user than it was thought to be."""
        is_away = session in self._away
        self._away.discard(session)
        self.shares.add(session.user, -1)
        session.user = user
        self.shares.add(user, 1)
        if is_away:
            self._away.add(session)

    def has_room_for_name(self, client_id: str) -> bool:
        """Whether a session may have this name. A long one has no share in what is reserved for every session."""
        more = name_bytes(client_id)
        return not more or self._budget.total + more <= self._budget.limit

    def violations(self) -> Iterator[str]:
        """The invariants that do not hold. For tests: looks at everything."""
        users = Counter(session.user for session in self._by_client.values())
        if any(self.shares.of(user) != count for user, count in users.items()):
            yield f"{users} have sessions, and not what is noted"
        yield from self.shares.violations()
        if list(self._sorted) != sorted(self._by_client):
            yield "the list of client identifiers is not that of the sessions"
        if any(session.connection is not None or session.is_over or session.held_bytes for session in self._away):
            yield "a session that is in use counts as dispensable"

    def _queue(self) -> MessageQueue:
        return MessageQueue(self._limits.queued_messages, self._limits.queued_bytes, self._budget)

    def remove(self, session: Session) -> None:
        """Forget a session and all that it holds, its will and its subscriptions aside."""
        if session.persister is not None:
            session.persister.end(session)
            session.persist(None)
        del self._by_client[session.client_id]
        self.shares.add(session.user, -1)
        self._sorted.remove(session.client_id)
        self._budget.total -= name_bytes(session.client_id)
        self._away.discard(session)
        session.is_over = True
        session.walks.clear()
        session.waiting0.clear()
        session.outbound.reset()
        self._budget.total -= UNRELEASED_BYTES * len(session.inbound.unreleased)
        session.inbound.unreleased.clear()

    # -- who is away --------------------------------------------------------------------------------------------------

    def client_left(self, session: Session) -> None:
        """The session's client went away; the session stays."""
        if not session.held_bytes:
            self._away.add(session)

    def queue_filled(self, session: Session) -> None:
        """The session of an absent client gets its first message."""
        self._away.discard(session)

    def queue_emptied(self, session: Session) -> None:
        """The session lost what it held, and may not even have a client that is here."""
        if session.connection is None and not session.is_over:
            self._away.add(session)

    def client_came(self, session: Session) -> None:
        """The session's client is here (again)."""
        self._away.discard(session)

    def dispensable(self, user: str | None, quota: str) -> Session | None:
        """What makes room for a session of this user, who lacks this quota. Of the sessions that hold no message, the
        one whose client has been away longest, or whose last message expired first; one of his own, unless he has few.
        """
        if quota == SESSIONS and self.shares.has_little(user, 1):
            return self._away.first()
        return self._away.first_of(user)


def name_bytes(client_id: str) -> int:
    """What a long client identifier costs."""
    return _COPIES * getsizeof(client_id) if len(client_id) > _SHORT_NAME else 0
