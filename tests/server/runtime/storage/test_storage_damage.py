"""Damage, files that are missing or of another time, and files that are removed under a running server."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from statestore_client.errors import DataDamagedError, DataDirectoryError, DataInUseError
from statestore_client.server import EmbeddedServer
from statestore_client.server.journal import Changes, Stream, WriteBatch
from statestore_client.server.runtime.storage import DiskStorage, erase_data
from statestore_client.server.runtime.storage.contents import Contents
from statestore_client.server.runtime.storage.filesystem import SystemFolder
from statestore_client.server.runtime.storage.frames import frame
from statestore_client.sync import StateStoreClient

_LOG = "statestore-1.log"
_COUNT = 30
_NAME = re.compile(b"name-[12]")
_WAIT_S = 10.0


def _batch(number: int) -> WriteBatch:
    return WriteBatch((Changes(Stream.RETAINED, ((f"t/{number:02}", b"x" * 6000),), ()),))


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """A copy of a directory, as a server leaves it that is killed: some transactions are in the log only."""
    storage = DiskStorage(tmp_path / "running")
    for number in range(_COUNT):
        storage.write(_batch(number))
    yield Path(shutil.copytree(tmp_path / "running", tmp_path / "killed"))
    storage.close()


def _found(data: Path) -> list[object]:
    storage = DiskStorage(data)
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
    """What is in the log only is recovered, and is there after a clean end."""
    assert _found(killed) == _everything()
    assert sorted(_files(killed)) == [_LOG, "statestore.db", "statestore.lock"]
    assert _found(killed) == _everything()


# In its magic words, in its head, in the header and the content of the first batch, and in the last one, which is
# acknowledged like the others.
@pytest.mark.parametrize("position", [3, 25, 70, 120, -100])
def test_a_bit_that_changed_in_the_log(killed: Path, position: int) -> None:
    """A log with a changed bit is refused and left as it is, because acknowledged data follows it."""
    _flip(killed / _LOG, position)
    before = _files(killed)
    with pytest.raises(DataDamagedError, match=r"statestore-1\.log"):
        DiskStorage(killed)
    assert _files(killed) == before


def test_a_name_that_changed(tmp_path: Path) -> None:
    """The checksum of a record includes its name, so that a key cannot vanish, get another's value or come back."""
    for value in (b"first", b"second"):
        with EmbeddedServer(data=tmp_path / "data") as server, StateStoreClient(server.url) as store:
            store.set("name-1", value)
            store.set("name-2", b"other")
            store.delete("name-2")
    files = _files(tmp_path / "data")
    found = [(name, match.start()) for name, content in files.items() for match in _NAME.finditer(content)]
    assert len(found) >= 4
    for number, (name, start) in enumerate(found):
        copy = Path(shutil.copytree(tmp_path / "data", tmp_path / f"copy-{number}"))
        data = bytearray(files[name])
        data[start + 5] ^= 3  # name-1 <-> name-2
        (copy / name).write_bytes(data)
        with pytest.raises(DataDamagedError), EmbeddedServer(data=copy):
            pass


def test_a_transaction_that_a_crash_cut_off(killed: Path) -> None:
    """A transaction that a crash cut off was not acknowledged and is dropped; what is written over it later is no
    damage."""
    log = killed / _LOG
    with log.open("ab") as file:
        file.write(frame(_seed_of(killed), _COUNT + 2, bytes(6000))[:3000])
    assert _found(killed) == _everything()
    storage = DiskStorage(killed)
    storage.write(_batch(_COUNT))
    storage.close()
    assert _found(killed) == [*_everything(), f"t/{_COUNT}"]


def _seed_of(data: Path) -> int:
    contents = Contents(SystemFolder(data, read_only=True))
    contents.close()
    return contents.database.head.seed(b"log")


@pytest.mark.parametrize("left", [None, 0, 10, 40, 9000, -1])
@pytest.mark.parametrize("is_clean", [False, True], ids=["killed", "ended"])
def test_a_log_that_is_gone_or_cut_off(killed: Path, left: int | None, is_clean: bool) -> None:
    """A database without its log, or with a shortened one, is refused: it knows its log, and how far that was."""
    if is_clean:
        DiskStorage(killed).close()
    log = killed / _LOG
    if left is None:
        log.unlink()
    else:
        log.write_bytes(log.read_bytes()[:left])
    for _ in range(2):  # being refused repairs nothing
        with pytest.raises(DataDamagedError, match=r"statestore-1\.log"):
            DiskStorage(killed)


def test_a_log_of_an_earlier_time(killed: Path) -> None:
    """A log of an earlier time, as of a partial backup, is refused although it is whole."""
    log = (killed / _LOG).read_bytes()
    storage = DiskStorage(killed)
    storage.write(_batch(_COUNT))
    storage.close()
    (killed / _LOG).write_bytes(log)
    with pytest.raises(DataDamagedError, match="was cut off or is damaged"):
        DiskStorage(killed)


