"""The bytes on the disk are those of docs/reference/raft-storage.md, and nothing else is taken for them."""

from __future__ import annotations

import re
import struct
import zlib
from array import array
from pathlib import Path

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.disks import SimulatedDisk

from raft_client.errors import StorageDamagedError
from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage.directory import Owner
from raft_client.server.runtime.storage.disk_log import DiskLog, StorageLimits
from raft_client.server.runtime.storage.segment import SegmentWriter, scan_last_segment, scan_segment
from raft_client.server.runtime.storage.segment_format import HEADER_BYTES, Mark, SegmentHeader
from raft_client.server.runtime.storage.segment_index import (
    RequestFilter,
    SegmentIndex,
    Summary,
    encode_index,
    index_name,
)
from raft_client.server.runtime.storage.snapshots import SnapshotFileWriter, StoredSnapshot, snapshot_name
from raft_client.wire.configuration import ConfigChange, Peer
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import RequestId

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "raft-storage.md"
PEERS = msgpack.packb([["1", "tcp://127.0.0.1:8047"]])
SALT = bytes(range(0xA0, 0xA8))
ID = bytes.fromhex("5816b41e26f27e0494708988")
START = Configuration(0, ConfigChange((Peer("1", "tcp://127.0.0.1:8047"),)))


def samples() -> list[bytes]:
    """The hexadecimal blocks of the page: a segment, an index, a snapshot, an owner."""
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found = ["".join(re.findall(r"^(?:[0-9a-f]{2})+$", block, re.MULTILINE)) for block in blocks]
    return [bytes.fromhex(each) for each in found if each]


def record(kind: int, body: bytes, seed: int) -> bytes:
    """As the page says."""
    word = kind << 28 | len(body)
    return struct.pack("<III", word, (word ^ 0xFFFFFFFF) ^ seed, zlib.crc32(body, seed)) + body


def by_hand() -> list[bytes]:
    """The samples, put together from the words of the page."""
    head = struct.pack("<8sHHQ8sQQ", b"zmqraftL", 1, 0, 1, SALT, 0, 0)
    first = record(1, SALT + struct.pack("<BQQ", 1, 0, 0), 48)
    second = record(1, SALT + struct.pack("<BQQ", 1, 0, 2) + b"1", 48 + len(first))
    at = 48 + len(first) + len(second)
    entry = record(2, ID + b"\x00" + (2).to_bytes(7, "little") + b"hello", 1)
    segment = head + struct.pack("<I", zlib.crc32(head)) + first + second + entry

    seconds = int.from_bytes(ID[:4], "big")
    offsets = struct.pack("<I", at)
    state = [2, "1", seconds, seconds, 1, zlib.crc32(offsets), 1, []]
    summary = msgpack.packb([1, 0, 0, False, 1, len(segment), *state])
    fences = ID[::-1]
    ids = ID[::-1] + (1).to_bytes(8, "big")
    head = struct.pack("<8sHHII", b"zmqraftI", 1, 0, len(summary), zlib.crc32(summary + fences))
    index = head + summary + fences + offsets + ids + struct.pack("<I", zlib.crc32(ids, 0))

    summary = msgpack.packb([1, 2, 5, False, 0, PEERS, True])
    blocks = b"state" + struct.pack("<I", zlib.crc32(b"state", 0))
    end = struct.pack("<II8s", len(summary), zlib.crc32(summary), b"Sfarqmz.")
    snapshot = struct.pack("<8sHH", b"zmqraftS", 1, 0) + blocks + summary + end

    owner = msgpack.packb(["1", b"plant", PEERS])
    return [segment, index, snapshot, struct.pack("<8sHHII", b"zmqraftM", 1, 0, len(owner), zlib.crc32(owner)) + owner]


def test_the_samples_are_what_the_page_says() -> None:
    """The sample bytes on the page are those that its words give."""
    assert samples() == by_hand()


def test_a_log_has_the_bytes_of_the_page() -> None:
    """A log on the disk that does what the page tells has the files that the page shows."""
    disk = SimulatedDisk()
    owner = Owner("1", b"plant", START.change)
    limits = StorageLimits(segment_entries=1)
    log = DiskLog.open_in(disk, owner, limits=limits, random_bytes=lambda _count: SALT)
    entry = LogEntry.of(b"hello", term=2, index=1, request_id=RequestId(ID))
    for job in (Persist(hard_state=HardState(2, "1"), entries=(entry,)), Persist(hard_state=HardState(3))):
        log.write(job)
        log.sync()
    log.maintain()
    with log.new_snapshot() as writer:
        writer.write(b"state")
        writer.finish(SnapshotMeta(1, 2, 5, START))
    names = ["0000000000000001.log", "0000000000000001.index", "snapshot-0000000000000001", "meta"]
    assert [bytes(disk.files[name].content) for name in names] == samples()


# -- any contents ------------------------------------------------------------------------------------------------------

jobs = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 2**53 - 1),
        st.text(max_size=9),
        st.lists(st.binary(min_size=1, max_size=700), max_size=6),
    ),
    max_size=8,
)


