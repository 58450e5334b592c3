"""kill -9 of one, two or all peers, under load: every append that was acknowledged is in the log afterwards, once.

``RAFT_KILLS`` says how often; 500 take ten minutes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from peer_processes import Peers

from raft_client import RaftClient, TransportError

_KILLS = int(os.environ.get("RAFT_KILLS", "10"))
_SEED = int(os.environ.get("STATESTORE_SEED", "20240229"))
_WRITERS = 8


class _Writer(threading.Thread):
    """Appends one entry after the other, and keeps what it was told."""

    def __init__(self, name: str, url: str, over: threading.Event) -> None:
        super().__init__(name=name)
        self._url = url
        self._over = over
        self.acknowledged: dict[int, bytes] = {}
        self.unknown: set[bytes] = set()

    def run(self) -> None:
        with RaftClient(self._url) as log:
            number = 0
            while not self._over.is_set():
                number += 1
                data = f"{self.name}/{number}".encode()
                try:
                    self.acknowledged[log.append(data, timeout=30)] = data
                except TransportError:
                    self.unknown.add(data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_kill_takes_an_acknowledged_append_away(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """A kill neither loses nor doubles an append: a repetition keeps its id, also if all peers were away meanwhile."""
    random, over = Random(_SEED), threading.Event()
    peers = Peers(tmp_path)
    try:
        for name in peers.urls:
            peers.start(name)
        writers = [_Writer(f"w{n}", peers.url, over) for n in range(_WRITERS)]
        for writer in writers:
            writer.start()
        for _ in range(_KILLS):
            time.sleep(random.uniform(0, 0.4))  # a random moment, not a condition
            victims = random.sample(list(peers.urls), random.choice((1, 1, 1, 2, 3)))
            for name in victims:
                peers.running[name].send_signal(signal.SIGKILL)
            for name in victims:
                peers.end(name, signal.SIGKILL)
            for name in victims:
                peers.start(name)
        over.set()
        for writer in writers:
            writer.join()
        with RaftClient(peers.url) as log:
            log.append(b"end")
            found = {entry.index: entry.data for entry in log.entries(timeout=60) if entry.is_state}
    finally:
        over.set()
        for name in list(peers.running):
            peers.end(name, signal.SIGKILL)
    acknowledged = [pair for writer in writers for pair in writer.acknowledged.items()]
    unknown = set[bytes]().union(*(writer.unknown for writer in writers))
    assert [(index, data) for index, data in acknowledged if found.get(index) != data] == []
    assert len(set(found.values())) == len(found)
    assert {data for _, data in acknowledged} | {b"end"} <= set(found.values())
    assert set(found.values()) - {data for _, data in acknowledged} - {b"end"} <= unknown
    assert len(acknowledged) > _KILLS
    figures(
        f"{_KILLS} kills, seed {_SEED}: {len(acknowledged)} acknowledged, {len(unknown)} unknown, none lost or doubled"
    )
