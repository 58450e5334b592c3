"""Keys and values, replicated: the state machine for entries that :class:`~raft_client.KeyValueCodec` writes.

Questions to it are ClientDispatch messages (:mod:`raft_client.wire.key_value_messages`). What keys were before the last
changes is kept as far as memory is set aside for it (:class:`PastValues`): so the pages of a long reading show one
moment, and any peer has the next page.

Invariant: what a peer answers of the keys at an index is what every other peer answers, if it answers at all.

Source: ours. State Watch pattern, "a simple key value store"; ØMQ Raft protocol, "ClientDispatch RPC".
"""

from __future__ import annotations

from collections import deque
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs
from sortedcontainers import SortedDict, SortedList

from raft_client.codecs import KeyValueCodec, Transaction
from raft_client.errors import ProtocolError
from raft_client.server.machines.leases import LeaseTable
from raft_client.server.machines.state_machine import Applied, WatchableStateMachine
from raft_client.wire.frames import decode_uint, encode_bool, encode_uint
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.key_value_messages import (
    AskLease,
    AskOutcome,
    LeaseReply,
    NotYet,
    OutcomeReply,
    Outrun,
    Page,
    ReadKeys,
    Refused,
    TransactionStatus,
)
from raft_client.wire.leases import EndLease, GrantLease, HeldLease, KeepLease, LeasedKey
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from raft_client.wire.client_requests import ClientDispatch
    from raft_client.wire.leases import LeaseOperation
    from raft_client.wire.log_entry import LogEntry

# -- a copy that does not change ---------------------------------------------------------------------------------------


#: Keys that are looked at together: none of them takes part in another step.
_STEP: Final = 256
_TABLES: Final = 64


