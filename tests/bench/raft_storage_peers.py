"""Directories of peers with much in them, and processes that run on them, for bench_raft_storage.py."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from raft_client import KeyValueCodec, LogEntry, Peer, RequestId
from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage.directory import Owner, make_directory, open_folder
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits
from raft_client.server.runtime.storage.segment import SegmentWriter
from raft_client.server.runtime.storage.segment_format import HEADER_BYTES, Mark, SegmentHeader
from raft_client.server.runtime.storage.segment_index import Summary, encode_index, index_name
from raft_client.server.runtime.storage.snapshots import SnapshotFileWriter, snapshot_name
from raft_client.wire.configuration import ConfigChange

__all__ = ["Child", "add_ids", "fill_log", "fill_snapshot", "made_id", "opened"]

_CHILD: Final = Path(__file__).with_name("raft_storage_child.py")
_JOB: Final = 1000
_KEYS: Final = 10_000
_PER_SEGMENT: Final = 65_536
_ENTRY_BYTES: Final = 132


class Child:
    """A peer in a process of its own."""

    def __init__(self, folder: Path, peer_id: str, members: Sequence[Peer], machine: str, compact_bytes: int) -> None:
        urls = ",".join(f"{peer.id}={peer.url}" for peer in members)
        self._process = _run("serve", str(folder), peer_id, urls, machine, str(compact_bytes))
        self.start: dict[str, Any] = {}

    def started(self) -> dict[str, Any]:
        """Waits until it has."""
        self.start = self.start or self._line()
        return self.start

    def figures(self, *, reset: bool = False) -> dict[str, Any]:
        """Since the start, or since they were reset."""
        assert self._process.stdin is not None
        self._process.stdin.write("reset\n" if reset else "figures\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer has ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _run(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(_CHILD), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def opened(folder: Path, ids: tuple[int, float, int] = (0, 0.0, 0)) -> dict[str, Any]:
    """What it takes to open a log, and to look for ids in it, in a process of its own. ``ids``: see :func:`add_ids`."""
    with _run("open", str(folder), *map(str, ids)) as process:
        found: dict[str, Any] = json.loads(process.communicate()[0])
    return found


def _entries_of(size: int, keys: int) -> Iterator[LogEntry]:
    """Entries with about this many bytes of data, that set these keys again and again, made now."""
    now = int(time.time()).to_bytes(4, "big")
    value = bytes(max(1, size - len(KeyValueCodec.set(b"%016d" % 0, b""))))
    for index in itertools.count(1):
        request_id = RequestId(now + index.to_bytes(8, "big"))
        data = KeyValueCodec.set(b"%016d" % (index % keys), value)
        yield LogEntry.of(data, term=1, request_id=request_id, index=index)


def fill_log(folder: Path, peers: Sequence[Peer], total: int, size: int, keys: int = _KEYS) -> int:
    """A log with this many bytes of entries. How many there are."""
    with DiskLog.open(folder, peer_id="1", ident=b"", peers=tuple(peers), fsync=Fsync.OFF) as log:
        _write(log, total // (size + 20), size, keys, HardState(1))
        return log.last_index


def _write(log: DiskLog, count: int, size: int, keys: int, term: HardState) -> None:
    made = _entries_of(size, keys)
    for begin in range(0, count, _JOB):
        batch = tuple(itertools.islice(made, min(_JOB, count - begin)))
        log.write(Persist(hard_state=term, entries=batch))
        log.sync()
        if log.wants_maintenance:
            log.maintain()


def fill_snapshot(folder: Path, peers: Sequence[Peer], total: int, size: int, peer_id: str = "1") -> int:
    """A snapshot of this many bytes of keys and values of ``size`` bytes, and entries behind it. How many keys."""
    limits = StorageLimits(segment_entries=_JOB)  # so that no entry before the snapshot stays
    with DiskLog.open(folder, peer_id=peer_id, ident=b"", peers=tuple(peers), fsync=Fsync.OFF, limits=limits) as log:
        _write(log, 3 * _JOB, 100, _KEYS, HardState(1))
        count = total // (size + 22)
        items = ((b"%016d" % key, bytes(size)) for key in range(count))
        with log.new_snapshot() as writer:
            for piece in KeyValueCodec.encode_snapshot(items):
                writer.write(piece)
            meta = SnapshotMeta(_JOB, 1, writer.size, Configuration(0, ConfigChange(tuple(peers))))
            writer.finish(meta)
        log.compact(meta)
    return count


def add_ids(folder: Path, peers: Sequence[Peer], count: int, per_second: int) -> tuple[int, float, int]:
    """A log whose entries are all in a snapshot, and whose request ids are remembered, the last made now.

    Returns what they are made of: their number, when the first was made, and how many a second.
    """
    segments = -(-count // _PER_SEGMENT)
    begun_s = time.time() - count / per_second
    where = open_folder(folder)
    make_directory(folder)
    offsets = array("I", range(HEADER_BYTES, HEADER_BYTES + _PER_SEGMENT * _ENTRY_BYTES, _ENTRY_BYTES))
    for number in range(segments):
        header = SegmentHeader(number + 1, b"", number * _PER_SEGMENT, 1)
        first = header.index + 1
        size = HEADER_BYTES + _PER_SEGMENT * _ENTRY_BYTES
        ids = ((made_id(index, begun_s, per_second), index) for index in range(first, first + _PER_SEGMENT))
        data = encode_index(Summary(header, first, _PER_SEGMENT, size, HardState(1)), offsets, ids)
        (folder / index_name(header.sequence)).write_bytes(data)
    last = segments * _PER_SEGMENT
    header = SegmentHeader(segments + 1, bytes(8), last, 1)
    mark = SegmentWriter.begin(header).add_job(Mark(last, HardState(1), True), ())
    (folder / header.name).write_bytes(header.encode() + b"".join(mark))
    writer = SnapshotFileWriter(where, snapshot_name(last))
    writer.write(b"\x00")
    writer.finish(SnapshotMeta(last, 1, 1, Configuration(0, ConfigChange(tuple(peers)))), may_be_ahead=False)
    writer.close()
    Owner("1", b"", ConfigChange(tuple(peers))).write(where)
    return last, begun_s, per_second


def made_id(index: int, begun_s: float, per_second: int) -> bytes:
    """The request id of an entry."""
    return int(begun_s + index / per_second).to_bytes(4, "big") + b"\x01\x02\x03\x04" + index.to_bytes(4, "big")
