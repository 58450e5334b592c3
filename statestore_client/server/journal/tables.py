"""What batches come to: the records of each stream, in dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.server.journal.streams import ALL_STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.server.journal.storage import WriteBatch
    from statestore_client.server.journal.streams import Stream, Subject

__all__ = ["StreamTables"]


class StreamTables:
    """Implements StoredRecords."""

    def __init__(self, streams: Iterable[Stream] = ALL_STREAMS) -> None:
        """Records of other streams are left out."""
        self.streams: dict[Stream, dict[Subject, bytes]] = {stream: {} for stream in streams}

    def absorb(self, batch: WriteBatch) -> None:
        """Make the records of a batch so."""
        for changes in batch.changes:
            records = self.streams.get(changes.stream)
            if records is None:
                continue
            for subject, data in changes.puts:
                records.pop(subject, None)  # the latest is the last
                records[subject] = data
            for subject in changes.removals:
                records.pop(subject, None)

    def load(self, stream: Stream) -> Iterator[tuple[Subject, bytes]]:
        """All records of a stream, those with numbers in order."""
        records = self.streams.get(stream, {})
        yield from sorted(records.items()) if stream.is_numbered else records.items()
