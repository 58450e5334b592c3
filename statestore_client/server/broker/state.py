"""Everything the broker remembers, in one place: what the handlers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from statestore_client.server.broker.admission import Capabilities
from statestore_client.server.broker.application import Applications
from statestore_client.server.broker.journal_writer import BrokerPersistence
from statestore_client.server.broker.memory import MemoryBudget
from statestore_client.server.broker.message import will_bytes
from statestore_client.server.broker.quotas import ConnectionQuotas, TakeoverThrottle
from statestore_client.server.broker.reports import BrokerUsage, Counters, DroppedMessages, Reports
from statestore_client.server.broker.retained import Retained, RetainedPersister
from statestore_client.server.broker.scheduling import BackgroundWork, Timers
from statestore_client.server.broker.session import Session, Sessions
from statestore_client.server.broker.subscriptions import SubscriptionIndex
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from statestore_client.server.broker.admission import Gatekeeper, Verdict
    from statestore_client.server.broker.limits import BrokerLimits
    from statestore_client.server.broker.records import WillRecord
    from statestore_client.server.broker.reports import BrokerEvents
    from statestore_client.server.broker.session import Connection, PendingAuth
    from statestore_client.server.journal import Journal


@attrs.frozen(eq=False)
class PendingDisconnect:
    """A connected session to be disconnected, once what is going on is done; or any session, to be ended."""

    session: Session
    reason_code: int
    reason: str
    ends_session: bool = False


@attrs.define(eq=False)
class AwaitedSessions:
    """``sessions`` outlive their connections; some of them may have a client, or be over, by now.
    ``wills`` by client identifier are what is left of other sessions: nothing else of them survives their server.
    """

    sessions: dict[Session, None] = attrs.Factory(dict)
    wills: dict[str, WillRecord] = attrs.Factory(dict)

    @property
    def held_bytes(self) -> int:
        """What the ``wills`` count for; those of ``sessions`` are theirs."""
        return sum(will_bytes(record.will) for record in self.wills.values())


@attrs.define(eq=False)
class State:
    """Sessions, subscriptions, retained messages and timers survive connections; the rest belongs to the moment.

    ``dirty`` lists the connections that the runtime has to look at: with bytes in their outbox, or to be closed.
    ``pending_disconnects`` wait for the end of the current call, because a disconnect publishes a will, and a will can
    be the next reason for a disconnect: a loop instead of a recursion as deep as there are clients.
    """

    limits: BrokerLimits
    sessions: Sessions
    retained: Retained
    budget: MemoryBudget
    capabilities: Capabilities
    dropped_messages: DroppedMessages
    persistence: BrokerPersistence | None = None  # None: nothing survives the process
    subscriptions: SubscriptionIndex = attrs.Factory(SubscriptionIndex)
    background: BackgroundWork = attrs.Factory(BackgroundWork)
    timers: Timers = attrs.Factory(Timers)
    awaited: AwaitedSessions = attrs.Factory(AwaitedSessions)
    counters: Counters = attrs.Factory(Counters)
    connections: dict[Connection, None] = attrs.Factory(dict)  # in the order of arrival
    connection_quotas: ConnectionQuotas = attrs.field(init=False)
    throttle: TakeoverThrottle = attrs.field(init=False)
    reports: Reports = attrs.field(init=False)
    quota_refusals: Counter[str] = attrs.Factory(Counter)  # CONNECTs that were refused, by the name of the quota
    clients: int = 0  # connections that have a session
    started_at: float = 0.0  # monotonic seconds
    version: Callable[[], str] = str  # of the program
    dirty: list[Connection] = attrs.Factory(list)
    pending_disconnects: list[PendingDisconnect] = attrs.Factory(list)
    applications: Applications = attrs.Factory(Applications)
    gatekeeper: Gatekeeper | None = None  # None: everybody may do everything
    events: BrokerEvents | None = None
    released: list[tuple[PendingAuth, Verdict]] = attrs.Factory(list)  # that were held, for the broker to go on with

    def __attrs_post_init__(self) -> None:
        self.connection_quotas = ConnectionQuotas(self.limits)
        self.throttle = TakeoverThrottle(self.limits.flapping_hold_s)
        self.reports = Reports(self.counters, self.dropped_messages)

    @property
    def is_short_of_room(self) -> bool:
        """Whether half of what there may be is used up: of sessions, of bytes for clients, or of subscriptions."""
        limits, budget = self.limits, self.budget
        return (
            2 * len(self.sessions) >= limits.sessions
            or 2 * budget.total >= budget.limit
            or 2 * self.subscriptions.bytes >= limits.subscription_bytes
        )

    @property
    def usage(self) -> BrokerUsage:
        """What is held now."""
        return BrokerUsage(
            sessions=len(self.sessions),
            clients=self.clients,
            losing_clients=len(self.dropped_messages),
            subscriptions=self.subscriptions.count,
            subscription_bytes=self.subscriptions.bytes,
            retained_messages=len(self.retained),
            retained_bytes=self.retained.bytes,
            held_bytes=self.budget.total,
        )

    @classmethod
    def empty(cls, limits: BrokerLimits, journal: Journal | None = None) -> State:
        budget = MemoryBudget(limits.held_bytes, limits.reserved_bytes)
        capabilities = Capabilities(limits)
        if journal is None:
            return cls(
                limits,
                Sessions(limits, budget),
                Retained(limits),
                budget,
                capabilities,
                DroppedMessages(limits.sessions),
            )
        persistence = BrokerPersistence(journal)
        retained = Retained(limits, RetainedPersister(journal[Stream.RETAINED]))
        dropped_messages = DroppedMessages(limits.sessions, journal[Stream.LOSSES])
        return cls(
            limits, Sessions(limits, budget, persistence), retained, budget, capabilities, dropped_messages, persistence
        )
