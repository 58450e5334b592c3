"""``zmqraft serve``: peers as processes of their own, what ends them, and what they refuse to start with."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.keys import make_keys, settings_for
from support.ports import reserved_port
from support.raft_peers import SERVE, Peers

from raft_client import LogEntry, NoLeaderError, Peer, RaftClient
from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.configuration import ConfigChange


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    with Peers(tmp_path) as made:
        yield made


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.ci
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
@pytest.mark.ci
def test_a_signal_ends_a_peer_as_it_should(peers: Peers, number: signal.Signals) -> None:
    """A signal ends a peer with the exit code 0, whether it leads or not."""
    peers.start("1")
    assert peers.end("1", number) == 0


_TELLS: Final = """
import atexit, gc, sys
from raft_client.cli import main
import raft_client.server
before = gc.get_threshold(), gc.get_freeze_count()
atexit.register(lambda: print(before, gc.get_threshold()[0] > before[0][0], gc.get_freeze_count() > 0, file=sys.stderr))
main()
"""


@pytest.mark.ci
def test_garbage_is_collected_seldom_in_the_command_alone(tmp_path: Path) -> None:
    """The command freezes what it has imported and looks for garbage seldom; to import the package changes nothing."""
    member = f"--peer=1=tcp://127.0.0.1:{reserved_port()}"
    command = [sys.executable, "-c", _TELLS, "serve", "--id", "1", member, "--data", str(tmp_path / "1")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on")
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert told.splitlines()[-1] == f"({gc.get_threshold()}, 0) True True"


@pytest.mark.ci
def test_a_directory_is_of_one_process(peers: Peers) -> None:
    """A second process on the same directory, under another address, is refused, and the first one goes on."""
    peers.start("1")
    done = subprocess.run(peers.command("1", "--bind", "tcp://127.0.0.1:*"), capture_output=True, timeout=60)
    assert done.returncode == 6
    assert done.stderr.startswith(b"zmqraft: ")
    assert peers.running["1"].poll() is None


@pytest.mark.ci
def test_a_directory_of_another_peer_is_refused(peers: Peers) -> None:
    """A directory of another peer is refused, because its votes and entries are not this peer's."""
    peers.start("1")
    peers.end("1", signal.SIGTERM)
    (peers.directory / "1").rename(peers.directory / "2")
    done = subprocess.run(peers.command("2"), capture_output=True, timeout=60)
    assert done.returncode == 6
    assert b"'1'" in done.stderr


