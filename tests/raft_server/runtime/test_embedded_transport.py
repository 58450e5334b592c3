"""Where the peers of a cluster in this program listen: both transports do the same, and one needs no ports."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import pytest
from support.keys import make_keys, settings_for
from support.waiting import eventually

from raft_client import AsyncRaftClient, ConfigError, KeyValueCodec, NoLeaderError, Peer, RaftClient
from raft_client.errors import InvalidArgumentError, TransportError
from raft_client.server import embedded_cluster
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster, Transport

pytestmark = pytest.mark.parametrize("transport", ["tcp", "ipc"])


def listening_ports() -> set[str]:
    """TCP sockets of this process that listen, by their inodes."""
    own = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)}
    listening = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                listening.add(fields[1])
    return listening


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def test_leaders_are_killed_restarted_and_cut_off(transport: Transport) -> None:
    """Whatever the peers speak over, nothing acknowledged is lost when the leader is killed, restarted and cut off."""
    with EmbeddedCluster(3, transport=transport) as cluster, RaftClient(cluster.url) as log:
        acknowledged = []
        for n in range(3):
            killed = cluster.leader()
            cluster.kill(killed)
            acknowledged.append((log.append(b"kill %d" % n), b"kill %d" % n))
            cluster.restart(killed)
        cut_off = cluster.leader()
        cluster.partition([cut_off])
        acknowledged.append((log.append(b"cut off"), b"cut off"))
        assert cluster.leader() != cut_off
        cluster.heal()
        # two of three hold everything; with one of them away, the third must have caught up to be needed
        cluster.kill(cluster.leader())
        acknowledged.append((log.append(b"last"), b"last"))
        assert [(entry.index, entry.data) for entry in log.entries() if entry.is_state] == acknowledged


async def test_broadcasts_and_watches_go_on_after_a_change_of_the_leader(transport: Transport) -> None:
    """A subscriber and a watch hear what is applied, and hear the next leader without a gap."""
    async with (
        AsyncEmbeddedCluster(3, transport=transport) as cluster,
        AsyncRaftClient(cluster.url) as log,
        log.subscribe() as subscriber,
        log.watch() as watch,
    ):
        indexes = [await log.append(KeyValueCodec.set("a", "1"))]
        await cluster.kill(await cluster.leader())
        indexes += [await log.append(KeyValueCodec.set("a", "2"))]
        heard, seen = [], []
        while len(heard) < 2:
            item = await subscriber.get(timeout=20)
            heard += [item.index] if item.is_state else []
        while len(seen) < 2:
            seen.append((await watch.get(timeout=20)).index)
        assert heard == seen == indexes


def test_keys_hold_on_both(transport: Transport, tmp_path: Path) -> None:
    """A client with a key is let in and broadcasts reach it; one without is not."""
    keys = make_keys(tmp_path / "keys")
    with EmbeddedCluster(3, transport=transport, curve_keys=keys) as cluster:
        with RaftClient(settings_for(keys, cluster.peers)) as log, log.subscribe() as subscriber:
            index = log.append(b"x")
            assert subscriber.get(timeout=20).index == index
        with pytest.raises(NoLeaderError), RaftClient(cluster.url, request_timeout=0.5):
            pass


def test_a_member_leaves_and_comes_back(transport: Transport) -> None:
    """The list of members is changed in a cluster of either kind; a Unix socket joins only where all have one."""
    with EmbeddedCluster(3, transport=transport) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        gone = next(peer for peer in cluster.peers if peer.id != cluster.leader())
        log.update_config([peer for peer in cluster.peers if peer is not gone])
        assert gone not in log.config(settled=True).peers
        if transport == "tcp":
            with pytest.raises(ConfigError, match="peer url protocol must be tcp:"):
                log.update_config([*cluster.peers, Peer("9", "ipc:///tmp/9")])
        log.update_config(cluster.peers)
        assert set(log.config(settled=True).peers) == set(cluster.peers)


def test_unix_sockets_take_no_ports(transport: Transport) -> None:
    """With TCP each peer has two ports; with Unix sockets none listens at any, and no file is left in the end."""
    before = listening_ports()
    with EmbeddedCluster(3, transport=transport) as cluster:
        cluster.leader()
        assert len(listening_ports() - before) == (6 if transport == "tcp" else 0)
        paths = [Path(url.removeprefix("ipc://")) for url in cluster.seeds]
        assert transport == "tcp" or all(path.is_socket() for path in paths)
    assert not any(path.parent.exists() for path in paths if transport == "ipc")


@pytest.mark.parametrize(("size", "bar_s"), [(1, 0.05), (3, 0.5)])
def test_a_cluster_is_ready_soon(transport: Transport, size: int, bar_s: float) -> None:
    """One peer leads in less than 50 ms and one of three in less than 500 ms, unless the machine is busy: the best of
    many starts counts."""

    async def start() -> float:
        begin = time.perf_counter()
        async with AsyncEmbeddedCluster(size, transport=transport) as cluster:
            await cluster.leader()
            return time.perf_counter() - begin

    eventually(lambda: asyncio.run(start()) < bar_s, f"a start in less than {bar_s} s")


def test_a_directory_that_holds_no_unix_socket_is_told(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is too long for a Unix socket, or that no URL can have, is an error that says what to do."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("long" * 25, "a,b", "a=b", "a b"):
            deep = Path(folder, name)
            deep.mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(deep))
            cluster = EmbeddedCluster(1, transport=transport)
            if transport == "ipc":
                with pytest.raises(TransportError, match=r"no Unix socket can be in .*Set TMPDIR"), cluster:
                    pass
            else:
                with cluster:
                    assert cluster.leader() == "1"
            assert list(deep.iterdir()) == []


def test_where_there_are_no_unix_sockets_they_are_refused(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where libzmq has no Unix sockets, the error says so."""
    monkeypatch.setattr(embedded_cluster, "has_unix_sockets", lambda: False)
    if transport == "ipc":
        with pytest.raises(InvalidArgumentError, match="no Unix sockets on this system"):
            EmbeddedCluster(transport=transport)
    else:
        EmbeddedCluster(transport=transport)
