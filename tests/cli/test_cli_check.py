"""``statestore check`` on a data directory."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.ports import reserved_ports

from raft_client.server import EmbeddedPeer
from statestore_client import StateStoreClient
from statestore_client.cli.app import cli
from statestore_client.errors import DataDamagedError, DataDirectoryError, DataInUseError
from statestore_client.server import EmbeddedServer
from statestore_client.server.journal import Changes, Stream, WriteBatch, seal
from statestore_client.server.runtime.storage import DiskStorage

_KEYS = 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Keys, the last of them deleted."""
    path = tmp_path / "data"
    with EmbeddedServer(data=path) as server, StateStoreClient(server.url) as store:
        for number in range(_KEYS):
            store.set(f"key-{number}", bytes(400))
        store.delete("key-0")
    return path


def _check(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["check", str(path)], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def _checked(path: Path) -> dict[str, object]:
    output = CliRunner().invoke(cli, ["check", "--json", str(path)], standalone_mode=False).output
    found = json.loads(output)
    assert isinstance(found, dict)
    return found


def _files(path: Path) -> dict[str, tuple[bytes, int]]:
    return {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in path.iterdir()}


def test_a_sound_directory(data: Path) -> None:
    """A sound directory is called sound, with what is in it, and nothing is touched."""
    before = _files(data)
    code, text = _check(data)
    assert code == 0
    verdict, formats, checked, *files, held = text.splitlines()
    assert formats == "format 3: versions from 0.2.0 on read it"
    assert verdict == f"{data} is sound: a server can start with it"
    assert checked == "checked: each frame of the files against its checksum, and whether the records fit together"
    assert [line.partition(":")[0] for line in files] == ["statestore.db", "statestore-1.log"]
    assert held == f"it holds {_KEYS - 1} keys, {_KEYS + 1} remembered answers, 1 token"
    found = _checked(data)
    assert found["problem"] is None
    assert found["records"] == {"keys": _KEYS - 1, "responses": _KEYS + 1, "clock": 2, "tokens": 1}
    assert _files(data) == before


def test_a_damaged_log(data: Path) -> None:
    """For a damaged log the report says where, and counts what is whole before and after the damage."""
    log = data / "statestore-1.log"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 4
    log.write_bytes(content)
    before = _files(data)
    code, text = _check(data)
    assert code == 6
    assert text.startswith(f"{data} is damaged: statestore-1.log is damaged at byte ")
    assert text.splitlines()[-1].startswith("what to do: a server refuses this directory. Restore it from a backup")
    assert f"can be read: {_KEYS - 2} keys" in text or f", {_KEYS - 2} keys, " in text
    found = _checked(data)
    assert "statestore-1.log is damaged at byte" in str(found["problem"])
    (gap,) = [file["gaps"] for file in found["files"] if file["gaps"]]  # type: ignore[attr-defined]  # as JSON has it
    ((start, end),) = gap
    assert start <= len(content) // 2 < end
    assert _files(data) == before


@pytest.mark.parametrize("name", ["statestore.db", "statestore-1.log"])
@pytest.mark.parametrize("left", [None, 0, 30])
def test_files_that_are_gone(data: Path, name: str, left: int | None) -> None:
    """If files are missing, what the others hold is counted."""
    if left is None:
        (data / name).unlink()
    else:
        (data / name).write_bytes((data / name).read_bytes()[:left])
    code, text = _check(data)
    assert code == 6
    assert name in text
    assert "can be read:" in text


def test_a_broken_database(tmp_path: Path) -> None:
    """Frames after a broken one are found, and so are those of a file whose head is broken."""
    storage = DiskStorage(tmp_path / "data")
    records = tuple((f"t/{number}", seal(Stream.RETAINED, f"t/{number}", (bytes(1000),))) for number in range(2000))
    storage.append(WriteBatch((Changes(Stream.RETAINED, records, ()),)), lambda _: None)
    storage._store.short_bytes = 1000
    storage.append(WriteBatch(()), lambda _: None)
    storage.close()
    storage = DiskStorage(tmp_path / "data")
    storage._store.short_bytes = 1000
    storage._store.step_bytes = 10**9
    while storage._store.wants_work:
        storage._store.work()
    storage.close()
    database = tmp_path / "data" / "statestore.db"
    content = bytearray(database.read_bytes())
    assert len(content) > 2_000_000
    content[20] ^= 1
    content[1_000_000] ^= 1
    database.write_bytes(content)
    code, text = _check(tmp_path / "data")
    assert code == 6
    (count,) = (int(word) for word in text.splitlines()[-2].split() if word.isdigit())
    assert 1800 < count < 2000


def test_it_says_what_the_server_says(data: Path, tmp_path: Path) -> None:
    """Wherever a bit was changed, the server starts if the check says "sound", and refuses if it does not."""
    chance = random.Random(3)
    verdicts = set()
    for name in ("statestore.db", "statestore-1.log"):
        for _ in range(30):
            copy = Path(shutil.copytree(data, tmp_path / "copy", dirs_exist_ok=True))
            content = bytearray((data / name).read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (copy / name).write_bytes(content)
            found = _checked(copy)["problem"]
            verdicts.add(found is None)
            try:
                DiskStorage(copy).close()
            except DataDamagedError as error:
                assert str(found) in error.message  # noqa: PT017 - both verdicts are compared
            else:
                assert found is None
    assert verdicts == {True, False}


def test_records_that_are_not_what_was_written(tmp_path: Path) -> None:
    """A record that was wrong before it reached the disk is found by its checksum, which covers its name too."""
    storage = DiskStorage(tmp_path)
    puts = (("topic", seal(Stream.RETAINED, "another topic", (1,))),)
    storage.write(WriteBatch((Changes(Stream.RETAINED, puts, ()),)))
    storage.close()
    code, text = _check(tmp_path)
    assert code == 6
    assert "1 record is not what was written" in text


def test_records_that_do_not_fit_together(tmp_path: Path) -> None:
    """Records that are sound but contradict each other are reported, because a server would refuse to start with
    them."""
    storage = DiskStorage(tmp_path)
    storage.write(WriteBatch((Changes(Stream.INBOUND, ((65_537, seal(Stream.INBOUND, 65_537, ())),), ()),)))
    storage.close()
    code, text = _check(tmp_path)
    assert code == 6
    assert "is damaged: records do not fit together" in text
    assert "can be read: 1 inbound" in text


@pytest.mark.ci
def test_what_is_no_data_directory(tmp_path: Path) -> None:
    """A missing directory, a file, an empty directory, and a directory that a server uses are each refused."""
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "file", "empty"):
        with pytest.raises(DataDirectoryError, match="is not a data directory"):
            _check(tmp_path / name)
    assert not list((tmp_path / "empty").iterdir())
    member = f"tcp://127.0.0.1:{reserved_ports(1)}"
    with EmbeddedPeer("a", {"a": member}, tmp_path / "of-a-cluster" / "log", cluster="c"):
        pass
    with pytest.raises(DataDirectoryError, match=r"is checked with 'zmqraft check .*/of-a-cluster/log'"):
        _check(tmp_path / "of-a-cluster")
    with EmbeddedServer(data=tmp_path / "data"), pytest.raises(DataInUseError):
        _check(tmp_path / "data")
