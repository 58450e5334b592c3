"""What many clients see of keys that three peer processes keep can be put into one order, whatever happens to them.

``tests/support/schedules.py`` says how many faults there are, and which; 500 take a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from signal import SIGKILL

import pytest
import zmq
import zmq.asyncio
from linearizability import UNKNOWN, History, Operation, is_linearizable
from linked_peers import LinkedPeers
from support.schedules import SEED, scaled

from raft_client import AsyncRaftClient, KeyValueCodec
from raft_client.errors import RaftError
from raft_client.wire.frames import encode_uint

pytestmark = pytest.mark.scaled

_FAULTS = scaled(8, 500)
_WRITERS = 5
_KEYS = 2
_FAULT_KINDS = ("kill", "kill_all", "freeze", "isolate", "cut_links", "stall")
_KINDS = ("set", "set", "get", "get", "get", "cas", "cas", "clear")
#: A key is used for about this long: the checker's work grows with the length of a history, and with what is unknown.
_EPOCH_S = 1.0
_ANSWER_S = 3.0  # longer than any fault, so that a late answer is seen
_IMPATIENT_S = 0.2  # shorter than most: what became of a write is then not known
_DONE = {1: True, 2: False}


class _History(History):
    """Keys are used for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.answered_by: Counter[str] = Counter()  # by URL of the peer that was asked
        self._begin = time.monotonic()

    def key(self, random: Random) -> bytes:
        """One of those that are in use now."""
        epoch = int((time.monotonic() - self._begin) / _EPOCH_S)
        return b"%d/%d" % (epoch, random.randrange(_KEYS))


class _Client:
    """Reads, writes and compares, through the public client."""

    def __init__(self, log: AsyncRaftClient, name: int, random: Random, history: _History) -> None:
        self._log, self._name, self._random, self._history = log, name, random, history
        self._numbers = itertools.count()
        self._seen: dict[bytes, bytes | None] = {}

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.act(self._random.choice(_KINDS), self._history.key(self._random))
            await asyncio.sleep(self._random.uniform(0, 0.02))

    async def act(self, kind: str, key: bytes) -> None:
        """One operation; a read that is not answered was none."""
        value = None if kind in ("get", "clear") else b"%d.%d" % (self._name, next(self._numbers))
        expected = self._seen.get(key) if kind == "cas" else None
        kind = "set" if kind == "clear" else kind
        call = time.monotonic()
        result: object = UNKNOWN
        try:
            result = await self._call(kind, key, value, expected)
        except RaftError as error:
            if kind == "get" or not error.may_have_been_applied:
                return
        end = {} if result is UNKNOWN else {"end": time.monotonic()}
        self._history.add(key, Operation(kind, value, result, call, expected=expected, **end))

    async def _call(self, kind: str, key: bytes, value: bytes | None, expected: bytes | None) -> object:
        log, patience = self._log, self._random.choice((_IMPATIENT_S, _ANSWER_S))
        if kind == "get":
            _, found, stored = await log.dispatch(b"kv.get", key, timeout=_ANSWER_S)
            self._seen[key] = stored if found else None
            return self._seen[key]
        if kind == "cas":
            index = await log.append(KeyValueCodec.compare_and_set(key, expected, value), timeout=patience)
            try:
                _, status = await log.dispatch(b"kv.done", encode_uint(index), timeout=_ANSWER_S)
            except RaftError:
                return UNKNOWN
            return _DONE.get(int.from_bytes(status, "little"), UNKNOWN)
        data = KeyValueCodec.delete(key) if value is None else KeyValueCodec.set(key, value)
        await log.append(data, timeout=patience)
        return True


