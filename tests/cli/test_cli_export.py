"""``statestore ha export``: what servers share in a log becomes the data directory of one server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.server_clients import Paho
from support.waiting import eventually

from raft_client import RaftClient
from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import StateStoreClient
from statestore_client.cli.entries import entries
from statestore_client.errors import DataDirectoryError, FencingTokenTooOldError
from statestore_client.server import EmbeddedServer, ReplicaSettings
from statestore_client.wire.replies import KeyEntry

Here = Callable[..., tuple[int, str, str]]
_EXPIRY_S = 3000.0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """One peer, and an empty log."""
    with EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: EmbeddedCluster) -> Iterator[EmbeddedServer]:
    """The only one on this log."""
    with EmbeddedServer(log=ReplicaSettings(log=cluster.url, id="a")) as server:
        yield server


def _entries(server: EmbeddedServer) -> dict[bytes, KeyEntry]:
    with StateStoreClient(server.url) as store:
        return {each.key: each for each in entries(store, b"*")}


def _without_expiry(found: dict[bytes, KeyEntry]) -> list[KeyEntry]:
    return [attrs.evolve(each, expiry_ms=each.expiry_ms and 1) for each in found.values()]


def test_one_server_goes_on_where_several_were(
    here: Here, cluster: EmbeddedCluster, server: EmbeddedServer, tmp_path: Path
) -> None:
    """With values, versions, expiries and fencing tokens of all keys, sessions and what waits, retained messages; the
    servers serve meanwhile.
    """
    lasting = Properties(PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 300
    with Paho(server, "away", properties=lasting) as client:
        client.subscribe("m/#", qos=2)
    with Paho(server) as client:
        client.publish("m/1", b"waits", 2)
        client.publish("kept", b"retained", 1, retain=True)
    with StateStoreClient(server.url) as store:
        store.set_many((f"key/{number}", str(number)) for number in range(100))
        store.set(b"\xff\x00", bytes(range(256)), expiry=_EXPIRY_S)
        store.delete("key/0")
        with store.lock("lock", lease=300.0) as old:
            store.set("guarded", "1", fencing_token=old.fencing_token)
        with store.lock("lock", lease=300.0) as lease:
            store.set("guarded", "2", fencing_token=lease.fencing_token)
            before = _entries(server)
            code, text, complaint = here("ha", "export", tmp_path / "out", "--log", cluster.url, "--json")
            assert (code, complaint) == (0, "")
        assert store.set("afterwards", "1").applied
    found = json.loads(text)
    assert (found["epoch"], found["records"]["keys"], found["records"]["retained"]) == (1, len(before), 1)
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    with EmbeddedServer(data=tmp_path / "out") as single:
        after = _entries(single)
        assert _without_expiry(after) == _without_expiry(before)
        left_s = (after[b"\xff\x00"].expiry_ms or 0) / 1000
        assert _EXPIRY_S - 60 < left_s < _EXPIRY_S + 10
        with StateStoreClient(single.url) as store:
            with pytest.raises(FencingTokenTooOldError):
                store.set("guarded", "3", fencing_token=old.fencing_token)
            version = store.set("new", "1").version
            assert version is not None
            assert version > max(each.version for each in before.values())
        with Paho(single, "away", clean_start=False) as client:
            assert client.flags.session_present
            message = client.message()
            assert (message.topic, message.payload) == ("m/1", b"waits")
            client.subscribe("kept")
            assert client.message().payload == b"retained"


@pytest.mark.ci
def test_what_is_written_meanwhile(
    here: Here, cluster: EmbeddedCluster, server: EmbeddedServer, tmp_path: Path
) -> None:
    """All that was acknowledged before is there, and of what comes later a beginning, in its order."""
    acknowledged, stop = 0, threading.Event()

    def write() -> None:
        nonlocal acknowledged
        with StateStoreClient(server.url) as store:
            while not stop.is_set():
                store.set("first", str(acknowledged + 1))
                store.set("second", str(acknowledged + 1))
                acknowledged += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            enough = acknowledged + 20
            eventually(lambda: acknowledged >= enough, "more was written")  # noqa: B023 - called at once
            before = acknowledged
            assert here("ha", "export", tmp_path / str(number), "--log", cluster.url)[0] == 0
            with EmbeddedServer(data=tmp_path / str(number)) as single:
                values = {key: int(each.value) for key, each in _entries(single).items()}
            first, second = values.get(b"first", 0), values.get(b"second", 0)
            assert before <= second <= first <= second + 1
    finally:
        stop.set()
        writer.join()


def test_what_cannot_be_exported(here: Here, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Into a directory that has something in it; a log without servers, or of something else. Nothing is written."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    code, _, complaint = here("ha", "export", tmp_path / "there", "--log", cluster.url)
    assert (code, "give the name of a new directory" in complaint) == (6, True)
    code, _, complaint = here("ha", "export", tmp_path / "out", "--log", cluster.url)
    assert (code, "no server has begun to use this log" in complaint) == (6, True)
    with RaftClient(cluster.url) as log:
        applied = log.log_info().last_applied
        log.append(b"something else")
        code, _, complaint = here("ha", "export", tmp_path / "out", "--log", cluster.url)
        assert (code, "the log is not of these servers" in complaint) == (6, True)
        assert log.log_info().last_applied == applied + 1
    assert here("ha", "export", tmp_path / "out")[0] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


#: Kills itself when a part is written.
_KILLED = """
import os, signal
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
write = DiskStorage.write
def write_one(storage, batch):
    write(storage, batch)
    os.kill(os.getpid(), signal.SIGKILL)
DiskStorage.write = write_one
from statestore_client.cli import main
main()
"""


@pytest.mark.ci
def test_an_export_that_was_killed(
    here: Here, cluster: EmbeddedCluster, server: EmbeddedServer, tmp_path: Path
) -> None:
    """No server starts with what it leaves, and the next export clears that away."""
    with StateStoreClient(server.url) as store:
        store.set("k", "1")
    command = ["ha", "export", str(tmp_path / "out"), "--log", cluster.url]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *command], capture_output=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["out.unfinished"]
    with (
        pytest.raises(DataDirectoryError, match="did not come to its end"),
        EmbeddedServer(data=tmp_path / "out.unfinished"),
    ):
        pass
    assert here(*command)[0] == 0
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
