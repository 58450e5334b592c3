"""What is left of a damaged data directory, as a new one that a server starts with.

The frames of the files that are whole are taken, in their order, and of the records in them those that are what was
written. What a broken frame would have changed is as it was before: a value is an older one, a key that was deleted is
back. Records that do not fit together any more, such as a message whose session is missing, would keep a server from
starting: they are left out, all of their kind, and least of all the keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import DataDamagedError, DataDirectoryError
from statestore_client.server.journal import DamagedRecordError, Stream, StreamTables
from statestore_client.server.runtime.storage.copying import check_new, write_directory
from statestore_client.server.runtime.storage.inspection import fill_machines, surveyed

if TYPE_CHECKING:
    import os

    from statestore_client.server.runtime.storage.inspection import Finding

#: What is done without, in this order, until the rest fits together: sessions with what waits for them, then answers to
#: requests that were carried out (one that is repeated is carried out again), then retained messages.
_DISPENSABLE: Final = (
    (
        Stream.SESSIONS,
        Stream.SUBSCRIPTIONS,
        Stream.CURSORS,
        Stream.WILLS,
        Stream.MESSAGES,
        Stream.DELIVERIES,
        Stream.RELEASES,
        Stream.INBOUND,
        Stream.LOSSES,
        Stream.COPIES,
    ),
    (Stream.RESPONSES,),
    (Stream.RETAINED,),
)


@attrs.frozen
class Salvage:
    """``records`` are in the new directory, by stream. ``left_out`` could be read and are not: they do not fit
    together. ``broken`` are stream and name of records that are not what was written. What else is missing is in the
    gaps of the ``finding``.
    """

    finding: Finding
    records: dict[str, int]
    left_out: dict[str, int]
    broken: tuple[tuple[str, str], ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.finding.problem is None


def salvage(directory: str | os.PathLike[str], out: str | os.PathLike[str]) -> Salvage:
    """Write what can be read of ``directory``, which no server has and which stays as it is, into the new directory
    ``out``. Raises DataDirectoryError and its kinds, also if nothing can be read.
    """
    source, target = Path(directory), Path(out)
    check_new(target)
    if target.absolute().resolve().is_relative_to(source.resolve()):
        raise DataDirectoryError(f"{target} is in {source}, which stays as it is: give another directory")
    with surveyed(source) as (finding, survey):
        records, left_out = _that_fit(survey.sound)
        if not any(found for stream, found in records.streams.items() if stream is not Stream.CLOCK):
            raise DataDamagedError(f"nothing can be read in {source}, and nothing was written")
        written = write_directory(target, records)
        broken = tuple((stream.value, _name(subject)) for stream, subject in survey.broken)
        return Salvage(finding, written, left_out, broken)


def _that_fit(records: StreamTables) -> tuple[StreamTables, dict[str, int]]:
    """And what was left out. Raises DamagedRecordError if the keys themselves do not fit together."""
    left_out: dict[str, int] = {}
    for streams in _DISPENSABLE:
        with suppress(DamagedRecordError):
            fill_machines(records)
            return records, left_out
        left_out |= {each.value: len(found) for each in streams if (found := records.streams[each])}
        records = _without(records, streams)
    fill_machines(records)
    return records, left_out


def _without(records: StreamTables, streams: Iterable[Stream]) -> StreamTables:
    kept = StreamTables()
    kept.streams |= {stream: found for stream, found in records.streams.items() if stream not in streams}
    return kept


def _name(subject: object) -> str:
    return subject.decode(errors="backslashreplace") if isinstance(subject, bytes) else str(subject)
