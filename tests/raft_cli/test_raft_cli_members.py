"""The steps of the guide that change who the members are, with processes: a peer is replaced, and the leader leaves."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import reserved_port
from support.raft_peers import SERVE, Peers
from support.waiting import eventually

from raft_client import RaftClient
from raft_client.server.runtime.storage.backup import inspect_directory

Run = Any  # conftest.py has it


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    with Peers(tmp_path) as made:
        yield made


def start_newcomer(peers: Peers, name: str, url: str) -> None:
    """As the guide says: its id is in no ``--peer``, so it copies the log and waits."""
    members = [f"--peer={peer}={peers.urls[peer]}" for peer in ("1", "2")]
    command = [*SERVE, "--id", name, "--bind", url, "--data", str(peers.directory / name), *members]
    process = peers.running[name] = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == f"listening on {url}\n".encode()


@pytest.mark.ci
def test_a_peer_is_replaced_and_the_leader_is_taken_away(peers: Peers, bare_run: Run) -> None:
    """A newcomer is added, the lost one removed, the leadership handed over and the former leader ended: each step of
    the guide works, appends go on, and the newcomer has the whole log and is needed for a majority."""
    for name in peers.urls:
        peers.start(name)
    kept: dict[int, bytes] = {}
    url, newcomer = f"{peers.urls['1']},{peers.urls['2']}", f"tcp://127.0.0.1:{reserved_port()}"

    def append(what: str) -> None:
        for n in range(20):
            kept[log.append(b"%s %d" % (what.encode(), n))] = b"%s %d" % (what.encode(), n)

    def members(done: Any) -> list[str]:
        assert done.code == 0, done
        return [line.split()[0] for line in done.out.decode().splitlines()]

    with RaftClient(url, request_timeout=30) as log:
        append("three")
        peers.end("3", signal.SIGKILL)
        append("two of three")
        start_newcomer(peers, "4", newcomer)
        assert members(bare_run("add-peer", "4", newcomer, "--url", url)) == ["1", "2", "3", "4"]
        append("one is lost")
        assert members(bare_run("remove-peer", "3", "--url", url)) == ["1", "2", "4"]
        append("replaced")
        assert members(bare_run("transfer", "4", "--url", url)) == ["1", "2", "4"]
        assert [peer.id for peer in log.config().peers] == ["1", "2", "4"]
        eventually(lambda: log.config().leader_id == "4", "4 leads")
        append("led by the newcomer")
        assert peers.end("1", signal.SIGTERM) == 0
        append("two of three again")
    for name in ("2", "4"):
        assert peers.end(name, signal.SIGTERM) == 0
    assert not inspect_directory(peers.directory / "4").problems
    peers.start("2")
    start_newcomer(peers, "4", newcomer)
    with RaftClient(f"{peers.urls['2']},{newcomer}", request_timeout=30) as log:
        append("after a start")
        assert {entry.index: entry.data for entry in log.entries() if entry.is_state} == kept
