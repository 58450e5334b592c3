"""A real process with a real disk, killed while it writes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.inspection import inspect_directory
from raft_client.wire.configuration import Peer

PEERS = (Peer("1", "tcp://127.0.0.1:8047"),)

#: Appends, cuts, votes, and makes snapshots, with its syncs and its maintenance in threads. A line is written for each
#: job that is durable: its last index, how far the log reached at least, and the term.
WRITER = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import HardState, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.options import StorageLimits
from raft_client.wire.configuration import Peer
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import RequestId

chance = random.Random(sys.argv[2])
limits = StorageLimits(segment_entries=40, recent_bytes=5000)
log = DiskLog.open(sys.argv[1], peer_id="1", ident=b"", peers=(Peer("1", "tcp://127.0.0.1:8047"),), limits=limits)
syncs, chores = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
maintained = None
while True:
    term, last = log.hard_state.term, log.last_index
    if chance.random() < 0.2:
        term += 1
        last = max(log.snapshot.index if log.snapshot else 0, last - chance.randint(0, 5))
    entries = tuple(
        LogEntry.of(b"%d " % term * chance.choice((1, 30, 300)), term=max(term, 1), index=index,
                    request_id=RequestId(index.to_bytes(12, "big")))
        for index in range(last + 1, last + chance.randint(1, 12)))
    log.write(Persist(hard_state=HardState(term, "1"), truncate_after=last, entries=entries))
    syncs.submit(log.sync).result()
    print(log.last_index, term, flush=True)
    if maintained is not None and maintained.done():
        maintained = maintained.result()
    if log.wants_maintenance and maintained is None:
        maintained = chores.submit(log.maintain)
    if log.last_index > (log.snapshot.index if log.snapshot else 0) + 100:
        with log.new_snapshot() as writer:
            writer.write(b"state" * 20_000)
            index = log.last_index - 10
            meta = SnapshotMeta(index, log.term_at(index), 100_000, log.configurations[-1])
            syncs.submit(writer.finish, meta).result()
        log.compact(meta)
"""


def test_a_process_that_is_killed_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    """After each kill the log is whole, is not older than the last job that was acknowledged, and goes on from
    there."""
    chance = random.Random(1)
    for life in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(chance.randint(1, 150))]
            process.kill()
            lines += process.stdout.readlines()
        told = [line.split() for line in lines if line.endswith("\n")]
        index, term = map(int, told[-1])
        found = inspect_directory(tmp_path)
        assert not found.problems
        with DiskLog.open(tmp_path, peer_id="1", ident=b"", peers=PEERS) as log:
            assert log.hard_state.term >= term
            assert log.last_index >= index or log.hard_state.term > term  # the next job may have cut it
            entries = log.entries(log.first_index - 1, log.last_index, 1 << 40)
            assert [entry.index for entry in entries] == list(range(log.first_index, log.last_index + 1))
            assert all(entry.data.startswith(b"%d " % entry.term) or entry.term == 1 for entry in entries)
            assert all(log.index_of_request(entry.request_id.raw) == entry.index for entry in entries)
            assert log.snapshot is None or log.read_snapshot(0, 100_000) == b"state" * 20_000
