"""One peer in the thread of a program: it takes part, hands the lead over at its end, and says why it ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.waiting import eventually

from raft_client import InvalidArgumentError, RaftClient, RaftError, StorageOwnerError, TransportError
from raft_client.server import BroadcastStateMachine, EmbeddedPeer


@contextmanager
def three_peers(directory: Path) -> Iterator[dict[str, EmbeddedPeer]]:
    """By id; each may be stopped before the end."""
    urls = {name: f"tcp://127.0.0.1:{reserved_port()}" for name in "abc"}
    peers = {name: EmbeddedPeer(name, urls, directory / name, machine=BroadcastStateMachine) for name in urls}
    with ExitStack() as stack:
        for peer in peers.values():
            stack.enter_context(peer)
        yield peers


def test_a_leader_that_is_stopped_lets_another_peer_lead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is a follower before it ends, so an append waits for no election time-out; everything is there."""
    caplog.set_level(logging.INFO, "raft_client.server")
    with three_peers(tmp_path) as peers, RaftClient([peer.url for peer in peers.values()]) as log:
        log.append(b"before")
        leader = str(log.config().leader_id)
        peers[leader].stop()
        assert f"peer {leader}: follower in term 2, leader None" in caplog.text
        log.append(b"after")
        assert [entry.data for entry in log.entries() if entry.is_state] == [b"before", b"after"]
        eventually(
            lambda: any(b'role="leader"} 1' in peer.figures for name, peer in peers.items() if name != leader),
            "the figures of another peer say that it leads",
        )


def test_what_cannot_be_a_peer_is_refused(tmp_path: Path) -> None:
    """Before anything is opened."""
    urls = {"a": "tcp://127.0.0.1:1", "b": "tcp://127.0.0.1:2"}
    with pytest.raises(InvalidArgumentError, match="'c' is none of the peers a, b"):
        EmbeddedPeer("c", urls, tmp_path / "a")
    for wrong in ({"a": "10.0.0.1:8047"}, {"a": urls["a"], "b": urls["a"]}, {"": urls["a"]}):
        with pytest.raises(InvalidArgumentError, match="ids with different URLs"):
            EmbeddedPeer("a", wrong, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_what_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    """A port that is taken, the directory of another peer: an error, and no thread."""
    url = f"tcp://127.0.0.1:{reserved_port()}"
    threads = threading.active_count()
    with EmbeddedPeer("a", {"a": url}, tmp_path / "a"), pytest.raises(TransportError, match="cannot listen"):
        EmbeddedPeer("b", {"b": url}, tmp_path / "b").start()
    assert not (tmp_path / "b").exists()
    with pytest.raises(StorageOwnerError):
        EmbeddedPeer("b", {"b": url}, tmp_path / "a").start()
    eventually(lambda: threading.active_count() == threads, "the threads have ended")


def test_a_peer_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    """Its machine cannot apply an entry: the program is told, and can stop it."""

    class Broken(BroadcastStateMachine):
        def apply(self, *_: object) -> None:  # type: ignore[override]
            raise ArithmeticError("it cannot")

    failures: list[BaseException] = []
    url = f"tcp://127.0.0.1:{reserved_port()}"
    with EmbeddedPeer("a", {"a": url}, tmp_path / "a", machine=Broken, on_failure=failures.append) as peer:
        with RaftClient(url) as log, pytest.raises(RaftError):
            log.append(b"x", timeout=0.5)
        eventually(lambda: failures, "the failure is told")
        assert peer.failure is failures[0]
        assert str(failures[0]) == "it cannot"
