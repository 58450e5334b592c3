"""What the client machine asks its shell to do. The shell carries actions out in the order in which they come.

Invariant: an action never waits for another; a shell that fails to carry one out reports it as a ``Closed`` event.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import attrs

from statestore_client.errors import StateStoreError
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.hot_value import hot_value
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
    was down or the queue was full. This one is the latest state in any case. A DELETE with ``missed`` after a DELETE
    means that the key may have been created and deleted again meanwhile.
    """

    kind: EventKind
    key: bytes
    value: bytes | None
    version: HlcTimestamp | None
    missed: bool = False


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


@hot_value
class Publish:
    """Publish at QoS 1; later report ``Published`` with this id.

    ``again``: the id was published on an earlier connection of the session and not acknowledged there.
    """

    delivery_id: int
    message: OutgoingMessage
    again: bool = False


@hot_value
class Acknowledge:
    """The message was taken in; PUBACK it. Acknowledgements go out in the order of arrival (MQTT 5.0, 4.6)."""

    ack_id: int


@hot_value
class Resolve:
    """Hand ``result`` to the caller that waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here
    result: object


@hot_value
class Reject:
    """Raise ``error`` for the caller that waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here
    error: StateStoreError


@hot_value
class Notify:
    """Hand an event, or the error that ends the watch, to a watch's observer."""

    observer: Observer
    event: WatchEvent | StateStoreError


@attrs.frozen
class StateChanged:
    """The connection's state as users see it; ``error`` says why when it got worse.

    With CONNECTED, ``error`` is None or a SessionLostError: it is as good as before, but the broker began anew.
    """

    state: ConnectionState
    error: StateStoreError | None = None


Action: TypeAlias = (
    Open | Disconnect | Drop | Ping | Subscribe | Publish | Acknowledge | Resolve | Reject | Notify | StateChanged
)
