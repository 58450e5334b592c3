"""Peers of the log on disks that are slow, and in processes that stand still: as in the simulation, on sockets."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from random import Random

import pytest
from support.raft_peers import Peers
from support.schedules import SEED, scaled

from raft_client import RaftClient
from raft_client.server import EmbeddedCluster

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

_SYNC_S = 0.35
_MOST_PAUSE_S = 0.4


def test_peers_on_slow_disks_keep_their_leader() -> None:
    """Each sync takes 350 ms longer on all three; the leader is killed once. Four clients go on appending."""
    length_s = max(8, scaled(10, 30))
    with EmbeddedCluster(3) as cluster:
        for name in cluster.running:
            cluster.slow_disk(name, _SYNC_S)
        ends = time.monotonic() + length_s
        appended = [0] * 4

        def append(number: int) -> None:
            with RaftClient(cluster.url) as log:
                while time.monotonic() < ends:
                    log.append(b"entry", timeout=60)
                    appended[number] += 1

        threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        leader = cluster.leader(timeout=60)
        cluster.kill(leader)
        cluster.restart(leader)
        cluster.slow_disk(leader, _SYNC_S)
        for thread in threads:
            thread.join()
        with RaftClient(cluster.url) as log:
            term = log.log_info(timeout=60).current_term
    assert term <= 4, appended
    assert sum(appended) >= length_s, term


def test_processes_that_stand_still_keep_their_leader(tmp_path: Path) -> None:
    """Each of three processes is frozen twice a second, for up to 400 ms, and clients go on appending."""
    random = Random(SEED)
    with Peers(tmp_path) as peers:
        for name in peers.urls:
            peers.start(name)
        with RaftClient(peers.url) as log:
            log.append(b"first", timeout=60)
            before = log.log_info().current_term
            ends = time.monotonic() + max(8, scaled(10, 60))

            def freeze(name: str) -> None:
                while time.monotonic() < ends:
                    peers.running[name].send_signal(signal.SIGSTOP)
                    time.sleep(random.uniform(0.0, _MOST_PAUSE_S))
                    peers.running[name].send_signal(signal.SIGCONT)
                    time.sleep(random.uniform(0.3, 0.7))

            threads = [threading.Thread(target=freeze, args=(name,)) for name in peers.urls]
            for thread in threads:
                thread.start()
            appended = 0
            while time.monotonic() < ends:
                log.append(b"entry", timeout=60)
                appended += 1
            for thread in threads:
                thread.join()
            terms = log.log_info(timeout=60).current_term - before
    assert terms <= 5, appended
    assert appended >= 10, terms
