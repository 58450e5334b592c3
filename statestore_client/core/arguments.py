"""The arguments of the clients' methods, checked and turned into commands: the same errors in both shells.

The callbacks and classes of errors that users give are checked here, too, and what a callback may not return.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs

from statestore_client.core.actions import PrefixTerms, WatchOptions
from statestore_client.core.event_queue import Overflow, WatchTerms
from statestore_client.core.locks import ElectionTerms, LockTerms
from statestore_client.core.request_table import MOST_BYTES, request_bytes
from statestore_client.core.results import SetResult, is_another_store
from statestore_client.errors import (
    BatchError,
    InvalidArgumentError,
    StateStoreError,
    StoreReplacedError,
    TimestampError,
)
from statestore_client.wire.commands import Command, Condition, Del, Get, Scan, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.protocol import notification_topic


def check_error_classes(what: str, classes: object) -> tuple[type[StateStoreError], ...]:
    """One class of errors, or a tuple of them, as ``except`` takes them. Raises :class:`InvalidArgumentError`."""
    found = classes if isinstance(classes, tuple) else (classes,)
    for each in found:
        if not isinstance(each, type) or not issubclass(each, StateStoreError):
            raise InvalidArgumentError(
                f"{what} must be a class of errors of this package, or a tuple of such classes, not {each!r}"
            )
    return found


def check_function(what: str, function: object, *, awaited: bool = False) -> None:
    """Raise :class:`InvalidArgumentError` for what cannot be called, and for coroutine functions unless ``awaited``."""
    if not callable(function):
        raise InvalidArgumentError(f"{what} must be a function, not {type(function).__name__}")
    if _makes(inspect.isasyncgenfunction, function):
        raise InvalidArgumentError(f"{what} is an asynchronous generator function; calling it would do nothing")
    if not awaited and _makes(inspect.iscoroutinefunction, function):
        raise InvalidArgumentError(
            f"{what} is a coroutine function, and nobody would await it here: pass a plain function"
        )


def refuse_awaitable(what: str, outcome: object) -> None:
    """Raise :class:`InvalidArgumentError` for an answer that should have been awaited: of a lambda, say."""
    if inspect.isawaitable(outcome):
        if inspect.iscoroutine(outcome):
            outcome.close()  # or Python warns that it was never awaited
        raise InvalidArgumentError(f"{what} returned {type(outcome).__name__!r}, which nobody awaits here")


def _makes(is_such: Callable[[object], bool], function: object) -> bool:
    """Whether a function is of a kind, under its partials, or as the ``__call__`` of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return bool(is_such(function) or is_such(getattr(type(function), "__call__", None)))  # noqa: B004 - not whether it has one


#: Keys and values are bytes; text is encoded as UTF-8.
Bytes: TypeAlias = bytes | str


class DefaultTimeout(Enum):
    """The type of :data:`DEFAULT_TIMEOUT`."""

    DEFAULT_TIMEOUT = "the setting request_timeout"

    def __repr__(self) -> str:
        return "DEFAULT_TIMEOUT"


#: The setting ``request_timeout``. It stands where None already means "for ever".
DEFAULT_TIMEOUT: Final = DefaultTimeout.DEFAULT_TIMEOUT
#: Of a watch on a prefix: seconds between listings of its keys, and this many keys at most.
DEFAULT_RESCAN_S: Final = 10.0
DEFAULT_MAX_KEYS: Final = 1000
Timeout: TypeAlias = float | DefaultTimeout | None
ConditionName: TypeAlias = Literal["NX", "NEX"]
Token: TypeAlias = HlcTimestamp | str


@attrs.frozen
class SetItem:
    """An item of ``set_many`` with an expiry (seconds), a fencing token or a ``persist`` of its own."""

    key: Bytes
    value: Bytes
    expiry: float | None = None
    fencing_token: Token | None = None
    persist: bool | None = None


@attrs.frozen
class FencedCommand:
    """A command of a batch that carries its own fencing token instead of the batch's."""

    command: Command
    token: HlcTimestamp