@attrs.define(eq=False)
class FrozenItems:
    """A sorted mapping of bytes. What changes while a frozen state is read, and was not read yet, is kept twice.

    So nothing here takes much longer when there are more keys.
    """

    _keys: SortedList[bytes] = attrs.field(factory=SortedList)
    #: By the hash of the key. A table of all keys would be copied whole each time that it grows, in one go.
    _values: list[dict[bytes, bytes]] = attrs.field(factory=lambda: [{} for _ in range(_TABLES)])
    #: While a frozen state is read: what keys were that changed since then, None if there was none.
    _before: SortedDict[bytes, bytes | None] | None = None
    #: The last key that was read of it.
    _read_to: bytes = b""

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> bytes | None:
        """The value now; None if there is no such key."""
        return self._values[hash(key) % _TABLES].get(key)

    def set(self, key: bytes, value: bytes) -> bytes | None:
        """Make it so. Returns the value before, None if there was none."""
        if self._before is not None:
            self._remember(key)
        values = self._values[hash(key) % _TABLES]
        before = values.get(key)
        if before is None:
            self._keys.add(key)
        values[key] = value
        return before

    def delete(self, key: bytes) -> None:
        """The key exists."""
        self._remember(key)
        del self._values[hash(key) % _TABLES][key]
        self._keys.remove(key)

    def after(self, key: bytes, *, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The items now whose keys begin with ``prefix`` and come after ``key``, in order."""
        first = max(key, prefix)
        for found in self._keys.irange(first, inclusive=(first != key, True)):
            if not found.startswith(prefix):
                return
            yield found, self._values[hash(found) % _TABLES][found]

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        """The keys now from ``first`` on and before ``end`` (empty: to the last one), in order."""
        found: Iterator[bytes] = self._keys.irange(first, end or None, inclusive=(True, False))
        return found

    def frozen(self) -> Iterator[tuple[bytes, bytes]]:
        """The items as they are at this call, in order. One at a time; a second one raises RuntimeError.

        It ends when it has been read, closed, or dropped.
        """
        if self._before is not None:
            raise RuntimeError("a frozen state is being read already; close it first")
        self._before, self._read_to = SortedDict(), b""
        reader = self._frozen(self._before)
        next(reader)  # what never began would never end
        return reader

    def _frozen(self, before: SortedDict[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield b"", b""
            while step := self._next_step(before):
                yield from step
        finally:
            self._before = None

    def _next_step(self, before: SortedDict[bytes, bytes | None]) -> list[tuple[bytes, bytes]]:
        """The next items of the frozen state, from the keys that are there and from those that have changed."""
        found: list[tuple[bytes, bytes]] = []
        while not found:
            keys = list(islice(self._keys.irange(self._read_to, inclusive=(False, True)), _STEP))
            changed = list(islice(before.irange(self._read_to, inclusive=(False, True)), _STEP))
            # Where one of the two was cut off, what lies behind its end is not known.
            end = min((each[-1] for each in (keys, changed) if len(each) == _STEP), default=None)
            together = sorted({key for key in (*keys, *changed) if end is None or key <= end})
            if not together:
                break
            for key in together:
                value = before[key] if key in before else self.get(key)
                if value is not None:
                    found.append((key, value))
            self._read_to = together[-1]
        return found

    def _remember(self, key: bytes) -> None:
        before = self._before
        if before is not None and key > self._read_to and key not in before:
            before[key] = self.get(key)


# -- what keys were ----------------------------------------------------------------------------------------------------


#: What keys were before they changed, in memory.
_PAST_BYTES: Final = 16 * 1024 * 1024
#: What one change costs there beside the bytes of key and value (measured: 250 of keys that change once).
_CHANGE_BYTES: Final = 250


class PastValues:
    """What keys were before the last changes, as far as ``limit`` bytes hold it.

    Invariant: what any key was when the entry ``oldest``, or a later one, had been applied can be told from what it is
    now and from what is here.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: deque[tuple[int, bytes]] = deque()
        self._before: SortedDict[bytes, deque[tuple[int, bytes | None]]] = SortedDict()
        self._bytes = 0
        self.oldest: int = 0

    def changed(self, index: int, key: bytes, before: bytes | None) -> None:
        """The entry ``index`` changed the key, which had this value; None if it did not exist."""
        self._order.append((index, key))
        changes = self._before.get(key)
        if changes is None:
            self._before[key] = changes = deque()
        changes.append((index, before))
        self._bytes += _change_bytes(key, before)
        while self._bytes > self._limit:
            self._forget()

    def _forget(self) -> None:
        self.oldest, key = self._order.popleft()
        changes = self._before[key]
        _, before = changes.popleft()
        if not changes:
            del self._before[key]
        self._bytes -= _change_bytes(key, before)

    def value(self, key: bytes, index: int, now: bytes | None) -> bytes | None:
        """What the key was when the entry ``index`` had been applied; ``now`` is what it is."""
        found = now
        for changed_at, before in reversed(self._before.get(key, ())):
            if changed_at <= index:
                break
            found = before
        return found

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        """Those that changed, from ``first`` on and before ``end`` (empty: to the last one), in order."""
        found: Iterator[bytes] = self._before.irange(first, end or None, inclusive=(True, False))
        return found


def _change_bytes(key: bytes, before: bytes | None) -> int:
    return _CHANGE_BYTES + len(key) + len(before or b"")


# -- key value ---------------------------------------------------------------------------------------------------------


#: Entries that compared, deleted, or said something of a lease, whose result is remembered: an application asks right
#: after its append.
_REMEMBERED: Final = 65_536
#: One page of a range: at least one key, and then as long as it is shorter than this.
_PAGE_BYTES: Final = 1024 * 1024
_MAX_PAGE: Final = 10_000
#: Keys that are looked at for one page: those that did not exist then are among them. A few milliseconds' work.
_MOST_LOOKED_AT: Final = 20_000
#: What a key costs in memory beside its bytes.
_KEY_BYTES: Final = 200

#: Of a snapshot that is restored: about a millisecond's work.
_KEYS_IN_A_STEP: Final = 128

#: A snapshot has at least one byte: a piece without keys.
_EMPTY: Final = b"\x91\xa2kv"

_CODEC: Final = KeyValueCodec()


@attrs.frozen
class _Result:
    """What became of an entry that compares, deletes, or says something of a lease."""

    status: TransactionStatus
    term: int
    deleted: int


class KeyValueStateMachine(WatchableStateMachine):
    """Its state is what the entries up to ``last_applied`` say, those that it can read."""

    __slots__ = ("_items", "_listeners", "_past", "_results", "_term", "last_applied", "leases", "state_bytes")

    def __init__(self, on_applied: Callable[[Applied], None] | None = None) -> None:
        """``on_applied`` is called with each entry that changed something, after the change."""
        self._items = FrozenItems()
        self.leases: LeaseTable = LeaseTable()
        self._listeners = [] if on_applied is None else [on_applied]
        self._results: dict[int, _Result] = {}
        self._past = PastValues(_PAST_BYTES)
        self._term = 0  # of the last entry; 0 after a snapshot, which does not say it
        self.last_applied: int = 0
        #: About how much memory the keys and values take.
        self.state_bytes: int = 0

    def get(self, key: bytes) -> bytes | None:
        """The value as far as the log was applied; None if there is no such key."""
        return self._items.get(key)

    def tell_changes(self, to: Callable[[Applied], None]) -> None:
        """``to`` is called with each entry that changed something, after the change."""
        self._listeners.append(to)

    # -- entries -------------------------------------------------------------------------------------------------------

    def apply(self, entries: Sequence[LogEntry]) -> None:
        """Make the changes of each entry, all or none. What is broken or of another format changes nothing."""
        for entry in entries:
            self.last_applied, self._term = entry.index, entry.term
            if not entry.is_state or (operation := _read(entry.data)) is None:
                continue
            if isinstance(operation, Transaction):
                self._apply(entry.index, operation)
            else:
                self._apply_to_lease(entry.index, operation)

    def _apply_to_lease(self, index: int, operation: LeaseOperation) -> None:
        match operation:
            case GrantLease(lease, ttl_ms):
                status = self.leases.grant(lease, ttl_ms, index)
            case KeepLease(lease):
                status = self.leases.keep(lease, index)
            case EndLease(lease, seen):
                status = self.leases.may_end(lease, seen)
        deleted = 0
        if isinstance(operation, EndLease) and status is TransactionStatus.DONE:
            keys = self.leases.end(operation.lease)
            deleted = len(keys)
            self._tell(index, tuple([change for key in keys if self._change(index, change := _deletion(key), None)]))
        self._remember(index, _Result(status, self._term, deleted))

    def _apply(self, index: int, transaction: Transaction) -> None:
        done = not transaction.compares or all(
            self._items.get(compare.key) == compare.expected for compare in transaction.compares
        )
        wanted, lease = transaction.changes if done else transaction.otherwise, transaction.lease
        if lease is not None:
            status = self.leases.may_have(lease, {change.key for change in wanted if change.value is not None})
            if status is not TransactionStatus.DONE:
                self._remember(index, _Result(status, self._term, 0))
                return
        changed = tuple([change for change in wanted if self._change(index, change, lease)])
        if transaction.compares or lease is not None or any(change.value is None for change in wanted):
            status = TransactionStatus.DONE if done else TransactionStatus.COMPARISON_FAILED
            deleted = sum([change.value is None for change in changed])
            self._remember(index, _Result(status, self._term, deleted))
        self._tell(index, changed)

    def _tell(self, index: int, changed: tuple[Change, ...]) -> None:
        if changed and self._listeners:
            applied = Applied(index, changed)
            for listener in self._listeners:
                listener(applied)

    def _remember(self, index: int, result: _Result) -> None:
        self._results[index] = result
        if len(self._results) > _REMEMBERED:
            del self._results[next(iter(self._results))]  # the oldest: indexes only grow

    def _change(self, index: int, change: Change, lease: bytes | None) -> bool:
        """Whether there is something to tell: a deletion of what is not there is nothing.

        A key belongs to the lease of the entry that set it last, if that has one.
        """
        before = self._items.get(change.key)
        if self.leases.key_count:
            self.leases.detach(change.key)
        if lease is not None and change.value is not None:
            self.leases.attach(lease, change.key)
        if change.value is not None:
            self._set(change.key, change.value)
        elif before is None:
            return False
        else:
            self._items.delete(change.key)
            self.state_bytes -= _size(change.key, before)
        self._past.changed(index, change.key, before)
        return True

    def _set(self, key: bytes, value: bytes) -> None:
        before = self._items.set(key, value)
        self.state_bytes += _size(key, value) if before is None else len(value) - len(before)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """The keys in their order, as :meth:`~raft_client.KeyValueCodec.encode_snapshot` writes them; then the leases.

        So clients that read the log of our peers can read its snapshot, too.
        """
        leases = self.leases.copied()
        if not len(self._items) and not leases:
            return iter((_EMPTY,))
        return KeyValueCodec.encode_snapshot(self._items.frozen(), leases)

    def restore(self, index: int, pieces: Iterable[bytes]) -> Iterator[None]:
        """Raises ProtocolError; the state is then as before. Nothing is known of transactions before ``index``."""
        restored = KeyValueStateMachine()
        for number, each in enumerate(_CODEC.decode_whole_snapshot(pieces), 1):
            if isinstance(each, HeldLease):
                restored.leases.restore(each)
            elif not isinstance(each, LeasedKey):
                restored._set(*each)
            elif restored.get(each.key) is None or each.lease not in restored.leases:
                raise ProtocolError("a key/value snapshot with a key or lease that is not there")
            else:
                restored.leases.attach(each.lease, each.key)
            if not number % _KEYS_IN_A_STEP:
                yield
        self._items, self.state_bytes, self.leases = restored._items, restored.state_bytes, restored.leases
        self._results, self._past, self._term = {}, PastValues(_PAST_BYTES), 0
        self._past.oldest = self.last_applied = index

    # -- questions -----------------------------------------------------------------------------------------------------

    def may_be_stale(self, request: ClientDispatch) -> bool:
        """Whether it is a ``kv.read`` that says so."""
        if request.type != ReadKeys.TYPE:
            return False
        try:
            return _to_read(request).stale
        except ProtocolError:
            return True  # what cannot be read is refused by anybody

    def dispatch(self, request: ClientDispatch) -> Sequence[bytes] | None:
        """Answer a question, or say why it cannot be answered: whoever asks waits for a word."""
        try:
            match request.type:
                case ReadKeys.TYPE:
                    return self._read_keys(_to_read(request)).to_frames()
                case AskOutcome.TYPE:
                    asked = AskOutcome.from_frames([request.type, request.ident, *request.frames])
                    return self._outcome(asked.index).to_frames()
                case AskLease.TYPE:
                    return self._lease(AskLease.from_frames([request.type, request.ident, *request.frames])).to_frames()
                case b"kv.get":
                    answer = self._get(request.frames)
                case b"kv.range":
                    answer = self._range(request.frames)
                case b"kv.done":
                    answer = self._done(request.frames)
                case _:
                    return None
        except ProtocolError as error:
            return Refused(f"{request.type.decode()}: {error}").to_frames()
        return [encode_uint(self.last_applied), *answer]

    def _read_keys(self, asked: ReadKeys) -> Page | Outrun | NotYet:
        at = self.last_applied if asked.at is None else asked.at
        if at > self.last_applied:
            return NotYet(self.last_applied)
        if at < self._past.oldest:
            return Outrun(self._past.oldest, self.last_applied)
        keys = self._items.keys(asked.first, asked.end)
        if at < self.last_applied:
            keys = merge(keys, self._past.keys(asked.first, asked.end))
        limit = min(asked.limit, _MAX_PAGE)
        items: list[tuple[bytes, bytes]] = []
        size, following, last = 0, b"", None
        for looked_at, key in enumerate(keys):
            if key == last:
                continue  # it exists, and has changed
            if len(items) >= limit or size > _PAGE_BYTES or looked_at >= _MOST_LOOKED_AT:
                following = key
                break
            last = key
            value = self._past.value(key, at, self._items.get(key))
            if value is not None:
                items.append((key, b"" if asked.keys_only else value))
                size += len(key) + len(items[-1][1])
        return Page(Position(at, self._term if at == self.last_applied else 0), following, tuple(items))

    def _outcome(self, index: int) -> OutcomeReply:
        found = self._results.get(index)
        if found is None:
            return OutcomeReply(TransactionStatus.UNKNOWN)
        return OutcomeReply(found.status, found.term, found.deleted)

    def _lease(self, asked: AskLease) -> LeaseReply:
        ttl_ms, keys = self.leases.look(asked.lease)
        return LeaseReply(Position(self.last_applied, self._term), ttl_ms, keys)

    def _get(self, frames: Sequence[bytes]) -> list[bytes]:
        (key,) = _frames(frames, 1)
        value = self._items.get(key)
        return [encode_bool(value is not None), value or b""]

    def _range(self, frames: Sequence[bytes]) -> list[bytes]:
        prefix, after, limit_frame = _frames(frames, 3)
        limit = min(decode_uint(limit_frame), _MAX_PAGE)
        answer = [encode_bool(False)]
        size = 0
        for key, value in self._items.after(after, prefix=prefix):
            if len(answer) > 2 * limit or size > _PAGE_BYTES:
                answer[0] = encode_bool(True)
                break
            answer += (key, value)
            size += len(key) + len(value)
        return answer

    def _done(self, frames: Sequence[bytes]) -> list[bytes]:
        (index_frame,) = _frames(frames, 1)
        return [encode_uint(self._outcome(decode_uint(index_frame)).status.value)]


def _to_read(request: ClientDispatch) -> ReadKeys:
    asked = ReadKeys.from_frames([request.type, request.ident, *request.frames])
    if not asked.limit:
        raise ProtocolError("a page of no keys")
    return asked


def _deletion(key: bytes) -> Change:
    return Change(ChangeKind.DELETE, key)


def _read(data: bytes) -> Transaction | LeaseOperation | None:
    try:
        return _CODEC.decode_operation(data)
    except ProtocolError:
        return None  # every peer finds the same, and nobody can take the entry back


def _size(key: bytes, value: bytes) -> int:
    return _KEY_BYTES + len(key) + len(value)


def _frames(frames: Sequence[bytes], count: int) -> Sequence[bytes]:
    """The first ``count``; more are ignored, as everywhere."""
    if len(frames) < count:
        raise ProtocolError(f"a question of {len(frames)} frames to the key/value state machine; {count} are due")
    return frames[:count]
