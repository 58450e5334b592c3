"""The subscriptions of all clients, including shared subscriptions (MQTT 5.0, 3.8, 4.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import split_shared_filter
from statestore_client.server.broker.routing.blocks import Blocks
from statestore_client.server.broker.routing.shared import SharedSubscription
from statestore_client.server.broker.routing.topic_tree import FilterTree, has_wildcard

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.mqtt.packets import Subscription
    from statestore_client.server.broker.session.session import Session

__all__ = ["GrantedSubscription", "Subscribers", "SubscriptionIndex", "share_of", "subscription_cost"]

#: The grant, subscribers and their dictionaries.
_SUBSCRIPTION_BYTES: Final = 1024

#: The members of a share, and whose turn it is.
_SHARE_BYTES: Final = 2048

#: A node of the tree with its dictionary.
_LEVEL_BYTES: Final = 400


@attrs.frozen(eq=False)
class GrantedSubscription:
    """What one client was granted for one filter. ``ids``: its subscription identifier, if it gave one."""

    qos: int
    no_local: bool
    retain_as_published: bool
    ids: tuple[int, ...]


@attrs.define(eq=False)
class Subscribers:
    """Everybody at one filter: single subscriptions, and shared ones by the name of the share."""

    direct: Blocks[Session, GrantedSubscription] = attrs.Factory(Blocks)
    shared: Blocks[str, SharedSubscription] = attrs.Factory(Blocks)


def subscription_cost(topic_filter: str) -> int:
    """Bytes that a subscription holds, roughly: a filter with wildcards has a node for each of its levels."""
    levels = topic_filter.count("/") + 1 if has_wildcard(topic_filter) else 0
    share = _SHARE_BYTES if topic_filter.startswith("$share/") else 0
    return _SUBSCRIPTION_BYTES + share + 2 * len(topic_filter) + _LEVEL_BYTES * levels


def share_of(topic_filter: str) -> tuple[str, str]:
    """Share name and filter of ``$share/{name}/{filter}``; an empty name for a filter that is not shared."""
    return split_shared_filter(topic_filter) or ("", topic_filter)


@attrs.define(eq=False)
class SubscriptionIndex:
    """All subscriptions of all sessions. Each session lists its own as well (``session.subscriptions``)."""

    _tree: FilterTree[Subscribers] = attrs.Factory(FilterTree)
    bytes: int = 0  # what all of them cost
    count: int = 0
    #: Those whose filters match a topic. The tree's own method: every message asks.
    match: Callable[[str], list[Subscribers]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.match = self._tree.match

    def add(self, session: Session, subscription: Subscription, ids: tuple[int, ...]) -> bool:
        """Make or replace a subscription (MQTT-3.8.4-3); False if it replaced one."""
        grant = GrantedSubscription(subscription.qos, subscription.no_local, subscription.retain_as_published, ids)
        is_new = self.put(session, subscription.topic_filter, grant)
        if session.persister is not None:
            session.persister.subscribed(subscription.topic_filter, grant)
        return is_new

    def put(self, session: Session, topic_filter: str, grant: GrantedSubscription) -> bool:
        """The same, without writing it down."""
        share, inner = share_of(topic_filter)
        subscribers = self._tree.get(inner)
        if subscribers is None:
            subscribers = Subscribers()
            self._tree.insert(inner, subscribers)
        if share:
            group = subscribers.shared.get(share)
            if group is None:
                group = SharedSubscription()
                subscribers.shared.put(share, group)
            group.add(session, grant)
        else:
            subscribers.direct.put(session, grant)
        is_new = topic_filter not in session.subscriptions
        if is_new:
            self._count(session, subscription_cost(topic_filter))
        session.subscriptions[topic_filter] = grant
        session.has_ids = session.has_ids or bool(grant.ids)
        return is_new

    def find(self, session: Session, topic_filter: str) -> GrantedSubscription | None:
        """What the session was granted, as it is found from the filter."""
        share, inner = share_of(topic_filter)
        subscribers = self._tree.get(inner)
        if subscribers is None:
            return None
        if not share:
            return subscribers.direct.get(session)
        group = subscribers.shared.get(share)
        return None if group is None else group.grants.get(session)

    def ids_of(self, session: Session, topic: str) -> tuple[int, ...]:
        """The identifiers of the subscriptions of one session that match a topic, shared ones aside."""
        grants = (subscribers.direct.get(session) for subscribers in self.match(topic))
        return tuple(number for grant in grants if grant is not None for number in grant.ids)

    def remove(self, session: Session, topic_filter: str) -> bool:
        """End a subscription; False if there was none."""
        if session.subscriptions.pop(topic_filter, None) is None:
            return False
        if session.persister is not None:
            session.persister.unsubscribed(topic_filter)
        self._count(session, -subscription_cost(topic_filter))
        share, inner = share_of(topic_filter)
        subscribers = self._tree.get(inner)
        if subscribers is None:
            return False
        if share:
            group = subscribers.shared.get(share)
            if group is not None:
                group.discard(session)
                if not group.grants:
                    subscribers.shared.discard(share)
        else:
            subscribers.direct.discard(session)
        if not subscribers.direct and not subscribers.shared:
            self._tree.remove(inner)
        return True

    def _count(self, session: Session, more: int) -> None:
        session.subscription_bytes += more
        self.bytes += more
        self.count += 1 if more > 0 else -1

    def remove_all(self, session: Session) -> None:
        for topic_filter in tuple(session.subscriptions):
            self.remove(session, topic_filter)
