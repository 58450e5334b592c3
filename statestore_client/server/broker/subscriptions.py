"""The subscriptions of all clients, including shared subscriptions (MQTT 5.0, 3.8, 4.8)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import attrs

from statestore_client.server.broker.topic_tree import FilterTree, GrantedSubscription, has_wildcard, share_of

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Subscription
    from statestore_client.server.broker.session import Session

# -- chunked dictionary ------------------------------------------------------------------------------------------------
#
# A dictionary in blocks, so that thousands of members can be gone through in slices while it changes.
#
# Each block is a tuple of at most :data:`BLOCK` members that is never changed, only replaced. Code that looks at all
# members as they are now takes the list of blocks, and looks at one after the other whenever there is time.


K = TypeVar("K")
V = TypeVar("V")

Block: TypeAlias = tuple[tuple[K, V], ...]

#: Copies in one turn: about a millisecond.
BLOCK: Final = 64


@attrs.define(eq=False)
class ChunkedDict(Generic[K, V]):
    """Invariant: all blocks but the last one are full, and ``_positions`` tells where each key is."""

    blocks: list[Block[K, V]] = attrs.Factory(list)  #: to be looked at, or copied
    _positions: dict[K, int] = attrs.Factory(dict)

    def __len__(self) -> int:
        return len(self._positions)

    def get(self, key: K) -> V | None:
        position = self._positions.get(key)
        return None if position is None else self.blocks[position // BLOCK][position % BLOCK][1]

    def put(self, key: K, value: V) -> None:
        """Add a member, or give it another value."""
        position, member = self._positions.get(key), (key, value)
        if position is not None:
            self._replace(position, member)
            return
        position = self._positions[key] = len(self._positions)
        if position % BLOCK:
            self.blocks[-1] += (member,)
        else:
            self.blocks.append((member,))

    def discard(self, key: K) -> None:
        """Remove a member, if it is one; the last one takes its position."""
        position = self._positions.pop(key, None)
        if position is None:
            return
        last = self.blocks[-1][-1]
        if len(self.blocks[-1]) > 1:
            self.blocks[-1] = self.blocks[-1][:-1]
        else:
            del self.blocks[-1]
        if position < len(self._positions):
            self._positions[last[0]] = position
            self._replace(position, last)

    def _replace(self, position: int, member: tuple[K, V]) -> None:
        number, at = divmod(position, BLOCK)
        block = self.blocks[number]
        self.blocks[number] = (*block[:at], member, *block[at + 1 :])


# -- shared ------------------------------------------------------------------------------------------------------------
#
# Shared subscriptions: each message goes to one member, in turn (MQTT 5.0, 4.8.2).
#
# Members are kept apart by what they can do: those that take messages as they come, those that are here and behind, and
# those that are away. A member that turns out to be behind is put aside when its turn comes, and comes back when it has
# caught up. So a turn costs the same, however many members there are.


#: Members that are looked at for one message, or shares of one session for one event.
_LOOKS: Final = 64

_Turns: TypeAlias = "OrderedDict[Session, None]"


@attrs.define(eq=False)
class SharedSubscription:
    """The members of one shared subscription.

    Invariant: each member is in exactly one of ``_ready``, ``_behind`` and ``_away``, whose first one is next. One that
    is not ready has this share in its ``waits_in``.
    """

    grants: dict[Session, GrantedSubscription] = attrs.Factory(dict)
    _ready: _Turns = attrs.Factory(OrderedDict)
    _behind: _Turns = attrs.Factory(OrderedDict)
    _away: _Turns = attrs.Factory(OrderedDict)

    def add(self, session: Session, grant: GrantedSubscription) -> None:
        is_new = session not in self.grants
        self.grants[session] = grant
        if is_new:
            session.shares[self] = None
            self.sort(session)

    def discard(self, session: Session) -> None:
        if self.grants.pop(session, None) is None:
            return
        self._take_out(session)
        session.shares.pop(self, None)
        session.waits_in.pop(self, None)

    def _take_out(self, session: Session) -> None:
        for turns in (self._ready, self._behind, self._away):
            turns.pop(session, None)

    def sort(self, session: Session) -> None:
        """Put a member where it belongs, behind those that are there."""
        self._take_out(session)
        if session.is_flowing:
            self._ready[session] = None
            session.waits_in.pop(self, None)
        else:
            (self._away if session.connection is None else self._behind)[session] = None
            session.waits_in[self] = None

    def pick(self, has_room: Callable[[Session], bool]) -> Session | None:
        """Whose turn it is: a connected member whose queue is not growing, if there is one; else one that is connected;
        else the next one; of those rather one that has room. None if there are no members.
        """
        for session in [*islice(self._ready, _LOOKS)]:
            if session.is_flowing:
                self._ready.move_to_end(session)
                return session
            self.sort(session)
        first: Session | None = None
        for turns in (self._behind, self._away, self._ready):
            for session in [*islice(turns, _LOOKS)]:
                if has_room(session):
                    turns.move_to_end(session)
                    return session
                first = first or session
        if first is not None:
            self.sort(first)  # all are full: each loses something in turn
        return first


def session_changed(session: Session) -> None:
    """Its client came or left: its shares hear of it. Of more shares than usual, some hear when they pick it."""
    for group in [*islice(session.shares, _LOOKS)]:
        group.sort(session)


def caught_up(session: Session) -> None:
    """It takes messages as they come again."""
    for group in [*islice(session.waits_in, _LOOKS)]:
        group.sort(session)


# -- subscriptions -----------------------------------------------------------------------------------------------------


#: The grant, subscribers and their dictionaries.
_SUBSCRIPTION_BYTES: Final = 1024

#: The members of a share, and whose turn it is.
_SHARE_BYTES: Final = 2048

#: A node of the tree with its dictionary.
_LEVEL_BYTES: Final = 400

#: Topics of answers whose receivers are remembered, the longest of these topics, and how many receivers at most: a few
#: megabytes together.
_PLANS: Final = 4096
_LONGEST_PLANNED: Final = 256
_RECEIVERS: Final = 8

#: Session, QoS, RETAIN flag and subscription identifiers of one copy.
Target: TypeAlias = "tuple[Session, int, bool, tuple[int, ...]]"


@attrs.define(eq=False)
class Subscribers:
    """Everybody at one filter: single subscriptions, and shared ones by the name of the share."""

    direct: ChunkedDict[Session, GrantedSubscription] = attrs.Factory(ChunkedDict)
    shared: ChunkedDict[str, SharedSubscription] = attrs.Factory(ChunkedDict)


def subscription_cost(topic_filter: str) -> int:
    """Bytes that a subscription holds, roughly: a filter with wildcards has a node for each of its levels."""
    levels = topic_filter.count("/") + 1 if has_wildcard(topic_filter) else 0
    share = _SHARE_BYTES if topic_filter.startswith("$share/") else 0
    return _SUBSCRIPTION_BYTES + share + 2 * len(topic_filter) + _LEVEL_BYTES * levels


@attrs.define(eq=False)
class SubscriptionIndex:
    """All subscriptions of all sessions. Each session lists its own as well (``session.subscriptions``)."""

    _tree: FilterTree[Subscribers] = attrs.Factory(FilterTree)
    bytes: int = 0  # what all of them cost
    count: int = 0
    #: Those whose filters match a topic. The tree's own method: every message asks.
    match: Callable[[str], list[Subscribers]] = attrs.field(init=False)
    #: By topic, the copies of an answer: a message of the server's own with QoS 1 and without RETAIN. An answer goes to
    #: its client's own topic, again and again, so the plan of the last one holds until a subscription changes.
    #: Invariant: equal to what :meth:`.Router.plan` gives now. Where a share matches, none is remembered: its members
    #: take turns.
    answer_plans: dict[str, Sequence[Target]] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        self.match = self._tree.match

    def add(self, session: Session, subscription: Subscription, ids: tuple[int, ...]) -> bool:
        """Make or replace a subscription (MQTT-3.8.4-3); False if it replaced one."""
        grant = GrantedSubscription(subscription.qos, subscription.no_local, subscription.retain_as_published, ids)
        is_new = self.put(session, subscription.topic_filter, grant)
        if session.persister is not None:
            session.persister.subscribed(subscription.topic_filter, grant)
        return is_new

    def remember_plan(self, topic: str, targets: Sequence[Target]) -> None:
        """Remember where an answer on this topic goes."""
        if len(self.answer_plans) >= _PLANS:
            self.answer_plans.clear()
        if len(topic) <= _LONGEST_PLANNED and len(targets) <= _RECEIVERS:
            self.answer_plans[topic] = targets

    def put(self, session: Session, topic_filter: str, grant: GrantedSubscription) -> bool:
        """The same, without writing it down."""
        self.answer_plans.clear()
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
        self.answer_plans.clear()
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
