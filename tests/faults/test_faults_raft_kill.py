"""kill -9 of one, two or all peers, under load: every append that was acknowledged is in the log afterwards, once.

Half of the kills aim at the leader, alone or with a follower, and some of these come while it hands over or makes a
snapshot. Watches that peers serve tell all of it, each change once and in order, also when processes stand still for a
while.

``tests/support/schedules.py`` says how often; 500 take ten minutes, and those of watches as long again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Self

import pytest
from support.raft_peers import Peers
from support.raft_trace_model import first_broken, read_traces
from support.schedules import SEED, scaled

from raft_client import Change, Key, KeyValueCodec, Prefix, RaftClient, RaftError, TransportError, WatchEvent

pytestmark = pytest.mark.scaled

_KILLS = scaled(5, 500)
_TRACED_KILLS = scaled(4, 60)
_WRITERS = 8


class _Writer(threading.Thread):
    """Appends one entry after the other, and keeps what it was told."""

    def __init__(self, name: str, url: str, over: threading.Event, *, has_keys: bool = False) -> None:
        """With ``has_keys`` its entries set one of five keys each."""
        super().__init__(name=name)
        self._url = url
        self._over = over
        self._has_keys = has_keys
        self.acknowledged: dict[int, bytes] = {}
        self.unknown: set[bytes] = set()

    def run(self) -> None:
        with RaftClient(self._url) as log:
            number = 0
            while not self._over.is_set():
                number += 1
                data = f"{self.name}/{number}".encode()
                if self._has_keys:
                    data = KeyValueCodec.set(f"{self.name}/{number % 5}".encode(), data)
                try:
                    self.acknowledged[log.append(data, timeout=30)] = data
                except TransportError:
                    self.unknown.add(data)


class _Watcher(threading.Thread):
    """Keeps every change that a watch tells, until it has told all up to the entry ``last``."""

    def __init__(self, url: str, wanted: Key | Prefix) -> None:
        super().__init__(name=f"watch of {wanted}")
        self.url, self.wanted = url, wanted
        self.last: int | None = None
        self.told: list[tuple[int, Change]] = []
        self.served = 0

    def run(self) -> None:
        with RaftClient(self.url) as log, log.watch(self.wanted, after=0) as watch:
            for item in watch:
                if isinstance(item, WatchEvent):
                    self.told += [(item.index, change) for change in item.changes]
                    self.served += item.entry is None
                if self.last is not None and item.position.index >= self.last:
                    return


class _Aim:
    """Chooses whom a kill hits, and counts that by kind."""

    def __init__(self, peers: Peers, random: Random) -> None:
        self._peers, self._random = peers, random
        self._log = RaftClient(peers.url)
        self._asked: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._log.open(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._asked:
            thread.join()
        self._log.close()

    def victims(self) -> list[str]:
        """Every other time the leader is among them."""
        names = list(self._peers.urls)
        leader = self._leader() if self._random.random() < 0.5 else None
        if leader is None:
            self.counts["by chance"] += 1
            return self._random.sample(names, self._random.choice((1, 1, 1, 2, 3)))
        kind = self._random.choice(("leader", "leader and follower", "leader in a transfer", "leader in a snapshot"))
        self.counts[kind] += 1
        if kind == "leader and follower":
            return [leader, self._random.choice([name for name in names if name != leader])]
        if kind == "leader in a transfer":
            self._ask(lambda: self._log.transfer_leadership(timeout=1))
        elif kind == "leader in a snapshot":
            self._ask(lambda: self._log.take_snapshot(leader, timeout=1))
        return [leader]

    def _leader(self) -> str | None:
        """The peer that says of itself that it leads, in the newest term."""
        terms: dict[int, str] = {}
        for name, url in self._peers.urls.items():
            with suppress(RaftError):
                info = self._log.log_info(url, timeout=0.5)
                if info.is_leader:
                    terms[info.current_term] = name
        return terms[max(terms)] if terms else None

    def _ask(self, what: Callable[[], object]) -> None:
        """The kill comes while it is under way; often nobody answers."""

        def ask() -> None:
            with suppress(RaftError):
                what()

        self._asked.append(threading.Thread(target=ask))
        self._asked[-1].start()
        time.sleep(self._random.uniform(0, 0.02))  # how far it came is the subject


def _stall(peers: Peers, random: Random) -> None:
    """One process stands still, for longer than an election takes at times."""
    process = peers.running[random.choice(list(peers.urls))]
    process.send_signal(signal.SIGSTOP)
    time.sleep(random.uniform(0, 1))  # how long is the subject
    process.send_signal(signal.SIGCONT)


def _kill(
    peers: Peers,
    writers: list[_Writer],
    over: threading.Event,
    kills: int,
    random: Random,
    *,
    stalls: bool = False,
) -> Counter[str]:
    """Start the peers, write, and kill as often as that; then all peers run and all writers have ended.

    Returns how often each kind of victim was chosen.
    """
    for name in peers.urls:
        peers.start(name)
    for writer in writers:
        writer.start()
    with _Aim(peers, random) as aim:
        for _ in range(kills):
            time.sleep(random.uniform(0, 0.4))  # a random moment, not a condition
            if stalls and random.random() < 0.3:
                _stall(peers, random)
                continue
            victims = aim.victims()
            for name in victims:
                peers.running[name].send_signal(signal.SIGKILL)
            for name in victims:
                peers.end(name, signal.SIGKILL)
            for name in victims:
                peers.start(name)
    over.set()
    for writer in writers:
        writer.join()
    return aim.counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.quick
def test_no_kill_takes_an_acknowledged_append_away(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """A kill neither loses nor doubles an append: a repetition keeps its id, also if all peers were away meanwhile."""
    random, over = Random(SEED), threading.Event()
    peers = Peers(tmp_path)
    try:
        writers = [_Writer(f"w{n}", peers.url, over) for n in range(_WRITERS)]
        aimed = _kill(peers, writers, over, _KILLS, random)
        with RaftClient(peers.url) as log:
            log.append(b"end")
            found = {entry.index: entry.data for entry in log.entries(timeout=60) if entry.is_state}
    finally:
        over.set()
        peers.kill_all()
    acknowledged = [pair for writer in writers for pair in writer.acknowledged.items()]
    unknown = set[bytes]().union(*(writer.unknown for writer in writers))
    assert [(index, data) for index, data in acknowledged if found.get(index) != data] == []
    assert len(set(found.values())) == len(found)
    assert {data for _, data in acknowledged} | {b"end"} <= set(found.values())
    assert set(found.values()) - {data for _, data in acknowledged} - {b"end"} <= unknown
    assert len(acknowledged) > _KILLS
    assert sum(count for kind, count in aimed.items() if kind.startswith("leader")) >= _KILLS // 5
    figures(
        f"{_KILLS} kills, seed {SEED}, {dict(aimed)}: {len(acknowledged)} acknowledged, {len(unknown)} unknown, "
        "none lost or doubled"
    )


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_kill_takes_a_change_away_from_a_watch(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """Watches go on at the next leader: each tells every change of its keys once, in the order of the log."""
    random, over = Random(SEED), threading.Event()
    peers = Peers(tmp_path)
    watchers = [_Watcher(peers.url, wanted) for wanted in (Key(b"w0/1"), Prefix(b"w1/"), Prefix(b"w"))]
    try:
        writers = [_Writer(f"w{n}", peers.url, over, has_keys=True) for n in range(3)]
        for watcher in watchers:
            watcher.start()
        _kill(peers, writers, over, _KILLS, random, stalls=True)
        with RaftClient(peers.url) as log:
            last = log.append(KeyValueCodec.set(b"w0/1", b"end"))
            for watcher in watchers:
                watcher.last = last
            log.append(KeyValueCodec.set(b"w1/1", b"after the end"))
            entries = [entry for entry in log.entries(timeout=60) if entry.is_state]
        for watcher in watchers:
            watcher.join(60)
    finally:
        over.set()
        peers.kill_all()
    read = [(entry.index, change) for entry in entries for change in KeyValueCodec().decode(entry.data)]
    for watcher in watchers:
        wanted = [each for each in read if each[0] <= last and watcher.wanted.matches(each[1])]
        assert [each for each in watcher.told if each[0] <= last] == wanted, watcher.name
        assert watcher.served > len(wanted) // 2, watcher.name
    figures(f"{_KILLS} kills and stalls, seed {SEED}: {[len(watcher.told) for watcher in watchers]} changes told")


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_killed_peers_write_of_themselves_keeps_the_rules_of_raft(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    """The traces of all processes are one history that a small reference model believes, up to what clients heard."""
    peers, over = Peers(tmp_path, are_traced=True), threading.Event()
    writers = [_Writer(f"w{n}", peers.url, over) for n in range(_WRITERS)]
    try:
        _kill(peers, writers, over, _TRACED_KILLS, Random(SEED))
    finally:
        over.set()
        peers.kill_all()
    events = read_traces(tmp_path / f"{name}.ndjson" for name in peers.urls)
    assert first_broken(events) is None
    told = {event["index"] for event in events if event["what"] == "acknowledged"}
    assert {index for writer in writers for index in writer.acknowledged} <= told
    assert sum(event["what"] == "start" for event in events) > len(peers.urls)
    figures(f"{_TRACED_KILLS} kills, {len(events)} events, {len(told)} acknowledged")
