"""The border between the client machine and its shell.

What happens with each request the machine does itself, on objects that its shell hands in: it publishes on the
:class:`Connection`, resolves a :class:`Waiter`, and pushes to an :class:`Observer`. None of them waits, or calls the
machine back. What is rare is an :data:`Action`: the shell carries actions out afterwards, in the order in which they
come.

Invariant: an action never waits for another; a shell that fails to carry one out reports it as a ``Closed`` event.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

import attrs

from statestore_client.errors import StateStoreError
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import OutgoingMessage


class ConnectionState(StrEnum):
    """The life of a client's connection as users see it."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    #: The link is down and being restored. Locks may not be trusted, watches may be behind.
    SUSPENDED = "suspended"
    CLOSED = "closed"


class EventKind(StrEnum):
    """What happened to a watched key, or, with ``connection_events``, to the connection that it is watched over."""

    SET = "set"
    DELETE = "delete"
    #: The link is down: what was seen last may be out of date.
    SUSPENDED = "suspended"
    #: The watch is up to date again; what changed meanwhile came just before.
    RESUMED = "resumed"


@attrs.frozen
class WatchEvent:
    """A change of a watched key.

    ``value`` is None unless it is a SET. ``version`` is None for SUSPENDED and RESUMED, for a DELETE that was found by
    reading the key, and where the server names none.

    ``missed``: between the event before and this one there may have been others that were not seen, because the link
    was down or the queue was full, or since the store told of a SET without its value, and the key was read. This one
    is the latest state in any case. A DELETE with ``missed`` after a DELETE means that the key may have been created
    and deleted again meanwhile.
    """

    kind: EventKind
    key: bytes
    value: bytes | None
    version: HlcTimestamp | None
    missed: bool = False


class Waiter(Protocol):
    """Hands one outcome to the caller that waits for it; the first one counts. It must not block or call the engine."""

    def resolve(self, result: object) -> None: ...

    def reject(self, error: StateStoreError) -> None: ...


class Observer(Protocol):
    """Takes the events of one watch from its shell's engine. It must not block or call the engine."""

    def push(self, event: WatchEvent | StateStoreError) -> bool:
        """Take an event; False asks for no more of them until the reader has caught up (``overflow="block"``)."""


@attrs.frozen
class PrefixTerms:
    """How a watch on a prefix finds its keys."""

    rescan: float | None  # seconds between a complete listing of the keys and the next one; None for only one
    max_keys: int  # with more, the watch ends


@attrs.frozen
class WatchOptions:
    """What a watcher wants to hear of beside the changes."""

    initial: bool = False  # the current value first
    connection_events: bool = False  # SUSPENDED and RESUMED
    poll: float | None = None  # seconds between reads, in case a notification is lost
    prefix: PrefixTerms | None = None  # what is watched is not one key, but every key that begins with it


#: Gets each new connection state and, when it got worse, the reason; also the reason of each attempt to connect that
#: fails while the state stays the same. The asyncio client awaits what it returns, if that can be awaited.
StateListener: TypeAlias = Callable[[ConnectionState, StateStoreError | None], object]


#: One class of errors, or several, as ``except`` takes them.
ErrorClasses: TypeAlias = type[StateStoreError] | tuple[type[StateStoreError], ...]


@attrs.frozen
class Open:
    """Connect; later report ``Connected`` or ``Closed``. ``new_round``: each address may be tried again."""

    clean_start: bool
    new_round: bool = True


@attrs.frozen
class Disconnect:
    """Send DISCONNECT, let the session end, close, and report ``Closed``."""


@attrs.frozen
class Drop:
    """The link is dead although TCP does not know it: close without a DISCONNECT, and report ``Closed``."""


@attrs.frozen
class Ping:
    """Ask the broker for a sign of life, with a PINGREQ."""


@attrs.frozen
class Subscribe:
    """Subscribe at QoS 1; later report ``Subscribed`` with this id."""

    subscribe_id: int
    topic_filters: tuple[str, ...]


@attrs.frozen
class StateChanged:
    """The connection's state as users see it; ``error`` says why when it got worse.

    With CONNECTED, ``error`` is None or a SessionLostError: it is as good as before, but the broker began anew.
    """

    state: ConnectionState
    error: StateStoreError | None = None


@attrs.frozen
class Remark:
    """Something for the log: the broker makes mistakes, and the client goes on all the same, in this state."""

    state: ConnectionState
    text: str


Action: TypeAlias = Open | Disconnect | Drop | Ping | Subscribe | StateChanged | Remark


class Connection(Protocol):
    """The present connection, as the machine uses it: an MQTT driver."""

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:
        """Queue a PUBLISH of QoS 1; later report ``Published`` with this id.

        ``again``: it was published on an earlier connection of the session and not acknowledged there.
        """

    def acknowledge(self, ack_id: int) -> None:
        """Queue the PUBACK of a received message."""

    def flush(self) -> None:
        """Write what is queued, as far as the socket takes it."""

    @property
    def heard_at(self) -> float | None:
        """When the last byte came (monotonic seconds). None: nobody sees that, and nothing follows from silence."""

    @property
    def url(self) -> str:
        """Whose connection it is, for messages."""


#: At most this many publications go out in one write: the server begins while the rest are made.
FLUSH_EVERY: Final = 16


class Output:
    """What leaves on the present connection, and is not flushed yet.

    Acknowledgements are held back while a watch whose reader may miss nothing has no room for another event. The broker
    then stops sending once its window is used up. It stops for all watches of the client, and for the answers to its
    requests too: acknowledgements leave in the order in which the messages came (MQTT 5.0, 4.6).
    """

    __slots__ = ("_full", "_held", "connection", "unflushed", "unflushed_acks")

    def __init__(self) -> None:
        #: The shell's; None before the first one, and while the next one is being made.
        self.connection: Connection | None = None
        #: Publications, and what else must not wait, since the last flush.
        self.unflushed: int = 0
        self.unflushed_acks: int = 0
        self._full: set[Observer] = set()
        self._held: list[int] = []

    def acknowledge(self, ack_id: int) -> None:
        """Acknowledge a message that was taken in, or keep its acknowledgement while a watch is full."""
        if self._full:
            self._held.append(ack_id)
        elif self.connection is not None:
            self.connection.acknowledge(ack_id)
            self.unflushed_acks += 1

    def flush(self) -> None:
        """Write what is queued."""
        self.unflushed = self.unflushed_acks = 0
        if self.connection is not None:
            self.connection.flush()

    def notify(self, observer: Observer, event: WatchEvent | StateStoreError) -> None:
        """Hand an event, or the error that ends the watch, to a watch's observer.

        From the event on that fills it nothing is acknowledged, that event's message included.
        """
        if not observer.push(event):
            self._full.add(observer)

    def caught_up(self, observer: Observer) -> None:
        """Acknowledge what waited for a watch that was full: it has room again, or has ended."""
        self._full.discard(observer)
        if self._full or not self._held:
            return
        held, self._held = self._held, []
        if self.connection is not None:
            for ack_id in held:
                self.connection.acknowledge(ack_id)
            self.unflushed += len(held)

    def reconnecting(self) -> None:
        """Drop what was held back: on the next connection the broker sends again what was not acknowledged. A watch
        that is full stays so.
        """
        self.connection = None
        self._held.clear()
