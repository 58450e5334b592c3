"""Servers with their own peers of the log, in one process: each with its peer in a thread."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.ports import reserved_ports
from support.waiting import eventually

from raft_client.server import BroadcastStateMachine, EmbeddedPeer
from statestore_client import (
    DataDamagedError,
    DataDirectoryError,
    DataInUseError,
    ReplicatedLogError,
    SettingsError,
    StateStoreClient,
)
from statestore_client.server import EmbeddedServer, ReplicaSettings
from statestore_client.server.runtime import server_thread


def cluster() -> dict[str, str]:
    """The places of three servers on this machine."""
    return {name: f"127.0.0.1:{reserved_ports(3)}" for name in "abc"}


def server(nodes: dict[str, str], name: str, directory: Path) -> EmbeddedServer:
    """Not started."""
    log = ReplicaSettings.in_cluster(nodes, id=name, data=directory / name)
    return EmbeddedServer(log=log, metrics_port=0)


@contextmanager
def three_servers(directory: Path) -> Iterator[dict[str, EmbeddedServer]]:
    """They start together: before two have come, there is no log."""
    nodes = cluster()
    servers = {name: server(nodes, name, directory) for name in nodes}
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(EmbeddedServer.start, servers.values()))
            yield servers
        finally:
            list(pool.map(EmbeddedServer.stop, servers.values()))


def _figures(of: EmbeddedServer) -> bytes:
    with urllib.request.urlopen(of.urls["http"]) as page:  # noqa: S310 - of this test's own server
        return bytes(page.read())


def test_servers_are_restarted_one_by_one(tmp_path: Path) -> None:
    """Each in its turn is stopped, and goes on with its directory; two are enough meanwhile, and nothing is lost."""
    with three_servers(tmp_path) as servers:
        for name, each in servers.items():
            url = "mqtt://" + ",".join(f"127.0.0.1:{one.port}" for one in servers.values())
            with StateStoreClient(url) as store:
                store.set(f"before/{name}", name, timeout=30)
                each.stop()
                store.set(f"after/{name}", name, timeout=30)
            each.start()
        with StateStoreClient(servers["a"].url) as store:
            for name in servers:
                assert store.get(f"before/{name}", timeout=30).value == name.encode()
                assert store.get(f"after/{name}", timeout=30).value == name.encode()
        eventually(lambda: sum(each.is_active for each in servers.values()) == 1, "one is active")
        for each in servers.values():
            page = _figures(each)
            assert b"\nstatestore_log_epoch " in page
            assert b"\nzmqraft_commit_index " in page


def test_a_server_without_a_majority_gives_up_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alone: it says what is missing, and its threads end. With the others it starts at the same place."""
    nodes = cluster()
    threads = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(server_thread, "_START_TIMEOUT_S", 1.0)
        alone = server(nodes, "a", tmp_path)
        with pytest.raises(ReplicatedLogError, match=r"within 1 s: .* does a majority of the log's peers run"):
            alone.start()
    eventually(lambda: threading.active_count() == threads, "the threads have ended")
    other = server(nodes, "b", tmp_path)
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(EmbeddedServer.start, (alone, other)))
            eventually(lambda: alone.is_active != other.is_active, "one is active")
        finally:
            list(pool.map(EmbeddedServer.stop, (alone, other)))


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """That of another server, or of another cluster, one in use, damaged, or with the data of a server alone."""
    nodes = cluster()
    url = f"tcp://{nodes['a']}"
    other = f"tcp://127.0.0.1:{reserved_ports(1)}"
    peer = EmbeddedPeer("a", {"a": url}, tmp_path / "a" / "log", machine=BroadcastStateMachine)
    with peer, pytest.raises(DataInUseError, match="another peer has"):
        server(nodes, "a", tmp_path).start()
    renamed = ReplicaSettings.in_cluster(nodes, id="a", data=tmp_path / "a", cluster="another one")
    with pytest.raises(DataDirectoryError, match="belongs to"):
        EmbeddedServer(log=renamed).start()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "log").rename(tmp_path / "b" / "log")
    with pytest.raises(DataDirectoryError, match="belongs to"):
        server(nodes, "b", tmp_path).start()
    (tmp_path / "b" / "log" / "meta").write_bytes(b"something else")
    with pytest.raises(DataDamagedError):
        server(nodes, "b", tmp_path).start()
    with EmbeddedServer(data=tmp_path / "c"):
        pass
    with pytest.raises(DataDirectoryError, match="a server without a cluster"):
        server(nodes, "c", tmp_path).start()
    taken = {**nodes, "a": other.removeprefix("tcp://")}
    with EmbeddedPeer("x", {"x": other}, tmp_path / "x"), pytest.raises(SettingsError, match="cannot listen"):
        server(taken, "a", tmp_path).start()