#: Of keys to values.
_Values: TypeAlias = Mapping[str, Bytes] | Mapping[bytes, Bytes] | Mapping[Bytes, Bytes]
#: What ``vdelete_many`` and ``set_many`` take.
Pairs: TypeAlias = Iterable[tuple[Bytes, Bytes]] | _Values
SetItems: TypeAlias = Iterable[tuple[Bytes, Bytes] | SetItem] | _Values
#: What a batch sends. An error stands for an item that could not be made into a command.
BatchCommands: TypeAlias = Iterator[Command | FencedCommand | StateStoreError]
_T = TypeVar("_T")

#: Seconds. Beyond this, milliseconds lose precision in a float.
MAX_EXPIRY_S: Final = 2**53 // 1000
_MAX_VALUE: Final = 268_000_000  # an MQTT packet holds 268,435,455 bytes (MQTT 5.0, 2.1.4)
_MAX_TOPIC: Final = 65_535  # bytes of an MQTT string (MQTT 5.0, 1.5.4)
#: Longer waits (30 years) mean "for ever"; waiting primitives have limits not far beyond.
_FOREVER_S: Final = 1e9


def key_bytes(key: Bytes, name: str = "key") -> bytes:
    """The key as bytes. Keys have at least one byte (state store protocol, "the key length is zero")."""
    data = _to_bytes(key, name)
    if not data:
        raise InvalidArgumentError(f"the {name} is empty; keys have at least one byte")
    return data


def value_bytes(value: Bytes) -> bytes:
    """The value as bytes; it may be empty."""
    data = _to_bytes(value, "value")
    if len(data) > _MAX_VALUE:
        raise InvalidArgumentError(f"the value has {len(data)} bytes; one MQTT packet holds {_MAX_VALUE}")
    return data


#: Objects that people pass in place of the token that they hold. Core knows the shells' classes by name.
_HOLDERS: Final = frozenset({"AsyncLease", "AsyncLock", "Lease", "Lock"})


def token_of(token: object) -> HlcTimestamp | None:
    """A token given as a timestamp or as its text."""
    if token is None or isinstance(token, HlcTimestamp):
        return token
    if not isinstance(token, str):
        kind = type(token).__name__
        hint = "; pass lease.fencing_token" if kind in _HOLDERS else ""
        raise InvalidArgumentError(
            f"fencing_token must be a timestamp or its text, not {kind}{hint}", argument="fencing_token"
        )
    try:
        return HlcTimestamp.parse(token)
    except TimestampError as error:
        raise InvalidArgumentError(f"fencing_token: {error}", argument="fencing_token") from None


def check_kind(what: str, value: object, kind: type) -> None:
    """Raise InvalidArgumentError for an object of another kind: a lock in place of its lease, say."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(f"{what} a {kind.__name__.removeprefix('Async')}, not {type(value).__name__}")


def check_timeout(timeout: float | None, name: str = "timeout", *, otherwise: str = "") -> float | None:
    """A time in seconds, or None for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgumentError(
            f"{name} must be a positive number of seconds{otherwise} or None, not {timeout!r}", argument=name
        )
    return None if timeout >= _FOREVER_S else float(timeout)


def check_wait(timeout: float | None) -> float | None:
    """A time to wait for a lock or an event: as :func:`check_timeout`, or 0, which tries once."""
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout == 0:
        return 0.0
    return check_timeout(timeout, otherwise=", 0 to try once,")


def _expiry_ms(expiry: float | None) -> int | None:
    """An expiry in seconds as the milliseconds of the protocol."""
    if expiry is None:
        return None
    if isinstance(expiry, bool) or not isinstance(expiry, (int, float)) or not 0.001 <= expiry <= MAX_EXPIRY_S:
        raise InvalidArgumentError(
            f"expiry must be seconds, from 0.001 to {MAX_EXPIRY_S}, not {expiry!r}", argument="expiry"
        )
    return round(expiry * 1000)


def watched_key(key: Bytes, client_id: str) -> bytes:
    """A key that can be watched: its hexadecimal form is part of the topic of its notifications."""
    data = key_bytes(key)
    if len(topic := notification_topic(client_id, data)) > _MAX_TOPIC:
        longest = len(data) - (len(topic) - _MAX_TOPIC + 1) // 2
        raise InvalidArgumentError(f"a key of {len(data)} bytes cannot be watched; at most {longest} fit into a topic")
    return data


