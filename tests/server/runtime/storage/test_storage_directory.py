"""The data directory: what is written is read again; whatever is wrong with it is said clearly, and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.waiting import eventually

from raft_client._common.durable_files import SystemFolder
from statestore_client.errors import DataDamagedError, DataDirectoryError, DataFormatError, DataInUseError
from statestore_client.server import EmbeddedServer
from statestore_client.server.journal import Changes, Stream, Subject, WriteBatch
from statestore_client.server.runtime.storage import FORMAT_VERSION, DiskStorage, erase_data
from statestore_client.server.runtime.storage.files import Contents, frame, pack
from statestore_client.sync import StateStoreClient

_WAIT_S = 10.0


def _batch(stream: Stream, puts: dict[Subject, bytes], *removals: Subject) -> WriteBatch:
    return WriteBatch((Changes(stream, tuple(puts.items()), removals),))


def _append(storage: DiskStorage, *batches: WriteBatch) -> list[Exception | None]:
    """Hand them over, and wait for all."""
    results: list[Exception | None] = []
    is_done = threading.Event()

    def done(error: Exception | None) -> None:
        results.append(error)
        if len(results) == len(batches):
            is_done.set()

    for batch in batches:
        storage.append(batch, done)
    assert is_done.wait(_WAIT_S)
    return results


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "some" / "data"


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 1000, 4096, 5000])
def test_batches_of_any_size_are_read_again(data: Path, count: int) -> None:
    """Batches of any size are read again in order, and what was removed stays away."""
    storage = DiskStorage(data)
    numbers: dict[Subject, bytes] = {number: b"%d" % number for number in reversed(range(1, count + 1))}
    names: dict[Subject, bytes] = {f"t/{number}": b"" for number in range(count)}
    last = tuple(names)[-1]
    batches = (_batch(Stream.MESSAGES, numbers), _batch(Stream.RETAINED, names), _batch(Stream.RETAINED, {}, last))
    assert _append(storage, *batches) == [None] * 3
    storage.close()
    storage.close()
    storage = DiskStorage(data)
    assert list(storage.load(Stream.MESSAGES)) == sorted(numbers.items())
    del names[last]
    assert dict(storage.load(Stream.RETAINED)) == names
    storage.close()


def test_subjects_of_all_kinds(data: Path) -> None:
    """Texts, bytes and empty ones are different subjects, a put replaces, and large values come back."""
    storage = DiskStorage(data)
    puts: dict[Subject, bytes] = {"": b"1", b"": b"2", "k": b"3", b"k": b"4", "\N{SNOWMAN}\0": bytes(3_000_000)}
    storage.write(_batch(Stream.KEYS, puts))
    storage.write(_batch(Stream.KEYS, {b"k": b"5"}))
    storage.close()
    storage = DiskStorage(data)
    assert dict(storage.load(Stream.KEYS)) == puts | {b"k": b"5"}
    storage.close()


def test_a_process_that_is_killed_in_the_middle(data: Path) -> None:
    """After a kill every batch that was done is there whole, and none without the one before it."""
    program = (
        "import sys; from statestore_client.server.journal import *; "
        "from statestore_client.server.runtime.storage import DiskStorage\n"
        "storage = DiskStorage(sys.argv[1])\n"
        "for number in range(1, 1_000_000):\n"
        "    puts = tuple((number * 10 + i, b'') for i in range(10))\n"
        "    storage.write(WriteBatch((Changes(Stream.MESSAGES, puts, ()),)))\n"
        "    print(number, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(data)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(50):
        process.stdout.readline()
    process.kill()
    rest, _ = process.communicate()
    done = 50 + rest.count(b"\n")
    storage = DiskStorage(data)
    numbers = [number for number, _ in storage.load(Stream.MESSAGES)]
    storage.close()
    assert numbers == list(range(10, 10 + len(numbers)))
    assert len(numbers) in (done * 10, done * 10 + 10)


def _copy_of(storage: DiskStorage, data: Path, to: Path) -> Path:
    """What a kill would leave, when nothing is written any more: a copy of files that change is none."""
    eventually(lambda: not storage._store.wants_work_when_quiet, "nothing to do")
    return Path(shutil.copytree(data, to))


@pytest.mark.parametrize("per_batch", [3, 30_000])
def test_what_is_in_the_log_only_is_read_again(data: Path, tmp_path: Path, per_batch: int) -> None:
    """After a kill the log is read in the order of its batches, also if it was folded in between."""
    storage, oracle = DiskStorage(data), dict[Subject, bytes]()
    for first in range(0, 6 * per_batch, per_batch // 3):
        puts: dict[Subject, bytes] = dict.fromkeys(range(first, first + per_batch), b"%d" % first)
        removals = tuple(range(first - per_batch // 3, first))
        assert _append(storage, _batch(Stream.MESSAGES, puts, *removals)) == [None]
        oracle |= puts
        for number in removals:
            oracle.pop(number, None)
    assert _append(storage, _batch(Stream.MESSAGES, {0: b"again"})) == [None]
    after = DiskStorage(_copy_of(storage, data, tmp_path / "copy"))
    assert dict(after.load(Stream.MESSAGES)) == oracle | {0: b"again"}
    after.close()
    storage.close()


def test_a_very_large_batch(data: Path, tmp_path: Path) -> None:
    """A very large batch is durable together with the smaller ones before it."""
    storage = DiskStorage(data)
    large: dict[Subject, bytes] = {"large": bytes(20_000_000)}
    assert _append(storage, _batch(Stream.RETAINED, {"a": b"1"}), _batch(Stream.RETAINED, large, "a")) == [None, None]
    after = DiskStorage(_copy_of(storage, data, tmp_path / "copy"))
    assert dict(after.load(Stream.RETAINED)) == large
    after.close()
    storage.close()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_one_server_at_a_time(data: Path) -> None:
    """A second server in this or another process is refused and does no harm, and the lock ends with its holder."""
    storage = DiskStorage(data)
    storage.write(_batch(Stream.RETAINED, {"topic": b"the value"}))
    before = sorted(os.listdir(data))
    with pytest.raises(DataInUseError, match="in use by another server"):
        DiskStorage(data)
    command = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--data", str(data)]
    found = subprocess.run(command, capture_output=True, timeout=60)
    assert found.returncode == 6
    assert b"in use by another server" in found.stderr
    assert b"Traceback" not in found.stderr
    assert sorted(os.listdir(data)) == before
    storage.close()
    DiskStorage(data).close()


def test_a_newer_format_is_refused(data: Path) -> None:
    """A newer format is refused and left as it is."""
    DiskStorage(data).close()
    database = data / "statestore.db"
    content = database.read_bytes()
    packed = pack((FORMAT_VERSION + 1, bytes(16), 1, False, "something new"))
    database.write_bytes((content[:16] + frame(0, 0, packed)).ljust(1024, b"\0") + content[1024:])
    before = database.read_bytes()
    with pytest.raises(DataFormatError, match="newer release"), EmbeddedServer(data=data):
        pass
    assert database.read_bytes() == before


@pytest.mark.parametrize("names", [("statestore.db",), ("statestore.db", "statestore.db-wal"), ("statestore.db-wal",)])
def test_an_older_format_is_refused(data: Path, names: tuple[str, ...]) -> None:
    """The older format of development versions is refused and left as it is, with its log and without."""
    data.mkdir(parents=True)
    database = sqlite3.connect(data / "statestore.db")
    for statement in (f"PRAGMA application_id={0x53745374}", "PRAGMA journal_mode=WAL", "CREATE TABLE keys (subject)"):
        database.execute(statement)
    content = {name: (data / name).read_bytes() for name in names}
    database.close()
    for path in data.iterdir():
        path.unlink()
    for name, each in content.items():
        (data / name).write_bytes(each)
    with pytest.raises(DataFormatError, match=r"development version before 0.1.0.*start with an empty one"):
        DiskStorage(data)
    assert {path.name: path.read_bytes() for path in data.iterdir()} == content


@pytest.mark.parametrize("content", [b"", b"hello", b"statestore data\n" + bytes(5000), os.urandom(8192)])
def test_files_that_are_no_database(data: Path, content: bytes) -> None:
    """Files that are not a database are refused and left as they are."""
    data.mkdir(parents=True)
    (data / "statestore.db").write_bytes(content)
    with pytest.raises(DataDamagedError, match=r"is damaged: statestore\.db: "):
        DiskStorage(data)
    assert (data / "statestore.db").read_bytes() == content


def test_the_database_of_another_program(data: Path) -> None:
    """A database of another program is not touched, not even one of sqlite."""
    data.mkdir(parents=True)
    with sqlite3.connect(data / "statestore.db") as database:
        database.execute("CREATE TABLE bookmarks (url)")
    database.close()
    before = (data / "statestore.db").read_bytes()
    with pytest.raises(DataDamagedError, match="another program"):
        DiskStorage(data)
    assert (data / "statestore.db").read_bytes() == before


def test_a_torn_database(data: Path) -> None:
    """A database that was cut, or whose pages were overwritten, is refused at the start, and not served in part."""
    storage = DiskStorage(data)
    storage.write(_batch(Stream.RETAINED, {f"t/{number}": bytes(200) for number in range(5000)}))
    storage.close()
    path = data / "statestore.db"
    whole = path.read_bytes()
    for torn in (whole[: len(whole) // 2], whole[:8192] + os.urandom(16_384) + whole[24_576:]):
        path.write_bytes(torn)
        with pytest.raises(DataDamagedError, match="backup"), EmbeddedServer(data=data):
            pass


def test_a_new_directory_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new directory, and those made for it, are synced to the disk before anything is acknowledged."""
    synced: list[Path] = []
    sync = SystemFolder.sync

    def noted(folder: SystemFolder) -> None:
        synced.append(folder._path)
        sync(folder)

    monkeypatch.setattr(SystemFolder, "sync", noted)
    DiskStorage(tmp_path / "a" / "b" / "c").close()
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} < set(synced)
    synced.clear()
    DiskStorage(tmp_path / "a" / "b" / "c").close()
    assert synced == []


