"""Both clients against a cluster of real peers (npm zmq-raft 0.5.0), also while it is killed, frozen and changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.raft_peers import RaftCluster, why_not

from raft_client import (
    AppendItem,
    AsyncRaftClient,
    BatchError,
    ConfigError,
    EntryKind,
    InvalidDataError,
    KeyValueCodec,
    NoLeaderError,
    OutOfDateLogError,
    RaftClient,
    RequestExpiredError,
    RequestId,
    RequestTimeoutError,
    SnapshotChunk,
    WatchEvent,
    new_request_id,
)

pytestmark = pytest.mark.interop


def _cluster(directory: Path, **options: Any) -> RaftCluster:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    return RaftCluster(directory, **options)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RaftCluster]:
    """Three peers that no test of this module harms; they share a log, so tests look at what they added."""
    with _cluster(tmp_path_factory.mktemp("raft"), ident="interop") as running:
        yield running


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[RaftCluster]:
    """Three peers of a test's own, to be harmed."""
    with _cluster(tmp_path) as running:
        yield running


@pytest.fixture
def client(cluster: RaftCluster) -> Iterator[RaftClient]:
    with RaftClient(",".join(cluster.seeds), cluster="interop") as opened:
        yield opened


def open_client(cluster: RaftCluster, **options: Any) -> RaftClient:
    return RaftClient(",".join(cluster.seeds), **options)


# -- a healthy cluster -------------------------------------------------------------------------------------------------


def test_the_leader_and_the_peers_are_found(cluster: RaftCluster, client: RaftClient) -> None:
    """The leader and all peers are found from all seeds, and from a single one that is a follower."""
    config = client.config()
    assert config.leader_id == cluster.leader()
    assert {peer.id: peer.url for peer in config.peers} == cluster.urls
    follower = next(p for p in cluster.urls if p != config.leader_id)
    with RaftClient(cluster.urls[follower], cluster="interop") as other:
        assert other.config() == config


def test_appends_are_in_the_log(client: RaftClient) -> None:
    """An append is in the log at the index that was returned, with its request id."""
    request_id = new_request_id()
    index = client.append(b"hello", request_id)
    assert client.append("again", request_id) == index
    [entry] = client.entries(index - 1, 1)
    assert isinstance(entry.frame, bytes)
    assert (entry.index, entry.data, entry.request_id, entry.kind) == (index, b"hello", request_id, EntryKind.STATE)
    info = client.log_info()
    assert (info.is_leader, info.last_applied, info.last_index) == (True, index, index)


async def test_the_asyncio_client_does_the_same(cluster: RaftCluster) -> None:
    """The asyncio client appends one and many entries, reads entries, and asks each peer for its state."""
    async with AsyncRaftClient(",".join(cluster.seeds), cluster="interop") as client:
        first = await client.append(b"first")
        rest = await client.append_many(b"%d" % n for n in range(100))
        assert rest == list(range(first + 1, first + 101))
        data = [entry.data async for entry in client.entries(first - 1)]
        assert data == [b"first", *(b"%d" % n for n in range(100))]
        for peer in cluster.urls:
            assert (await client.log_info(peer)).is_leader == (peer == cluster.leader())


def test_entries_from_anywhere(client: RaftClient) -> None:
    """Entries are read from the beginning, the middle, the end and past the end, and as many as wanted."""
    last = client.append_many([b"x" * 1000] * 300)[-1]
    everything = list(client.entries())
    assert [entry.index for entry in everything] == list(range(1, last + 1))
    assert list(client.entries(last - 5)) == everything[-5:]
    assert list(client.entries(last - 5, 3)) == everything[-5:-2]
    assert list(client.entries(last)) == []
    with pytest.raises(OutOfDateLogError):
        list(client.entries(last + 10))


def test_a_stream_can_be_stopped_in_the_middle(client: RaftClient) -> None:
    """A stream that is stopped in the middle tells the peer, and the client goes on with other things."""
    client.append_many([b"x" * 1000] * 1000)
    for _ in range(20):
        with client.entries() as entries:
            assert [next(entries).index for _ in range(3)] == [1, 2, 3]
    assert client.append(b"after") > 1000


def test_large_entries_pass(client: RaftClient) -> None:
    """Entries of up to 10 MiB pass, and larger ones are refused by the client, because the peers would not answer."""
    data = bytes(range(256)) * 40_000
    index = client.append(data, timeout=30)
    [entry] = client.entries(index - 1, 1)
    assert entry.data == data
    with pytest.raises(InvalidDataError):
        client.append(bytes(10 * 2**20 + 1))


def test_a_wrong_ident_looks_like_silence(cluster: RaftCluster) -> None:
    """With a wrong ident the peers drop each message, so the client sees silence."""
    stranger = RaftClient(",".join(cluster.seeds), cluster="other", request_timeout=0.5)
    with pytest.raises(NoLeaderError, match="does not answer"), stranger:
        pass