def watched_prefix(prefix: Bytes) -> bytes:
    """A prefix that SCAN can list; an empty one stands for all keys."""
    data = _to_bytes(prefix, "prefix")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"the prefix is not UTF-8, and only such keys can be listed: {error}") from None
    return data


def prefix_terms(rescan: float | None, max_keys: int) -> PrefixTerms:
    """How a watch on a prefix finds its keys."""
    if isinstance(max_keys, bool) or not isinstance(max_keys, int) or max_keys < 1:
        raise InvalidArgumentError(
            f"max_keys must be a number of keys, at least 1, not {max_keys!r}", argument="max_keys"
        )
    return PrefixTerms(check_timeout(rescan, "rescan"), max_keys)


def watch_terms(key: Bytes, client_id: str, options: WatchOptions, max_queued: int, overflow: Overflow) -> WatchTerms:
    """A watch on a key."""
    _check_queue(max_queued, overflow)
    return WatchTerms(watched_key(key, client_id), options, max_queued, overflow)


def prefix_watch_terms(
    prefix: Bytes, options: WatchOptions, max_queued: int, max_keys: int, overflow: Overflow
) -> WatchTerms:
    """A watch on a prefix. Beside ``max_queued`` events, one of each key may wait for the reader."""
    _check_queue(max_queued, overflow)
    return WatchTerms(watched_prefix(prefix), options, max_queued + max_keys, overflow)


def _check_queue(max_queued: int, overflow: str) -> None:
    """The bounds of a watch's queue."""
    if isinstance(max_queued, bool) or not isinstance(max_queued, int) or max_queued < 1:
        raise InvalidArgumentError(f"max_queued must be a number of events, at least 1, not {max_queued!r}")
    if overflow not in ("latest", "error", "block"):
        raise InvalidArgumentError(f"overflow must be 'latest', 'error' or 'block', not {overflow!r}")


def lock_terms(
    name: Bytes, client_id: str, holder: Bytes | None, unique: bytes, lease: float, persist: bool
) -> LockTerms:
    """A lock. ``unique`` is the holder, if the caller names none."""
    key = watched_key(key_bytes(name, "lock's name"), client_id)
    who = unique if holder is None else key_bytes(holder, "holder")
    return LockTerms(key, who, lease, check_flag("persist", persist))


def election_terms(
    name: Bytes, client_id: str, candidate: Bytes | None, unique: bytes, term: float, persist: bool
) -> ElectionTerms:
    """An election. ``unique`` is the candidate, if the caller names none."""
    key = watched_key(key_bytes(name, "election's name"), client_id)
    who = unique if candidate is None else key_bytes(candidate, "candidate")
    return ElectionTerms(key, who, term, check_flag("persist", persist))


def set_command(
    key: Bytes,
    value: Bytes,
    condition: ConditionName | None,
    expiry: float | None,
    expected: Bytes | None = None,
    persist: bool = False,
) -> Set:
    """``expiry`` is in seconds, at least a millisecond; ``expected`` is what NEX compares with.

    An ``expected`` that is the value itself is not sent: every server understands NEX without a value, and it says
    the same.
    """
    is_plain = condition is None and expected is None and expiry is None and persist is False
    if is_plain and type(key) is bytes and key and type(value) is bytes and len(value) <= _MAX_VALUE:
        return Set(key, value)  # as nearly always
    if condition not in (None, "NX", "NEX"):
        raise InvalidArgumentError(f"condition must be 'NX', 'NEX' or None, not {condition!r}")
    if expected is not None and condition != "NEX":
        raise InvalidArgumentError(f"expected is what condition='NEX' compares with; condition is {condition!r}")
    name, data = key_bytes(key), value_bytes(value)
    wanted = None if expected is None else _to_bytes(expected, "expected value")
    when = Condition(condition) if condition else None
    return Set(name, data, when, _expiry_ms(expiry), None if wanted == data else wanted, check_flag("persist", persist))


