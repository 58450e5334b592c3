"""Which clients get a message and how: copies for the subscribers of one filter, and of several that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from statestore_client.server.broker.session.session import Session

if TYPE_CHECKING:
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.routing.subscriptions import GrantedSubscription

__all__ = ["MergedCopies", "Target", "copies", "copy"]

#: Session, QoS, RETAIN flag and subscription identifiers of one copy.
Target: TypeAlias = tuple[Session, int, bool, tuple[int, ...]]


def copies(block: Iterable[tuple[Session, GrantedSubscription]], message: Message) -> list[Target]:
    """Those for some of the subscribers of one filter."""
    qos, retain, publisher = message.qos, message.retain, message.publisher
    targets: list[Target] = []
    for session, grant in block:
        if grant.no_local and session.client_id == publisher:
            continue
        granted = grant.qos
        targets.append((session, qos if qos < granted else granted, retain and grant.retain_as_published, grant.ids))
    return targets


def copy(session: Session, grant: GrantedSubscription, message: Message) -> Target:
    """The one for a member of a share."""
    return (session, min(message.qos, grant.qos), message.retain and grant.retain_as_published, grant.ids)


class MergedCopies:
    """Overlapping filters: one copy per client at the highest QoS with all identifiers (MQTT 5.0, 3.3.4)."""

    __slots__ = ("_ids", "_targets")

    def __init__(self) -> None:
        self._targets: dict[Session, Target] = {}
        self._ids: dict[Session, list[int]] = {}  # adding tuples would take quadratic time

    def add(self, targets: Iterable[Target]) -> None:
        """Those of some subscribers of one filter."""
        merged = self._targets
        for target in targets:
            session = target[0]
            other = merged.get(session)
            if other is None:
                merged[session] = target
                continue
            self._ids.setdefault(session, [*other[3]]).extend(target[3])
            merged[session] = (session, max(other[1], target[1]), other[2] or target[2], ())

    def targets(self) -> Iterator[Target]:
        """All of them, once nothing is added any more."""
        for session, qos, retain, ids in self._targets.values():
            found = self._ids.get(session)
            yield (session, qos, retain, ids if found is None else tuple(found))