@pytest.mark.ci
def test_an_address_in_use_is_refused(peers: Peers) -> None:
    """An address in use ends it with exit code 10, and no directory is made: it would keep wrong addresses."""
    peers.start("1")
    for option in ("--bind", "--publish"):
        done = subprocess.run(peers.command("2", option, peers.urls["1"]), capture_output=True, timeout=60)
        assert done.returncode == 10
        assert done.stderr.decode() == f"zmqraft: cannot listen at {peers.urls['1']}: Address already in use\n"
        assert not (peers.directory / "2").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--id", "1", "--peer", "1", "--data", "d"], "'1' is not ID=URL"),
        (["--id", "1", "--peer", "1=tcp://host", "--data", "d"], "is not ID=URL"),
        (["--id", "1", "--peer", "1=tcp://h:1", "--peer", "2=tcp://h:1", "--data", "d"], "the same ID or URL"),
        (["--id", "2", "--peer", "1=tcp://127.0.0.1:1", "--data", "d"], "--id '2' is none of the peers"),
        (["--id", "", "--peer", "1=tcp://127.0.0.1:1", "--data", "d"], "--id '' is none of the peers"),
        (["--id", "1", "--peer", "1=ipc:///a", "--data", "d"], "'1=ipc:///a' is not ID=URL"),
        (
            ["--id", "1", "--peer", "1=tcp://127.0.0.1:1", "--data", "d", "--bind", "ipc:///a"],
            "a peer listens at tcp://ADDRESS:PORT, not at 'ipc:///a'",
        ),
        (
            ["--id", "1", "--peer", "1=tcp://127.0.0.1:1", "--data", "d", "--publish", "ipc:///a"],
            "a peer listens at tcp://ADDRESS:PORT, not at 'ipc:///a'",
        ),
        (["--id", "1", "--data", "d"], "Missing option '--peer'"),
        *(
            (["--id", "1", "--peer", member, "--data", "d", *more], "with --curve-keys, or say --insecure")
            for member, *more in (
                ("1=tcp://192.0.2.1:1",),
                ("1=tcp://[2001:db8::1]:1",),
                ("1=tcp://127.0.0.1:1", "--bind", "tcp://*:1"),
                ("1=tcp://127.0.0.1:1", "--bind", "tcp://0.0.0.0:1"),
                ("1=tcp://127.0.0.1:1", "--publish", "tcp://eth0:1"),
            )
        ),
        (
            ["--id", "1", "--peer", "1=tcp://127.0.0.1:1", "--data", "d", "--setting", "heartbeat_s=1"],
            "heartbeat_s (1) is at most half of election_timeout_min_s",
        ),
        (
            ["--id", "1", "--peer", "1=tcp://127.0.0.1:1", "--data", "d", "--setting", "ident=x"],
            "--setting: NAME=VALUE is wanted",
        ),
    ],
)
@pytest.mark.ci
def test_arguments_that_make_no_peer_are_refused(arguments: list[str], complaint: str) -> None:
    """Arguments that make no peer are refused before anything is made."""
    done = run(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr


@pytest.mark.ci
def test_peers_with_keys_let_in_nobody_without(peers: Peers, tmp_path: Path) -> None:
    """Processes with keys make a cluster that encrypts, also after all were started again, and refuse a client in the
    clear."""
    keys = make_keys(tmp_path / "keys")
    members = [Peer(name, url) for name, url in peers.urls.items()]
    for data in (b"one", b"two"):
        for name in peers.urls:
            peers.start(name, "--curve-keys", str(keys))
        with RaftClient(settings_for(keys, members)) as log:
            log.append(data)
        with pytest.raises(NoLeaderError), RaftClient(peers.url, request_timeout=0.5):
            pass
        for name in peers.urls:
            assert peers.end(name, signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [("1.key_secret", "1.key_secret cannot be used: No such file"), ("2.key", "2.key, the public key of peer 2")],
)
@pytest.mark.ci
def test_a_key_that_is_missing_is_refused(peers: Peers, tmp_path: Path, missing: str, complaint: str) -> None:
    """A peer whose own key, or that of a member, is missing does not start, says which, and leaves no directory."""
    keys = make_keys(tmp_path / "keys")
    (keys / missing).unlink()
    done = subprocess.run(
        peers.command("1", "--curve-keys", str(keys)), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr
    assert not (peers.directory / "1").exists()


@pytest.mark.ci
def test_a_snapshot_of_another_state_machine_is_refused(tmp_path: Path) -> None:
    """A directory whose snapshot the state machine cannot read is one that cannot be used, and the line says why."""
    members = (Peer("1", f"tcp://127.0.0.1:{reserved_port()}"),)
    snapshot = SnapshotMeta(1, 1, 5, Configuration(0, ConfigChange(members)))
    with DiskLog.open(tmp_path / "1", peer_id="1", ident=b"", peers=members) as log:
        log.write(Persist(HardState(1, ""), entries=(LogEntry.of(b"x", term=1, index=1),)))
        log.sync()
        with log.new_snapshot() as writer:
            writer.write(b"state")
            writer.finish(snapshot)
        log.compact(snapshot)
    ended = run("--id", "1", "--peer", f"1={members[0].url}", "--data", str(tmp_path / "1"))
    assert ended.returncode == 6
    assert "the snapshot up to entry 1 cannot be read by this state machine" in ended.stderr
    assert "Traceback" not in ended.stderr
