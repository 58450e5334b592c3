"""Keys and values, replicated: the state machine for entries that :class:`~raft_client.KeyValueCodec` writes.

Questions to it are ClientDispatch messages; the answers begin with the index of the last applied entry:

============  ==============================  =================================================================
type          frames                          frames of the answer
============  ==============================  =================================================================
``kv.get``    key                             index, found, value
``kv.range``  prefix, after key, limit        index, more, key, value, key, value, ...
``kv.done``   index of an entry               index, status: 0 not known, 1 done, 2 a comparison failed
============  ==============================  =================================================================

Numbers are ``uint``, ``found`` and ``more`` ``bool``. To have all keys and then what happens to them, without a gap:
ask for the first page, watch after *its* index, and ask for the other pages after the last key of the page before.
Pages may show what the watch shows again.

Source: ours. State Watch pattern, "a simple key value store"; ØMQ Raft protocol, "ClientDispatch RPC".
"""

from __future__ import annotations

from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs
from sortedcontainers import SortedDict, SortedList

from raft_client.codecs import KeyValueCodec
from raft_client.errors import ProtocolError
from raft_client.server.machines.state_machine import Applied, WatchableStateMachine
from raft_client.wire.frames import decode_uint, encode_bool, encode_uint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from raft_client.codecs import Transaction
    from raft_client.wire.client_requests import ClientDispatch
    from raft_client.wire.key_changes import Change
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


# -- key value ---------------------------------------------------------------------------------------------------------


#: Transactions that compared and whose result is remembered: an application asks right after its append.
_REMEMBERED: Final = 65_536
#: One page of a range: at least one key, and then as long as it is shorter than this.
_PAGE_BYTES: Final = 1024 * 1024
_MAX_PAGE: Final = 10_000
#: What a key costs in memory beside its bytes.
_KEY_BYTES: Final = 200

#: Of a snapshot that is restored: about a millisecond's work.
_KEYS_IN_A_STEP: Final = 128

#: A snapshot has at least one byte: a piece without keys.
_EMPTY: Final = b"\x91\xa2kv"

_CODEC: Final = KeyValueCodec()


class TransactionStatus(IntEnum):
    """What became of an entry."""

    UNKNOWN = 0
    DONE = 1
    COMPARISON_FAILED = 2


class KeyValueStateMachine(WatchableStateMachine):
    """Its state is what the entries up to ``last_applied`` say, those that it can read."""

    __slots__ = ("_items", "_listeners", "_statuses", "last_applied", "state_bytes")

    def __init__(self, on_applied: Callable[[Applied], None] | None = None) -> None:
        """``on_applied`` is called with each entry that changed something, after the change."""
        self._items = FrozenItems()
        self._listeners = [] if on_applied is None else [on_applied]
        self._statuses: dict[int, TransactionStatus] = {}
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
            self.last_applied = entry.index
            if entry.is_state and (transaction := _read(entry.data)) is not None:
                self._apply(entry.index, transaction)

    def _apply(self, index: int, transaction: Transaction) -> None:
        if transaction.compares:
            done = all(self._items.get(compare.key) == compare.expected for compare in transaction.compares)
            self._remember(index, TransactionStatus.DONE if done else TransactionStatus.COMPARISON_FAILED)
            if not done:
                return
        changed = tuple([change for change in transaction.changes if self._change(change)])
        if changed and self._listeners:
            applied = Applied(index, changed)
            for listener in self._listeners:
                listener(applied)

    def _remember(self, index: int, status: TransactionStatus) -> None:
        self._statuses[index] = status
        if len(self._statuses) > _REMEMBERED:
            del self._statuses[next(iter(self._statuses))]  # the oldest: indexes only grow

    def _change(self, change: Change) -> bool:
        """Whether there is something to tell: a deletion of what is not there is nothing."""
        if change.value is not None:
            self._set(change.key, change.value)
            return True
        before = self._items.get(change.key)
        if before is None:
            return False
        self._items.delete(change.key)
        self.state_bytes -= _size(change.key, before)
        return True

    def _set(self, key: bytes, value: bytes) -> None:
        before = self._items.set(key, value)
        self.state_bytes += _size(key, value) if before is None else len(value) - len(before)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """The keys in their order, as :meth:`~raft_client.KeyValueCodec.encode_snapshot` writes them.

        So clients that read the log of our peers can read its snapshot, too.
        """
        if not len(self._items):
            return iter((_EMPTY,))
        return KeyValueCodec.encode_snapshot(self._items.frozen())

    def restore(self, index: int, pieces: Iterable[bytes]) -> Iterator[None]:
        """Raises ProtocolError; the state is then as before. Nothing is known of transactions before ``index``."""
        restored = KeyValueStateMachine()
        for number, (key, value) in enumerate(_CODEC.decode_snapshot(pieces), 1):
            restored._set(key, value)
            if not number % _KEYS_IN_A_STEP:
                yield
        self._items, self.state_bytes = restored._items, restored.state_bytes
        self._statuses = {}
        self.last_applied = index

    # -- questions -----------------------------------------------------------------------------------------------------

    def dispatch(self, request: ClientDispatch) -> Sequence[bytes] | None:
        """Answer ``kv.get``, ``kv.range`` and ``kv.done``; see the head of this file."""
        match request.type:
            case b"kv.get":
                answer = self._get(request.frames)
            case b"kv.range":
                answer = self._range(request.frames)
            case b"kv.done":
                answer = self._done(request.frames)
            case _:
                return None
        return [encode_uint(self.last_applied), *answer]

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
        return [encode_uint(self._statuses.get(decode_uint(index_frame), TransactionStatus.UNKNOWN).value)]


def _read(data: bytes) -> Transaction | None:
    try:
        return _CODEC.decode_transaction(data)
    except ProtocolError:
        return None  # every peer finds the same, and nobody can take the entry back


def _size(key: bytes, value: bytes) -> int:
    return _KEY_BYTES + len(key) + len(value)


def _frames(frames: Sequence[bytes], count: int) -> Sequence[bytes]:
    """The first ``count``; more are ignored, as everywhere."""
    if len(frames) < count:
        raise ProtocolError(f"a question of {len(frames)} frames to the key/value state machine; {count} are due")
    return frames[:count]
