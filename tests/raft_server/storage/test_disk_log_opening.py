"""A log on a real disk: who may open it, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from log_jobs import entries, open_log, request_id, snapshot, write

from raft_client.errors import (
    StorageDamagedError,
    StorageError,
    StorageInUseError,
    StorageOwnerError,
    StorageVersionError,
)
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import HardState
from raft_client.server.runtime.storage.inspection import inspect_directory
from raft_client.server.runtime.storage.options import StorageLimits


def test_one_directory_has_one_peer(tmp_path: Path) -> None:
    """A second peer is refused the directory, in this process and in another, until the first has closed it."""
    code = """
import sys
from raft_client import StorageInUseError
from raft_client.server.runtime.storage.disk_log import DiskLog
try:
    DiskLog.open(sys.argv[1], peer_id="1", ident=b"factory", peers=())
except StorageInUseError as error:
    print("in use:", error)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with open_log(tmp_path):
        with pytest.raises(StorageInUseError, match="another peer"):
            open_log(tmp_path)
        with pytest.raises(StorageInUseError):
            inspect_directory(tmp_path)
        assert "in use:" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == ""


def test_a_directory_belongs_to_one_peer_of_one_cluster(tmp_path: Path) -> None:
    """A directory belongs to one peer of one cluster; another is refused, and the lock is free again."""
    open_log(tmp_path).close()
    for changes, match in (({"peer_id": "2"}, "peer '1'"), ({"ident": b"other"}, "cluster b'factory'")):
        with pytest.raises(StorageOwnerError, match=match):
            open_log(tmp_path, **changes)
    open_log(tmp_path).close()


@pytest.mark.parametrize("pattern", ["meta", "*.log", "*.index", "snapshot-*"])
def test_a_newer_format_is_refused(tmp_path: Path, pattern: str) -> None:
    """A newer format in any file is refused."""
    with open_log(tmp_path, limits=StorageLimits(segment_entries=2)) as log:
        for index in range(1, 6):
            write(log, entries=entries(index, index))
        log.maintain()
        snapshot(log, 3)
    for path in tmp_path.glob(pattern):
        data = bytearray(path.read_bytes())
        data[8:10] = b"\x02\x00"
        path.write_bytes(data)
    with pytest.raises(StorageVersionError, match="version 2"):
        open_log(tmp_path)


def test_an_index_of_a_newer_format_is_made_anew(tmp_path: Path) -> None:
    """While its segment is there: an index says nothing that its segment does not say."""
    with open_log(tmp_path, limits=StorageLimits(segment_entries=2)) as log:
        for index in range(1, 6):
            write(log, entries=entries(index, index))
        log.maintain()
    indexes = {path: path.read_bytes() for path in tmp_path.glob("*.index")}
    assert len(indexes) == 2
    for path, data in indexes.items():
        path.write_bytes(data[:8] + b"\x02\x00" + data[10:])
    with open_log(tmp_path) as log:
        assert log.last_index == 5
        assert log.index_of_request(request_id(1)) == 1
        log.maintain()
    assert {path: path.read_bytes() for path in indexes} == indexes


def test_damage_names_the_file_and_the_byte(tmp_path: Path) -> None:
    """The error about damage names the file and the byte, and an inspection reports the same without opening the
    log."""
    with open_log(tmp_path) as log:
        write(log, entries=entries(1, 3))
    (path,) = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    at = data.index(request_id(2)) - 12
    data[at + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageDamagedError, match=f"{path.name} is damaged at byte {at}") as told:
        open_log(tmp_path)
    assert (told.value.file, told.value.offset) == (path.name, at)
    (problem,) = inspect_directory(tmp_path).problems
    assert (problem.file, problem.offset) == (path.name, at)
    assert path.read_bytes() == data


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """A file in place of the directory, and for an inspection a missing directory, are typed errors."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        open_log(tmp_path / "file")
    with pytest.raises(StorageError, match="no directory"):
        inspect_directory(tmp_path / "nothing")
    assert not inspect_directory(tmp_path).problems


def test_an_inspection_needs_no_right_to_write(tmp_path: Path) -> None:
    """A directory on a medium that cannot be written is inspected, and nothing is created in it."""
    with open_log(tmp_path / "peer") as log:
        write(log, entries=entries(1, 3))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (tmp_path / "peer").iterdir():
        if path.name != "lock":
            (copy / path.name).write_bytes(path.read_bytes())
            (copy / path.name).chmod(0o400)
    names = set(os.listdir(copy))
    copy.chmod(0o500)
    try:
        found = inspect_directory(copy)
    finally:
        copy.chmod(0o700)
    assert (found.last_index, found.problems) == (3, ())
    assert set(os.listdir(copy)) == names


def test_a_log_that_is_closed(tmp_path: Path) -> None:
    """A closed log takes nothing, and can be closed again."""
    log = open_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.write(Persist(hard_state=HardState(1)))
