"""Retained messages: the last one of every topic, found by topic filter (MQTT 5.0, 3.3.1.3).

The map from topic to message is the truth; the tree beside it makes a wildcard filter visit only the branches that it
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.broker.topictree import has_wildcard

if TYPE_CHECKING:
    from statestore_client.server.broker.limits import BrokerLimits
    from statestore_client.server.broker.messages import Message
    from statestore_client.wire.instant import Instant

__all__ = ["Retained"]


#: A full store looks at every message for expired ones, but not for each message that does not fit.
_SWEEP_PAUSE_S: Final = 1.0


@attrs.define(eq=False)
class _Node:
    children: dict[str, _Node] = attrs.Factory(dict)
    message: Message | None = None


@attrs.define(eq=False)
class Retained:
    """At most one message per topic; the last one wins.

    Invariant: a message is in the tree if and only if it is in the map. ``bytes`` is the sum of the sizes in the map.
    """

    _limits: BrokerLimits
    _by_topic: dict[str, Message] = attrs.Factory(dict)
    _root: _Node = attrs.Factory(_Node)
    bytes: int = 0
    _sweep_again_at: float = 0.0

    def __len__(self) -> int:
        return len(self._by_topic)

    def has_room(self, message: Message, now: Instant) -> bool:
        """Whether :meth:`put` may be called; replacing and deleting need little or no room."""
        if not message.payload or self._fits(message):
            return True
        if now.monotonic < self._sweep_again_at:
            return False
        self._sweep_again_at = now.monotonic + _SWEEP_PAUSE_S
        self.sweep(now)
        return self._fits(message)

    def _fits(self, message: Message) -> bool:
        old = self._by_topic.get(message.topic)
        count = len(self._by_topic) + (old is None)
        size = self.bytes + message.size - (0 if old is None else old.size)
        return count <= self._limits.retained_messages and size <= self._limits.retained_bytes

    def put(self, message: Message) -> None:
        """Replace the topic's message; an empty payload deletes it (MQTT-3.3.1-6)."""
        self.discard(message.topic)
        if not message.payload:
            return
        self._by_topic[message.topic] = message
        self.bytes += message.size
        node = self._root
        for level in message.topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.message = message

    def discard(self, topic: str) -> None:
        old = self._by_topic.pop(topic, None)
        if old is None:
            return
        self.bytes -= old.size
        levels = topic.split("/")
        path = [self._root]
        for level in levels:
            path.append(path[-1].children[level])
        path[-1].message = None
        for level, parent, node in zip(reversed(levels), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if node.children or node.message is not None:
                break
            del parent.children[level]

    def match(self, topic_filter: str, now: Instant) -> list[Message]:
        """The messages whose topic the filter matches. Expired ones are removed, not returned."""
        found = self._wildcard(topic_filter) if has_wildcard(topic_filter) else self._one(topic_filter)
        alive = []
        for message in found:
            if message.is_expired(now):
                self.discard(message.topic)
            else:
                alive.append(message)
        return alive

    def sweep(self, now: Instant) -> int:
        """Remove all expired messages; how many there were."""
        expired = [topic for topic, message in self._by_topic.items() if message.is_expired(now)]
        for topic in expired:
            self.discard(topic)
        return len(expired)

    def _one(self, topic: str) -> list[Message]:
        message = self._by_topic.get(topic)
        return [] if message is None else [message]

    def _wildcard(self, topic_filter: str) -> list[Message]:
        nodes = [self._root]
        for depth, level in enumerate(topic_filter.split("/")):
            if level == "#":
                return _messages(_below(nodes, hide_dollar=depth == 0))
            if level == "+":
                nodes = _children(nodes, hide_dollar=depth == 0)
            else:
                nodes = [child for node in nodes if (child := node.children.get(level)) is not None]
        return _messages(nodes)


def _messages(nodes: list[_Node]) -> list[Message]:
    return [node.message for node in nodes if node.message is not None]


def _children(nodes: list[_Node], *, hide_dollar: bool) -> list[_Node]:
    """All children; a leading wildcard does not see topics that begin with $ (MQTT-4.7.2-1)."""
    return [
        child for node in nodes for level, child in node.children.items() if not (hide_dollar and level.startswith("$"))
    ]


def _below(nodes: list[_Node], *, hide_dollar: bool) -> list[_Node]:
    """The nodes themselves (``a/#`` matches ``a``) and everything below them."""
    found = list(nodes)
    row = _children(nodes, hide_dollar=hide_dollar)
    while row:
        found += row
        row = _children(row, hide_dollar=False)
    return found
