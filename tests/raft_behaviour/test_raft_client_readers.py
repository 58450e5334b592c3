"""Both clients: no reader hangs, starves or locks out another one, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from raft_shells import RaftShell
from support.scripted_peers import BROADCAST, ENTRIES, ScriptedCluster
from support.waiting import eventually, until

import raft_client
from raft_client import (
    AsyncRaftClient,
    Change,
    ChangeKind,
    ClientClosedError,
    ForkedClientError,
    InvalidArgumentError,
    Key,
    KeyValueCodec,
    ProtocolError,
    RaftClient,
)

# -- codecs and conditions that call the client -----------------------------------------------------------------------


def uses(client: Any) -> list[Any]:
    """Ways to use a client without waiting, or with."""
    return [
        lambda: client.append(b"x"),
        lambda: client.watch(prefix="x"),
        lambda: next(client.subscribe(0)),
        client.config,
        client.close,
    ]


@pytest.mark.parametrize("which", range(5))
def test_a_condition_that_uses_its_client_ends_its_watch(peers: ScriptedCluster, which: int) -> None:
    """A condition that calls its blocking client ends its watch, as it would wait for itself; client and other watches
    go on."""
    with RaftClient(peers.seeds) as client, ThreadPoolExecutor() as executor:
        other = client.watch(after=0)
        watch = client.watch(lambda _change: uses(client)[which](), after=0)
        client.append(KeyValueCodec.set("a", "1"))
        taking = executor.submit(watch.get, 10)
        with pytest.raises(raft_client.BusyError, match="because the client waits for it"):
            taking.result(10)
        assert other.get(10).changes[0].key == b"a"
        assert client.append(b"x") == 2


async def test_an_asyncio_condition_that_uses_its_client_ends_its_watch(peers: ScriptedCluster) -> None:
    """A condition that uses its asyncio client ends its watch, because it would change the watches during a loop over
    them."""
    async with AsyncRaftClient(peers.seeds) as client:
        other = client.watch(after=0)
        watch = client.watch(lambda _change: client.watch(prefix="x"), after=0)
        await client.append(KeyValueCodec.set("a", "1"))
        with pytest.raises(raft_client.BusyError):
            await watch.get(10)
        assert (await other.get(10)).changes[0].key == b"a"


async def test_a_codec_that_uses_its_client_ends_its_watches(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A codec that uses its client ends its watches, with the error of a codec that cannot read an entry."""
    async with raft.client(peers.seeds) as client:
        inner = client if raft.is_aio else client.target

        class Codec:
            def decode(self, _data: bytes) -> list[Change]:
                inner.watch(prefix="x")
                return []

        watch = client.watch(codec=Codec(), after=0)
        await client.append(b"x")
        with pytest.raises(ProtocolError, match="BusyError"):
            await asyncio.wait_for(watch.get(10), 20)
        assert await client.append(b"x") == 2