@contextmanager
def _as_anybody() -> Iterator[None]:
    """Root may write everywhere: be nobody for a while."""
    own = os.geteuid()
    os.seteuid(65_534 if own == 0 else own)
    try:
        yield
    finally:
        os.seteuid(own)


@pytest.mark.parametrize("has_data", [False, True], ids=["empty", "with data"])
def test_a_read_only_directory(has_data: bool) -> None:
    """A read-only directory is refused with the reason and left as it is; when it can be written, all is there."""
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        data.mkdir()
        if has_data:
            storage = DiskStorage(data)
            storage.write(_batch(Stream.RETAINED, {"topic": b"the value"}))
            storage.close()
        before = {path: path.read_bytes() for path in data.iterdir()}
        Path(name).chmod(0o755)
        for path in (*before, data):
            path.chmod(0o555)
        complaint = "cannot be written. Check its permissions"
        with _as_anybody(), pytest.raises(DataDirectoryError, match=complaint), EmbeddedServer(data=data):
            pass
        assert {path: path.read_bytes() for path in data.iterdir()} == before
        for path in (*before, data):
            path.chmod(0o755)
        storage = DiskStorage(data)
        assert list(storage.load(Stream.RETAINED)) == [("topic", b"the value")] * has_data
        storage.close()


def test_nothing_is_durable_after_an_error(data: Path) -> None:
    """After a batch failed no later one becomes durable, because it may depend on the first."""
    storage = DiskStorage(data)
    wrong = _batch(Stream.MESSAGES, {2**64: b""})
    first, second, third = _append(storage, _batch(Stream.MESSAGES, {1: b""}), wrong, _batch(Stream.MESSAGES, {2: b""}))
    storage.close()
    assert first is None
    assert isinstance(second, DataDirectoryError)
    assert third is second
    storage = DiskStorage(data)
    assert list(storage.load(Stream.MESSAGES)) == [(1, b"")]
    storage.close()


