"""What keeps the batches: a directory (``server.runtime.storage``), or a log (``server.runtime.replication``)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from statestore_client.server.journal.codec import DamagedRecordError, unseal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.server.journal.streams import Stream, Subject

__all__ = ["BatchStorage", "Changes", "Done", "StoredRecords", "StreamStorage", "WriteBatch", "load", "records_in"]

#: None: the batch is durable. An error: it is not, and nothing after it will be.
Done: TypeAlias = Callable[[Exception | None], None]


@attrs.frozen
class Changes:
    """Of one stream. Invariant: no subject is in both, and none twice: their order does not matter."""

    stream: Stream
    puts: tuple[tuple[Subject, bytes], ...]
    removals: tuple[Subject, ...]


@attrs.frozen
class WriteBatch:
    """All or nothing."""

    changes: tuple[Changes, ...]

    def __len__(self) -> int:
        """How many records it writes or removes."""
        return sum(len(each.puts) + len(each.removals) for each in self.changes)

    def subjects(self) -> frozenset[tuple[Stream, Subject]]:
        """What it writes or removes."""
        puts = ((each.stream, subject) for each in self.changes for subject, _ in each.puts)
        removals = ((each.stream, subject) for each in self.changes for subject in each.removals)
        return frozenset(chain(puts, removals))


class StoredRecords(Protocol):
    """What batches came to."""

    def load(self, stream: Stream) -> Iterable[tuple[Subject, bytes]]:
        """All records of a stream, those with numbers in order. Before the next batch."""


class BatchStorage(Protocol):
    """Takes batches in order."""

    def append(self, batch: WriteBatch, done: Done) -> None:
        """Make a batch durable, after those before it. ``done`` is called from any thread."""


class StreamStorage(StoredRecords, BatchStorage, Protocol):
    """Keeps batches in order. Invariant: after a crash, what :meth:`load` gives is the outcome of a prefix of the
    batches that were appended, and at least of those that were done. It is asked before the first :meth:`append`.
    """

    def close(self) -> None:
        """Wait for what was appended, and let go of everything. Safe to call twice."""


def load(storage: StoredRecords, stream: Stream) -> Iterator[tuple[Any, Any]]:
    """Subjects and fields. Raises DamagedRecordError with the name of what is damaged."""
    return _unsealed(stream, storage.load(stream))


def records_in(changes: Changes) -> Iterator[tuple[Any, Any]]:
    """The same of what a batch puts."""
    return _unsealed(changes.stream, changes.puts)


def _unsealed(stream: Stream, rows: Iterable[tuple[Subject, bytes]]) -> Iterator[tuple[Any, Any]]:
    for subject, data in rows:
        try:
            fields = unseal(stream, subject, data)
        except DamagedRecordError as error:
            raise DamagedRecordError(f"the record {subject!r} of {stream.value}: {error}") from error
        yield subject, fields
