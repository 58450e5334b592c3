"""What entries mean: a key/value format to use as it is, and the protocol for formats of your own.

::

    client.append(KeyValueCodec.set(b"servers/1", b"up"))
    for event in client.watch(prefix=b"servers/"): ...

One entry holds one transaction, so its changes are seen together or not at all. The data is MessagePack::

    ["kv", [1, key, value], [0, key], ...]         1 sets a key, 0 deletes one; keys and values are bin

A transaction may compare first. It is done only if each key has the value that is expected, nil meaning no such key::

    ["kv", [2, key, expected], ..., [1, key, value], ...]

After ``[3]`` stands what is done instead if one of them has another value::

    ["kv", [2, key, expected], ..., [1, key, value], ..., [3], [1, key, value], ...]

Whether it was done depends on what the keys were. The state machine of our peers knows
(:class:`~raft_client.server.machines.key_value.KeyValueStateMachine`); a watch that reads the log cannot, and says so.

A snapshot of the keyspace is a sequence of such values, one after the other, each of them some keys that are set::

    ["kv", [1, key, value], ...] ["kv", [1, key, value], ...] ...

Entries about leases, and what a snapshot says of them, stand in :mod:`raft_client.wire.leases`.

Entries that are not an array, or whose first item is not ``"kv"``, belong to somebody else and are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import attrs
import msgpack

from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.leases import (
    LEASE_KINDS,
    GrantLease,
    HeldLease,
    KeepLease,
    LeasedKey,
    LeaseOperation,
    in_snapshot,
    lease_of,
    lease_operation_of,
    snapshot_operations,
    with_lease,
)
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES

_TAG: Final = "kv"
#: The tag as MessagePack has it, after the header of the array.
_TAG_BYTES: Final = b"\xa2kv"
_DELETE: Final = 0
_SET: Final = 1
_COMPARE: Final = 2
_OTHERWISE: Final = 3
_FIXARRAY: Final = range(0x90, 0xA0)
_ARRAY16: Final = 0xDC
_ARRAY32: Final = 0xDD
#: Changes in one piece of a snapshot. Pieces stay far below the limits of readers.
_SNAPSHOT_PIECE: Final = 256
_MAX_SNAPSHOT_PIECE_BYTES: Final = 2**31 - 1
_NIL: Final = b"\xc0"


@attrs.frozen
class Compare:
    """A transaction is done only if ``key`` has this value; None: only if there is no such key."""

    key: bytes
    expected: bytes | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Transaction:
    """What one entry holds: if all of ``compares`` are true, all of ``changes`` are made, in their order.

    Else all of ``otherwise`` are. What it sets belongs to ``lease``, if it has one; if that has ended, nothing is done.
    """

    compares: tuple[Compare, ...]
    changes: tuple[Change, ...]
    otherwise: tuple[Change, ...] = ()
    lease: bytes | None = None

    @property
    def has_outcome(self) -> bool:
        """Whether what becomes of it depends on what there is: it compares, deletes, or has a lease."""
        return bool(self.compares) or self.lease is not None or any(change.value is None for change in self.changes)


_Value: TypeAlias = bytes | str | None
#: A mapping takes keys of one type: one with keys of text is none with keys of text or bytes to a type checker.
_ByKey: TypeAlias = Mapping[bytes, _Value] | Mapping[str, _Value] | Mapping[bytes | str, _Value]
#: What a transaction does: changes, or key -> value, where None deletes the key.
Changes: TypeAlias = _ByKey | Iterable[Change]
#: What a transaction compares: comparisons, or key -> value, where None stands for no such key.
Compares: TypeAlias = _ByKey | Iterable[Compare]


def transaction_of(compare: Compares, then: Changes, otherwise: Changes) -> Transaction:
    """A transaction in the forms that users give. Raises InvalidArgumentError and InvalidDataError."""
    return Transaction(_compares_of(compare), _changes_of(then), _changes_of(otherwise))


def _compares_of(compares: Compares) -> tuple[Compare, ...]:
    if isinstance(compares, Mapping):
        return tuple(
            Compare(_to_bytes(key), None if value is None else _to_bytes(value)) for key, value in compares.items()
        )
    return _all_of(compares, Compare)


def _changes_of(changes: Changes) -> tuple[Change, ...]:
    if isinstance(changes, Mapping):
        return tuple(
            Change(ChangeKind.DELETE, _to_bytes(key))
            if value is None
            else Change(ChangeKind.SET, _to_bytes(key), _to_bytes(value))
            for key, value in changes.items()
        )
    return _all_of(changes, Change)


_T = TypeVar("_T")


def _all_of(values: object, kind: type[_T]) -> tuple[_T, ...]:
    found = tuple(values) if isinstance(values, Iterable) and not isinstance(values, (str, bytes)) else (values,)
    if wrong := [each for each in found if not isinstance(each, kind)]:
        raise InvalidArgumentError(
            f"a part of a transaction is a mapping, or an iterable of {kind.__name__}, not {wrong[0]!r}"
        )
    return found


class KeyValueCodec:
    """Keys and values as bytes; ``str`` is taken as UTF-8. Stateless: one instance serves every watch."""

    __slots__ = ()

    # -- writing -------------------------------------------------------------------------------------------------------

    @classmethod
    def set(cls, key: bytes | str, value: bytes | str) -> bytes:
        """The data of an entry that sets one key. Raises InvalidDataError when it is too long for an entry."""
        return cls.encode((Change(ChangeKind.SET, _to_bytes(key), _to_bytes(value)),))

    @classmethod
    def delete(cls, key: bytes | str) -> bytes:
        """The data of an entry that deletes one key. Deleting a key that does not exist changes nothing."""
        return cls.encode((Change(ChangeKind.DELETE, _to_bytes(key)),))

    @classmethod
    def compare_and_set(cls, key: bytes | str, expected: bytes | str | None, value: bytes | str | None) -> bytes:
        """The data of an entry that sets a key if it has the value ``expected``.

        None stands for no such key: as ``expected`` it must not exist, as ``value`` it is deleted. Only the state
        machine of our peers knows whether it was done; ask it with ``kv.done`` and the index of the entry.
        """
        name = _to_bytes(key)
        change = Change(ChangeKind.DELETE, name) if value is None else Change(ChangeKind.SET, name, _to_bytes(value))
        return cls.encode((change,), (Compare(name, None if expected is None else _to_bytes(expected)),))

    @classmethod
    def encode(
        cls,
        changes: Iterable[Change],
        compares: Iterable[Compare] = (),
        otherwise: Iterable[Change] = (),
        *,
        lease: bytes | None = None,
    ) -> bytes:
        """The data of an entry that makes these changes, in this order, as one, if all of ``compares`` are true.

        If they are not, it makes those of ``otherwise``. With the id of a ``lease``, what it sets belongs to that.
        Raises InvalidDataError when there is none, when one has no key, when nothing is compared and there is an
        ``otherwise``, or when they are too long for an entry.
        """
        data = _pack(changes, compares, otherwise, lease)
        if len(data) > MAX_ENTRY_DATA_BYTES:
            raise InvalidDataError(f"the changes take {len(data)} bytes; an entry holds {MAX_ENTRY_DATA_BYTES}")
        return data

    @classmethod
    def encode_lease(cls, operation: LeaseOperation) -> bytes:
        """The data of an entry that says this of a lease."""
        packed: bytes = msgpack.packb([_TAG, operation.operation()])
        return packed

    @classmethod
    def encode_snapshot(
        cls, items: Iterable[tuple[bytes, bytes]], leases: Iterable[HeldLease | LeasedKey] = ()
    ) -> Iterator[bytes]:
        """The pieces of a snapshot of these keys and values; the whole is their concatenation."""
        piece: list[Change] = []
        for key, value in items:
            piece.append(Change(ChangeKind.SET, key, value))
            if len(piece) == _SNAPSHOT_PIECE:
                yield _pack(piece)
                piece.clear()
        if piece:
            yield _pack(piece)
        operations = snapshot_operations(leases)
        while of_leases := list(islice(operations, _SNAPSHOT_PIECE)):
            yield msgpack.packb([_TAG, *of_leases])

    # -- reading -------------------------------------------------------------------------------------------------------

    def decode(self, data: bytes) -> Sequence[Change]:
        """The changes in an entry; none when it is of another format.

        Raises ProtocolError when it is broken, compares, or has or ends a lease: nobody knows from the entry alone
        what was done.
        """
        if not _is_tagged(data):
            return ()
        operations = _unpack(data)
        try:
            return _changes(operations)
        except _DependsError:
            if isinstance(_depending(operations), GrantLease | KeepLease):
                return ()
            raise ProtocolError(
                "a key/value entry that compares, or has or ends a lease: what was done is known to the state machine "
                "of the peers only"
            ) from None

    def decode_transaction(self, data: bytes) -> Transaction | None:
        """What an entry changes; None when it is of another format, or says something of a lease alone.

        Raises ProtocolError when it is broken.
        """
        operation = self.decode_operation(data)
        return operation if isinstance(operation, Transaction) else None

    def decode_operation(self, data: bytes) -> Transaction | LeaseOperation | None:
        """What an entry says; None when it is of another format. Raises ProtocolError when it is broken."""
        if not _is_tagged(data):
            return None
        operations = _unpack(data)
        try:
            return Transaction((), _changes(operations))
        except _DependsError:
            return _depending(operations)

    def decode_snapshot(self, chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values of a snapshot that arrives in chunks of any size. Raises ProtocolError.

        At most one piece is held at a time. What it says of leases is left out.
        """
        return (each for each in self.decode_whole_snapshot(chunks) if isinstance(each, tuple))

    def decode_whole_snapshot(self, chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes] | HeldLease | LeasedKey]:
        """As :meth:`decode_snapshot`, with the leases, which come after the keys."""
        unpacker = msgpack.Unpacker(max_buffer_size=_MAX_SNAPSHOT_PIECE_BYTES)
        for chunk in chunks:
            unpacker.feed(chunk)
            yield from _snapshot_items(unpacker)
        unpacker.feed(_NIL)  # within a piece it would become part of it
        if next(unpacker, ()) is not None:
            raise ProtocolError("a key/value snapshot that ends within a piece")