@pytest.mark.parametrize("age_s", [9 * 3600, -20 * 60])
def test_expired_and_future_ids_are_refused(client: RaftClient, age_s: int) -> None:
    """A request id older than 8 hours, or more than 15 minutes in the future, is refused."""
    request_id = RequestId.derive("interop", age_s % 1000, seconds=int(time.time()) - age_s)
    with pytest.raises(RequestExpiredError):
        client.append(b"x", request_id)
    with pytest.raises(BatchError) as caught:
        client.append_many([b"a", AppendItem(b"b", request_id), b"c"])
    assert list(caught.value.failures) == [1]


def test_an_unknown_message_is_not_answered(client: RaftClient) -> None:
    """A message that the peers' state machine does not know is not answered."""
    with pytest.raises(RequestTimeoutError):
        client.dispatch(b"who is there", timeout=0.3)
    assert client.append(b"still there")


def test_a_refused_change_of_peers_says_why(client: RaftClient) -> None:
    """A change of peers to the present list is refused with a reason."""
    with pytest.raises(ConfigError, match="no change"):
        client.update_config(client.config().peers)


def test_a_subscriber_sees_what_is_there_and_what_comes(client: RaftClient) -> None:
    """A subscriber sees each index once, in order, first what is there and then what comes."""
    before = client.append(b"before")
    with client.subscribe(before - 1) as subscriber:
        assert next(subscriber).index == before
        last = client.append_many(b"%d" % n for n in range(200))[-1]
        seen = [next(subscriber).index for _ in range(200)]
    assert seen == list(range(before + 1, last + 1))


def test_a_watch_sees_the_keys_it_wants(client: RaftClient) -> None:
    """A watch sees the keys it wants, and can be resumed after the last one it saw."""
    with client.watch(prefix="pumps/", after=client.log_info().last_applied) as watch:
        client.append(KeyValueCodec.set("pumps/1", "on"))
        client.append(KeyValueCodec.set("valves/1", "open"))
        client.append(KeyValueCodec.delete("pumps/1"))
        events = [watch.get(10), watch.get(10)]
    kinds = [(event.changes[0].key, event.changes[0].value) for event in events if isinstance(event, WatchEvent)]
    assert kinds == [(b"pumps/1", b"on"), (b"pumps/1", None)]
    with client.watch(prefix="pumps/", after=events[0].index) as watch:
        assert watch.get(10).index == events[1].index


# -- a cluster that is harmed ------------------------------------------------------------------------------------------


class _Senders:
    """Threads that append numbered entries one after the other, and what they were told."""

    def __init__(self, client: RaftClient, threads: int, each: int) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._send, args=(client, t, each)) for t in range(threads)]
        for thread in self._threads:
            thread.start()

    def _send(self, client: RaftClient, number: int, each: int) -> None:
        for n in range(each):
            data = b"%d %d" % (number, n)
            try:
                self.acknowledged[data] = client.append(data, timeout=30)
            except Exception as error:  # noqa: BLE001 - the test wants to see any
                self.errors.append(error)

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)


def check_the_log(client: RaftClient, acknowledged: dict[bytes, int]) -> None:
    """Every acknowledged append is at its index, every entry is there once, and senders' entries are in order."""
    log = {e.index: e for e in client.entries() if not isinstance(e, SnapshotChunk) and e.is_state}
    data = [entry.data for entry in log.values()]
    assert len(set(data)) == len(data)
    assert {index: entry.data for index, entry in log.items()} == {i: d for d, i in acknowledged.items()}
    of_sender: dict[bytes, list[int]] = {}
    for entry in data:
        sender, _, number = entry.partition(b" ")
        of_sender.setdefault(sender, []).append(int(number))
    for numbers in of_sender.values():
        assert all(a < b for a, b in pairwise(numbers))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_no_append_is_lost_or_doubled_when_the_leader_is_killed(fresh: RaftCluster) -> None:
    """Of 5,000 appends of 10 senders and one batch, a subscriber sees every index once although the leader is
    killed."""
    with open_client(fresh) as client, open_client(fresh) as batcher, open_client(fresh) as reader:
        seen: list[int] = []
        subscriber = reader.subscribe(0)
        watching = threading.Thread(target=lambda: seen.extend(entry.index for entry in subscriber))
        watching.start()
        senders = _Senders(client, threads=10, each=250)
        batch: list[int] = []
        items = [b"batch %d" % n for n in range(2500)]
        batching = threading.Thread(target=lambda: batch.extend(batcher.append_many(items, timeout=30)))
        batching.start()
        wait_for(lambda: senders.count > 500)
        leader = fresh.leader()
        fresh.kill(leader)
        wait_for(lambda: senders.count > 1200)
        fresh.start(leader)
        fresh.kill(fresh.leader())
        senders.join()
        batching.join(60)
        assert senders.errors == []
        acknowledged = senders.acknowledged | dict(zip(items, batch, strict=True))
        assert len(acknowledged) == 5000
        check_the_log(client, acknowledged)
        end = client.log_info().last_applied
        wait_for(lambda: len(seen) >= end)
        subscriber.close()
        watching.join(10)
        assert seen == list(range(1, end + 1))


