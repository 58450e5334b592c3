"""The data directory: what is written is read again; whatever is wrong with it is said clearly, and changes nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statestore_client.errors import (
    DataDamagedError,
    DataDirectoryError,
    DataFormatError,
    DataInUseError,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.journal import Batch, Changes, Stream, Subject
from statestore_client.server.runtime.storage import FORMAT_VERSION, SqliteStorage
from statestore_client.sync import StateStoreClient

_WAIT_S = 10.0


def _batch(stream: Stream, puts: dict[Subject, bytes], *removals: Subject) -> Batch:
    return Batch((Changes(stream, tuple(puts.items()), removals),))


def _append(storage: SqliteStorage, *batches: Batch) -> list[Exception | None]:
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
    """Numbers come in order; what was removed stays away."""
    storage = SqliteStorage(data)
    numbers: dict[Subject, bytes] = {number: b"%d" % number for number in reversed(range(1, count + 1))}
    names: dict[Subject, bytes] = {f"t/{number}": b"" for number in range(count)}
    last = tuple(names)[-1]
    batches = (_batch(Stream.MESSAGES, numbers), _batch(Stream.RETAINED, names), _batch(Stream.RETAINED, {}, last))
    assert _append(storage, *batches) == [None] * 3
    storage.close()
    storage.close()
    storage = SqliteStorage(data)
    assert list(storage.load(Stream.MESSAGES)) == sorted(numbers.items())
    del names[last]
    assert dict(storage.load(Stream.RETAINED)) == names
    storage.close()


def test_subjects_of_all_kinds(data: Path) -> None:
    """Texts, bytes and empty ones are different subjects; a put replaces; large values come back."""
    storage = SqliteStorage(data)
    puts: dict[Subject, bytes] = {"": b"1", b"": b"2", "k": b"3", b"k": b"4", "\N{SNOWMAN}\0": bytes(3_000_000)}
    storage.write(_batch(Stream.KEYS, puts))
    storage.write(_batch(Stream.KEYS, {b"k": b"5"}))
    storage.close()
    storage = SqliteStorage(data)
    assert dict(storage.load(Stream.KEYS)) == puts | {b"k": b"5"}
    storage.close()


def test_a_process_that_is_killed_in_the_middle(data: Path) -> None:
    """What was done is there after the kill, in order and whole: no batch without the one before it."""
    program = (
        "import sys; from statestore_client.server.journal import *; "
        "from statestore_client.server.runtime.storage import SqliteStorage\n"
        "storage = SqliteStorage(sys.argv[1])\n"
        "for number in range(1, 1_000_000):\n"
        "    puts = tuple((number * 10 + i, b'') for i in range(10))\n"
        "    storage.write(Batch((Changes(Stream.MESSAGES, puts, ()),)))\n"
        "    print(number, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(data)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(50):
        process.stdout.readline()
    process.kill()
    rest, _ = process.communicate()
    done = 50 + rest.count(b"\n")
    storage = SqliteStorage(data)
    numbers = [number for number, _ in storage.load(Stream.MESSAGES)]
    storage.close()
    assert numbers == list(range(10, 10 + len(numbers)))
    assert len(numbers) in (done * 10, done * 10 + 10)


def _copy_of(data: Path, to: Path) -> Path:
    """What a kill in this moment would leave."""
    to.mkdir()
    for suffix in ("", "-wal"):
        (to / f"statestore.db{suffix}").write_bytes((data / f"statestore.db{suffix}").read_bytes())
    return to


@pytest.mark.parametrize("per_batch", [3, 30_000])
def test_what_is_in_the_log_only_is_read_again(data: Path, tmp_path: Path, per_batch: int) -> None:
    """After a kill, in the order of the batches: removed and put again, put and removed, replaced; also when the log
    was folded in between.
    """
    storage, oracle = SqliteStorage(data), dict[Subject, bytes]()
    for first in range(0, 6 * per_batch, per_batch // 3):
        puts: dict[Subject, bytes] = dict.fromkeys(range(first, first + per_batch), b"%d" % first)
        removals = tuple(range(first - per_batch // 3, first))
        assert _append(storage, _batch(Stream.MESSAGES, puts, *removals)) == [None]
        oracle |= puts
        for number in removals:
            oracle.pop(number, None)
    assert _append(storage, _batch(Stream.MESSAGES, {0: b"again"})) == [None]
    after = SqliteStorage(_copy_of(data, tmp_path / "copy"))
    assert dict(after.load(Stream.MESSAGES)) == oracle | {0: b"again"}
    after.close()
    storage.close()


def test_a_very_large_batch(data: Path, tmp_path: Path) -> None:
    """Is durable together with the smaller ones before it."""
    storage = SqliteStorage(data)
    large: dict[Subject, bytes] = {"large": bytes(20_000_000)}
    assert _append(storage, _batch(Stream.RETAINED, {"a": b"1"}), _batch(Stream.RETAINED, large, "a")) == [None, None]
    after = SqliteStorage(_copy_of(data, tmp_path / "copy"))
    assert dict(after.load(Stream.RETAINED)) == large
    after.close()
    storage.close()


def test_a_batch_that_changed_on_disk(data: Path, tmp_path: Path) -> None:
    """The log has checksums as well, beside those that sqlite has for a write-ahead log."""
    storage = SqliteStorage(data)
    assert _append(storage, _batch(Stream.RETAINED, {"topic": b"the value"})) == [None]
    copy = _copy_of(data, tmp_path / "copy")
    storage.close()
    with sqlite3.connect(copy / "statestore.db") as database:
        (row,) = database.execute("SELECT value FROM log").fetchone()
        assert b"the value" in row
        database.execute("UPDATE log SET value = ?", (row.replace(b"the value", b"the VALUE"),))
    database.close()
    with pytest.raises(DataDamagedError, match="of the log: the checksum is wrong"):
        SqliteStorage(copy)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_one_server_at_a_time(data: Path) -> None:
    """In this process and in another; the lock ends with whoever held it."""
    storage = SqliteStorage(data)
    with pytest.raises(DataInUseError, match="in use by another server"):
        SqliteStorage(data)
    command = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--data", str(data)]
    found = subprocess.run(command, capture_output=True, timeout=60)
    assert found.returncode == 6
    assert b"in use by another server" in found.stderr
    assert b"Traceback" not in found.stderr
    storage.close()
    SqliteStorage(data).close()


def test_a_newer_format_is_refused(data: Path) -> None:
    """And left as it is."""
    SqliteStorage(data).close()
    with sqlite3.connect(data / "statestore.db") as database:
        database.execute(f"PRAGMA user_version={FORMAT_VERSION + 1}")
    database.close()
    before = (data / "statestore.db").read_bytes()
    with pytest.raises(DataFormatError, match="newer release"), EmbeddedServer(data=data):
        pass
    assert (data / "statestore.db").read_bytes() == before


def test_an_older_format_is_read(data: Path) -> None:
    """And is the present one from then on, so that the release before refuses it."""
    SqliteStorage(data).close()
    with sqlite3.connect(data / "statestore.db") as database:
        database.execute("PRAGMA user_version=1")
    database.close()
    with EmbeddedServer(data=data) as server, StateStoreClient(server.url, driver="native") as store:
        store.set("k", "v")
    with sqlite3.connect(data / "statestore.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,)
    database.close()


@pytest.mark.parametrize("content", [b"hello", b"SQLite format 3\0" + bytes(5000), os.urandom(8192)])
def test_files_that_are_no_database(data: Path, content: bytes) -> None:
    """Are refused, and left as they are."""
    data.mkdir(parents=True)
    (data / "statestore.db").write_bytes(content)
    with pytest.raises(DataDamagedError, match=r"statestore.db is no database|is damaged"):
        SqliteStorage(data)
    assert (data / "statestore.db").read_bytes() == content


def test_the_database_of_another_program(data: Path) -> None:
    """Even an sqlite one is not touched."""
    data.mkdir(parents=True)
    with sqlite3.connect(data / "statestore.db") as database:
        database.execute("CREATE TABLE bookmarks (url)")
    database.close()
    before = (data / "statestore.db").read_bytes()
    with pytest.raises(DataDamagedError, match="another program"):
        SqliteStorage(data)
    assert (data / "statestore.db").read_bytes() == before


def test_a_torn_database(data: Path) -> None:
    """A file that was cut, or whose pages were overwritten, is refused at the start, and not served in part."""
    storage = SqliteStorage(data)
    storage.write(_batch(Stream.RETAINED, {f"t/{number}": bytes(200) for number in range(5000)}))
    storage.close()
    path = data / "statestore.db"
    whole = path.read_bytes()
    for torn in (whole[: len(whole) // 2], whole[:8192] + os.urandom(16_384) + whole[24_576:]):
        path.write_bytes(torn)
        with pytest.raises(DataDamagedError, match="backup"), EmbeddedServer(data=data):
            pass


def test_a_record_that_changed_on_disk(data: Path) -> None:
    """The checksum of each record finds what sqlite cannot: nothing wrong is served."""
    with EmbeddedServer(data=data) as server, StateStoreClient(server.url) as store:
        store.set("key", b"the value")
    path = data / "statestore.db"
    content = path.read_bytes()
    assert b"the value" in content
    path.write_bytes(content.replace(b"the value", b"the VALUE"))
    with pytest.raises(DataDamagedError, match="of keys: the checksum is wrong"), EmbeddedServer(data=data):
        pass


def test_a_torn_write_ahead_log(data: Path, tmp_path: Path) -> None:
    """A power failure leaves a part of the last transaction: what was committed before is there, and nothing else."""
    storage = SqliteStorage(data)
    for number in range(1, 21):
        storage.write(_batch(Stream.MESSAGES, {number: bytes(5000)}))
    log = (data / "statestore.db-wal").read_bytes()
    content = (data / "statestore.db").read_bytes()
    counts = set()
    for cut in range(len(log), len(log) // 2, -len(log) // 30):
        copy = tmp_path / f"copy-{cut}"
        copy.mkdir()
        (copy / "statestore.db").write_bytes(content)
        (copy / "statestore.db-wal").write_bytes(log[:cut])
        after = SqliteStorage(copy)
        numbers = [number for number, _ in after.load(Stream.MESSAGES)]
        after.close()
        assert numbers == list(range(1, len(numbers) + 1))
        counts.add(len(numbers))
    storage.close()
    assert max(counts) == 20
    assert len(counts) > 3


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in its way."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        SqliteStorage(tmp_path / "file" / "data")


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
    """Is refused at the start, with the reason, and left as it is; when it can be written again, all is there."""
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        data.mkdir()
        if has_data:
            storage = SqliteStorage(data)
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
        storage = SqliteStorage(data)
        assert list(storage.load(Stream.RETAINED)) == [("topic", b"the value")] * has_data
        storage.close()


def test_nothing_is_durable_after_an_error(data: Path) -> None:
    """What depends on a batch that failed must not be written without it."""
    storage = SqliteStorage(data)
    wrong = _batch(Stream.MESSAGES, {2**64: b""})
    first, second, third = _append(storage, _batch(Stream.MESSAGES, {1: b""}), wrong, _batch(Stream.MESSAGES, {2: b""}))
    storage.close()
    assert first is None
    assert isinstance(second, DataDirectoryError)
    assert third is second
    storage = SqliteStorage(data)
    assert list(storage.load(Stream.MESSAGES)) == [(1, b"")]
    storage.close()