class _DependsError(ProtocolError):
    """Where a change is due there is a comparison, or something about a lease."""


def _pack(
    changes: Iterable[Change],
    compares: Iterable[Compare] = (),
    otherwise: Iterable[Change] = (),
    lease: bytes | None = None,
) -> bytes:
    operations: list[list[int] | list[int | bytes]] = [*map(_operation, changes)]
    comparisons = list(map(_comparison, compares))
    if others := list(map(_operation, otherwise)):
        if not comparisons:
            raise InvalidDataError("an entry that compares nothing does nothing otherwise")
        operations += [[_OTHERWISE], *others]
    if not operations:
        raise InvalidDataError("an entry without changes")
    before = [] if lease is None else [with_lease(lease)]
    packed: bytes = msgpack.packb([_TAG, *before, *comparisons, *operations])
    return packed


def _unpack(data: bytes) -> list[Any]:
    """The array of an entry that is tagged."""
    try:
        items: list[Any] = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a key/value entry that is not MessagePack: {type(error).__name__}") from None
    return items


def _comparison(compare: Compare) -> list[int | bytes | None]:
    if not isinstance(compare.key, bytes) or not compare.key:
        raise InvalidDataError("a key is bytes, and not empty")
    if compare.expected is not None and not isinstance(compare.expected, bytes):
        raise InvalidDataError("the value that is expected is bytes, or None")
    return [_COMPARE, compare.key, compare.expected]