def check_flag(name: str, value: object) -> bool:
    """True or False; a text such as ``"false"`` would be true."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be True or False, not {value!r}", argument=name)
    return value


def get_command(key: Bytes) -> Get:
    return Get(key_bytes(key))


def delete_command(key: Bytes) -> Del:
    return Del(key_bytes(key))


def vdelete_command(key: Bytes, value: Bytes) -> VDel:
    return VDel(key_bytes(key), value_bytes(value))


def scan_command(pattern: Bytes, token: bytes | None) -> Scan:
    return Scan(key_bytes(pattern, "pattern"), token)


# -- batches: what is wrong with all items is raised at once; an item that cannot be used becomes its error ------------


def set_commands(items: SetItems, expiry: float | None, persist: bool = False) -> BatchCommands:
    """A SET for each item; what an item leaves open is the batch's."""
    expires_ms = _expiry_ms(expiry)
    check_flag("persist", persist)

    def make(item: SetItem | tuple[Bytes, Bytes]) -> Set | FencedCommand:
        if not isinstance(item, SetItem):
            key, value = _pair(item)
            return Set(key_bytes(key), value_bytes(value), None, expires_ms, None, persist)
        own_ms = expires_ms if item.expiry is None else _expiry_ms(item.expiry)
        own = persist if item.persist is None else check_flag("persist", item.persist)
        command = Set(key_bytes(item.key), value_bytes(item.value), None, own_ms, None, own)
        token = token_of(item.fencing_token)
        return command if token is None else FencedCommand(command, token)

    return _batch(make, check_pairs(items))


def get_commands(keys: Iterable[Bytes]) -> BatchCommands:
    return _batch(get_command, check_batch(keys))


def delete_commands(keys: Iterable[Bytes]) -> BatchCommands:
    return _batch(delete_command, check_batch(keys))


def vdelete_commands(pairs: Pairs) -> BatchCommands:
    return _batch(lambda pair: vdelete_command(*_pair(pair)), check_pairs(pairs))


def check_batch(items: Iterable[_T]) -> Iterable[_T]:
    """Text and bytes are iterable, too: ``get_many("pump")`` would silently read four keys."""
    if isinstance(items, (str, bytes, bytearray, memoryview)) or not isinstance(items, Iterable):
        raise InvalidArgumentError(f"a batch must be an iterable of its items, not {type(items).__name__}")
    return items


def check_pairs(items: Any) -> Iterable[Any]:
    """The items of a mapping, or what is an iterable of pairs already."""
    return check_batch(items.items() if isinstance(items, Mapping) else items)


def _pair(item: object) -> tuple[Any, Any]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise InvalidArgumentError(f"an item must be a pair of key and value, not {type(item).__name__}")
    return item[0], item[1]


def _batch(make: Callable[[_T], Command | FencedCommand], items: Iterable[_T]) -> BatchCommands:
    for item in items:
        try:
            yield make(item)
        except InvalidArgumentError as error:
            yield error


def next_commands(
    commands: Iterator[Command | FencedCommand | StateStoreError], count: int
) -> list[Command | FencedCommand | StateStoreError]:
    """The next commands of a batch: so many, or as many as fill the window with their values."""
    chunk: list[Command | FencedCommand | StateStoreError] = []
    size = 0
    for command in islice(commands, count):
        chunk.append(command)
        size += request_bytes(command.command if isinstance(command, FencedCommand) else command)
        if size >= MOST_BYTES:
            break
    return chunk


def raise_failures(outcomes: list[object], store_id: str | None = None) -> None:
    """Raise :class:`BatchError` when any outcome is an exception.

    ``store_id``: of the store that answered last. What another one has written is missing there, and counts as failed.
    """
    if store_id is not None:
        for position, outcome in enumerate(outcomes):
            if type(outcome) is SetResult and outcome.applied and is_another_store(outcome.store_id, store_id):
                outcomes[position] = StoreReplacedError(
                    "it was written, and then the server began anew with an empty store: it is not there any more"
                )
    failures = [(i, o) for i, o in enumerate(outcomes) if isinstance(o, Exception)]
    if failures:
        position, first = failures[0]
        raise BatchError(
            f"{len(failures)} of {len(outcomes)} items failed; the first is number {position}: {first}",
            results=tuple(outcomes),
        )


def _to_bytes(data: object, name: str) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"the {name} is not valid text: {error}") from None
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise InvalidArgumentError(f"the {name} must be bytes or text, not {type(data).__name__}")
