"""Which filters match a topic: the question asked for every message.

Filters without wildcards are a dictionary. The others are a trie by topic level, walked level by level, so that the
cost grows with the depth of the topic and the number of matching branches, not with the number of subscriptions. No
recursion: a filter is as deep as its sender likes, up to the limit that the subscriber code enforces.
Source: MQTT 5.0, 4.7 (wildcards, topics beginning with $).
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import attrs

from statestore_client.mqtt.packets import split_shared_filter

Leaf = TypeVar("Leaf")

_ONE_LEVEL: Final = "+"
_ALL_BELOW: Final = "#"


def has_wildcard(topic_filter: str) -> bool:
    return _ONE_LEVEL in topic_filter or _ALL_BELOW in topic_filter


def share_of(topic_filter: str) -> tuple[str, str]:
    """Share name and filter of ``$share/{name}/{filter}``; an empty name for a filter that is not shared."""
    return split_shared_filter(topic_filter) or ("", topic_filter)


@attrs.frozen(eq=False)
class GrantedSubscription:
    """What one client was granted for one filter. ``ids``: its subscription identifier, if it gave one."""

    qos: int
    no_local: bool
    retain_as_published: bool
    ids: tuple[int, ...]


@attrs.define(eq=False)
class _Node(Generic[Leaf]):
    """A level. ``here``: filters that end at this level. ``below``: filters that end in ``#`` right after it."""

    children: dict[str, _Node[Leaf]] = attrs.Factory(dict)
    here: Leaf | None = None
    below: Leaf | None = None

    @property
    def is_empty(self) -> bool:
        return not self.children and self.here is None and self.below is None


@attrs.define(eq=False)
class FilterTree(Generic[Leaf]):
    """A map from topic filters to leaves that can be asked for all filters that match a topic.

    Filters are valid ones without ``$share``. Invariant: no node is empty, except the root.
    """

    _exact: dict[str, Leaf] = attrs.Factory(dict)
    _root: _Node[Leaf] = attrs.Factory(_Node)
    _wildcards: int = 0

    def __len__(self) -> int:
        return len(self._exact) + self._wildcards

    def get(self, topic_filter: str) -> Leaf | None:
        if not has_wildcard(topic_filter):
            return self._exact.get(topic_filter)
        node: _Node[Leaf] | None = self._root
        levels = topic_filter.split("/")
        for level in levels:
            if level == _ALL_BELOW:
                return None if node is None else node.below
            node = None if node is None else node.children.get(level)
        return None if node is None else node.here

    def insert(self, topic_filter: str, leaf: Leaf) -> None:
        """Put a leaf at a filter that has none."""
        if not has_wildcard(topic_filter):
            self._exact[topic_filter] = leaf
            return
        self._wildcards += 1
        node = self._root
        for level in topic_filter.split("/"):
            if level == _ALL_BELOW:
                node.below = leaf
                return
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.here = leaf

    def remove(self, topic_filter: str) -> None:
        """Take the leaf away from a filter that has one, and with it the nodes that nobody needs any more."""
        if not has_wildcard(topic_filter):
            del self._exact[topic_filter]
            return
        self._wildcards -= 1
        levels = topic_filter.split("/")
        is_below = levels[-1] == _ALL_BELOW
        if is_below:
            levels.pop()
        path = [self._root]
        for level in levels:
            path.append(path[-1].children[level])
        if is_below:
            path[-1].below = None
        else:
            path[-1].here = None
        for level, parent, node in zip(reversed(levels), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if not node.is_empty:
                break
            del parent.children[level]

    def match(self, topic: str) -> list[Leaf]:
        """The leaves of all filters that match, each once."""
        leaf = self._exact.get(topic)
        found = [] if leaf is None else [leaf]
        if self._wildcards:
            self._match_wildcards(topic, found)
        return found

    def _match_wildcards(self, topic: str, found: list[Leaf]) -> None:
        levels = topic.split("/")
        root = self._root
        nodes = [root]
        if topic[:1] == "$":
            # A leading wildcard does not match $SYS and its like (MQTT-4.7.2-1): step over the first level by name
            # only.
            child = root.children.get(levels[0])
            nodes = [] if child is None else [child]
            del levels[0]
        for level in levels:
            following = []
            for node in nodes:
                if node.below is not None:
                    found.append(node.below)
                children = node.children
                if children:
                    if (child := children.get(level)) is not None:
                        following.append(child)
                    if (child := children.get(_ONE_LEVEL)) is not None:
                        following.append(child)
            if not following:
                return
            nodes = following
        for node in nodes:
            if node.here is not None:
                found.append(node.here)
            if node.below is not None:  # "a/#" matches "a" as well
                found.append(node.below)