# -- damage, files that are missing or of another time, and files that are removed under a running server --------------

_LOG = "statestore-1.log"
_COUNT = 30
_NAME = re.compile(b"name-[12]")


def _numbered(number: int) -> WriteBatch:
    return WriteBatch((Changes(Stream.RETAINED, ((f"t/{number:02}", b"x" * 6000),), ()),))


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """A copy of a directory, as a server leaves it that is killed: some transactions are in the log only."""
    storage = DiskStorage(tmp_path / "running")
    for number in range(_COUNT):
        storage.write(_numbered(number))
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
    storage.write(_numbered(_COUNT))
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
    storage.write(_numbered(_COUNT))
    storage.close()
    (killed / _LOG).write_bytes(log)
    with pytest.raises(DataDamagedError, match="was cut off or is damaged"):
        DiskStorage(killed)


def test_a_log_of_another_directory(killed: Path, tmp_path: Path) -> None:
    """A log of another directory is refused, also if it is as long."""
    other = DiskStorage(tmp_path / "other")
    for number in range(_COUNT):
        other.write(_numbered(number))
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
        storage.write(_numbered(0))
        assert folder.stat().st_mode & 0o777 == mode
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert len(modes) == 3
        assert set(modes.values()) == {0o600}
        storage.close()


