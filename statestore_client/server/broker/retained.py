"""Keep the last retained message of every topic, and find those that a filter matches (MQTT 5.0, 3.3.1.3).

Which messages are retained is decided in ``publish``; what of them is on the disk, in :class:`RetainedPersister`.

Invariant: the sorted index holds the topics of the map, which is the truth. In the index, U+0000, which no topic
contains, is in place of the slash: so the topics below a level are neighbours. A *cursor* gives out the messages that a
filter matches, one after the other. Its only state is the place where it is, so it may be left alone and taken up
again, whatever is published meanwhile; and it jumps over the topics that cannot match.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Self

import attrs

from statestore_client.server.broker.records import MessageRecord
from statestore_client.server.broker.topic_tree import has_wildcard
from statestore_client.server.journal import PlainRecord
from statestore_client.server.key_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from statestore_client.server.broker.limits import BrokerLimits
    from statestore_client.server.broker.message import Message
    from statestore_client.server.journal import JournalStream
    from statestore_client.wire.instant import Instant

#: Topics that begin so are the broker's: nobody else can publish there.
OWN: Final = "$SYS/broker/"

#: A full store looks at every message for expired ones, but not for each message that does not fit.
_SWEEP_PAUSE_S: Final = 1.0

#: Topics that are looked at in one go.
_SOME: Final = 256

_SLASH: Final = "\0"
_AFTER_SLASH: Final = "\1"  # behind everything below a level


def sort_key(topic: str) -> str:
    """What topics are sorted by."""
    return topic.replace("/", _SLASH)


def _topic(key: str) -> str:
    return key.replace(_SLASH, "/")


@attrs.define(eq=False)
class RetainedCursor:
    """The place of one receiver in the retained messages. ``at`` is where to look next, None after the last.

    What to do with the messages (QoS, identifiers) is the owner's business.
    """

    topic_filter: str
    qos: int
    no_local: bool
    ids: tuple[int, ...]
    at: str | None = ""


@attrs.frozen
class CursorRecord(PlainRecord):
    """Where a new subscription is in the retained messages that it is to get."""

    qos: int
    no_local: bool
    ids: tuple[int, ...]
    at: str | None

    @classmethod
    def of(cls, cursor: RetainedCursor) -> Self:
        return cls(cursor.qos, cursor.no_local, cursor.ids, cursor.at)

    def cursor(self, topic_filter: str) -> RetainedCursor:
        return RetainedCursor(topic_filter, self.qos, self.no_local, self.ids, self.at)


@attrs.define(eq=False)
class Retained:
    """At most one message per topic; the last one wins.

    Invariant: the sorted index holds the topics of the map. ``bytes`` is the sum of the sizes in the map.
    """

    _limits: BrokerLimits
    _persister: RetainedPersister | None = None  # None: they do not survive the process
    _by_topic: dict[str, Message] = attrs.Factory(dict)
    _sorted: KeyIndex[str] = attrs.Factory(KeyIndex)
    bytes: int = 0
    _sweep_again_at: float = 0.0

    def __len__(self) -> int:
        return len(self._by_topic)

    def get(self, topic: str) -> Message | None:
        """The topic's message, if clients published it; expired or not."""
        return None if topic.startswith(OWN) else self._by_topic.get(topic)

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
        size = self.bytes + _cost(message) - (0 if old is None else _cost(old))
        return count <= self._limits.retained_messages and size <= self._limits.retained_bytes

    def put(self, message: Message) -> None:
        """Replace the topic's message; an empty payload deletes it (MQTT-3.3.1-6)."""
        if not message.payload:
            self.discard(message.topic)
            return
        self.load(message)
        if self._persister is not None:
            self._persister.put(message)

    def load(self, message: Message) -> None:
        """As :meth:`put` for one with a payload that is written down already."""
        topic = message.topic
        old = self._by_topic.get(topic)
        if old is None:
            self._sorted.add(sort_key(topic))
        else:
            self.bytes -= _cost(old)
        self._by_topic[topic] = message
        self.bytes += _cost(message)

    def fill(self, messages: Iterable[Message]) -> None:
        """Put all of them into an empty store, in one go, without writing them down."""
        self._by_topic = {message.topic: message for message in messages}
        self._sorted = KeyIndex(map(sort_key, self._by_topic))
        self.bytes = sum(map(_cost, self._by_topic.values()))

    def discard(self, topic: str) -> None:
        """Forget the topic's message, if it has one."""
        if self.unload(topic) and self._persister is not None:
            self._persister.removed(topic)

    def discard_where(self, is_unwanted: Callable[[str], bool]) -> None:
        """Forget those of some topics."""
        for topic in [*filter(is_unwanted, self._by_topic)]:
            self.discard(topic)

    def unload(self, topic: str) -> bool:
        """The same for one whose removal is written down already. Whether there was one."""
        old = self._by_topic.pop(topic, None)
        if old is None:
            return False
        self.bytes -= _cost(old)
        self._sorted.remove(sort_key(topic))
        return True

    def sweep(self, now: Instant) -> int:
        """Remove all expired messages; how many there were."""
        expired = [topic for topic, message in self._by_topic.items() if message.is_expired(now)]
        for topic in expired:
            self.discard(topic)
        return len(expired)

    def violations(self) -> Iterator[str]:
        """The invariants that do not hold. For tests: looks at everything."""
        size = sum(map(_cost, self._by_topic.values()))
        if self.bytes != size:
            yield f"retained bytes: {self.bytes} noted, {size} counted"
        if list(self._sorted) != sorted(topic.replace("/", _SLASH) for topic in self._by_topic):
            yield "the list of retained topics is not that of the messages"
        if any(topic != message.topic or not message.payload for topic, message in self._by_topic.items()):
            yield "a retained message is empty, or of another topic"
        if len(self._by_topic) > self._limits.retained_messages:
            yield f"retained messages: {len(self._by_topic)}, {self._limits.retained_messages} are allowed"

    def all_in_turn(self) -> Iterator[tuple[str, Message | None]]:
        """Each topic and its message, as it is when the iterator comes to it, or None; without what the broker says of
        itself. Messages may come and go in between: each topic that has one all the time comes.
        """
        some = [*islice(self._sorted, _SOME)]
        while some:
            for topic in map(_topic, some):
                yield topic, self.get(topic)
            some = [*islice(self._sorted.keys_from(some[-1], inclusive=False), _SOME)]

    # -- cursors ------------------------------------------------------------------------------------------------------

    def advance(self, cursor: RetainedCursor, now: Instant) -> Message | None:
        """Look at one topic; its message if the filter matches it. An expired one is removed."""
        at = cursor.at
        if at is None:
            return None
        if not has_wildcard(cursor.topic_filter):
            cursor.at = None
            return self._alive(cursor.topic_filter, now)
        key = self._sorted.first_from(at)
        if key is None:
            cursor.at = None
            return None
        cursor.at = _after(cursor.topic_filter, key)
        if cursor.at != _MATCHES:
            return None
        cursor.at = key + _SLASH  # the smallest topic behind it
        return self._alive(_topic(key), now)

    def step(self, cursor: RetainedCursor, now: Instant) -> Message | None:
        """As :meth:`advance` for whatever clients have published, below ``$`` as well."""
        at = cursor.at
        key = None if at is None else self._sorted.first_from(at)
        cursor.at = None
        if key is None:
            return None
        cursor.at = key + _SLASH
        topic = _topic(key)
        return None if topic.startswith(OWN) else self._alive(topic, now)

    def _alive(self, topic: str, now: Instant) -> Message | None:
        message = self._by_topic.get(topic)
        if message is not None and message.is_expired(now):
            self.discard(topic)
            return None
        return message

    def match(self, topic_filter: str, now: Instant) -> list[Message]:
        """All messages whose topic the filter matches, in one go."""
        cursor = RetainedCursor(topic_filter, 0, no_local=False, ids=())
        found = []
        while cursor.at is not None:
            message = self.advance(cursor, now)
            if message is not None:
                found.append(message)
        return found


