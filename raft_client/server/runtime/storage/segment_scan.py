"""What a segment holds: its file, read from the first byte to the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.errors import StorageDamagedError
from raft_client.server.runtime.storage.segment import SegmentWriter
from raft_client.server.runtime.storage.segment_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SegmentHeader,
    decode_mark,
    is_power_loss,
    read_record,
    record_end,
)
from raft_client.wire.configuration import decode_config
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, EntryKind
from raft_client.wire.request_id import REQUEST_ID_BYTES

if TYPE_CHECKING:
    from raft_client.server.runtime.storage.segment import Segment


def scan_segment(name: str, data: bytes) -> SegmentWriter:
    """One that is followed by another: all of it was synced.

    What is not as it was written raises StorageDamagedError; newer versions raise StorageVersionError.
    """
    writer = _scan_records(name, data)
    if _is_cut_off(writer.segment, data):
        raise _no_record(name, writer.segment.size, "it is not the end of the log")
    return writer


def scan_last_segment(name: str, data: bytes) -> SegmentWriter | None:
    """The last one. None for one that was never written whole, because the power failed as it was begun.

    The last job may have been cut off by a power failure, before it was synced: the segment's ``size`` says how much of
    the file counts. Everything else that is not as it was written raises StorageDamagedError; newer versions raise
    StorageVersionError.
    """
    if len(data) < HEADER_BYTES or not any(data[:HEADER_BYTES]):
        return None
    writer = _scan_records(name, data)
    if _is_cut_off(writer.segment, data):
        _check_torn(name, data, writer.segment)
    return writer if writer.segment.size > HEADER_BYTES else None


def _is_cut_off(segment: Segment, data: bytes) -> bool:
    return segment.size < len(data) or segment.size == HEADER_BYTES


def _scan_records(name: str, data: bytes) -> SegmentWriter:
    """Up to the first record that is not whole: there its ``size`` ends."""
    writer = SegmentWriter.begin(SegmentHeader.decode(name, data))
    segment, salt, offsets = writer.segment, writer.segment.header.salt, writer.tables.offsets
    at, size, add = HEADER_BYTES, len(data), writer.tables.requests.add
    while at < size:
        index = segment.last + 1
        found = read_record(data, at, index, at)
        if found is None:
            break
        is_mark, begin, end = found
        if is_mark:
            mark = decode_mark(data[begin:end], salt)
            if mark is None or mark.index > segment.last:
                raise StorageDamagedError(f"{name} has a mark of another place at {at}", file=name, offset=at)
            writer.add_mark(mark, at)
        elif at == HEADER_BYTES or end - begin < ENTRY_HEADER_BYTES:
            raise StorageDamagedError(f"{name} has an entry without a job at {at}", file=name, offset=at)
        else:
            offsets.append(at)
            add(data[begin : begin + REQUEST_ID_BYTES], index)
            segment.last = index
            writer.ends_with_mark = False
            if data[begin + REQUEST_ID_BYTES] == EntryKind.CONFIG:
                writer.add_configuration(index, decode_config(data[begin + ENTRY_HEADER_BYTES : end]))
        at = end
    segment.size = at
    return writer


def _check_torn(name: str, data: bytes, segment: Segment) -> None:
    """Raises StorageDamagedError unless what follows the segment is the rest of a job that was never synced."""
    at = segment.size
    if not is_power_loss(data, at, record_end(data, at, segment.last + 1, at)):
        raise _no_record(name, at, "nothing of it is missing")
    if _is_synced_behind(data, at, segment.header.salt):
        raise _no_record(name, at, "what follows it says that it had been synced")


def _no_record(name: str, at: int, why: str) -> StorageDamagedError:
    return StorageDamagedError(f"{name} is damaged at byte {at}: no whole record, and {why}", file=name, offset=at)


def _is_synced_behind(data: bytes, at: int, salt: bytes) -> bool:
    """Whether a mark behind ``at`` says that everything before it had been synced."""
    place = data.find(salt, at)
    while place >= 0:
        begin = place - RECORD_HEADER_BYTES
        found = read_record(data, begin, 0, begin) if begin > at else None
        mark = decode_mark(data[found[1] : found[2]], salt) if found is not None and found[0] else None
        if mark is not None and mark.synced:
            return True
        place = data.find(salt, place + 1)
    return False
