"""The arguments of the clients' methods, checked and turned into calls: one set of complaints for both shells."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

import attrs

from raft_client.core.calls import Append
from raft_client.core.selectors import Key, Prefix, Selector, Tree, Where
from raft_client.errors import BatchError, InvalidArgumentError, RaftError
from raft_client.wire.configuration import is_peer_url
from raft_client.wire.key_changes import Change, EntryCodec
from raft_client.wire.request_id import RequestId

#: What an entry holds: bytes; text is encoded as UTF-8.
Data: TypeAlias = bytes | str
#: A request id, its text (24 hexadecimal digits, or Base64) or its 12 bytes.
Id: TypeAlias = RequestId | str | bytes


class _Default(Enum):
    """A default that is neither a number nor None, and whose repr is the name that is written for it."""

    DEFAULT_TIMEOUT = "the setting request_timeout"

    def __repr__(self) -> str:
        return self.name


#: The setting ``request_timeout``, where None already means "for ever".
DEFAULT_TIMEOUT: Final = _Default.DEFAULT_TIMEOUT
#: Seconds, None for ever, or the setting ``request_timeout``.
Timeout: TypeAlias = float | Literal[_Default.DEFAULT_TIMEOUT] | None
#: Longer waits (30 years) mean "for ever"; waiting primitives have limits not far beyond.
_FOREVER_S: Final = 1e9
#: As of the setting ``broadcast_timeout``: peers of this package broadcast every 0.1 s, Node peers every 0.5 s.
_SHORTEST_SILENCE_S: Final = 0.1


@attrs.frozen
class AppendItem:
    """An item of ``append_many`` with a request id of its own: an id that was tried before, or one that was derived.

    ``new_id`` says that nobody used it before, as for ``append``.
    """

    data: Data
    request_id: Id | None = None
    new_id: bool = False


def check_timeout(timeout: float | None) -> float | None:
    """A time in seconds, or None for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgumentError(
            f"timeout must be a positive number of seconds or None, not {timeout!r}", argument="timeout"
        )
    return None if timeout >= _FOREVER_S else float(timeout)


def within(timeout: float) -> str:
    """How long a caller waited in vain, in words, rounded: it may be what was left of a longer time."""
    return f"within {round(timeout, 2 if timeout >= 1 else 4):g} s"


def check_wait(timeout: float | None) -> float | None:
    """How long a reader waits: seconds, 0 for a look, None for ever."""
    if timeout is None or (type(timeout) in (int, float) and 0 <= timeout < _FOREVER_S):
        return timeout
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout >= _FOREVER_S:
        return None
    raise InvalidArgumentError(
        f"timeout must be a number of seconds, not negative, or None, not {timeout!r}", argument="timeout"
    )


def check_silence(silence: float | None, default: float) -> float:
    """After how many seconds without a broadcast the leader is looked for; None: ``default``."""
    if silence is None:
        return default
    if isinstance(silence, bool) or not isinstance(silence, (int, float)) or not _SHORTEST_SILENCE_S <= silence <= 3600:
        raise InvalidArgumentError(
            f"silence must be a number of seconds from {_SHORTEST_SILENCE_S} to 3600, or None, not {silence!r}"
        )
    return float(silence)


def check_codec(codec: EntryCodec) -> EntryCodec:
    """Something that can read entries."""
    if isinstance(codec, type) or not callable(getattr(codec, "decode", None)):
        raise InvalidArgumentError(f"a codec is an object with a method decode(data), not {codec!r}")
    return codec


def check_callback(callback: object, *, may_await: bool) -> None:
    """A callable that takes an event. None without a callback."""
    if callback is None:
        return
    if not callable(callback):
        raise InvalidArgumentError(f"a callback is a function of one event, not {callback!r}")
    if not may_await and inspect.iscoroutinefunction(callback):
        raise InvalidArgumentError(
            "the blocking client cannot await a callback: give a function, or use the other client"
        )