def test_failover_is_quick(fresh: RaftCluster) -> None:
    """The time from kill -9 to the next acknowledged append has a short median; the goal of 450 ms is measured by
    bench."""
    times = []
    with open_client(fresh) as client:
        for _ in range(5):
            client.append(b"x")
            leader = fresh.leader()
            fresh.kill(leader)
            begun = time.monotonic()
            client.append(b"y", timeout=30)
            times.append(time.monotonic() - begun)
            fresh.start(leader)
    assert sorted(times)[2] < 0.9  # twice the goal: CI machines are slow


def test_a_frozen_follower_and_a_frozen_leader_do_no_harm(fresh: RaftCluster) -> None:
    """A follower and a leader that are stopped and continued do no harm, and the old leader is not believed."""
    with open_client(fresh) as client:
        leader = fresh.leader()
        follower = next(p for p in fresh.running if p != leader)
        acknowledged = {b"1 0": client.append(b"1 0")}
        fresh.freeze(follower)
        acknowledged[b"1 1"] = client.append(b"1 1")
        fresh.thaw(follower)
        fresh.freeze(leader)
        acknowledged[b"1 2"] = client.append(b"1 2", timeout=30)
        fresh.thaw(leader)
        acknowledged[b"1 3"] = client.append(b"1 3", timeout=30)
        check_the_log(client, acknowledged)


def test_everything_is_there_after_a_full_restart(fresh: RaftCluster) -> None:
    """After kill -9 of all peers and a restart, the same client goes on and every entry is there."""
    with open_client(fresh) as client:
        indexes = client.append_many(b"1 %d" % n for n in range(100))
        for peer in list(fresh.urls):
            fresh.kill(peer)
        with pytest.raises(NoLeaderError):
            client.append(b"1 200", timeout=0.5)
        for peer in list(fresh.urls):
            fresh.start(peer)
        last = client.append(b"1 300", timeout=30)
        acknowledged = {b"1 %d" % n: index for n, index in enumerate(indexes)} | {b"1 300": last}
        check_the_log(client, acknowledged)


def test_a_fourth_peer_is_added_and_removed(fresh: RaftCluster) -> None:
    """A fourth peer takes part when it is added; when it is removed and the leader dies, the others go on."""
    with open_client(fresh) as client:
        client.append_many([b"x"] * 50)
        fresh.launch("4")
        before = client.config().peers
        client.update_config([*before, ("4", fresh.urls["4"])], timeout=30)
        fresh.until(lambda: (fresh.log_info("4") or {}).get("last", 0) >= 50, "peer 4 does not catch up")
        wait_for(lambda: len(client.config().peers) == 4)
        assert client.append(b"with four", timeout=30)
        client.update_config(before, timeout=30)
        wait_for(lambda: client.config().peers == before)
        # Two changes, each an entry for the transition and one for the result.
        wait_for(lambda: len([e for e in client.entries() if e.kind is EntryKind.CONFIG]) == 4)
        fresh.kill(fresh.leader(["1", "2", "3"]))
        assert client.append(b"with two", timeout=30)


def test_a_compacted_log_comes_as_a_snapshot_and_then_entries(fresh: RaftCluster) -> None:
    """A compacted log comes as a snapshot and then entries, where a Node client fails (facts 2, client defect 1)."""
    with open_client(fresh) as client:
        last = client.append_many(b"%d;" % n for n in range(20_000))[-1]
        # A busy machine makes peers vote, and every new leader adds a checkpoint.
        early = [entry.data for entry in client.entries(0, 15_000) if entry.kind is EntryKind.STATE]
        for peer in fresh.running:
            fresh.compact(peer, 15_000)
        items = list(client.entries(10))
        chunks = [item for item in items if isinstance(item, SnapshotChunk)]
        entries = [item for item in items if not isinstance(item, SnapshotChunk)]
        assert b"".join(chunk.data for chunk in chunks) == b"".join(early)
        assert early == [b"%d;" % n for n in range(len(early))]
        assert chunks[-1].index == 15_000
        indexes = [entry.index for entry in entries]
        assert indexes == list(range(15_001, 15_001 + len(indexes)))
        assert indexes[-1] >= last  # a leader that was voted in since has added its checkpoint
