"""Changes whose observers have not all been told: after a crash, or a failover, they are told of them again.

A change is carried out, acknowledged, and told, in this order; whoever crashes in between has lost what it was to tell,
as nobody asks for that again. So a *notice* is written together with the change itself, in one batch, and taken away
when the broker has taken the last of its notifications. Observers may hear of a change twice, with the same version.

Invariant: notices are in the order in which the changes happened, and so are those that are told again.
Invariant: who began to observe after a change is not told of it (:attr:`.Registrations.since`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from statestore_client.errors import TimestampError
from statestore_client.server.broker.application import Told
from statestore_client.server.journal import DamagedRecordError, PlainRecord, Stream, load
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.journal import Journal, StoredRecords


@attrs.define(eq=False)
class Notice:
    """Of one change. ``untold`` counts notifications that the broker has not taken, and one more until all are sent."""

    number: int
    untold: int = 1


@hot_value
class _NoticeRecord(PlainRecord):
    key: bytes
    payload: bytes
    version: str

    @classmethod
    def told(cls, told: Told) -> Self:
        return cls(told.key, told.payload, str(told.version))


class Notices:
    """Those of a host."""

    def __init__(self, journal: Journal | None) -> None:
        """Without a journal there are none: nobody tells anything after a crash."""
        self._stream: Final = None if journal is None else journal[Stream.NOTICES]

    @property
    def next_number(self) -> int:
        """Greater than those of all changes so far."""
        return 0 if self._stream is None else self._stream.next_number

    def changed(self, told: Told | None) -> Notice | None:
        """This was carried out now, and is to be told. None: what is not there after a crash is not told then."""
        if self._stream is None or told is None:
            return None
        return Notice(self._stream.add(_NoticeRecord.told(told), len(told.payload)))

    def heard(self, notice: Notice | None) -> None:
        """The broker has taken one notification, or all are sent."""
        if notice is None or self._stream is None:
            return
        notice.untold -= 1
        if not notice.untold:
            self._stream.remove_lazily(notice.number)

    def restore(self, storage: StoredRecords, least: int) -> Iterator[tuple[Notice, Told]]:
        """Those of an earlier life. Numbers go on with ``least``, or a greater one. Raises DamagedRecordError."""
        stream = self._stream
        if stream is None:
            return
        stream.next_number = max(stream.next_number, least)
        for number, fields in load(storage, Stream.NOTICES):
            stream.next_number = max(stream.next_number, number + 1)
            yield Notice(number), _read(fields)


def _read(fields: Any) -> Told:
    try:
        record = _NoticeRecord.read(fields)
        return Told(record.key, record.payload, HlcTimestamp.parse(record.version))
    except (TypeError, ValueError, TimestampError) as error:
        raise DamagedRecordError(f"the record of a notice: {error!r}") from error
