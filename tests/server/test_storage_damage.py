"""Damage that sqlite takes for the end of its log, and files that are removed under a running server."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from statestore_client.errors import DataDamagedError, DataDirectoryError, DataInUseError
from statestore_client.server.journal import Batch, Changes, Stream
from statestore_client.server.runtime.storage import SqliteStorage, erase_data

_LOG = "statestore.db-wal"
#: So many that the log becomes longer than the first round of it, in which the tables were made.
_COUNT = 30
_WAIT_S = 10.0


def _batch(number: int) -> Batch:
    return Batch((Changes(Stream.RETAINED, ((f"t/{number:02}", b"x" * 6000),), ()),))


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """A copy of a directory, as a server leaves it that is killed: some transactions are in the log only."""
    storage = SqliteStorage(tmp_path / "running")
    for number in range(_COUNT):
        storage.write(_batch(number))
    yield Path(shutil.copytree(tmp_path / "running", tmp_path / "killed"))
    storage.close()


def _found(data: Path) -> list[object]:
    storage = SqliteStorage(data)
    try:
        return sorted(str(subject) for subject, _ in storage.load(Stream.RETAINED))
    finally:
        storage.close()


def _everything() -> list[str]:
    return [f"t/{number:02}" for number in range(_COUNT)]


def _files(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.iterdir()}


def _flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_a_sound_log(killed: Path) -> None:
    """What is in the log only is recovered, and is there after a clean end, without a log."""
    assert _found(killed) == _everything()
    assert [path.name for path in killed.iterdir()] == ["statestore.db"]
    assert _found(killed) == _everything()


# In the log's header (32 bytes: its magic number, a salt, a checksum), in the header of the first frame (24 bytes: a
# salt, a checksum), in the first page, and in the third frame: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
@pytest.mark.parametrize("position", [0, 17, 25, 32 + 9, 32 + 17, 32 + 24 + 100, 32 + 2 * (24 + 4096) + 1000])
def test_a_bit_that_changed_in_the_middle_of_the_log(killed: Path, position: int) -> None:
    """It is refused, and left as it is: what was acknowledged afterwards is behind it."""
    _flip(killed / _LOG, position)
    before = _files(killed)
    with pytest.raises(DataDamagedError, match="is damaged, and what was written behind"):
        SqliteStorage(killed)
    assert _files(killed) == before


def test_a_transaction_that_a_crash_cut_off(killed: Path) -> None:
    """It was not acknowledged, and is dropped; what comes after it, over its remains, is not damage."""
    log = killed / _LOG
    whole = log.read_bytes()
    last = len(whole) - (24 + 4096)
    log.write_bytes(whole[: last + 2000])
    (killed / "statestore.db-logged").write_bytes(last.to_bytes(8, "big"))
    assert _found(killed) == _everything()[:-1]
    assert _found(killed) == _everything()[:-1]


@pytest.mark.parametrize("left", [None, 0, 40, 9000, -1])
def test_a_log_that_is_gone_or_cut_off(killed: Path, left: int | None) -> None:
    """The database alone is in good order, but of yesterday: it is refused."""
    log = killed / _LOG
    if left is None:
        log.unlink()
    else:
        log.write_bytes(log.read_bytes()[:left])
    for _ in range(2):  # being refused repairs nothing
        with pytest.raises(DataDamagedError, match="is gone or was cut off, and what was written last"):
            SqliteStorage(killed)


@pytest.mark.parametrize("left", [None, b""])
def test_a_database_that_is_gone(killed: Path, left: bytes | None) -> None:
    """Its log alone would be taken for that of a new database, and be overwritten."""
    database = killed / "statestore.db"
    database.unlink() if left is None else database.write_bytes(left)
    before = _files(killed)
    with pytest.raises(DataDamagedError, match="is gone, and what was written last is still in its log"):
        SqliteStorage(killed)
    assert _files(killed) == before


@pytest.mark.parametrize(
    ("change", "problem"),
    [("DROP TABLE keys", "has no table keys"), ("PRAGMA user_version=0", "has no format version")],
)
def test_a_database_that_somebody_changed(tmp_path: Path, change: str, problem: str) -> None:
    """What a server has made is complete: it makes all of it in one transaction."""
    SqliteStorage(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "statestore.db")) as connection:
        connection.execute(change)
    with pytest.raises(DataDamagedError, match=problem):
        SqliteStorage(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """Keys, values and messages are in it. A directory that is there already keeps its permissions."""
    data, shared = tmp_path / "data", tmp_path / "shared"
    shared.mkdir(mode=0o750)
    for folder, mode in ((data, 0o700), (shared, 0o750)):
        storage = SqliteStorage(folder)
        storage.write(_batch(0))
        assert folder.stat().st_mode & 0o777 == mode
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert len(modes) == 3
        assert set(modes.values()) == {0o600}
        storage.close()


def test_no_directory(tmp_path: Path) -> None:
    """A file, and a link to nowhere."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to("nowhere")
    for path in (file, link):
        with pytest.raises(DataDirectoryError, match="it is no directory"):
            SqliteStorage(path)


def test_a_second_server_does_no_harm(tmp_path: Path) -> None:
    """It is refused because the directory is in use, and the first one's files stay."""
    storage = SqliteStorage(tmp_path)
    storage.write(_batch(0))
    names = sorted(_files(tmp_path))
    with pytest.raises(DataInUseError):
        SqliteStorage(tmp_path)
    assert sorted(_files(tmp_path)) == names
    storage.close()


@pytest.mark.parametrize("victim", ["all", "statestore.db", _LOG])
def test_files_that_are_removed_under_a_server(tmp_path: Path, victim: str) -> None:
    """The next batch fails, instead of being acknowledged and lost; so do all others."""
    data = tmp_path / "data"
    storage = SqliteStorage(data)
    storage.write(_batch(0))
    if victim == "all":
        shutil.rmtree(data)
    else:
        (data / victim).unlink()
    results: list[Exception | None] = []
    is_done = threading.Event()
    storage.append(_batch(1), results.append)
    storage.append(_batch(2), lambda error: (results.append(error), is_done.set())[-1])
    assert is_done.wait(_WAIT_S)
    assert [type(error) for error in results] == [DataDirectoryError] * 2
    assert "removed or replaced" in str(results[0])
    storage.close()


def test_a_directory_that_was_made_anew_under_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old server says so at its end, and leaves the new one's files alone."""
    old = SqliteStorage(tmp_path / "data")
    old.write(_batch(0))
    erase_data(tmp_path / "data")
    new = SqliteStorage(tmp_path / "data")
    new.write(_batch(1))
    old.close()
    assert "removed or replaced" in caplog.text
    new.write(_batch(2))
    new.close()
    assert _found(tmp_path / "data") == ["t/01", "t/02"]
