"""The options of a stream: ``spark.readStream.format("zmqraft").options(...)``."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

import attrs

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import SettingsError
from raft_client.spark.options import MAX_PARTITIONS, to_policy, whole_number
from raft_client.wire.frames import MAX_UINT

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def _to_start(value: str | int) -> str | int:
    text = str(value).strip().lower()
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_UINT:
        return int(text)
    raise SettingsError(f"startingIndex must be earliest, latest or the index of an entry, from 1, not {value!r}")


def _to_seconds(value: int | str | None) -> int | None:
    if value is None:
        return None
    text = str(value).strip()
    try:
        if text.isascii() and text.isdecimal():
            found = int(text)
        else:
            moment = datetime.fromisoformat(text)
            found = -1 if moment.tzinfo is None else math.ceil(moment.timestamp())
    except ValueError:
        found = -1
    if not 0 <= found < 2**32:
        raise SettingsError(
            f"startingTime must be whole seconds since 1970, or as 2026-11-25T08:00:00+01:00, not {value!r}"
        )
    return found


@attrs.frozen(kw_only=True)
class StreamOptions:
    """Which entries a stream has. Raises :class:`SettingsError`.

    Where a stream starts is asked when its query starts for the first time. From then on, its checkpoint says it.
    """

    #: The first entry: ``earliest`` that the log has, ``latest`` for what comes after now, or its index.
    starting_index: str | int = attrs.field(default=EARLIEST, converter=_to_start)
    #: Instead: the first entry whose request id was made then or later. Seconds since 1970, or ISO 8601 with a zone.
    starting_time: str | int | None = attrs.field(default=None, converter=_to_seconds)
    #: The log index of the last entry that the stream will ever have.
    ending_index: int | None = attrs.field(default=None, validator=whole_number(1, MAX_UINT))
    #: How many entries a micro-batch has at most.
    max_entries_per_trigger: int | None = attrs.field(
        default=None, validator=whole_number(1, MAX_UINT), metadata={"alias": "maxOffsetsPerTrigger"}
    )
    #: How many bytes the entries of a micro-batch have at most, unless one has more. The driver reads them, too.
    max_bytes_per_trigger: int | None = attrs.field(default=None, validator=whole_number(1, MAX_UINT))
    #: Whether the stream ends with HistoryOutrunError when entries were compacted before it has read them.
    fail_on_data_loss: bool = True
    #: What it has instead of them: ``refuse`` leaves that to failOnDataLoss, ``skip`` nothing, ``deliver`` the
    #: snapshot, as a row before the entries.
    snapshot: SnapshotPolicy = attrs.field(default=SnapshotPolicy.REFUSE, converter=to_policy)
    #: How many tasks read a micro-batch, if it has as many entries.
    min_partitions: int | None = attrs.field(default=None, validator=whole_number(1, MAX_PARTITIONS))

    #: Whether the markers of pipelines that write into the log are rows, too.
    markers: bool = False

    @property
    def first_index(self) -> int | None:
        """The index of the first entry, where one was given."""
        return self.starting_index if isinstance(self.starting_index, int) else None

    @property
    def policy(self) -> SnapshotPolicy:
        """What to do when entries were compacted before they were read."""
        if self.snapshot is SnapshotPolicy.REFUSE and not self.fail_on_data_loss:
            return SnapshotPolicy.SKIP
        return self.snapshot

    def __attrs_post_init__(self) -> None:
        if self.starting_time is not None and self.starting_index != EARLIEST:
            raise SettingsError("startingIndex and startingTime are two ways to say it: give one of them")
        if self.ending_index is not None and (self.first_index or 1) > self.ending_index + 1:
            raise SettingsError(
                f"endingIndex must not be before startingIndex: {self.ending_index} < {self.starting_index}"
            )