def test_a_log_of_another_directory(killed: Path, tmp_path: Path) -> None:
    """A log of another directory is refused, also if it is as long."""
    other = DiskStorage(tmp_path / "other")
    for number in range(_COUNT):
        other.write(_batch(number))
    other.close()
    shutil.copy(tmp_path / "other" / _LOG, killed / _LOG)
    with pytest.raises(DataDamagedError, match="belongs to another directory"):
        DiskStorage(killed)


@pytest.mark.parametrize("left", [None, b""])
def test_a_database_that_is_gone(killed: Path, left: bytes | None) -> None:
    """A log without its database is refused: it would be taken for that of a new one, and overwritten."""
    database = killed / "statestore.db"
    database.unlink() if left is None else database.write_bytes(left)
    before = _files(killed)
    with pytest.raises(DataDamagedError, match=r"statestore\.db"):
        DiskStorage(killed)
    assert _files(killed) == before


def test_an_empty_database_alone(tmp_path: Path) -> None:
    """An empty database alone is refused, because a new directory is empty."""
    (tmp_path / "statestore.db").touch()
    with pytest.raises(DataDamagedError, match=r"statestore\.db"):
        DiskStorage(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_all_its_files_but_the_lock_are_gone(killed: Path) -> None:
    """A directory with only the lock left is refused, so that nobody starts anew unawares."""
    for name in ("statestore.db", _LOG):
        (killed / name).unlink()
    before = _files(killed)
    with pytest.raises(DataDamagedError, match=r"had data once, and statestore\.db and its logs are gone"):
        DiskStorage(killed)
    assert _files(killed) == before
    (killed / "statestore.lock").unlink()
    assert _found(killed) == []


def test_a_first_start_that_was_killed_before_there_was_data(tmp_path: Path) -> None:
    """A first start that was killed before there was data loses nothing, and the next one begins."""
    (tmp_path / "statestore.lock").touch()
    (tmp_path / "statestore.db-new").write_bytes(b"half")
    assert _found(tmp_path) == []


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """Data files can be read by their owner only, and an existing directory keeps its permissions."""
    data, shared = tmp_path / "data", tmp_path / "shared"
    shared.mkdir(mode=0o750)
    for folder, mode in ((data, 0o700), (shared, 0o750)):
        storage = DiskStorage(folder)
        storage.write(_batch(0))
        assert folder.stat().st_mode & 0o777 == mode
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert len(modes) == 3
        assert set(modes.values()) == {0o600}
        storage.close()


def test_no_directory(tmp_path: Path) -> None:
    """A file, and a link to nowhere, are refused as a directory."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to("nowhere")
    for path in (file, link):
        with pytest.raises(DataDirectoryError, match="it is not a directory"):
            DiskStorage(path)


def test_a_second_server_does_no_harm(tmp_path: Path) -> None:
    """A second server is refused because the directory is in use, and the first one's files stay."""
    storage = DiskStorage(tmp_path)
    storage.write(_batch(0))
    names = sorted(_files(tmp_path))
    with pytest.raises(DataInUseError):
        DiskStorage(tmp_path)
    assert sorted(_files(tmp_path)) == names
    storage.close()


@pytest.mark.parametrize("victim", ["all", "statestore.db", "statestore.lock", _LOG])
def test_files_that_are_removed_under_a_server(tmp_path: Path, victim: str) -> None:
    """When the files are removed under a running server, its next batch fails, and so do all later ones."""
    data = tmp_path / "data"
    storage = DiskStorage(data)
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


@pytest.mark.parametrize("does", [lambda old: old.write(_batch(0)), lambda old: old.close()], ids=["batch", "end"])
def test_a_lock_that_was_removed_under_a_server(tmp_path: Path, does: Callable[[DiskStorage], object]) -> None:
    """A server whose lock was removed, and whose files another one uses, notices before it writes over them."""
    old = DiskStorage(tmp_path)
    (tmp_path / "statestore.lock").unlink()
    new = DiskStorage(tmp_path)
    new.write(_batch(1))
    with suppress(DataDirectoryError):
        does(old)
    new.write(_batch(2))
    new.close()
    old.close()
    assert _found(tmp_path) == ["t/01", "t/02"]


def test_a_directory_that_was_made_anew_under_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server whose directory was made anew says so at its end, and leaves the new server's files alone."""
    old = DiskStorage(tmp_path / "data")
    old.write(_batch(0))
    erase_data(tmp_path / "data")
    new = DiskStorage(tmp_path / "data")
    new.write(_batch(1))
    old.close()
    assert "removed or replaced" in caplog.text
    new.write(_batch(2))
    new.close()
    assert _found(tmp_path / "data") == ["t/01", "t/02"]