async def _read_from(url: str, random: Random, history: _History, over: asyncio.Event) -> None:
    """Ask one peer and no other, whether it leads or not."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(url)
        for number in itertools.count(1):
            if over.is_set():
                return
            key, call, request_id = history.key(random), time.monotonic(), b"read%d" % number
            await dealer.send_multipart([request_id, b"kv.get", b"", key])
            while await dealer.poll(round(1000 * _ANSWER_S)):
                frames = await dealer.recv_multipart()
                if frames[0] == request_id:
                    history.answered_by[url] += 1
                    history.add(key, Operation("get", None, frames[3] if frames[2] else None, call, time.monotonic()))
                    break
            await asyncio.sleep(random.uniform(0, 0.02))


class _Faults:
    """Makes one fault after the other, each kind as often as the others, and undoes it."""

    def __init__(self, peers: LinkedPeers, leader: Callable[[], str | None], random: Random) -> None:
        self._peers, self._leader, self._random = peers, leader, random
        self.counts: Counter[str] = Counter()

    async def run(self, count: int, kinds: Sequence[str]) -> None:
        for number in range(count):
            if number % len(kinds) == 0:
                order = self._random.sample(kinds, len(kinds))
            await asyncio.sleep(self._random.uniform(0, 0.5))  # a random moment, not a condition
            await getattr(self, order[number % len(kinds)])()
            self.counts[order[number % len(kinds)]] += 1

    def _victim(self) -> str:
        """The leader every other time."""
        leader = self._leader()
        return leader if leader and self._random.random() < 0.5 else self._random.choice(list(self._peers.urls))

    async def _wait(self, longest: float) -> None:
        await asyncio.sleep(self._random.uniform(0.1, longest))

    async def kill(self) -> None:
        victim = self._victim()
        await asyncio.to_thread(self._peers.end, victim, SIGKILL)
        await self._wait(0.6)
        await self._peers.begin(victim)

    async def kill_all(self) -> None:
        for name in list(self._peers.running):
            self._peers.running[name].send_signal(SIGKILL)
        for name in list(self._peers.running):
            await asyncio.to_thread(self._peers.end, name, SIGKILL)
        await asyncio.gather(*map(self._peers.begin, self._peers.urls))

    async def freeze(self) -> None:
        victim = self._victim()
        self._peers.freeze(victim)
        await self._wait(1.5)
        self._peers.thaw(victim)

    async def isolate(self) -> None:
        victim = self._victim()
        self._peers.cut([link for link in self._peers.links if victim in link])
        await self._wait(1.5)
        self._peers.heal(lose=self._random.random() < 0.5)

    async def cut_links(self) -> None:
        self._peers.cut(self._random.sample(self._peers.links, self._random.randint(1, 3)))
        await self._wait(1.5)
        self._peers.heal(lose=self._random.random() < 0.5)

    async def stall(self) -> None:
        victim = self._victim()
        self._peers.stall_disk(victim)
        await self._wait(1.5)
        self._peers.free_disk(victim)


async def _record(
    directory: Path, count: int, seed: object, *, kinds: Sequence[str] = _FAULT_KINDS, defect: str = ""
) -> tuple[_History, _Faults]:
    """Faults while clients are at work; in the end, all is well and every key is read once more."""
    random, history, over = Random(f"{seed} {defect}"), _History(), asyncio.Event()
    async with AsyncExitStack() as stack:
        peers = await stack.enter_async_context(LinkedPeers(directory, defect=defect))
        logs = [await stack.enter_async_context(AsyncRaftClient(peers.url)) for _ in range(_WRITERS)]
        clients = [_Client(log, name, Random(random.random()), history) for name, log in enumerate(logs)]
        faults = _Faults(peers, lambda: logs[0].leader.id if logs[0].leader else None, random)
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(client.run(over))
            for url in peers.urls.values():
                tasks.create_task(_read_from(url, Random(random.random()), history, over))
            await faults.run(count, kinds)
            over.set()
        for key in list(history.by_key):
            _, found, value = await logs[0].dispatch(b"kv.get", key, timeout=60)
            now = time.monotonic()
            history.add(key, Operation("get", None, value if found else None, now, now))
    return history, faults


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_what_clients_see_while_peers_fail_is_linearizable(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    """Reads of any peer, writes, deletions and comparisons fit into one order through kill -9 of one and all, SIGSTOP,
    partitions, links cut in one direction, and stalled disks; an operation without an answer may have happened."""
    history, faults = await _record(tmp_path, _FAULTS, SEED)
    history.check()
    assert min(history.counts[kind] for kind in ("set", "get", "cas")) > 0
    assert len(history.answered_by) == 3  # followers, too
    figures(f"seed {SEED}: {dict(faults.counts)}; {len(history.by_key)} keys, {dict(history.counts)}")


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.parametrize("defect", ["no read index", "no quorum"])
async def test_a_stale_read_is_found(tmp_path: Path, defect: str) -> None:
    """Peers that answer without knowing that the answer is new are found: the checker says no to what clients saw."""
    for attempt in range(10):
        seed = f"{SEED} {attempt}"
        history, _ = await _record(tmp_path / str(attempt), 3, seed, kinds=["isolate"], defect=defect)
        if not all(map(is_linearizable, history.by_key.values())):
            return
    pytest.fail("what a broken peer answered looked right")


@pytest.mark.parametrize(
    ("result", "expected"), [(True, True), (False, False), (UNKNOWN, True)], ids=["done", "refused", "unknown"]
)
def test_the_checker_knows_comparisons(result: object, expected: bool) -> None:
    """A comparison with what is there is done, and only then; unknown is either."""
    begin = Operation("set", b"1", True, 0, 1)
    compare = Operation("cas", b"2", result, 2, 3, expected=b"1")
    assert is_linearizable([begin, compare]) is expected
    assert is_linearizable([begin, compare, Operation("get", None, b"2", 4, 5)]) is expected
