"""``zmqraft check``: what it says of a directory that is sound, and of one that is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raft_client.server.node.ready import HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog, StorageLimits
from raft_client.wire.configuration import Peer
from raft_client.wire.log_entry import LogEntry, SnapshotChunk

if TYPE_CHECKING:
    from conftest import Run

PEERS = (Peer("1", "tcp://127.0.0.1:8047"),)


def open_log(path: Path, **changes: Any) -> DiskLog:
    return DiskLog.open(path, **{"peer_id": "1", "ident": b"plant", "peers": PEERS, **changes})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a peer that voted, with eight entries in four segments."""
    path = tmp_path / "1"
    with open_log(path, limits=StorageLimits(segment_entries=2)) as log:
        for index in range(1, 9):
            entry = LogEntry.of(b"pump-7", term=2, index=index)
            log.write(Persist(hard_state=HardState(2, "1"), entries=(entry,)))
            log.sync()
    return path


def image(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_a_sound_directory(bare_run: Run, directory: Path) -> None:
    """Of a sound directory it says whose it is and what it holds, changes nothing, and ends with 0."""
    before = image(directory)
    done = bare_run("check", str(directory))
    assert done.code == 0, done
    assert done.out.decode().splitlines() == [
        f"{directory} is sound",
        "peer: 1",
        "cluster: plant",
        "term: 2, voted for 1",
        "entries: 1 to 8",
    ]
    assert image(directory) == before


def test_json(bare_run: Run, directory: Path) -> None:
    """With --json there is one object, in which what does not exist is null."""
    done = bare_run("check", str(directory), "--json")
    assert done.code == 0, done
    assert json.loads(done.out) == {
        "problems": [],
        "peer": "1",
        "is_backup": False,
        "cluster": "plant",
        "term": 2,
        "voted_for": "1",
        "first_index": 1,
        "last_index": 8,
        "snapshot_index": None,
        "snapshot_bytes": None,
        "torn_bytes": 0,
        "stale": [],
    }


def test_a_new_directory_and_one_after_a_snapshot(bare_run: Run, tmp_path: Path) -> None:
    """A directory without entries has none, before the first one and after a snapshot."""
    with open_log(tmp_path / "1") as log:
        meta = SnapshotMeta(9, 3, 5, log.configurations[0])
        log.write(Persist(chunk=SnapshotChunk(9, 3, 0, 5, b"state"), install=meta))
        log.sync()
    with open_log(tmp_path / "2", ident=b""):
        pass
    lines = bare_run("check", str(tmp_path / "1")).out.decode().splitlines()
    assert lines[-2:] == ["entries: none", "snapshot: up to 9, 5 bytes"]
    lines = bare_run("check", str(tmp_path / "2")).out.decode().splitlines()
    assert lines[2:] == ["cluster: (no name)", "term: 0", "entries: none"]


@pytest.mark.parametrize("number", range(1, 5))
def test_damage_in_any_segment_is_found(bare_run: Run, directory: Path, number: int) -> None:
    """A flipped bit in any segment, also in one that a start does not read, is named with its file and its byte."""
    path = directory / f"{number:016x}.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"pump")] ^= 1
    path.write_bytes(data)
    done = bare_run("check", str(directory))
    assert done.code == 6
    first, second = done.out.decode().splitlines()[:2]
    assert first == f"{directory} is damaged"
    assert second.startswith(f"problem: {path.name} is damaged at byte ")
    (problem,) = json.loads(bare_run("check", "--json", str(directory)).out)["problems"]
    assert problem["file"] == path.name
    assert 0 < problem["offset"] <= data.index(b"qump")


def test_a_torn_end_is_no_damage(bare_run: Run, directory: Path) -> None:
    """What a power failure left at the end, and files that were not completed, are told and are no damage."""
    last = max(directory.glob("*.log"))
    whole = last.read_bytes()
    last.write_bytes(whole[: whole.rindex(b"pump")])
    (directory / "local.tmp").write_bytes(b"half")
    done = bare_run("check", str(directory))
    assert done.code == 0, done
    assert done.out.decode().splitlines()[-3:] == [
        "entries: 1 to 7",
        f"never synced: {_torn(bare_run, directory)} bytes at the end, which the next start cuts off",
        "left over: local.tmp, which the next start removes",
    ]


def _torn(run: Run, directory: Path) -> int:
    found: int = json.loads(run("check", "--json", str(directory)).out)["torn_bytes"]
    assert found > 0
    return found


def test_what_is_no_directory_of_a_peer(bare_run: Run, directory: Path, tmp_path: Path) -> None:
    """A directory of nobody, none at all, and one without its owner are refused on standard error."""
    for path, complaint in (
        (tmp_path, "is not the data directory of a peer"),
        (tmp_path / "none", "is no directory"),
    ):
        done = bare_run("check", str(path))
        assert (done.code, done.out) == (6, b"")
        assert complaint in done.err
    os.unlink(directory / "meta")
    done = bare_run("check", str(directory))
    assert done.code == 6
    assert b"the file meta is missing beside a log" in done.out


def test_a_running_peer_keeps_its_directory(bare_run: Run, directory: Path) -> None:
    """A directory that a peer has open is left alone."""
    with open_log(directory):
        done = bare_run("check", str(directory))
    assert (done.code, done.out) == (6, b"")
    assert "open" in done.err