def segment_of(parts: list[tuple[int, int, str, list[bytes]]]) -> tuple[bytes, list[LogEntry], HardState]:
    """A segment after the entry 20 with these jobs: where each one cuts, its hard state and its data."""
    header = SegmentHeader(7, SALT, 20, 3)
    writer = SegmentWriter.begin(header)
    data = header.encode() + b"".join(writer.add_job(Mark(20, HardState(), True), ()))
    expected: list[LogEntry] = []
    last = 20
    for cut, term, vote, contents in parts:
        last = min(cut, last)
        new = [
            LogEntry.of(each, term=term, index=last + n, request_id=RequestId(bytes(11) + bytes([n])))
            for n, each in enumerate(contents, 1)
        ]
        data += b"".join(writer.add_job(Mark(last, HardState(term, vote), True), tuple(new)))
        expected = [each for each in expected if each.index <= last] + new
        last += len(new)
    return data, expected, writer.segment.hard_state


@given(jobs)
def test_a_segment_is_read_as_it_was_written(parts: list[tuple[int, int, str, list[bytes]]]) -> None:
    """A segment is read as it was written, whatever its jobs cut and append: places, ids and hard state."""
    data, expected, state = segment_of(parts)
    writer = scan_segment("0000000000000007.log", data)
    found, tables = writer.segment, writer.tables
    assert (found.size, found.hard_state) == (len(data), state)
    assert found.last - found.first + 1 == len(expected)
    for entry, offset in zip(expected, tables.offsets, strict=True):
        assert data[offset + 12 :].startswith(entry.frame)
    newest = {entry.frame[:12]: entry.index for entry in expected}
    assert {raw: tables.requests.get(raw, found.last) for raw in newest} == newest


@given(jobs, st.data())
def test_a_segment_that_ends_early_is_a_first_part(
    parts: list[tuple[int, int, str, list[bytes]]], choice: st.DataObject
) -> None:
    """A segment that is cut off holds what was complete; if it is not the last one, that is damage."""
    data, _, _ = segment_of(parts)
    end = choice.draw(st.integers(0, len(data)))
    writer = scan_last_segment("0000000000000007.log", data[:end])
    if writer is None:
        assert end < HEADER_BYTES + 37
        return
    found = writer.segment
    assert found.size <= end
    again = scan_segment("0000000000000007.log", data[: found.size]).segment
    assert (again.first, again.last) == (found.first, found.last)
    if found.size < end:
        with pytest.raises(StorageDamagedError):
            scan_segment("0000000000000007.log", data[:end])


@given(
    st.dictionaries(st.binary(min_size=12, max_size=12), st.integers(1, 2**50), max_size=700),
    st.binary(min_size=12, max_size=12),
)
def test_an_index_finds_every_id_and_no_other(ids: dict[bytes, int], other: bytes) -> None:
    """The index leads an id to its newest entry, with any number of blocks, and finds no other id."""
    pairs = [*ids.items(), *((raw, index + 1) for raw, index in list(ids.items())[:5])]
    offsets = array("I", range(3))
    summary = Summary(SegmentHeader(9, b"", 4, 2), 5, 3, 1000, HardState(2, "x"))
    disk = SimulatedDisk()
    file = disk.open(index_name(9), create=True)
    file.write(encode_index(summary, offsets, pairs), 0)
    index = SegmentIndex.read(index_name(9), file)
    filtered = attrs.evolve(index, filter=RequestFilter(ids))
    assert index.summary == summary
    assert index.read_offsets(file) == offsets
    for raw in ids:
        assert index.find(raw, 1 << 60, file) == max(at for each, at in pairs if each == raw)
        assert index.find(raw, ids[raw], file) == ids[raw]
        assert index.find(raw, ids[raw] - 1, file) is None
        seconds = int.from_bytes(raw[:4], "big")
        assert index.may_have(raw, seconds)
        assert filtered.may_have(raw, seconds)
    if other not in ids:
        assert index.find(other, 1 << 60, file) is None


@given(
    st.integers(0, 200_000),
    st.lists(st.integers(1, 90_000), max_size=6),
    st.integers(0, 200_000),
    st.integers(0, 150_000),
)
def test_a_snapshot_is_read_from_any_offset(size: int, cuts: list[int], offset: int, count: int) -> None:
    """A snapshot can be read from any offset, however it was written."""
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    disk = SimulatedDisk()
    writer = SnapshotFileWriter(disk, snapshot_name(8))
    at = 0
    for cut in [*cuts, size]:
        writer.write(data[at : at + cut])
        at += cut
    if at < size:
        writer.write(data[at:])
    meta = SnapshotMeta(8, 2, size, START, members_known=size % 2 == 0)
    writer.finish(meta, may_be_ahead=True)
    file = disk.open(snapshot_name(8))
    snapshot = StoredSnapshot.read(snapshot_name(8), file)
    assert (snapshot.meta, snapshot.may_be_ahead) == (meta, True)
    assert snapshot.read_data(file, offset, count) == data[offset : offset + count]
