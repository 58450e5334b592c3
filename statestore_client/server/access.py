"""Access rules: who may read, write and watch which keys, and publish and subscribe to which topics.

A text file. A line that names somebody is followed by the lines of what they may do; indentation is for the eye::

    everybody
      subscribe status/#

    user pump-*
      client-id pump-*
      read      line1/*
      write     line1/setpoint
      publish   telemetry/line1/#

    user operator
      admin

    client dashboard
      read *

What no line allows is forbidden. ``user`` and ``client`` take patterns, and all that match count: ``user`` for clients
that proved who they are, ``client``, by client identifier, for those that did not. So nobody gets more rights by
choosing a client identifier, except where everybody may choose. ``admin``, the right to look at the sessions and
retained messages of all and to remove them, is for users alone.

Keys and names are matched as SCAN does it, with ``*``, ``?`` and ``[a-z]``; topics with MQTT's ``+`` and ``#``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import RequestSyntaxError, SettingsError
from statestore_client.mqtt.packets import ReasonCode, topic_filter_problem
from statestore_client.server.broker.admission import Refusal
from statestore_client.server.store.glob import compile_glob
from statestore_client.wire.commands import Command, Get, KeyNotify, Scan
from statestore_client.wire.protocol import COMMAND_TOPIC, notification_filter

if TYPE_CHECKING:
    from statestore_client.server.store.glob import Glob

# -- what a pattern covers ---------------------------------------------------------------------------------------------


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


# -- the rules ---------------------------------------------------------------------------------------------------------

_KEY_WORDS: Final = frozenset(("read", "write", "watch"))
_TOPIC_WORDS: Final = frozenset(("publish", "subscribe"))
_WHO: Final = frozenset(("everybody", "user", "client"))
_PLAIN_WORD: Final = re.compile(r"[A-Za-z-]{1,30}")
_KNOWN: Final = "everybody, user, client, client-id, read, write, watch, publish, subscribe, admin"


@attrs.define
class _Section:
    """A line with ``everybody``, ``user`` or ``client``, and what follows it."""

    who: str
    name: NamePattern | None
    client_ids: tuple[NamePattern, ...] = ()
    keys: dict[str, tuple[KeyPattern, ...]] = attrs.Factory(dict)
    topics: dict[str, tuple[str, ...]] = attrs.Factory(dict)
    is_admin: bool = False

    def is_about(self, user: str | None, client_id: str) -> bool:
        if self.name is None:
            return True
        if self.who == "user":
            return user is not None and self.name.matches(user)
        return user is None and self.name.matches(client_id)


@attrs.frozen
class ClientPermissions:
    """What one client may do; see :class:`~statestore_client.server.broker.Permissions`."""

    user: str | None
    client_id: str
    _client_ids: tuple[NamePattern, ...]
    _keys: dict[str, tuple[KeyPattern, ...]]
    _topics: dict[str, tuple[str, ...]]
    _is_admin: bool
    _own: OwnTopics

    @property
    def refusal(self) -> Refusal | None:
        if any(character in self.client_id for character in "/+#"):
            # It is a level of the topics on which its answers come.
            return Refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a client identifier must not have '/', '+' or '#'")
        if self._client_ids and not any(name.matches(self.client_id) for name in self._client_ids):
            return Refusal(ReasonCode.NOT_AUTHORIZED, "this user may not have this client identifier")
        return None

    def may_publish(self, topic: str) -> bool:
        return any(filter_covers(granted, topic) for granted in self._topics["publish"])

    def may_subscribe(self, topic_filter: str) -> bool:
        asked = topic_filter
        if asked.startswith("$share/"):
            asked = asked.split("/", 2)[-1]
        return self._own.may_subscribe(asked) or any(filter_covers(f, asked) for f in self._topics["subscribe"])

    def may_be_answered_on(self, topic: str) -> bool:
        """Whether the server may publish an answer there for it: its own topics, and where it may publish itself."""
        return self._own.is_response_topic(topic) or self.may_publish(topic)

    def may_run(self, command: Command) -> bool:
        """Whether a state store command is permitted. Raises RequestSyntaxError for a pattern that is none."""
        if isinstance(command, Scan):
            pattern = command.pattern
            return any(k.covers(pattern) for k in self._keys["read"])
        if isinstance(command, KeyNotify) and command.stop:
            return True
        key = command.key
        word = "read" if isinstance(command, Get) else "watch" if isinstance(command, KeyNotify) else "write"
        return any(pattern.matches(key) for pattern in self._keys[word])

    @property
    def may_administer(self) -> bool:
        """Whether it may look at the sessions and retained messages of all, and remove them."""
        return self._is_admin


@attrs.frozen
class RuleSet:
    """The rules of one text."""

    _sections: tuple[_Section, ...]

    @classmethod
    def parse(cls, text: str, source: str) -> RuleSet:
        """Raises SettingsError that names ``source``, the line and what is wrong with it."""
        return cls(_read(text, source))

    def permissions(self, user: str | None, client_id: str) -> ClientPermissions:
        """What a client may do: all that the sections about it grant."""
        sections = [section for section in self._sections if section.is_about(user, client_id)]
        return ClientPermissions(
            user,
            client_id,
            tuple(name for section in sections for name in section.client_ids),
            {word: tuple(p for s in sections for p in s.keys.get(word, ())) for word in sorted(_KEY_WORDS)},
            {word: tuple(f for s in sections for f in s.topics.get(word, ())) for word in sorted(_TOPIC_WORDS)},
            any(section.is_admin for section in sections),
            OwnTopics(client_id),
        )


def _read(text: str, source: str) -> tuple[_Section, ...]:
    sections: list[_Section] = []
    names: dict[tuple[str, str], int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        try:
            if word in _WHO:
                if first := names.get((word, rest)):
                    raise SettingsError(f"{line!r} is in line {first} already")
                names[word, rest] = number
                sections.append(_section(word, rest))
            else:
                _grant(sections[-1] if sections else None, word, rest)
        except SettingsError as error:
            raise SettingsError(f"{source}, line {number}: {error}") from None
    return tuple(sections)


def _section(word: str, name: str) -> _Section:
    if word == "everybody":
        if name:
            raise SettingsError("nothing may follow 'everybody'")
        return _Section(word, None)
    return _Section(word, _name(word, name))


def _grant(section: _Section | None, word: str, pattern: str) -> None:
    if word not in _KEY_WORDS and word not in _TOPIC_WORDS and word not in ("client-id", "admin"):
        # A password file in place of this one, say, must not end in the log.
        what = repr(word) if _PLAIN_WORD.fullmatch(word) else "what it begins with"
        raise SettingsError(f"{what} is not a word of this file; known are {_KNOWN}")
    if section is None:
        raise SettingsError(f"{word!r} needs a line with everybody, user or client before it")
    if word == "client-id":
        if section.who != "user":
            raise SettingsError("'client-id' is for users: it says which client identifiers they may have")
        section.client_ids += (_name(word, pattern),)
    elif word == "admin":
        if section.who != "user":
            raise SettingsError("'admin' is for users: others have not proved who they are")
        if pattern:
            raise SettingsError("nothing may follow 'admin'")
        section.is_admin = True
    elif word in _KEY_WORDS:
        try:
            section.keys[word] = (*section.keys.get(word, ()), KeyPattern.of(pattern))
        except RequestSyntaxError:
            raise SettingsError(f"{pattern!r} is not a pattern for keys") from None
    else:
        if problem := topic_filter_problem(pattern, shared=False):
            raise SettingsError(f"{pattern!r} is not a topic filter: {problem}")
        if pattern.startswith("$share/"):
            raise SettingsError("name the topics alone: a filter counts for shared subscriptions as well")
        section.topics[word] = (*section.topics.get(word, ()), pattern)


def _name(word: str, pattern: str) -> NamePattern:
    if not pattern:
        raise SettingsError(f"{word!r} needs a name or a pattern after it")
    try:
        return NamePattern.of(pattern)
    except RequestSyntaxError:
        raise SettingsError(f"{pattern!r} is not a pattern for names") from None