#: No place is behind this one: the topic itself matches.
_MATCHES: Final = ""


def _cost(message: Message) -> int:
    """Bytes; the topic lies in the list as well."""
    return message.size + len(message.topic)


def _after(topic_filter: str, key: str) -> str | None:
    """``_MATCHES``, or the first place behind ``key`` where a match is possible, None if there is none."""
    wanted, levels = topic_filter.split("/"), key.split(_SLASH)
    any_at = -1  # the deepest level with a + so far, where the cursor may go on with the next topic level
    for depth, want in enumerate(wanted):
        if want == "#":
            return _behind(levels[:1]) if _is_hidden(depth, levels) else _MATCHES
        if depth == len(levels):
            return key + _SLASH  # too short; what may match is below it
        have = levels[depth]
        if want == "+":
            if _is_hidden(depth, levels):
                return _behind(levels[:1])
            any_at = depth
        elif have < want:
            return _SLASH.join([*levels[:depth], want])
        elif have > want:
            return None if any_at < 0 else _behind(levels[: any_at + 1])
    if len(levels) == len(wanted):
        return _MATCHES
    return None if any_at < 0 else _behind(levels[: any_at + 1])


def _behind(levels: list[str]) -> str:
    """The place behind everything below a level."""
    return _SLASH.join(levels) + _AFTER_SLASH


def _is_hidden(depth: int, levels: list[str]) -> bool:
    """A leading wildcard does not see topics that begin with $ (MQTT-4.7.2-1)."""
    return depth == 0 and levels[0].startswith("$")


# -- durable retained --------------------------------------------------------------------------------------------------
#
# What of the retained messages is written down: all but what the broker says about itself.


@attrs.frozen(eq=False)
class RetainedPersister:
    """Hears from :class:`.Retained` what has changed."""

    _stream: JournalStream

    def put(self, message: Message) -> None:
        """It is its topic's message now."""
        if not message.topic.startswith(OWN):
            self._stream.put(message.topic, MessageRecord(message), message.size)

    def removed(self, topic: str) -> None:
        """The topic has no message any longer."""
        if not topic.startswith(OWN):
            self._stream.remove(topic)