def _operation(change: Change) -> list[int | bytes]:
    if not isinstance(change.key, bytes) or not change.key:
        raise InvalidDataError("a key is bytes, and not empty")
    if change.kind is ChangeKind.DELETE:
        return [_DELETE, change.key]
    if not isinstance(change.value, bytes):
        raise InvalidDataError("the value of a key that is set is bytes")
    return [_SET, change.key, change.value]


def _is_tagged(data: bytes) -> bool:
    """Whether it starts like an entry of this codec; cheaper than unpacking what is not."""
    if not data:
        return False
    start = 1 if data[0] in _FIXARRAY else 3 if data[0] == _ARRAY16 else 5 if data[0] == _ARRAY32 else 0
    return start > 0 and data.startswith(_TAG_BYTES, start)


def _changes(value: object) -> tuple[Change, ...]:
    if not isinstance(value, list) or not value or value[0] != _TAG:
        raise ProtocolError("a piece of a key/value snapshot of another format")
    return tuple(map(_change, value[1:]))


def _change(operation: object) -> Change:
    # Plain comparisons: a match statement takes three times as long, and this is done for every change of every entry.
    if isinstance(operation, list) and len(operation) > 1 and type(operation[1]) is bytes and operation[1]:
        if operation[0] == _SET and len(operation) == 3 and type(operation[2]) is bytes:
            return Change(ChangeKind.SET, operation[1], operation[2])
        if operation[0] == _DELETE and len(operation) == 2:
            return Change(ChangeKind.DELETE, operation[1])
        if (type(operation[0]) is int and operation[0] in LEASE_KINDS) or _is_comparison(operation):
            raise _DependsError("a key/value entry with a comparison or a lease after a change")
    raise ProtocolError("a key/value entry with an unknown change")


