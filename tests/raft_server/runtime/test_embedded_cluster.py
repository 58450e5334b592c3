"""Real peers in this process, a cluster of them or one alone: what they do, their faults, and what is refused."""

from __future__ import annotations

import inspect
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.ports import reserved_port
from support.waiting import eventually

import raft_client.server
from raft_client import (
    AsyncRaftClient,
    InvalidArgumentError,
    KeyValueCodec,
    NoLeaderError,
    Peer,
    RaftClient,
    RaftError,
    StorageOwnerError,
    TransportError,
)
from raft_client.server import BroadcastStateMachine, EmbeddedPeer, embedded_cluster
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster
from raft_client.wire.configuration import Peers


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_port_that_another_program_took_leaves_nothing(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a port is gone before its peer listens there, the cluster has other ports, and all peers know them."""
    with socket.create_server(("127.0.0.1", 0)) as program:
        free, of_first_attempt = embedded_cluster.addresses, []

        def addresses(*arguments: Any) -> Peers:
            peers = free(*arguments)
            if not of_first_attempt:
                of_first_attempt.extend(peers)
                url = f"tcp://127.0.0.1:{program.getsockname()[1]}"
                peers = tuple(Peer(peer.id, url if peer.id == str(taken) else peer.url) for peer in peers)
            return peers

        monkeypatch.setattr(embedded_cluster, "addresses", addresses)
        with EmbeddedCluster() as cluster, RaftClient(cluster.url) as log:
            assert not {peer.url for peer in of_first_attempt} & set(cluster.seeds)
            log.append(b"one")
            cluster.kill(cluster.leader())  # so that each of the others may be asked to lead
            log.append(b"two")
            assert log.config().peers == cluster.peers


def test_the_name_of_the_cluster_has_to_be_given() -> None:
    """A client with another name of the cluster gets no answer."""
    with EmbeddedCluster(1, cluster="a") as cluster:
        with RaftClient(cluster.url, cluster="a") as log:
            log.append(b"x")
        with (
            pytest.raises(NoLeaderError, match="check the setting cluster"),
            RaftClient(cluster.url, cluster="b", request_timeout=0.5),
        ):
            pass


def test_subscribers_hear_what_is_applied() -> None:
    """A subscriber survives a change of the leader without a gap."""
    with EmbeddedCluster(3, machine=BroadcastStateMachine) as cluster, RaftClient(cluster.url) as log:
        log.append(b"0")
        heard: list[bytes] = []
        with log.subscribe(after=0) as subscriber:

            def listen() -> None:
                for entry in subscriber:
                    if entry.is_state:
                        heard.append(entry.data)
                        if len(heard) == 20:
                            return

            listening = threading.Thread(target=listen)
            listening.start()
            for n in range(1, 10):
                log.append(b"%d" % n)
            cluster.kill(cluster.leader())
            for n in range(10, 20):
                log.append(b"%d" % n)
            listening.join(60)
        assert heard == [b"%d" % n for n in range(20)]


def test_every_peer_answers_questions() -> None:
    """A follower asks the leader how far the log is committed, and then answers with what is newest."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log, zmq.Context() as context:
        for value, url in enumerate(cluster.seeds):
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger = 0
                dealer.connect(url)
                answers: list[list[bytes]] = []
                log.append(KeyValueCodec.set("a", str(value)))
                while not answers:  # one that has not met the leader yet says nothing
                    dealer.send_multipart([b"question", b"kv.get", b"", b"a"])
                    if dealer.poll(1_000):
                        answers.append(dealer.recv_multipart())
                assert answers[0][0] == b"question"
                assert answers[0][2:] == [b"\x01", str(value).encode()]


def test_messages_that_nobody_can_read_harm_nothing() -> None:
    """A message that ends a Node peer, and random bytes, do no harm to our peers."""
    with EmbeddedCluster(1) as cluster, RaftClient(cluster.url) as log, zmq.Context() as context:
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(cluster.seeds[0])
            for frames in (
                [b"\x01", b"\x3c", b""],
                [b"\x01", b"\x3f", b"", b"1", b""],
                [bytes(12), b"\x3d", b""],
                [b""],
                [b"\x01", b"\x78", b""],
            ):
                dealer.send_multipart(frames)
            dealer.send_multipart([b"\x07", b"\x5e", b""])
            assert dealer.poll(10_000)
            assert dealer.recv_multipart()[0] == b"\x07"
        log.append(b"x")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *(({"size": size}, "size is a number of peers from 1 to 9") for size in (0, 10, True, "3")),
        *(({"compact_bytes": value}, "compact_bytes") for value in (0, -1, True, 1.5, "1")),
        ({"settings": {"hearbeat_s": 1.0}}, "'hearbeat_s'"),
        ({"transport": "inproc"}, "transport is 'tcp' or 'ipc', not 'inproc'"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(options: dict[str, Any], error: str) -> None:
    """An impossible size or transport, and an unknown setting, are refused before anything is started, with their
    names."""
    for kind in (AsyncEmbeddedCluster, EmbeddedCluster):
        with pytest.raises(InvalidArgumentError, match=error):
            kind(**options)


def test_controls_say_what_cannot_be_done() -> None:
    """Controls for a peer that is not there, or that runs already, or of a cluster that does not run, are errors that
    say so."""
    cluster = EmbeddedCluster(1)
    with pytest.raises(InvalidArgumentError, match="not running"):
        cluster.leader()
    with cluster:
        assert cluster.running == ("1",)
        with pytest.raises(InvalidArgumentError, match="no peer '7' is running; there are 1"):
            cluster.kill("7")
        with pytest.raises(InvalidArgumentError, match="no peer '1' was killed"):
            cluster.restart("1")


def test_both_clusters_have_the_same_controls() -> None:
    """The blocking cluster has the controls of the asyncio one, with their arguments and docstrings."""
    blocking = {name: member for name, member in vars(EmbeddedCluster).items() if name[0] != "_"}
    waiting = {name: member for name, member in vars(AsyncEmbeddedCluster).items() if name[0] != "_"}
    assert set(blocking) - set(waiting) == {"peers"}  # an attribute of the other one
    assert set(waiting) <= set(blocking)
    for name, member in waiting.items():
        assert inspect.getdoc(blocking[name]) == inspect.getdoc(member), name
        if inspect.isfunction(member):
            assert inspect.signature(blocking[name]) == inspect.signature(member), name
    assert inspect.signature(EmbeddedCluster) == inspect.signature(AsyncEmbeddedCluster)


def test_every_public_name_of_the_peers_is_there() -> None:
    """They load when they are used, each from its module; another name is an AttributeError."""
    for name in raft_client.server.__all__:
        assert getattr(raft_client.server, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        raft_client.server.nothing  # noqa: B018  # looking is the test


# -- faults: peers that do not reach each other, and a slow disk -------------------------------------------------------


async def test_no_group_without_a_majority_acknowledges() -> None:
    """Three groups of one elect nobody, also after a restart; the next partition takes the place of this one."""
    async with AsyncEmbeddedCluster(3) as cluster, AsyncRaftClient(cluster.url) as log:
        await log.append(b"x")
        await cluster.partition(["1"], ["2"], ["3"])
        await cluster.kill("2")
        await cluster.restart("2")
        with pytest.raises(NoLeaderError):
            await log.append(b"y", timeout=1.0)
        with pytest.raises(NoLeaderError, match=r"no peer of [123, ]+ leads"):
            await cluster.leader(timeout=0.1)
        await cluster.partition(["1"])
        assert await cluster.leader() in {"2", "3"}
        await log.append(b"z")


def test_an_append_waits_for_a_slow_disk() -> None:
    """The leader acknowledges nothing before it is on its own disk, too; the disk is as before when 0 is said."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        leader = cluster.leader()
        cluster.slow_disk(leader, 0.3)
        begin = time.monotonic()
        log.append(b"y")
        assert time.monotonic() - begin >= 0.3
        cluster.slow_disk(leader, 0)
        log.append(b"z")


def test_a_leader_whose_disk_stalls_is_replaced() -> None:
    """It steps down after ``disk_stall_s``, and what waits for its disk neither holds up the others nor its end."""
    with EmbeddedCluster(3, settings={"disk_stall_s": 0.2}) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        leader = cluster.leader()
        begin = time.monotonic()
        cluster.slow_disk(leader, 3000.0)
        log.append(b"y", timeout=60.0)
        assert cluster.leader() != leader
        cluster.kill(leader)
        assert time.monotonic() - begin < 1000.0


def test_faults_that_cannot_be_are_refused() -> None:
    """Groups of peers that there are not, or that overlap, and times that no disk takes, change nothing."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        with pytest.raises(InvalidArgumentError, match="peer '7' is none of 1, 2, 3"):
            cluster.partition(["1"], ["7"])
        with pytest.raises(InvalidArgumentError, match="peer '2' is in two groups"):
            cluster.partition(["1", "2"], ["2"])
        with pytest.raises(InvalidArgumentError, match="seconds is from 0 to 3600, not -1"):
            cluster.slow_disk("1", -1)
        with pytest.raises(InvalidArgumentError, match="seconds is from 0 to 3600, not '1'"):
            cluster.slow_disk("1", "1")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="no peer '7' is running"):
            cluster.slow_disk("7", 1)
        log.append(b"x")


# -- one peer in the thread of a program -------------------------------------------------------------------------------


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
        assert f"peer {leader}: follower in term 2" in caplog.text
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
    for peer_id, url in (("a", "tcp://127.0.0.1:3"), ("c", urls["b"]), ("c", "127.0.0.1:3")):
        with pytest.raises(InvalidArgumentError, match="the address of a new peer"):
            EmbeddedPeer(peer_id, urls, tmp_path / "a", url=url)
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
    eventually(lambda: threading.active_count() <= threads, "the threads have ended")


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
