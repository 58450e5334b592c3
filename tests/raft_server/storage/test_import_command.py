"""``zmqraft import-log``: its words and its exit codes, with a folder that a Node peer wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from node_peer_sample import MEMBERS, write_sample

from raft_client.server.runtime.storage.disk_log import DiskLog


def run(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "raft_client.cli", *arguments], capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(write_sample(tmp_path / "node"))


def test_a_folder_is_imported(folder: str, tmp_path: Path) -> None:
    """It says what the new directory has, and our peer opens it under the id and the cluster that were given."""
    target = str(tmp_path / "ours")
    assert run("import-log", folder, target, "--id", "1", "--cluster", "plant") == (
        0,
        f"{target} has the entries 1 to 62 and a snapshot up to 20\n",
        "",
    )
    with DiskLog.open(target, peer_id="1", ident=b"plant", peers=MEMBERS) as log:
        assert log.last_index == 62
    code, out, _ = run("check", target)
    assert (code, out.splitlines()[:4]) == (
        0,
        [f"{target} is sound", "peer: 1", "cluster: plant", "term: 1, voted for 1"],
    )


def test_members_that_are_not_certain_are_told(folder: str, tmp_path: Path) -> None:
    """Where the folder does not say for certain who the members are, a line on standard error says what follows."""
    for path in (tmp_path / "node" / "log").rglob("*.rlog"):
        path.unlink()
    (tmp_path / "node" / "state.pers").unlink()
    (tmp_path / "node" / "raft.pers").write_bytes(b"")
    members = [f"--peer={peer.id}={peer.url}" for peer in MEMBERS]
    code, out, err = run("import-log", folder, str(tmp_path / "ours"), "--id", "1", *members)
    assert (code, out.split(" has ")[1]) == (0, "no entries and a snapshot up to 20\n")
    assert "does not stand for election" in err


def test_what_cannot_be_imported(folder: str, tmp_path: Path) -> None:
    """Damage is exit code 6 with the file, a wrong id is exit code 2; nothing is left of either."""
    target = str(tmp_path / "ours")
    code, _, err = run("import-log", folder, target, "--id", "9")
    assert (code, err) == (2, "zmqraft: '9' is none of the members, who are 1, 2, 3, 4\n")
    (tmp_path / "node" / "snap").write_bytes(b"SNIP")
    code, _, err = run("import-log", folder, target, "--id", "1")
    assert (code, err) == (6, "zmqraft: snap is damaged at byte 0: it does not begin as a snapshot\n")
    assert {path.name for path in tmp_path.iterdir()} == {"node"}
