"""``statestore check --salvage``: what is left of a damaged directory, in one that a server starts with."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from statestore_client import StateStoreClient
from statestore_client.errors import DataDirectoryError
from statestore_client.server import EmbeddedServer
from statestore_client.server.journal import Changes, Stream, WriteBatch, seal
from statestore_client.server.runtime.storage import DiskStorage

Here = Callable[..., tuple[int, str, str]]
_KEYS = 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Keys, the first of them deleted in the end."""
    path = tmp_path / "data"
    with EmbeddedServer(data=path) as server, StateStoreClient(server.url) as store:
        for number in range(_KEYS):
            store.set(f"key-{number}", bytes(400))
        store.delete("key-0")
    return path


def _damage(data: Path, name: str = "statestore-1.log", place: float = 0.5) -> None:
    content = bytearray((data / name).read_bytes())
    content[int(len(content) * place)] ^= 4
    (data / name).write_bytes(content)


def _keys(data: Path) -> set[str]:
    with EmbeddedServer(data=data) as server, StateStoreClient(server.url) as store:
        return {key.decode() for key in store.scan()}


def _files(path: Path) -> dict[str, tuple[bytes, int]]:
    return {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in path.iterdir()}


def test_a_damaged_log(here: Here, data: Path, tmp_path: Path) -> None:
    """All keys but the one in the broken batch are there, also the one that was deleted later, and DIR is as it was."""
    _damage(data)
    before, out = _files(data), tmp_path / "out"
    code, text, _ = here("check", data, "--salvage", out)
    assert code == 8
    assert "cannot be read: bytes " in text
    assert "keys that were deleted may be back" in text
    assert text.splitlines()[-1].startswith(f"{out} holds {_KEYS - 2} keys, ")
    assert here("check", out)[0] == 0
    assert len(_keys(out)) == _KEYS - 2
    assert _files(data) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "out"]


def test_a_sound_directory(here: Here, data: Path, tmp_path: Path) -> None:
    """It is copied as it is; for programs the report has what was written."""
    code, text, _ = here("check", data, "--salvage", tmp_path / "out", "--json")
    found = json.loads(text)
    assert (code, found["finding"]["problem"], found["left_out"], found["broken"]) == (0, None, {}, [])
    assert found["records"] == found["finding"]["records"]
    assert found["finding"]["format"] == 3
    assert _keys(tmp_path / "out") == _keys(data)


def test_any_damage(here: Here, data: Path, tmp_path: Path) -> None:
    """Wherever a bit was changed, a server starts with what was written, or nothing was."""
    chance = random.Random(5)
    for number in range(12):
        copy, out = Path(shutil.copytree(data, tmp_path / f"copy-{number}")), tmp_path / f"out-{number}"
        _damage(copy, ("statestore.db", "statestore-1.log")[number % 2], chance.random())
        code, text, complaint = here("check", copy, "--salvage", out)
        assert code in (0, 6, 8), complaint
        assert out.exists() is (code != 6)
        if code == 8:
            assert here("check", out)[0] == 0, text


def test_records_that_do_not_fit_together(here: Here, data: Path, tmp_path: Path) -> None:
    """What belongs to a session that is gone is left out and counted, and so is a record that is another one's."""
    storage = DiskStorage(data)
    inbound = Changes(Stream.INBOUND, ((65_537, seal(Stream.INBOUND, 65_537, ())),), ())
    retained = Changes(Stream.RETAINED, (("topic", seal(Stream.RETAINED, "another", (1,))),), ())
    storage.write(WriteBatch((inbound, retained)))
    storage.close()
    code, text, _ = here("check", data, "--salvage", tmp_path / "out")
    assert code == 8
    assert "left out, because they do not fit together any more: 1 inbound" in text
    assert "cannot be read: 'topic' of retained" in text
    assert len(_keys(tmp_path / "out")) == _KEYS - 1


def test_a_log_that_a_crash_has_left(here: Here, data: Path, tmp_path: Path) -> None:
    """A log whose records are in the database, and newer there, is not taken for a later one, nor counted."""
    left = data / "statestore-1.log"
    old = left.read_bytes()
    with EmbeddedServer(data=data) as server, StateStoreClient(server.url) as store:
        store.set("key-1", "newer")
    _fold(data)
    assert not left.exists()
    without = here("check", data, "--json")
    left.write_bytes(old)
    assert without[0] == 0
    assert here("check", data, "--json") == without
    _damage(data, "statestore-2.log", 0.99)
    assert here("check", data, "--salvage", tmp_path / "out")[0] == 8
    with EmbeddedServer(data=tmp_path / "out") as server, StateStoreClient(server.url) as store:
        assert store.get("key-1").value == b"newer"


def _fold(data: Path) -> None:
    """Write the database anew, from it and its log."""
    storage = DiskStorage(data)
    storage._store.step_bytes = 10**9
    storage._store.work()
    storage.close()


def test_what_is_refused(here: Here, data: Path, tmp_path: Path) -> None:
    """A directory that is there, one in DIR itself, and one of a server that runs."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    assert here("check", data, "--salvage", tmp_path / "there")[0] == 6
    assert here("check", data, "--salvage", data / "out")[0] == 6
    assert here("check", "--broker", "mqtt://127.0.0.1:1", "--salvage", tmp_path / "out")[0] == 2
    with EmbeddedServer(data=data):
        assert here("check", data, "--salvage", tmp_path / "out")[0] == 6
    assert not (tmp_path / "out").exists()


#: Kills itself when all is written and has not got its name.
_KILLED = """
import os, pathlib, signal
pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from statestore_client.cli import main
main()
"""


@pytest.mark.ci
def test_a_salvage_that_was_killed(here: Here, data: Path, tmp_path: Path) -> None:
    """There is no OUT then, and the next one makes it, and clears away what the first one has left."""
    _damage(data)
    command = [sys.executable, "-c", _KILLED, "check", str(data), "--salvage", str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == -signal.SIGKILL
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "out.unfinished"]
    assert here("check", tmp_path / "out.unfinished")[0] == 6
    with (
        pytest.raises(DataDirectoryError, match="did not come to its end"),
        EmbeddedServer(data=tmp_path / "out.unfinished"),
    ):
        pass
    assert here("check", data, "--salvage", tmp_path / "out")[0] == 8
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "out"]
