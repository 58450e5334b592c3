"""``statestore ha add-server``, ``remove-server`` and ``replace-server``: the members of a cluster, one at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from support.ports import reserved_ports

from raft_client import RaftClient
from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer, ReplicaSettings

Here = Callable[..., tuple[int, str, str]]
_SECRET = b"the secret of these servers"


@attrs.define(eq=False)
class _Cluster:
    """Servers of this process, by id, and where they find each other."""

    folder: Path
    key: bytes = b""
    nodes: dict[str, str] = attrs.field(factory=dict)
    running: dict[str, EmbeddedServer] = attrs.field(factory=dict)

    def place(self, *ids: str) -> None:
        """Give these servers their places."""
        self.nodes |= {each: f"127.0.0.1:{reserved_ports(3)}" for each in ids}

    def start(self, server: str) -> None:
        log = ReplicaSettings.in_cluster(self.nodes, id=server, data=self.folder / server, key=self.key)
        self.running[server] = EmbeddedServer(log=log).start()

    def stop(self, server: str) -> None:
        self.running.pop(server).stop()

    @property
    def options(self) -> list[str]:
        """Of the commands."""
        options = ["--cluster", ",".join(f"{name}={place}" for name, place in self.nodes.items())]
        if self.key:
            secret = self.folder / "secret"
            secret.touch(0o600)
            secret.write_bytes(self.key)
            options += ["--cluster-key-file", str(secret)]
        return options


@contextmanager
def _three(folder: Path, key: bytes = b"") -> Iterator[_Cluster]:
    cluster = _Cluster(folder, key)
    cluster.place("a", "b", "c")
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(cluster.start, "abc"))
            yield cluster
        finally:
            list(pool.map(cluster.stop, [*cluster.running]))


def _value(server: EmbeddedServer) -> bytes | None:
    with StateStoreClient(server.url) as store:
        item = store.get("k", timeout=30)
        return None if item is None else item.value


def _steps(text: str) -> list[tuple[str, list[str]]]:
    return [(step["done"], sorted(step["members"])) for step in map(json.loads, text.splitlines())]


@pytest.mark.ci
def test_a_server_moves(here: Here, tmp_path: Path) -> None:
    """It is removed, started at another place with an empty directory, and added: also if the command is killed
    between. Members with keys let it in.
    """
    with _three(tmp_path, _SECRET) as cluster:
        with StateStoreClient(cluster.running["a"].url) as store:
            store.set("k", "1", timeout=30)
        replace = ["ha", "replace-server", "c", *cluster.options, "--json"]
        code, text, _ = here(*replace)
        assert (code, _steps(text)) == (0, [("unchanged", ["a", "b", "c"]), ("ready", ["a", "b", "c"])])
        cluster.place("c")
        replace = ["ha", "replace-server", "c", *cluster.options, "--json"]
        code, _, complaint = here(*replace)
        assert (code, "c still runs at" in complaint) == (1, True)
        cluster.stop("c")
        shutil.rmtree(tmp_path / "c")
        command = [sys.executable, "-m", "statestore_client.cli", *replace]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            steps = _steps(process.stdout.readline() + process.stdout.readline())
            process.kill()
        assert steps == [("removed", ["a", "b"]), ("waits", ["a", "b"])]
        code, _, complaint = here(*replace, "--wait", "0")
        assert (code, "c does not answer" in complaint) == (1, True)
        with ThreadPoolExecutor() as pool:
            starting = pool.submit(cluster.start, "c")
            code, text, complaint = here(*replace)
            assert code == 0, complaint
            assert _steps(text)[-2:] == [("added", ["a", "b", "c"]), ("ready", ["a", "b", "c"])]
            starting.result()
        cluster.stop("a")
        assert _value(cluster.running["c"]) == b"1"


@pytest.mark.ci
def test_a_server_is_added_and_another_one_removed(here: Here, tmp_path: Path) -> None:
    """What would leave no majority, or too few, is refused, and changes nothing."""
    with _three(tmp_path) as cluster:
        with StateStoreClient(cluster.running["a"].url) as store:
            store.set("k", "1", timeout=30)
        code, _, complaint = here("ha", "remove-server", "c", *cluster.options)
        assert (code, "2 members would be left" in complaint) == (1, True)
        of_three = cluster.options
        cluster.place("d")
        code, _, complaint = here("ha", "add-server", "d", *cluster.options, "--wait", "0")
        assert (code, "d does not answer" in complaint) == (1, True)
        cluster.stop("c")
        with ThreadPoolExecutor() as pool:
            starting = pool.submit(cluster.start, "d")
            code, _, complaint = here("ha", "add-server", "d", *cluster.options)
            assert (code, "c does not answer, and without a majority" in complaint) == (1, True)
            cluster.start("c")
            code, text, complaint = here("ha", "add-server", "d", *cluster.options, "--json")
            assert code == 0, complaint
            assert _steps(text)[-2:] == [("added", ["a", "b", "c", "d"]), ("ready", ["a", "b", "c", "d"])]
            starting.result()
        code, _, complaint = here("ha", "remove-server", "c", *of_three)
        assert (code, "--cluster is not what the log says, beside c" in complaint) == (1, True)
        with RaftClient(f"tcp://{cluster.nodes['a']}") as log:
            leader = log.config().leader_id
        code, text, complaint = here("ha", "remove-server", leader, *cluster.options, "--json")
        assert code == 0, complaint
        rest = sorted({*"abcd"} - {leader})
        assert _steps(text) == [("removed", rest)]
        assert _steps(here("ha", "remove-server", leader, *cluster.options, "--json")[1]) == [("unchanged", rest)]
        cluster.stop(leader)
        assert _value(cluster.running[rest[-1]]) == b"1"
