"""``zmqraft backup`` and ``restore``: a cluster of processes that loses its majority, and the new one made of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.ports import reserved_port
from support.raft_peers import SERVE, Peers

from raft_client import NoLeaderError, RaftClient, RaftSettings, TermMismatchError
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.configuration import Peer

if TYPE_CHECKING:
    from conftest import Run


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    """Peers of a cluster without a name."""
    with Peers(tmp_path) as made:
        yield made


def client(url: str, cluster: str, timeout: float = 30) -> RaftClient:
    return RaftClient(RaftSettings(seeds=url, cluster=cluster, request_timeout=timeout))


def serve(peers: Peers, name: str, url: str, *arguments: str) -> None:
    """Start a peer of the restored cluster."""
    command = [*SERVE, "--cluster", "plant-2", "--id", name, "--data", str(peers.directory / name), *arguments]
    peers.running[name] = process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == f"listening on {url}\n".encode()


@pytest.mark.ci
def test_a_lost_majority_becomes_a_new_cluster(peers: Peers, bare_run: Run) -> None:
    """The peer that is left is backed up while it runs and restored as a new cluster at the address of a lost one: it
    has what was acknowledged, takes more, and gets a second member. It is no part of the old cluster, and the peers
    that come back after all are none of the new one; positions that only the old one had are refused."""
    for name in peers.urls:
        peers.start(name)
    with client(peers.url, "") as log:
        kept = {log.append(b"before %d" % number): b"before %d" % number for number in range(50)}
        leader = log.config().leader_id
    assert leader is not None
    others = [name for name in peers.urls if name != leader]
    done = bare_run("backup", str(peers.directory / leader), str(peers.directory / "backup"))
    assert done.code == 0, done
    assert done.out.decode().startswith(f"{peers.directory / 'backup'} has the entries 1 to ")
    with client(peers.url, "") as log:
        lost = [log.append(b"lost %d" % number) for number in range(30)]
        *_, last = log.entries(lost[-1] - 1)
    for name in others:
        peers.end(name, signal.SIGKILL)

    url = peers.urls[others[0]]
    done = bare_run(
        "restore", str(peers.directory / "backup"), str(peers.directory / "4"), "--cluster", "plant-2", "--peer",
        f"4={url}",
    )  # fmt: skip
    assert done.code == 0, done
    assert done.out.decode().splitlines()[1] == (
        f"zmqraft serve --cluster plant-2 --id 4 --peer 4={url} --data {peers.directory / '4'}"
    )
    serve(peers, "4", url, "--peer", f"4={url}")
    with client(url, "plant-2") as log:
        kept[log.append(b"restored")] = b"restored"
        assert {e.index: e.data for e in log.entries() if e.is_state} == kept
        assert [(peer.id, peer.url) for peer in log.config().peers] == [("4", url)]
        with pytest.raises(NoLeaderError), client(peers.urls[leader], "", 1.5) as old:
            old.append(b"the old cluster has one peer of three")
        for number in range(40):
            index = log.append(b"after %d" % number)
            kept[index] = b"after %d" % number
        assert index > last.index
        with pytest.raises(TermMismatchError):
            next(iter(log.entries(last.position)))

        peers.start(others[1])
        with client(f"{peers.urls[leader]},{peers.urls[others[1]]}", "") as old:
            old.append(b"the old cluster has two peers of three")
        assert {e.index: e.data for e in log.entries() if e.is_state} == kept

        added = f"tcp://127.0.0.1:{reserved_port()}"
        serve(peers, "5", added, "--peer", f"4={url}", "--bind", added)
        done = bare_run("add-peer", "5", added, "--url", url, "--cluster", "plant-2")
        assert done.code == 0, done
        assert [line.split()[:2] for line in done.out.decode().splitlines()] == [["4", url], ["5", added]]
        kept[log.append(b"two")] = b"two"
    peers.end("4", signal.SIGTERM)
    peers.end("5", signal.SIGTERM)
    with DiskLog.open(peers.directory / "5", peer_id="5", ident=b"plant-2", peers=(Peer("4", url),)) as stored:
        found = stored.entries(0, stored.last_index, 1 << 30)
    assert {entry.index: entry.data for entry in found if entry.is_state} == kept


@pytest.mark.ci
def test_a_backup_is_no_directory_of_a_peer(peers: Peers, bare_run: Run) -> None:
    """A peer that is started with a backup is refused, with what to do; the backup stays as it is."""
    peers.start("1")
    peers.end("1", signal.SIGTERM)
    assert bare_run("backup", str(peers.directory / "1"), str(peers.directory / "backup")).code == 0
    (peers.directory / "1").rename(peers.directory / "away")
    (peers.directory / "backup").rename(peers.directory / "1")
    done = subprocess.run(peers.command("1"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 6
    assert "zmqraft restore" in done.stderr
    found = bare_run("check", str(peers.directory / "1"))
    assert (found.code, found.out.decode().splitlines()[1]) == (0, "backup of the peer: 1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--peer", "4", "--cluster", "x"], "'4' is not ID=URL"),
        (["--peer", "4=tcp://127.0.0.1:1"], "Missing option '--cluster'"),
        (["--cluster", "x"], "Missing option '--peer'"),
        (["--peer", "2=tcp://127.0.0.1:1", "--cluster", "x"], "the peer id '2' was used"),
        (["--peer", "4=tcp://127.0.0.1:1", "--cluster", ""], "give the restored one a name of its own"),
    ],
)
def test_what_would_not_be_a_new_cluster_is_refused(
    peers: Peers, bare_run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    """A used id and the old name are refused as usage errors, and the name is not taken from the environment."""
    peers.start("1")
    peers.end("1", signal.SIGTERM)
    bare_run("backup", str(peers.directory / "1"), str(peers.directory / "backup"))
    monkeypatch.setenv("ZMQRAFT_CLUSTER", "plant")
    done = bare_run("restore", str(peers.directory / "backup"), str(peers.directory / "4"), *arguments)
    assert done.code == 2
    assert complaint in done.err
    assert not (peers.directory / "4").exists()


def test_a_restore_that_is_killed_leaves_no_directory(peers: Peers, bare_run: Run) -> None:
    """A process that is killed while it restores leaves nothing under the name, and the next one restores it."""
    peers.start("1")
    peers.end("1", signal.SIGTERM)
    bare_run("backup", str(peers.directory / "1"), str(peers.directory / "backup"))
    code = """
import os, sys
from raft_client.cli import main
from raft_client.server.runtime.storage import backup
backup._begin_cluster = lambda *_: os.kill(os.getpid(), 9)
main()
"""
    words = ["restore", str(peers.directory / "backup"), str(peers.directory / "4"), "--cluster", "x"]
    words += ["--peer", "4=tcp://127.0.0.1:1"]
    killed = subprocess.run([sys.executable, "-c", code, *words], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not (peers.directory / "4").exists()
    (left,) = peers.directory.glob("4.*.part")
    assert bare_run(*words).code == 0
    assert bare_run("check", str(peers.directory / "4")).code == 0
    assert left.exists()
