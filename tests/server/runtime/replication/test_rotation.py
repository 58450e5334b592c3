"""The file with the secret of a cluster, from step to step: what keeps it from the next one, and how it is written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statestore_client.errors import SettingsError
from statestore_client.server.runtime.replication.internal import ClusterSecret
from statestore_client.server.runtime.replication.rotation import SecretRotation

_SECRET = b"a secret of some bytes"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(_SECRET + b"\n")
    return path


def _statuses(file: Path, **changes: Any) -> list[dict[str, Any]]:
    """Of two servers that follow, as they tell it; the second one with changes."""
    secrets = ClusterSecret(file.read_bytes().strip()).fingerprints
    first = {"id": "a", "role": "active", "listeners": ["b"], "log_has_leader": True, "secrets": secrets}
    second = {"id": "b", "role": "standby", "listeners": [], "log_has_leader": True, "secrets": secrets}
    return [first, second | changes]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"secrets": ["00000000"]}, "b: not started with this"),
        ({"secrets": []}, "b: not started with this"),
        ({"id": "c"}, "b: not among these addresses"),
        ({"listeners": ["d"]}, "d: not among these addresses"),
        ({"log_has_leader": False}, "the log has no leader that b can reach"),
    ],
)
def test_a_server_that_has_not_followed_keeps_all_from_the_next_step(
    file: Path, changes: dict[str, Any], why: str
) -> None:
    """Also one that was not asked, though another one knows it."""
    rotation = SecretRotation(file)
    assert why in rotation.why_not(_statuses(file, **changes), begins=True)
    assert rotation.why_not(_statuses(file), begins=True) == ""


def test_nothing_is_begun_without_an_active_server_or_with_one_of_a_former_release(file: Path) -> None:
    """Both would be left behind, and without a server that is active nobody could look at it in time."""
    rotation = SecretRotation(file)
    former, standby = _statuses(file)
    former.pop("secrets")
    assert "a: of a release that knows one secret only" in rotation.why_not([former, standby], begins=True)
    assert "no server is active" in rotation.why_not([standby], begins=True)


def test_each_step_is_in_the_file_alone(file: Path) -> None:
    """Whatever ends the command, another one goes on; what is under way is not begun anew, and nothing is begun that
    nobody asked for."""
    SecretRotation(file).go_on(begins=False)
    assert file.read_bytes() == _SECRET + b"\n"
    SecretRotation(file).go_on(begins=True)
    old, new = ClusterSecret(file.read_bytes().strip()).fingerprints
    assert [old] == ClusterSecret(_SECRET).fingerprints
    assert "under way already" in SecretRotation(file).why_not(_statuses(file), begins=True)
    for secrets in ([new, old], [new]):
        SecretRotation(file).go_on(begins=False)
        assert SecretRotation(file).as_json()["secrets"] == secrets
    assert [each.name for each in file.parent.iterdir()] == ["secret"], "no half of a file is left"


def test_a_file_that_cannot_be_written_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the error names it."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SettingsError, match="secret cannot be written: No space left"):
        SecretRotation(file).go_on(begins=True)
    assert file.read_bytes() == _SECRET + b"\n"
    assert [each.name for each in file.parent.iterdir()] == ["secret"], "no half of a file is left"


#: Ends its process in place of the so-manieth step of writing the file, or after the last one.
_KILLED = """
import os, pathlib, signal, sys
from statestore_client.server.runtime.replication.rotation import SecretRotation
rotation, left = SecretRotation(sys.argv[2]), int(sys.argv[1])
def counted(step):
    def do(*arguments):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return step(*arguments)
    return do
os.fsync, pathlib.Path.replace = counted(os.fsync), counted(pathlib.Path.replace)
rotation.go_on(begins=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.ci
@pytest.mark.timeout(120)
@pytest.mark.parametrize("before", range(3), ids=["is-synced", "is-renamed", "its-name-is-synced"])
def test_a_step_that_is_killed_is_made_or_not(file: Path, before: int) -> None:
    """With kill -9: the file is that of the step before or of the next one, each server can start with it, and the
    command goes on there.
    """
    fingerprints: list[Any] = []
    for step in ("comes", "goes", "one"):
        former = file.read_bytes()
        killed = subprocess.run([sys.executable, "-c", _KILLED, str(before), str(file)], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert (file.read_bytes() == former) == (before < 2)
        if before < 2:
            SecretRotation(file).go_on(begins=step == "comes")
        said = SecretRotation(file).as_json()
        assert said["step"] == step
        fingerprints.append(said["secrets"])
    assert [len(each) for each in fingerprints] == [2, 2, 1]
    assert fingerprints[0] == fingerprints[1][::-1]
    assert file.stat().st_mode & 0o777 == 0o600
