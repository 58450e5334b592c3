"""Watches on a cluster of real peers (npm zmq-raft 0.5.0): compacted logs, and a leader that is killed under them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.raft_peers import RaftCluster, why_not

from raft_client import HistoryOutrunError, KeyValueCodec, RaftClient, SnapshotEvent, WatchEvent

pytestmark = pytest.mark.interop

_LAST = "a/last"
_PATIENCE_S = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RaftCluster]:
    """Three peers of a test's own, to be harmed."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with RaftCluster(tmp_path) as running:
        yield running


@pytest.fixture
def client(cluster: RaftCluster) -> Iterator[RaftClient]:
    with RaftClient(",".join(cluster.seeds), request_timeout=_PATIENCE_S) as opened:
        yield opened


def write(client: RaftClient, count: int) -> dict[int, bytes]:
    """Set as many keys, every second one under ``a/``. Returns index -> key."""
    keys = [b"%s/%d" % (b"ab"[n % 2 : n % 2 + 1], n) for n in range(count)]
    indexes = client.append_many(KeyValueCodec.set(key, bytes(60)) for key in keys)
    return dict(zip(indexes, keys, strict=True))


class Reader(threading.Thread):
    """Reads a watch on ``a/`` until the last key was set."""

    def __init__(self, client: RaftClient, *, after: int, pause: threading.Event | None = None) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._after = after
        self._pause = pause
        self.seen: dict[int, bytes] = {}
        self.start()

    def run(self) -> None:
        with self._client.watch(prefix="a/", after=self._after) as watch:
            if self._pause is not None:
                self._pause.wait(_PATIENCE_S)
            while (item := watch.get(timeout=_PATIENCE_S)) is not None:
                if isinstance(item, WatchEvent):
                    assert not self.seen or item.index > max(self.seen)
                    (change,) = item.changes
                    if change.key == _LAST.encode():
                        return
                    self.seen[item.index] = change.key


def test_watches_see_every_change_once_although_the_leader_dies(cluster: RaftCluster, client: RaftClient) -> None:
    """Watches from the start, live, and of a reader that sleeps see every change once although the leader is killed."""
    written = write(client, 400)
    start = max(written)
    waker = threading.Event()
    with RaftClient(",".join(cluster.seeds)) as other:
        readers = [Reader(other, after=0), Reader(other, after=start), Reader(other, after=0, pause=waker)]
        written |= write(client, 400)
        cluster.kill(cluster.leader())
        written |= write(client, 2_000)
        waker.set()
        client.append(KeyValueCodec.set(_LAST, b""))
        for reader in readers:
            reader.join(_PATIENCE_S)
            assert not reader.is_alive()
    wanted = {index: key for index, key in written.items() if key.startswith(b"a/")}
    assert readers[0].seen == readers[2].seen == wanted
    assert readers[1].seen == {index: key for index, key in wanted.items() if index > start}


def test_a_watch_on_a_compacted_log_is_outrun_or_lists_anew(cluster: RaftCluster, client: RaftClient) -> None:
    """A watch on a compacted log ends with an error that names the snapshot; with relist the snapshot comes in chunks,
    then events."""
    written = write(client, 2_500)
    compacted = 2_000
    for peer in cluster.running:
        cluster.compact(peer, compacted)
    with client.watch(prefix="a/", after=5) as watch, pytest.raises(HistoryOutrunError) as caught:
        watch.get(_PATIENCE_S)
    assert caught.value.snapshot_index == compacted
    client.append(KeyValueCodec.set(_LAST, b""))
    content, seen = b"", []
    with client.watch(prefix="a/", after=5, relist=True) as watch:
        while (item := watch.get(_PATIENCE_S)) is not None:
            if isinstance(item, SnapshotEvent):
                assert not seen
                assert item.chunk.offset == len(content)
                content += item.chunk.data
            elif isinstance(item, WatchEvent):
                if item.changes[0].key == _LAST.encode():
                    break
                seen.append(item.index)
    # The state machine of the tool that compacts puts the data of all entries one after another: more than one chunk.
    assert len(content) > 128 * 1024
    assert b"".join(KeyValueCodec.set(written[index], bytes(60)) for index in range(1, 100)) in content
    assert seen == [index for index, key in written.items() if index > compacted and key.startswith(b"a/")]
