"""What a pattern in the access rules covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.store.glob import compile_glob
from statestore_client.wire.protocol import COMMAND_TOPIC, notification_filter

if TYPE_CHECKING:
    from statestore_client.server.store.glob import Glob

__all__ = ["KeyPattern", "NamePattern", "OwnTopics", "filter_covers"]


@attrs.frozen
class KeyPattern:
    """Keys: as in SCAN, but ``*`` at the end of a pattern stands for any bytes, not only for text."""

    pattern: bytes
    _glob: Glob = attrs.field(eq=False, repr=False)
    _is_prefix: bool = attrs.field(eq=False, repr=False)

    @classmethod
    def of(cls, text: str) -> KeyPattern:
        """Raises RequestSyntaxError for what is not a pattern."""
        pattern = text.encode()
        glob = compile_glob(pattern)
        return cls(pattern, glob, glob.prefix + b"*" == pattern)

    def matches(self, key: bytes) -> bool:
        if self._is_prefix:
            return key.startswith(self._glob.prefix)
        return self._glob.matches(key)

    def covers(self, pattern: bytes) -> bool:
        """Whether whatever ``pattern`` finds is allowed: if it is this one, or begins with the text before this one's
        only star. Raises RequestSyntaxError for what is not a pattern.
        """
        asked = compile_glob(pattern)
        if asked.literal:
            return self.matches(pattern)
        return pattern == self.pattern or (self._is_prefix and asked.prefix.startswith(self._glob.prefix))


@attrs.frozen
class NamePattern:
    """Users and client identifiers."""

    pattern: str
    _glob: Glob = attrs.field(eq=False, repr=False)

    @classmethod
    def of(cls, text: str) -> NamePattern:
        """Raises RequestSyntaxError for what is not a pattern."""
        return cls(text, compile_glob(text.encode()))

    def matches(self, name: str) -> bool:
        return self._glob.matches(name.encode())


def filter_covers(granted: str, asked: str) -> bool:
    """Whether every topic that the filter (or topic) ``asked`` matches is matched by ``granted`` as well.

    Source: MQTT 5.0, 4.7. ``#`` stands for its parent level, too; a wildcard in front matches no topic with ``$``.
    """
    if granted == asked:
        return True
    granted_levels, asked_levels = granted.split("/"), asked.split("/")
    if asked.startswith("$") and granted_levels[0] != asked_levels[0]:
        return False
    for number, level in enumerate(granted_levels):
        if level == "#":
            return True
        if number == len(asked_levels):
            return False
        other = asked_levels[number]
        if other == "#" or (level != other and level != "+"):
            return False
    return len(granted_levels) == len(asked_levels)


@attrs.frozen(init=False)
class OwnTopics:
    """The topics on which the state store talks to one client: as the published document and the official SDKs name
    them (state store facts, 1.1). Invariant: no client identifier without a slash makes another client's topics.
    """

    client_id: str
    _responses: tuple[str, ...]
    _others: tuple[str, ...]

    def __init__(self, client_id: str) -> None:
        name = client_id.encode().hex().upper()
        notifications = notification_filter(client_id)
        responses = (
            f"clients/{client_id}/services/#",  # the document; Rust, and this package
            f"clients/{name}/{COMMAND_TOPIC}/response",  # Go
            f"clients/{client_id}/{COMMAND_TOPIC}",  # .NET
        )
        # .NET subscribes to something where nothing ever comes, and gives up without.
        useless = notifications.replace(f"/{name}/", f"/{client_id}/").removesuffix("/+")
        self.__attrs_init__(client_id, responses, (notifications, useless))

    def is_response_topic(self, topic: str) -> bool:
        return any(filter_covers(own, topic) for own in self._responses)

    def may_subscribe(self, topic_filter: str) -> bool:
        return self.is_response_topic(topic_filter) or any(filter_covers(own, topic_filter) for own in self._others)