async def test_a_watch_that_a_condition_could_not_close_can_be_closed(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A watch that a condition tried to close in vain can be closed later, and nothing of it stays."""
    async with raft.client(peers.seeds) as client:
        refusals: list[BaseException] = []
        other = client.watch(prefix="b", after=0)
        target = other if raft.is_aio else other.target

        def closes(_change: Change) -> bool:
            try:
                closing = target.close()
                if raft.is_aio:
                    closing.send(None)
            except (raft_client.BusyError, StopIteration) as error:
                refusals.append(error)
            return True

        watch = client.watch(closes, after=0)
        await client.append(KeyValueCodec.set("a", "1"))
        assert await watch.get(10) is not None
        assert [type(refusal) for refusal in refusals] == [raft_client.BusyError]
        await watch.close()
        await other.close()
        assert client.watches.open == 0


@pytest.mark.timeout(60)
async def test_readers_that_a_condition_could_not_close_go_on(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Readers that a condition tried to close in vain go on, in the middle of the log and at its end."""
    peers.fill(3)
    async with raft.client(peers.seeds) as client, client.subscribe(0) as subscriber:
        entries, ended = client.entries(0, buffer_bytes=1), client.entries(0)
        assert (await entries.get(10)).index == 1
        while await ended.get(10) is not None:
            pass
        refusals: list[type[BaseException]] = []

        def closes(_change: Change) -> bool:
            for reader in (entries, ended, subscriber):
                try:
                    closing = (reader if raft.is_aio else reader.target).close()
                    if raft.is_aio:
                        closing.send(None)
                except (raft_client.BusyError, StopIteration) as error:
                    refusals.append(type(error))
            return True

        watch = client.watch(closes, after=3)
        await client.append(KeyValueCodec.set("a", "1"))
        assert await watch.get(10) is not None
        assert refusals == [raft_client.BusyError] * 3
        assert (await entries.get(10)).index == 2
        assert (await subscriber.get(10)).index == 1


# -- two readers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["entries", "subscribe", "watch"])
async def test_a_second_reader_is_told_at_once(raft: RaftShell, peers: ScriptedCluster, what: str) -> None:
    """A second reader is refused at once, and the first goes on, because only one of them would be woken."""
    async with raft.client(peers.seeds) as client:
        if what == "entries":
            peers.script("1", ENTRIES, lambda _: [])  # it has nothing to say
        reader = {
            "entries": lambda: client.entries(),
            "subscribe": lambda: client.subscribe(0),
            "watch": lambda: client.watch(after=0),
        }[what]()
        take = reader.get if what == "watch" else reader.next_batch
        first = asyncio.create_task(take())
        await asyncio.sleep(0)  # what is waited for next may have been there before, and then nobody has a turn
        await until(lambda: any(seen[2] in (ENTRIES, BROADCAST) for seen in list(peers.seen)))
        second = asyncio.create_task(take())
        done, _ = await asyncio.wait({first, second}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(raft_client.BusyError):
            await done.pop()
        first = second if first.done() else first  # threads may come in another order
        if what != "entries":
            await client.append(KeyValueCodec.set("a", "1"))
            assert await asyncio.wait_for(first, 10) is not None
        await reader.close()
        if what == "entries":  # and a reader that waits is woken when they are closed
            with pytest.raises(ClientClosedError):
                await asyncio.wait_for(first, 10)


# -- fork -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("what", ["entries", "subscribe", "watch"])
def test_a_forked_child_reads_nothing(peers: ScriptedCluster, what: str) -> None:
    """In a forked child every read of the parent's stream is refused, and closing it does no harm."""
    peers.fill(500)
    with RaftClient(peers.seeds) as client:
        reader: Any = {
            "entries": lambda: client.entries(buffer_bytes=1),
            "subscribe": lambda: client.subscribe(0, buffer_bytes=1),
            "watch": lambda: client.watch(after=0, queue_bytes=1, codec=_Everything()),
        }[what]()
        take = reader.get if what == "watch" else reader.next_batch
        assert take() is not None
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for _ in range(500):
                    take()
            except ForkedClientError:
                reader.close()
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert take() is not None  # the parent's is unharmed


class _Everything:
    def decode(self, data: bytes) -> list[Change]:
        return [Change(ChangeKind.SET, b"k", data)]


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_an_interrupted_wait_leaves_no_deadline_behind(peers: ScriptedCluster) -> None:
    """An interrupted wait leaves no deadline behind, so that the stream goes on when it is read again."""
    peers.fill(3)
    peers.script("1", ENTRIES, lambda _: [])
    with RaftClient(peers.seeds, response_timeout=30.0) as client:
        entries = client.entries(timeout=0.5)

        def interrupt() -> None:
            eventually(lambda: any(seen[2] == ENTRIES for seen in list(peers.seen)))
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                entries.next_batch()
        finally:
            thread.join()
        assert client._engine.machine.pending == 1
        assert all(r.deadline == float("inf") for r in client._engine.machine._table.requests.values())


# -- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.ci
async def test_what_closed_watches_shared_is_gone(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Each codec has a subscription of its own, which is gone with its last watch, also when that ended by itself."""
    async with raft.client(peers.seeds) as client:
        engine = (client if raft.is_aio else client.target)._engine
        await client.append(b"x")
        for _ in range(5):
            async with client.watch(codec=_Everything(), after=0) as watch:
                assert (await watch.get(10)).index == 1
        ended = client.watch(codec=KeyValueCodec(), after=10**6)  # it takes three seconds
        with pytest.raises(raft_client.OutOfDateLogError):
            await ended.get(60)
        assert engine._runners.members == []
        assert engine._runners._watches == {}
        async with client.watch(codec=_Everything(), after=0) as watch:
            assert (await watch.get(10)).index == 1


# -- looking without waiting ------------------------------------------------------------------------------------------


async def test_a_reader_that_only_looks_hears_of_everything(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A reader with a time-out of 0 gets every event, although nobody else reads the sockets."""
    async with raft.client(peers.seeds) as client:
        watch, subscriber = client.watch(after=0), client.subscribe(0)
        await client.append(KeyValueCodec.set("a", "1"))
        for take in (watch.get, subscriber.next_batch):
            deadline = time.monotonic() + 20
            while (found := await take(0)) is None:
                assert time.monotonic() < deadline
            assert found is not None


async def test_a_task_that_only_looks_leaves_turns_to_others(peers: ScriptedCluster) -> None:
    """A task that reads with a time-out of 0 gives the event loop a turn each time."""
    peers.fill(3)
    async with AsyncRaftClient(peers.seeds) as client, client.watch() as watch, client.subscribe(0) as subscriber:
        for take in (watch.get, subscriber.next_batch):
            was_readable = asyncio.Event()
            asyncio.get_running_loop().call_later(0.05, was_readable.set)
            polls = 0
            while not was_readable.is_set():
                await take(timeout=0)
                polls += 1
                assert polls < 100_000, "the timer that was due never ran"


async def test_a_reader_who_always_finds_something_leaves_turns_to_others(
    peers: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that always finds something ready gives other tasks turns. (The time of a turn is set to none.)"""
    monkeypatch.setattr("raft_client.aio.engine._TURN_S", 0.0)
    for n in range(200):
        peers._order(lambda n=n: peers.commit(n.to_bytes(12, "big"), KeyValueCodec.set("a", "x")))
    async with AsyncRaftClient(peers.seeds) as client:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        entries, subscriber, watch = client.entries(), client.subscribe(0), client.watch(after=0)
        for reader, take, received in (
            (entries, entries.next_batch, lambda: entries._call.position),
            (subscriber, subscriber.next_batch, lambda: subscriber._subscription.position),
            (watch, watch.get, lambda: watch._watch.waiting + 1),
        ):
            await take()
            await until(lambda received=received: received() == 200)
            counting = asyncio.create_task(count_turns())
            turns, taken = 0, 0
            while (found := await take()) is not None:
                taken += 1
                last = found if isinstance(found, raft_client.WatchEvent) else found[-1]
                if last.index == 200:
                    break
            counting.cancel()
            assert turns >= taken > 10
            await reader.close()


# -- arguments --------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_is_refused(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Impossible arguments are refused at once; nothing is sent, and nothing is left behind."""
    impossible: dict[str, list[dict[str, Any]]] = {
        "subscribe": [{"after": -1}, {"after": "1"}, {"snapshot": "nope"}, {"buffer_bytes": 0}],
        "entries": [
            *({"after": after} for after in (-1, True)),
            *({name: wrong} for name, wrong in (("count", -1), ("snapshot", "nope"))),
            *({"buffer_bytes": wrong} for wrong in (0, "4")),
        ],
        "watch": [
            {"after": -1},
            *({"overflow": wrong} for wrong in ("bogus", None)),
            *({"codec": wrong} for wrong in (None, KeyValueCodec)),
            *({"selector": wrong} for wrong in (5, raft_client.Where(5))),
            {"selector": Key(b"a"), "prefix": "b"},
            {"prefix": 5},
            {"queue_bytes": 0},
            {"callback": 5},
        ],
    }
    async with raft.client(peers.seeds) as client:
        sent = len(peers.seen)
        for what, mistakes in impossible.items():
            for arguments in mistakes:
                with pytest.raises(InvalidArgumentError):
                    getattr(client, what)(**{"after": 0} | arguments)
        assert await client.append(b"x") == 1
        assert {seen[2] for seen in peers.seen[sent:]} <= {b"\x3d", b"\x5e"}
        assert client.watches.open == 0


async def test_an_impossible_time_out_is_refused(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Watches and subscribers refuse an impossible time-out; 0 is a look, and a huge time means no end."""
    async with raft.client(peers.seeds) as client, client.watch() as watch, client.subscribe(0) as subscriber:
        for take in (watch.get, subscriber.next_batch):
            for timeout in (-1, float("nan"), "1", True):
                with pytest.raises(InvalidArgumentError, match="timeout"):
                    await take(timeout)
            assert await take(0) is None


async def test_a_blocking_client_cannot_await_a_callback(peers: ScriptedCluster) -> None:
    """A blocking client refuses a coroutine function as a callback."""

    async def callback(_item: object) -> None:
        raise AssertionError("it was awaited")

    with RaftClient(peers.seeds) as client:
        with pytest.raises(InvalidArgumentError, match="cannot await"):
            client.watch(callback=callback)
        with pytest.raises(InvalidArgumentError, match="a function"):
            client.watch(callback)  # type: ignore[arg-type]
        assert client.watches.open == 0
    gc.collect()
    with pytest.raises(ClientClosedError):
        client.watch()
