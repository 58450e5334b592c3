"""Leases of keys as entries and snapshots say them: MessagePack of :class:`~raft_client.KeyValueCodec` <-> values.

An entry that says something of a lease says nothing else::

    ["kv", [4, lease, ttl in ms]]      the lease begins
    ["kv", [5, lease]]                 it goes on
    ["kv", [6, lease, seen]]           it ends, with its keys, unless it went on after the entry with the index ``seen``
    ["kv", [6, lease, nil]]            it ends, with its keys

What a transaction sets after ``[7, lease]`` belongs to that lease; without such a lease nothing is done::

    ["kv", [7, lease], [2, key, expected], ..., [1, key, value], ...]

The pieces of a snapshot that come after the keys have the leases, each before its keys::

    ["kv", [4, lease, ttl in ms, index of the last entry with which it went on], [7, lease, key], ...]

The name of a lease is the request id of the entry with which it begins: no other lease has it, and a log takes that
entry once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from raft_client.errors import ProtocolError
from raft_client.wire.request_id import REQUEST_ID_BYTES

#: How long a lease may last without a word from its owner. Nothing shorter survives the election of a leader.
LEAST_TTL_MS: Final = 1_000
MOST_TTL_MS: Final = 24 * 60 * 60 * 1_000
#: Of a cluster, of one lease, and of all leases together. One entry ends a lease with all of its keys, and a snapshot
#: copies who has which key. All peers must agree about these: they are a part of the format.
MOST_LEASES: Final = 10_000
MOST_KEYS_OF_A_LEASE: Final = 1_000
MOST_LEASED_KEYS: Final = 100_000

_GRANT: Final = 4
_KEEP: Final = 5
_END: Final = 6
_WITH: Final = 7
LEASE_KINDS: Final = frozenset({_GRANT, _KEEP, _END, _WITH})


@attrs.frozen
class GrantLease:
    """The lease begins."""

    lease: bytes
    ttl_ms: int

    def operation(self) -> list[Any]:
        """What the entry has after its tag."""
        return [_GRANT, self.lease, self.ttl_ms]


@attrs.frozen
class KeepLease:
    """The lease goes on, if it has not ended."""

    lease: bytes

    def operation(self) -> list[Any]:
        """What the entry has after its tag."""
        return [_KEEP, self.lease]


@attrs.frozen
class EndLease:
    """The lease ends, unless an entry after ``seen`` has let it go on. None: whatever was said before."""

    lease: bytes
    seen: int | None = None

    def operation(self) -> list[Any]:
        """What the entry has after its tag."""
        return [_END, self.lease, self.seen]


LeaseOperation: TypeAlias = GrantLease | KeepLease | EndLease


@attrs.frozen
class HeldLease:
    """A lease in a snapshot; ``kept_at`` is the index of the last entry with which it went on, or began."""

    lease: bytes
    ttl_ms: int
    kept_at: int


@attrs.frozen
class LeasedKey:
    """A key of a lease in a snapshot."""

    lease: bytes
    key: bytes


def with_lease(lease: bytes) -> list[Any]:
    """What stands before the rest of a transaction."""
    return [_WITH, lease]


def lease_of(operations: list[Any]) -> bytes | None:
    """The lease of a transaction, given all of its entry; None if it has none. Raises ProtocolError."""
    match operations[1:2]:
        case [[7, *rest]]:
            match rest:
                case [bytes() as lease] if _is_name(lease):
                    return lease
            raise ProtocolError("a key/value entry with an unknown lease")
    return None


def lease_operation_of(operations: list[Any]) -> LeaseOperation | None:
    """What an entry says of a lease, given all of it; None if it is a transaction. Raises ProtocolError."""
    match operations[1:]:
        case [[4, bytes() as lease, int(ttl_ms)]] if _is_name(lease) and _is_ttl(ttl_ms):
            return GrantLease(lease, ttl_ms)
        case [[5, bytes() as lease]] if _is_name(lease):
            return KeepLease(lease)
        case [[6, bytes() as lease, None | int() as seen]] if _is_name(lease) and (seen is None or _is_index(seen)):
            return EndLease(lease, seen)
        case [[4 | 5 | 6, *_], *_]:
            raise ProtocolError("a key/value entry that says something unknown of a lease")
    return None


def snapshot_operations(leases: Iterable[HeldLease | LeasedKey]) -> Iterator[list[Any]]:
    """What the pieces of a snapshot have after the keys."""
    for each in leases:
        if isinstance(each, HeldLease):
            yield [_GRANT, each.lease, each.ttl_ms, each.kept_at]
        else:
            yield [_WITH, each.lease, each.key]


def in_snapshot(operations: list[Any]) -> Iterator[HeldLease | LeasedKey]:
    """What a piece of a snapshot says of leases, given all of it. Raises ProtocolError."""
    for operation in operations[1:]:
        match operation:
            case [4, bytes() as lease, int(ttl_ms), int(kept_at)] if (
                _is_name(lease) and _is_ttl(ttl_ms) and _is_index(kept_at)
            ):
                yield HeldLease(lease, ttl_ms, kept_at)
            case [7, bytes() as lease, bytes() as key] if _is_name(lease) and key:
                yield LeasedKey(lease, key)
            case _:
                raise ProtocolError("a key/value snapshot that says something unknown of a lease")


def _is_name(lease: bytes) -> bool:
    return len(lease) == REQUEST_ID_BYTES


def _is_ttl(ttl_ms: int) -> bool:
    return type(ttl_ms) is int and LEAST_TTL_MS <= ttl_ms <= MOST_TTL_MS


def _is_index(index: int) -> bool:
    return type(index) is int and index >= 0
