"""The arguments of the clients' methods, checked and turned into commands: one set of complaints for both shells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from statestore_client.errors import BatchError, InvalidArgumentError, StateStoreError, TimestampError
from statestore_client.wire.commands import Command, Condition, Del, Get, Scan, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp

__all__ = [
    "Bytes",
    "ConditionName",
    "FencedCommand",
    "SetItem",
    "Token",
    "batch_commands",
    "check_timeout",
    "delete_command",
    "fencing_token",
    "get_command",
    "key_bytes",
    "raise_failures",
    "scan_command",
    "set_command",
    "set_item_command",
    "value_bytes",
    "vdelete_command",
]

#: Keys and values are bytes; text is encoded as UTF-8.
Bytes: TypeAlias = bytes | str
ConditionName: TypeAlias = Literal["NX", "NEX"]
Token: TypeAlias = HlcTimestamp | str


@attrs.frozen
class SetItem:
    """An item of ``set_many`` with an expiry (seconds) or a fencing token of its own."""

    key: Bytes
    value: Bytes
    expiry: float | None = None
    fencing_token: Token | None = None


@attrs.frozen
class FencedCommand:
    """A command of a batch that carries its own fencing token instead of the batch's."""

    command: Command
    token: HlcTimestamp


_MAX_EXPIRY_S: Final = 2**53 / 1000  # beyond this, milliseconds lose precision in a float
_MAX_VALUE: Final = 268_000_000  # an MQTT packet holds 268,435,455 bytes (MQTT 5.0, 2.1.4)


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


def fencing_token(token: object) -> HlcTimestamp | None:
    """A token given as a timestamp or as its text."""
    if token is None or isinstance(token, HlcTimestamp):
        return token
    if not isinstance(token, str):
        raise InvalidArgumentError(f"fencing_token must be a timestamp or its text, not {type(token).__name__}")
    try:
        return HlcTimestamp.parse(token)
    except TimestampError as error:
        raise InvalidArgumentError(f"fencing_token: {error}") from None


def check_timeout(timeout: float | None) -> float | None:
    """A time in seconds, or None for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgumentError(f"timeout must be a positive number of seconds or None, not {timeout!r}")
    return None if timeout == math.inf else float(timeout)


def set_command(key: Bytes, value: Bytes, condition: ConditionName | None, expiry: float | None) -> Set:
    """``expiry`` is in seconds, at least a millisecond."""
    if condition not in (None, "NX", "NEX"):
        raise InvalidArgumentError(f"condition must be 'NX', 'NEX' or None, not {condition!r}")
    expiry_ms = None
    if expiry is not None:
        if isinstance(expiry, bool) or not isinstance(expiry, (int, float)) or not 0.001 <= expiry <= _MAX_EXPIRY_S:
            raise InvalidArgumentError(f"expiry must be seconds, at least 0.001, or None; not {expiry!r}")
        expiry_ms = round(expiry * 1000)
    return Set(key_bytes(key), value_bytes(value), Condition(condition) if condition else None, expiry_ms)


def set_item_command(item: SetItem | tuple[Bytes, Bytes], expiry: float | None) -> Set | FencedCommand:
    """The SET of one item of a batch; what the item leaves open is the batch's."""
    if not isinstance(item, SetItem):
        return set_command(item[0], item[1], None, expiry)
    command = set_command(item.key, item.value, None, expiry if item.expiry is None else item.expiry)
    token = fencing_token(item.fencing_token)
    return command if token is None else FencedCommand(command, token)


def get_command(key: Bytes) -> Get:
    return Get(key_bytes(key))


def delete_command(key: Bytes) -> Del:
    return Del(key_bytes(key))


def vdelete_command(key: Bytes, value: Bytes) -> VDel:
    return VDel(key_bytes(key), value_bytes(value))


def scan_command(pattern: Bytes, token: bytes | None) -> Scan:
    return Scan(key_bytes(pattern, "pattern"), token)


def batch_commands(
    make: Callable[..., Command | FencedCommand], items: Iterable[Any]
) -> Iterator[Command | FencedCommand | StateStoreError]:
    """The commands for the items of a batch; an item that cannot be used becomes its error, and the others go on."""
    for item in items:
        try:
            yield make(item)
        except InvalidArgumentError as error:
            yield error


def raise_failures(outcomes: Sequence[object]) -> None:
    """Raise :class:`BatchError` when any outcome is an exception."""
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
            raise InvalidArgumentError(f"the {name} is no valid text: {error}") from None
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise InvalidArgumentError(f"the {name} must be bytes or text, not {type(data).__name__}")
