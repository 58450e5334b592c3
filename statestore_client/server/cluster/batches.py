"""Batches of the journal <-> bytes, in pieces that fit into entries.

A batch is an array of streams: the name, subjects and records in turn, and the subjects that are removed. Records stay
the bytes that the journal has sealed. A batch counts from its last piece on: until then it can be read by nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from statestore_client.server.cluster.entries import MAX_DATA, NewerLogError, UnreadableLogError, unpack
from statestore_client.server.journal import Changes, Stream, WriteBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.journal import Subject

__all__ = ["MAX_BATCH", "MAX_PIECES", "Assembly", "pack_batch", "pieces", "unpack_batch"]

#: Bytes of one batch, and its pieces: what a reader holds for a batch that is not complete. A server reads its clients
#: no longer when 32 MiB wait; one packet, and what has ended in one moment, may come on top.
MAX_BATCH: Final = 256 << 20
MAX_PIECES: Final = 4096

_MAX_SUBJECT: Final = (1 << 63) - 1

_STREAMS: Final = {stream.value: stream for stream in Stream}


def pack_batch(batch: WriteBatch) -> bytes:
    """The whole."""
    packed: bytes = msgpack.packb(
        [
            [
                changes.stream.value,
                [field for put in changes.puts for field in put],
                changes.removals,
            ]
            for changes in batch.changes
        ]
    )
    return packed


def unpack_batch(data: bytes) -> WriteBatch:
    """The other way. Raises UnreadableLogError, or NewerLogError."""
    try:
        return WriteBatch(tuple(_changes(*each) for each in unpack(data)))
    except (TypeError, ValueError) as error:
        raise UnreadableLogError(f"a batch: {error}") from error


def _changes(name: str, puts: tuple[Any, ...], removals: tuple[Any, ...]) -> Changes:
    stream = _STREAMS.get(name)
    if stream is None:
        raise NewerLogError(f"a batch of the stream {name!r:.40}, which this program does not know")
    if type(puts) is not tuple or type(removals) is not tuple:
        raise UnreadableLogError(f"a batch whose changes of {stream.value} are not arrays")
    records = tuple(zip(puts[::2], puts[1::2], strict=True))
    for subject, record in records:
        _check_subject(stream, subject)
        if type(record) is not bytes:
            raise UnreadableLogError(f"a batch with a record of {stream.value} that is not bytes")
    for subject in removals:
        _check_subject(stream, subject)
    return Changes(stream, records, removals)


def _check_subject(stream: Stream, subject: Subject) -> None:
    if stream.is_numbered:
        is_one = type(subject) is int and 0 <= subject <= _MAX_SUBJECT
    else:
        is_one = type(subject) is str or type(subject) is bytes
    if not is_one:
        raise UnreadableLogError(f"a batch with the subject {subject!r:.40} in {stream.value}")


def pieces(data: bytes, size: int = MAX_DATA) -> Iterator[tuple[bytes, bool]]:
    """At least one, and whether it is the last one."""
    for start in range(0, max(len(data), 1), size):
        yield data[start : start + size], start + size >= len(data)


class Assembly:
    """Pieces that wait for the last one."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._pieces)

    def clear(self) -> None:
        """What waits is never completed: its writer is not the owner any longer."""
        self._pieces.clear()
        self._bytes = 0

    def add(self, data: bytes, *, is_last: bool) -> bytes | None:
        """The whole, if this was the last piece. Raises UnreadableLogError for what is too large."""
        self._pieces.append(data)
        self._bytes += len(data)
        if len(self._pieces) > MAX_PIECES or self._bytes > MAX_BATCH:
            raise UnreadableLogError(f"a batch of more than {MAX_PIECES} pieces or {MAX_BATCH} bytes")
        if not is_last:
            return None
        whole = b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        return whole
