"""Everything the broker remembers, in one place: what the handlers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from statestore_client.server.broker.background_work import BackgroundWork
from statestore_client.server.broker.counters import Counters
from statestore_client.server.broker.persistence.durable_retained import RetainedPersister
from statestore_client.server.broker.persistence.persister import BrokerPersistence
from statestore_client.server.broker.quotas.capabilities import Capabilities
from statestore_client.server.broker.quotas.connection_quotas import ConnectionQuotas
from statestore_client.server.broker.quotas.dropped_messages import DroppedMessages
from statestore_client.server.broker.quotas.flapping import Flapping
from statestore_client.server.broker.quotas.memory_budget import MemoryBudget
from statestore_client.server.broker.reports import Reports
from statestore_client.server.broker.routing.retained import Retained
from statestore_client.server.broker.routing.subscriptions import SubscriptionIndex
from statestore_client.server.broker.session.awaited import Awaited
from statestore_client.server.broker.session.session import Session, Sessions
from statestore_client.server.broker.timers import Timers
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from statestore_client.server.broker.admission import Verdict, Verification
    from statestore_client.server.broker.connection import Connection
    from statestore_client.server.broker.limits import BrokerLimits
    from statestore_client.server.journal import Journal

__all__ = ["Expulsion", "State"]


@attrs.frozen(eq=False)
class Expulsion:
    """A connected session to be disconnected, once what is going on is done; or any session, to be ended."""

    session: Session
    reason_code: int
    reason: str
    ends_session: bool = False


@attrs.define(eq=False)
class State:
    """Sessions, subscriptions, retained messages and timers survive connections; the rest belongs to the moment.

    ``dirty`` lists the connections that the runtime has to look at: with bytes in their outbox, or to be closed.
    ``expulsions`` wait for the end of the current call, because a disconnect publishes a will, and a will can be the
    next reason for a disconnect: a loop instead of a recursion as deep as there are clients.
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
    awaited: Awaited = attrs.Factory(Awaited)
    counters: Counters = attrs.Factory(Counters)
    connections: dict[Connection, None] = attrs.Factory(dict)  # in the order of arrival
    connection_quotas: ConnectionQuotas = attrs.field(init=False)
    flapping: Flapping = attrs.field(init=False)
    reports: Reports = attrs.field(init=False)
    quota_refusals: Counter[str] = attrs.Factory(Counter)  # CONNECTs that were refused, by the name of the quota
    clients: int = 0  # connections that have a session
    started_at: float = 0.0  # monotonic seconds
    version: Callable[[], str] = str  # of the program
    dirty: list[Connection] = attrs.Factory(list)
    expulsions: list[Expulsion] = attrs.Factory(list)
    released: list[tuple[Verification, Verdict]] = attrs.Factory(list)  # that were held, for the broker to go on with

    def __attrs_post_init__(self) -> None:
        self.connection_quotas = ConnectionQuotas(self.limits)
        self.flapping = Flapping(self.limits.flapping_hold_s)
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
