"""The topic filters of one client: which ones its session has, and which are asked for on this connection."""

from __future__ import annotations

from itertools import count

from statestore_client.core.actions import Action, Subscribe
from statestore_client.core.failures import refused_subscription
from statestore_client.errors import StateStoreError
from statestore_client.wire.messages import FIRST_ERROR, Subscribed

__all__ = ["Subscriptions"]


class Subscriptions:
    """Appends ``Subscribe`` to the ``actions`` it was given."""

    __slots__ = ("_actions", "_asked", "_granted", "_ids")

    def __init__(self, actions: list[Action]) -> None:
        self._actions = actions
        self._ids = count(1)
        self._asked: dict[int, tuple[str, ...]] = {}  # by subscribe id; on this connection, without an answer
        self._granted: set[str] = set()  # in this session

    def __contains__(self, topic_filter: str) -> bool:
        """Whether the session has it."""
        return topic_filter in self._granted

    def ask(self, *topic_filters: str) -> None:
        """Subscribe to those that the session does not have and that are not asked for already."""
        missing = tuple(f for f in topic_filters if f not in self._granted and not self._is_asked(f))
        if missing:
            subscribe_id = next(self._ids)
            self._asked[subscribe_id] = missing
            self._actions.append(Subscribe(subscribe_id, missing))

    def answered(self, event: Subscribed) -> tuple[set[str], dict[str, StateStoreError]]:
        """The filters that a SUBACK grants, and those that it refuses."""
        granted, refused = set[str](), dict[str, StateStoreError]()
        for topic_filter, reason in zip(self._asked.pop(event.subscribe_id, ()), event.reason_codes, strict=False):
            if reason < FIRST_ERROR:
                granted.add(topic_filter)
            else:
                refused[topic_filter] = refused_subscription(topic_filter, reason)
        self._granted |= granted
        return granted, refused

    def disconnected(self) -> None:
        """No answer comes any longer. What the session has it may have on the next connection, too."""
        self._asked.clear()

    def session_lost(self) -> None:
        """The session is a new one, or may be: nothing counts as granted."""
        self._granted.clear()

    def _is_asked(self, topic_filter: str) -> bool:
        return any(topic_filter in filters for filters in self._asked.values())