def _is_comparison(operation: object) -> bool:
    match operation:
        case [2, bytes() as key, None | bytes()]:
            return bool(key)
    return False


def _depending(operations: list[Any]) -> Transaction | LeaseOperation:
    """What an entry says that depends on what there is."""
    operation = lease_operation_of(operations)
    if operation is not None:
        return operation
    lease = lease_of(operations)
    if lease is None:
        return _conditional(operations)
    rest = [_TAG, *operations[2:]]
    try:
        transaction = Transaction((), _changes(rest))
    except _DependsError:
        transaction = _conditional(rest)
    if not transaction.changes:
        raise ProtocolError("a key/value entry with a lease that changes nothing")
    return attrs.evolve(transaction, lease=lease)


def _conditional(operations: list[Any]) -> Transaction:
    """Comparisons, then changes, after the tag, and what is done otherwise."""
    count = next((n for n, operation in enumerate(operations[1:]) if not _is_comparison(operation)), None)
    if count is None:
        raise ProtocolError("a key/value entry that compares and changes nothing")
    compares = tuple(Compare(key, expected) for _kind, key, expected in operations[1 : 1 + count])
    changes = operations[1 + count :]
    if [_OTHERWISE] not in changes:
        return Transaction(compares, _changes([_TAG, *changes]))
    place = changes.index([_OTHERWISE])
    if place + 1 == len(changes):
        raise ProtocolError("a key/value entry that does nothing otherwise")
    return Transaction(compares, _changes([_TAG, *changes[:place]]), _changes([_TAG, *changes[place + 1 :]]))


def _snapshot_items(unpacker: msgpack.Unpacker) -> Iterator[tuple[bytes, bytes] | HeldLease | LeasedKey]:
    while True:
        try:
            piece = next(unpacker)
        except StopIteration:
            return
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProtocolError(f"a key/value snapshot that is not MessagePack: {type(error).__name__}") from None
        try:
            changes = _changes(piece)
        except _DependsError:
            yield from in_snapshot(piece)
            continue
        for change in changes:
            if change.value is None:
                raise ProtocolError("a key/value snapshot that deletes a key")
            yield change.key, change.value


def _to_bytes(text: bytes | str) -> bytes:
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise InvalidDataError("a text that cannot be encoded as UTF-8") from None
    raise InvalidArgumentError(f"keys and values are bytes or text, not {type(text).__name__}")
