"""``zmqraft serve``: peers as processes of their own, what ends them, and what they refuse to start with."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from peer_processes import SERVE, Peers

from raft_client import RaftClient


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    made = Peers(tmp_path)
    yield made
    for name in list(made.running):
        made.end(name, signal.SIGKILL)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=60)


def test_a_cluster_survives_the_end_of_each_process(peers: Peers) -> None:
    """Whichever process is killed, the others go on, and after all were away everything is there again."""
    for name in peers.urls:
        peers.start(name)
    acknowledged: dict[int, bytes] = {}
    with RaftClient(peers.url) as log:
        for name in peers.urls:
            acknowledged.update((log.append(data), data) for data in (f"{name} {n}".encode() for n in range(30)))
            peers.end(name, signal.SIGKILL)
            acknowledged.update(
                (log.append(data), data) for data in (f"without {name} {n}".encode() for n in range(30))
            )
            peers.start(name)
    for name in peers.urls:
        assert peers.end(name, signal.SIGTERM) == 0
    for name in peers.urls:
        peers.start(name)
    with RaftClient(peers.url) as log:
        acknowledged[log.append(b"last")] = b"last"
        found = {entry.index: entry.data for entry in log.entries() if entry.is_state}
    assert found == acknowledged


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_peer_as_it_should(peers: Peers, number: signal.Signals) -> None:
    """A signal ends a peer with the exit code 0, whether it leads or not."""
    peers.start("1")
    assert peers.end("1", number) == 0


def test_a_directory_is_of_one_process(peers: Peers) -> None:
    """A second process on the same directory, under another address, is refused, and the first one goes on."""
    peers.start("1")
    done = subprocess.run(peers.command("1", "--bind", "tcp://127.0.0.1:*"), capture_output=True, timeout=60)
    assert done.returncode == 6
    assert done.stderr.startswith(b"zmqraft: ")
    assert peers.running["1"].poll() is None


def test_a_directory_of_another_peer_is_refused(peers: Peers) -> None:
    """A directory of another peer is refused, because its votes and entries are not this peer's."""
    peers.start("1")
    peers.end("1", signal.SIGTERM)
    (peers.directory / "1").rename(peers.directory / "2")
    done = subprocess.run(peers.command("2"), capture_output=True, timeout=60)
    assert done.returncode == 6
    assert b"'1'" in done.stderr


def test_an_address_in_use_is_refused(peers: Peers) -> None:
    """An address in use is a usage error that names it."""
    peers.start("1")
    done = subprocess.run(peers.command("2", "--bind", peers.urls["1"]), capture_output=True, timeout=60)
    assert done.returncode == 2
    assert peers.urls["1"].encode() in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--id", "1", "--peer", "1", "--data", "d"], "'1' is not ID=URL"),
        (["--id", "1", "--peer", "1=tcp://host", "--data", "d"], "is not ID=URL"),
        (["--id", "1", "--peer", "1=tcp://h:1", "--peer", "2=tcp://h:1", "--data", "d"], "the same ID or URL"),
        (["--id", "2", "--peer", "1=tcp://127.0.0.1:1", "--data", "d"], "--id 2 is none of the peers"),
        (["--id", "1", "--data", "d"], "Missing option '--peer'"),
    ],
)
def test_arguments_that_make_no_peer_are_refused(arguments: list[str], complaint: str) -> None:
    """Arguments that make no peer are refused before anything is made."""
    done = run(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
