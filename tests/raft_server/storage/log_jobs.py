"""A log on a real disk, and jobs for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raft_client.server.node.ready import Configuration, Persist, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.configuration import ConfigChange, Peer
from raft_client.wire.log_entry import LogEntry, SnapshotChunk
from raft_client.wire.request_id import RequestId

__all__ = ["PEERS", "START", "arrive", "entries", "entry", "open_log", "request_id", "snapshot", "write"]

PEERS = (Peer("1", "tcp://127.0.0.1:8047"),)
START = Configuration(0, ConfigChange(PEERS))


def open_log(path: Path, **changes: Any) -> DiskLog:
    return DiskLog.open(path, **{"peer_id": "1", "ident": b"factory", "peers": PEERS, **changes})


def request_id(number: int, seconds: int = 1_700_000_000) -> bytes:
    return seconds.to_bytes(4, "big") + number.to_bytes(8, "big")


def entry(index: int, term: int = 1, data: bytes = b"x", raw: bytes | None = None) -> LogEntry:
    return LogEntry.of(data, term=term, index=index, request_id=RequestId(raw or request_id(index)))


def entries(first: int, last: int, term: int = 1) -> tuple[LogEntry, ...]:
    return tuple(entry(index, term) for index in range(first, last + 1))


def write(log: DiskLog, **fields: Any) -> None:
    log.write(Persist(**fields))
    log.sync()


def arrive(log: DiskLog, meta: SnapshotMeta, data: bytes, **fields: Any) -> None:
    for begin in range(0, len(data), 1000):
        write(log, chunk=SnapshotChunk(meta.index, meta.term, begin, meta.size, data[begin : begin + 1000]))
    write(log, install=meta, **fields)


def snapshot(log: DiskLog, index: int, data: bytes = b"state") -> SnapshotMeta:
    meta = SnapshotMeta(index, log.term_at(index) or 0, len(data), START)
    with log.new_snapshot() as writer:
        writer.write(data)
        writer.finish(meta)
    log.compact(meta)
    return meta
