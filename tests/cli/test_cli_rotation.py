"""``statestore ha rotate-secret``: the servers of a cluster get another secret while they run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import attrs
import pytest
from support.ports import reserved_ports
from support.waiting import eventually

import statestore_client.cli.ha  # noqa: F401 - before threads start: pytest rewrites modules as they are imported, and CPython 3.11 fails to do that in two threads
from raft_client._common import exits
from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer, ReplicaSettings

Here = Callable[..., tuple[int, str, str]]
#: What a rolling restart of a server may cost a client: two hand-overs, on a machine that has other things to do.
_GAP_S = 15.0
_WELL_S = 60.0


@attrs.define(eq=False)
class _Cluster:
    """Servers of this process, by id, which read their secret from one file when they start."""

    folder: Path
    nodes: dict[str, str] = attrs.field(factory=dict)
    ports: dict[str, int] = attrs.field(factory=dict)
    running: dict[str, EmbeddedServer] = attrs.field(factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "secret"

    @property
    def addresses(self) -> list[str]:
        """For commands: those for servers."""
        return [f"127.0.0.1:{int(place.rpartition(':')[2]) + 2}" for place in self.nodes.values()]

    @property
    def options(self) -> list[str]:
        return [*self.addresses, "--cluster-key-file", str(self.file), "--json"]

    @property
    def url(self) -> str:
        return "mqtt://" + ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self, server: str) -> None:
        key = ReplicaSettings.key_in(self.file)
        log = ReplicaSettings.in_cluster(self.nodes, id=server, data=self.folder / server, key=key)
        self.running[server] = EmbeddedServer(port=self.ports[server], log=log).start()

    def restart(self, server: str, here: Here) -> None:
        """And wait until all is well, as the command says."""
        self.running.pop(server).stop()
        self.start(server)
        eventually(lambda: here("ha", "status", *self.options)[0] == 0, "all is well", timeout_s=_WELL_S, every_s=0.05)


@contextmanager
def _three(folder: Path) -> Iterator[_Cluster]:
    cluster = _Cluster(folder)
    cluster.file.touch(0o640)
    cluster.file.write_bytes(b"a secret,\nwhich has\x00 lines\n")
    for server in "abc":
        cluster.nodes[server] = f"127.0.0.1:{reserved_ports(3)}"
        cluster.ports[server] = reserved_ports(1)
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(cluster.start, "abc"))
            yield cluster
        finally:
            list(pool.map(lambda server: server.stop(), cluster.running.values()))


@attrs.define(eq=False)
class _Load:
    """A client that writes one number after the other, and never stops for long."""

    url: str
    written: int = 0
    longest_s: float = 0.0
    is_over: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        with StateStoreClient(self.url, request_timeout=60.0) as store:
            while not self.is_over.is_set():
                began = monotonic()
                store.set("k", str(self.written + 1))
                self.written += 1
                self.longest_s = max(self.longest_s, monotonic() - began)
            item = store.get("k")
            assert item is not None
            assert item.value == str(self.written).encode()


@contextmanager
def _load(url: str) -> Iterator[_Load]:
    load = _Load(url)
    with ThreadPoolExecutor() as pool:
        loading = pool.submit(load.run)
        try:
            yield load
        finally:
            load.is_over.set()
        loading.result()


def _settled(here: Here, *command: str) -> tuple[int, str, str]:
    """What the command says once a server is active and all answer: a slow machine may have another failover."""
    said = here(*command)
    while said[0] == exits.NO_CONNECTION or "see statestore ha status" in said[2]:
        said = here(*command)
    return said


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_secret_is_changed_under_load(here: Here, tmp_path: Path, figures: Callable[[str], None]) -> None:
    """In three steps, each of which waits for all servers; nothing that was acknowledged is lost, no write takes longer
    than a hand-over, and in the end the old secret opens nothing.
    """
    with _three(tmp_path) as cluster:
        old = tmp_path / "old"
        old.write_bytes(cluster.file.read_bytes())
        old.chmod(0o600)
        rotate = ["ha", "rotate-secret", *cluster.options]
        code, text, _ = _settled(here, *rotate)
        assert (code, json.loads(text)["step"]) == (0, "one"), "nothing is begun that nobody asked for"
        seen = []
        with _load(cluster.url) as load:
            for step in ("comes", "goes", "one"):
                code, text, complaint = _settled(here, *rotate, *["--new"] * (step == "comes"))
                assert code == 0, complaint
                said = json.loads(text)
                assert said["step"] == step
                seen.append(said["secrets"])
                assert cluster.file.stat().st_mode & 0o777 == 0o640
                for server in "abc":
                    code, text, complaint = _settled(here, *rotate)
                    assert (code, "not started with this" in complaint) == (1, True)
                    assert json.loads(text)["step"] == step, "nothing is written"
                    cluster.restart(server, here)
        figures(f"{load.written} writes, the longest took {load.longest_s:.1f} s")
        assert load.longest_s < _GAP_S
        assert [len(each) for each in seen] == [2, 2, 1]
        assert seen == [seen[1][::-1], seen[0][::-1], seen[1][:1]]
        code, text, _ = _settled(here, *rotate)
        assert (code, json.loads(text)["step"]) == (0, "one")
        assert [json.loads(line)["secrets"] for line in here("ha", "status", *cluster.options)[1].splitlines()] == (
            [seen[2]] * 3
        )
        code, text, _ = here("ha", "status", *cluster.addresses, "--cluster-key-file", str(old), "--json")
        assert code == 1
        assert all("does not let us in" in json.loads(line)["error"] for line in text.splitlines())
        assert not [*tmp_path.glob("*/keys/also")]
