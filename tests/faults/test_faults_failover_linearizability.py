"""What many clients see of keys can be put into one order while servers of one log are killed, stand still, hand over
and are forced out, and while the log has no leader.

``tests/support/schedules.py`` says how many histories there are, each of one key through two of these faults, and
which. 1,000 take five minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any, Self

import pytest
from forked_servers import ForkedServer
from linearizability import REFUSED, UNKNOWN, History, Operation, is_linearizable
from support.schedules import SEED, scaled
from support.server_processes import ReplicatedServer, ReplicatedServers

from raft_client.server import AsyncEmbeddedCluster, BroadcastStateMachine
from statestore_client import AsyncStateStoreClient, FencingError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

pytestmark = pytest.mark.scaled

_HISTORIES = scaled(20, 1000)
#: How much later than at once a server hears of what is new in the log. It is drawn at each start.
_TAIL_DELAYS_S = (0.0, 0.0, 0.1)
#: Keys that are in use at a time; half of them are written with fencing tokens.
_KEYS = 10
_READERS = 4  # of one server each
_WRITERS = 6
_KINDS = ("set", "set", "nx", "nex", "get", "get", "get", "delete", "vdelete")
_TOKENS = tuple(HlcTimestamp(1_700_000_000_000 + n, 0, "holder") for n in range(4))
_PAUSE_S = 0.05
_ANSWER_S = 20.0
_LATE_S = 0.2  # a write is on its way to a log without a leader by then, and nobody can be asked about that
_IMPATIENT_S = 0.25  # shorter than a failover: what became of a write is then not known
#: What happens first, and what comes after it: who was deposed first is active again in the end.
_FIRST = ("pause", "pause_quietly", "write_late", "kill", "force", "hand_over", "lose_leader")
_THEN = ("kill", "hand_over", "kill_with_leader")


class _Client:
    """Reads and writes, through the public client."""

    def __init__(
        self, store: Any, name: str, random: Random, history: History, kinds: Sequence[str], patience: Sequence[float]
    ) -> None:
        self._store, self._name, self._random, self._history = store, name, random, history
        self._kinds, self._patience = kinds, patience
        self._numbers = itertools.count()
        self._seen: dict[bytes, bytes] = {}
        #: It is taken for each operation.
        self.turn = asyncio.Lock()

    async def run(self, keys: list[bytes], over: asyncio.Event) -> None:
        while not over.is_set():
            async with self.turn:
                await self.act(self._random.choice(self._kinds), self._random.choice(keys))
            await asyncio.sleep(self._random.uniform(0, _PAUSE_S))

    async def act(self, kind: str, key: bytes, *, is_patient: bool = False) -> None:
        """One operation; a read that is not answered was none."""
        value = self._value(kind, key)
        is_guarded = key.endswith(b"guarded") and kind != "get"
        token = self._random.choice([None, 0, 1, 1, 2, 2, 3]) if is_guarded else None
        timeout = _ANSWER_S if is_patient else self._random.choice(self._patience)
        options = {"timeout": timeout} | ({} if token is None else {"fencing_token": _TOKENS[token]})
        call = time.monotonic()
        result: object = UNKNOWN
        try:
            result = await self._call(kind, key, value, options)
        except FencingError:
            result = REFUSED
        except StateStoreError as error:
            if is_patient:
                raise
            if kind == "get" or not error.may_have_been_applied:
                return
        end = {} if result is UNKNOWN else {"end": time.monotonic()}
        self._history.add(key, Operation(kind, value, result, call, token=token, **end))

    def _value(self, kind: str, key: bytes) -> bytes | None:
        """Each write has its own, so that it can be known again."""
        if kind in ("get", "delete"):
            return None
        new = f"{self._name}.{next(self._numbers)}".encode()
        return self._seen.get(key, new) if kind in ("nex", "vdelete") else new

    async def _call(self, kind: str, key: bytes, value: bytes | None, options: dict[str, Any]) -> object:
        store = self._store
        match kind:
            case "get":
                item = await store.get(key, **options)
                if item is not None:
                    self._seen[key] = item.value
                return None if item is None else item.value
            case "delete":
                return (await store.delete(key, **options)).count
            case "vdelete":
                return (await store.vdelete(key, value, **options)).count
            case _:
                condition = None if kind == "set" else kind.upper()
                return (await store.set(key, value, condition=condition, **options)).applied


class _Faults:
    """Each returns when another server is active, and what was done to the first one is undone."""

    def __init__(
        self, servers: ReplicatedServers, cluster: AsyncEmbeddedCluster, random: Random, writers: Sequence[_Client]
    ) -> None:
        self._servers, self._cluster, self._random, self._writers = servers, cluster, random, writers
        self.counts: Counter[str] = Counter()
        #: Clients of one server that act when they are told to, by its id.
        self.at: dict[str, _Client] = {}
        self._keys: Sequence[bytes] = ()

    async def meet(self, kind: str, keys: Sequence[bytes]) -> None:
        self._keys = keys
        await asyncio.sleep(self._random.uniform(0.0, 0.3))  # a random moment, not a condition
        active = await self._servers.active()
        await getattr(self, kind)(active)
        self.counts[kind] += 1

    async def kill(self, active: ReplicatedServer) -> None:
        await active.end(SIGKILL)
        await self._servers.active()
        await active.start()

    def _other(self, active: ReplicatedServer) -> ReplicatedServer:
        return next(each for each in self._servers.servers.values() if each is not active)

    @asynccontextmanager
    async def _standing_still(self, active: ReplicatedServer) -> AsyncIterator[ReplicatedServer]:
        """Until another one is active, which this gives, and what comes then is over."""
        active.signal(SIGSTOP)
        self._servers.paused.add(active)
        yield await self._servers.active()
        self._servers.paused.discard(active)
        active.signal(SIGCONT)

    async def pause(self, active: ReplicatedServer) -> None:
        async with self._standing_still(active):
            await asyncio.sleep(self._random.uniform(0.1, 0.8))

    @asynccontextmanager
    async def _quiet(self) -> AsyncIterator[None]:
        """No writer does anything: what waits to be written keeps a server from answering reads, and what is written
        next hides what was written wrongly.
        """
        async with AsyncExitStack() as stack:
            for writer in self._writers:
                await stack.enter_async_context(writer.turn)
            yield

    async def _write_at(self, server: ReplicatedServer) -> None:
        for key in self._keys:
            await self.at[server.id].act("set", key, is_patient=True)

    async def pause_quietly(self, active: ReplicatedServer) -> None:
        async with self._quiet():
            async with self._standing_still(active) as other:
                await self._write_at(other)
                await asyncio.sleep(1.1 * _IMPATIENT_S)  # until each reader has asked anew
            await self._servers.active()

    async def write_late(self, active: ReplicatedServer) -> None:
        """What it has carried out comes into the log when another one is active, which has done it as well. Then it
        goes on in that one's place.
        """
        standby = self._other(active)
        async with self._quiet():
            leader = await self._cluster.leader()
            await self._cluster.kill(leader)
            writing = asyncio.create_task(self._write_at(standby))
            await asyncio.sleep(_LATE_S)
            async with self._standing_still(active):
                await writing
                await self._write_at(standby)
            await asyncio.sleep(_LATE_S)
            await self._cluster.restart(leader)
            await self.kill(standby)

    async def hand_over(self, active: ReplicatedServer) -> None:
        await active.ask("hand-over")
        await self._servers.active()

    async def force(self, active: ReplicatedServer) -> None:
        await self._other(active).ask("promote")
        await self._servers.active()

    async def lose_leader(self, _active: ReplicatedServer) -> None:
        leader = await self._cluster.leader()
        await self._cluster.kill(leader)
        await self._cluster.leader()
        await self._cluster.restart(leader)

    async def kill_with_leader(self, active: ReplicatedServer) -> None:
        leader = await self._cluster.leader()
        await active.end(SIGKILL)
        await self._cluster.kill(leader)
        await self._servers.active()
        await self._cluster.restart(leader)
        await active.start()


def _schedule(random: Random) -> Iterator[tuple[str, str]]:
    """Each fault as often as the others of its place."""
    while True:
        for first in random.sample(_FIRST, len(_FIRST)):
            yield first, random.choice(_THEN)


class _World:
    """Servers, their log, and clients at each of them. Use with ``async with``."""

    def __init__(self, seed: int, *, defect: str = "") -> None:
        self.random = Random(f"{seed} {defect}")
        self.history = History()
        self._defect = defect
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._closing = stack
            cluster = await stack.enter_async_context(AsyncEmbeddedCluster(3, machine=BroadcastStateMachine))
            make = partial(ForkedServer, defect=self._defect, tail_delay_s=lambda: self.random.choice(_TAIL_DELAYS_S))
            self._servers = ReplicatedServers(",".join(cluster.seeds), self.random, "a", "b", make=make)
            stack.push_async_callback(self._servers.end_all)
            await self._servers.start_all()
            writers = [await self._client(f"w{n}", *("ab" if n % 2 else "ba")) for n in range(_WRITERS)]
            readers = [await self._client(f"r{n}", "ab"[n % 2], kinds=("get",)) for n in range(_READERS)]
            self._clients = writers + readers
            self.faults = _Faults(self._servers, cluster, self.random, writers)
            self.faults.at = {server_id: await self._client(server_id, server_id) for server_id in "ab"}
            self._closing = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def _client(self, name: str, *server_ids: str, kinds: Sequence[str] = _KINDS) -> _Client:
        """Of these servers, the first one first. A reader is not patient: what it asks last, when a failover is long
        over, is told wrongly by a server that does not know of that.
        """
        addresses = ",".join(f"127.0.0.1:{self._servers.servers[server_id].port}" for server_id in server_ids)
        store = AsyncStateStoreClient(
            f"mqtt://{addresses}", reconnect_delay=0.02, max_reconnect_delay=0.1, retry_first_connect=True
        )
        await self._closing.enter_async_context(store)
        patience = (_IMPATIENT_S,) if kinds == ("get",) else (_IMPATIENT_S, _ANSWER_S)
        return _Client(store, name, Random(self.random.random()), self.history, kinds, patience)

    async def live_through(self, number: int, kinds: Sequence[str]) -> None:
        """New keys, one fault after the other, and in the end every client reads every key."""
        keys = [b"%d/%d%s" % (number, n, b" guarded" * (n % 2)) for n in range(_KEYS)]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for client in self._clients:
                tasks.create_task(client.run(keys, over))
            for kind in kinds:
                await self.faults.meet(kind, keys)
            await asyncio.sleep(0.1)  # some ordinary life after the last fault, not a condition
            over.set()
        for client in self._clients:
            await asyncio.gather(*(client.act("get", key, is_patient=True) for key in keys))


@pytest.mark.slow
@pytest.mark.timeout(300 + 3 * _HISTORIES)
async def test_what_clients_see_through_failovers_is_linearizable(figures: Callable[[str], None]) -> None:
    """Reads, writes, conditions, deletions and guarded writes through any server fit into one order for each key; an
    operation without an answer may have happened.
    """
    began = time.monotonic()
    async with _World(SEED) as world:
        rounds = itertools.islice(_schedule(world.random), -(-_HISTORIES // _KEYS))
        for number, kinds in enumerate(rounds):
            await world.live_through(number, kinds)
    recorded = time.monotonic() - began
    history = world.history
    history.check()
    assert min(history.counts[kind] for kind in ("set", "get")) > 0
    figures(
        f"{len(history.by_key)} histories, {dict(history.counts)}; {dict(world.faults.counts)}; seed {SEED}, "
        f"{recorded:.0f} s, checked in {time.monotonic() - began - recorded:.0f} s"
    )


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "kind"),
    [
        ("speaks without the right", "pause_quietly"),
        ("applies old epochs", "write_late"),
    ],
)
async def test_servers_that_are_wrong_are_found(defect: str, kind: str, figures: Callable[[str], None]) -> None:
    """A deposed server that answers from memory, and one that takes what a deposed owner wrote, are found: the checker
    says no to what clients saw.
    """
    async with _World(SEED, defect=defect) as world:
        for number in range(10):
            await world.live_through(number, (kind,))
            if not all(map(is_linearizable, world.history.by_key.values())):
                figures(f"found in round {number + 1}")
                return
            world.history.by_key.clear()
    pytest.fail("what broken servers answered looked right")