def test_no_directory(tmp_path: Path) -> None:
    """A file, a link to nowhere, and what would be below a file, are refused as a directory."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to("nowhere")
    for path in (file, link):
        with pytest.raises(DataDirectoryError, match="it is not a directory"):
            DiskStorage(path)
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DiskStorage(file / "data")


@pytest.mark.parametrize("victim", ["all", "statestore.db", "statestore.lock", _LOG])
def test_files_that_are_removed_under_a_server(tmp_path: Path, victim: str) -> None:
    """When the files are removed under a running server, its next batch fails, and so do all later ones."""
    data = tmp_path / "data"
    storage = DiskStorage(data)
    storage.write(_numbered(0))
    if victim == "all":
        shutil.rmtree(data)
    else:
        (data / victim).unlink()
    results: list[Exception | None] = []
    is_done = threading.Event()
    storage.append(_numbered(1), results.append)
    storage.append(_numbered(2), lambda error: (results.append(error), is_done.set())[-1])
    assert is_done.wait(_WAIT_S)
    assert [type(error) for error in results] == [DataDirectoryError] * 2
    assert "removed or replaced" in str(results[0])
    storage.close()


@pytest.mark.parametrize("does", [lambda old: old.write(_numbered(0)), lambda old: old.close()], ids=["batch", "end"])
def test_a_lock_that_was_removed_under_a_server(tmp_path: Path, does: Callable[[DiskStorage], object]) -> None:
    """A server whose lock was removed, and whose files another one uses, notices before it writes over them."""
    old = DiskStorage(tmp_path)
    (tmp_path / "statestore.lock").unlink()
    new = DiskStorage(tmp_path)
    new.write(_numbered(1))
    with suppress(DataDirectoryError):
        does(old)
    new.write(_numbered(2))
    new.close()
    old.close()
    assert _found(tmp_path) == ["t/01", "t/02"]


def test_a_directory_that_was_made_anew_under_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server whose directory was made anew says so at its end, and leaves the new server's files alone."""
    old = DiskStorage(tmp_path / "data")
    old.write(_numbered(0))
    erase_data(tmp_path / "data")
    new = DiskStorage(tmp_path / "data")
    new.write(_numbered(1))
    old.close()
    assert "removed or replaced" in caplog.text
    new.write(_numbered(2))
    new.close()
    assert _found(tmp_path / "data") == ["t/01", "t/02"]
