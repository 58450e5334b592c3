"""What keeps the batches. A directory does, in ``server.runtime.storage``; a replicated log could."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from statestore_client.server.journal.codec import DamagedRecordError, unseal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.server.journal.streams import Stream, Subject

__all__ = ["Changes", "Done", "StreamStorage", "WriteBatch", "load"]

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


class StreamStorage(Protocol):
    """Keeps batches in order. Invariant: after a crash, what :meth:`load` gives is the outcome of a prefix of the
    batches that were appended, and at least of those that were done.
    """

    def load(self, stream: Stream) -> Iterable[tuple[Subject, bytes]]:
        """All records of a stream, those with numbers in order. Before the first :meth:`append`."""

    def append(self, batch: WriteBatch, done: Done) -> None:
        """Make a batch durable, after those before it. ``done`` is called from any thread."""

    def close(self) -> None:
        """Wait for what was appended, and let go of everything. Safe to call twice."""


def load(storage: StreamStorage, stream: Stream) -> Iterator[tuple[Any, Any]]:
    """Subjects and fields. Raises DamagedRecordError with the name of what is damaged."""
    for subject, data in storage.load(stream):
        try:
            fields = unseal(stream, subject, data)
        except DamagedRecordError as error:
            raise DamagedRecordError(f"the record {subject!r} of {stream.value}: {error}") from error
        yield subject, fields