def check_in_flight(in_flight: int, most: int) -> int:
    """How many requests of a batch may be under way at once."""
    if isinstance(in_flight, bool) or not isinstance(in_flight, int) or in_flight < 1:
        raise InvalidArgumentError(
            f"in_flight must be a number of requests, at least 1, not {in_flight!r}", argument="in_flight"
        )
    return min(in_flight, most)


def request_id_of(value: object) -> RequestId:
    """A request id in any of its forms."""
    if isinstance(value, RequestId):
        return value
    if isinstance(value, str):
        return RequestId.parse(value)
    if isinstance(value, (bytes, bytearray)):
        return RequestId(bytes(value))
    raise InvalidArgumentError(f"a request id is a RequestId, its text or its 12 bytes, not {type(value).__name__}")


def append_calls(
    items: Iterable[Data | AppendItem], ident: bytes, new_raw_id: Callable[[], bytes]
) -> Iterator[Append | RaftError]:
    """An append for each item. An item that cannot be one becomes its error."""
    if isinstance(items, (str, bytes, bytearray, memoryview)) or not isinstance(items, Iterable):
        # Text and bytes are iterable, too: append_many("pump") would silently append four entries.
        raise InvalidArgumentError(f"a batch must be an iterable of its items, not {type(items).__name__}")
    return _append_calls(items, ident, new_raw_id)


def _append_calls(
    items: Iterable[Data | AppendItem], ident: bytes, new_raw_id: Callable[[], bytes]
) -> Iterator[Append | RaftError]:
    for item in items:
        try:
            if isinstance(item, AppendItem):
                is_new = item.new_id or item.request_id is None
                chosen = new_raw_id() if item.request_id is None else request_id_of(item.request_id).raw
                yield Append(ident, item.data, chosen, has_new_id=is_new)
            else:
                yield Append(ident, item, new_raw_id(), has_new_id=True)
        except InvalidArgumentError as error:
            yield error


def raise_failures(outcomes: Sequence[Any]) -> None:
    """Raise :class:`BatchError` when any outcome is an exception."""
    failures = [(i, o) for i, o in enumerate(outcomes) if isinstance(o, Exception)]
    if failures:
        position, first = failures[0]
        raise BatchError(
            f"{len(failures)} of {len(outcomes)} items failed; the first is number {position}: {first}",
            results=tuple(outcomes),
        )


def peer_url(peer: str, peers: Mapping[str, str]) -> str:
    """The URL of a peer given by its id or its URL."""
    if not isinstance(peer, str):
        raise InvalidArgumentError(f"a peer is named by its id or its URL, not by {type(peer).__name__}")
    if "://" in peer:
        if not is_peer_url(peer):
            raise InvalidArgumentError(f"the URL of a peer is tcp://host:port or ipc:///path, not {peer!r}")
        return peer
    url = peers.get(peer)
    if url is None:
        raise InvalidArgumentError(f"there is no peer {peer!r}; the cluster has {', '.join(sorted(peers)) or 'none'}")
    return url


def selector_of(selector: Selector | Callable[[Change], bool] | None, prefix: Data | None) -> Selector:
    """What a watch wants: a selector, a condition, or the keys that start with a prefix; without all of these, all."""
    if selector is not None and prefix is not None:
        raise InvalidArgumentError("give a selector or a prefix, not both")
    condition = selector.predicate if isinstance(selector, Where) else selector
    if isinstance(condition, (Key, Prefix, Tree)):
        return condition
    if condition is not None:
        if not callable(condition) or inspect.iscoroutinefunction(condition):
            raise InvalidArgumentError(f"a selector is a Key, Prefix, Tree, Where or a function, not {selector!r}")
        return Where(condition)
    if isinstance(prefix, str):
        return Prefix(prefix.encode())
    return Prefix(b"" if prefix is None else prefix)
