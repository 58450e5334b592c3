"""Real peers in this process, with both clients: sockets, disk, elections, and a peer that is killed."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
import time
from typing import Any

import pytest
import zmq

import raft_client.server
from raft_client import AsyncRaftClient, KeyValueCodec, NoLeaderError, Peer, RaftClient, RequestId
from raft_client.errors import InvalidArgumentError
from raft_client.server import embedded_cluster
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.wire.configuration import Peers


def test_what_is_appended_is_in_the_log() -> None:
    """Appends are in the log in the order of their answers, once for each request id."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        request_id = RequestId.derive("test", 1, seconds=int(time.time()))
        first = log.append(b"one", request_id=request_id)
        assert log.append(b"one", request_id=request_id) == first
        second = log.append(b"two")
        assert second > first
        assert [entry.data for entry in log.entries() if entry.is_state] == [b"one", b"two"]


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


def test_one_peer_is_a_cluster() -> None:
    """One peer is a cluster, which elects itself."""
    with EmbeddedCluster(1) as cluster, RaftClient(cluster.url) as log:
        assert log.append(b"x") == 1
        assert cluster.leader() == "1"


async def test_a_cluster_lives_in_an_event_loop() -> None:
    """A cluster runs in an event loop together with the asyncio client."""
    async with AsyncEmbeddedCluster(3) as cluster, AsyncRaftClient(cluster.url) as log:
        indexes = await asyncio.gather(*(log.append(b"%d" % n) for n in range(200)))
        assert len(set(indexes)) == 200
        assert await cluster.leader() in cluster.running


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


def test_a_killed_leader_is_replaced_and_comes_back() -> None:
    """When a leader is killed nothing acknowledged is lost or doubled, and when it is back it has all of it in the
    end."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        acknowledged: dict[int, bytes] = {}
        for round_number in range(3):
            acknowledged.update((log.append(data), data) for data in (b"%d %d" % (round_number, n) for n in range(50)))
            killed = cluster.leader()
            cluster.kill(killed)
            acknowledged.update(
                (log.append(data), data) for data in (b"%d late %d" % (round_number, n) for n in range(50))
            )
            assert cluster.leader() != killed
            cluster.restart(killed)
        # two of three hold everything; with one of them away, the third must have caught up to be needed
        cluster.kill(cluster.leader())
        log.append(b"last")
        found = {entry.index: entry.data for entry in log.entries() if entry.is_state}
        assert {index: found[index] for index in acknowledged} == acknowledged
        assert len(found) == len(acknowledged) + 1


def test_a_minority_acknowledges_nothing() -> None:
    """One peer of three elects nobody and acknowledges nothing."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        cluster.kill(cluster.leader())
        cluster.kill(cluster.running[0])
        with pytest.raises(NoLeaderError):
            log.append(b"y", timeout=1.0)
        with pytest.raises(NoLeaderError, match=r"no peer of \d leads"):
            cluster.leader(timeout=0.1)


@pytest.mark.parametrize("machine", [BroadcastStateMachine, None])
def test_subscribers_hear_what_is_applied(machine: type[BroadcastStateMachine] | None) -> None:
    """Both state machines broadcast, and a subscriber survives a change of the leader without a gap."""
    chosen = {} if machine is None else {"machine": machine}
    with EmbeddedCluster(3, **chosen) as cluster, RaftClient(cluster.url) as log:  # type: ignore[arg-type]
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


def test_watches_and_questions_see_the_keys() -> None:
    """The key/value state machine answers questions with the index, and a watch goes on after it."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(KeyValueCodec.set("a", "1"))
        index = log.append(KeyValueCodec.compare_and_set("a", "1", "2"))
        answer = log.dispatch(b"kv.get", b"a")
        assert (int.from_bytes(answer[0], "little"), *answer[1:]) == (index, b"\x01", b"2")


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


def test_a_change_of_the_members_is_made() -> None:
    """A peer that is removed is asked for nothing any more, and the others go on."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as log:
        log.append(b"x")
        leader = cluster.leader()
        gone = next(peer for peer in cluster.peers if peer.id != leader)
        log.update_config([peer for peer in cluster.peers if peer is not gone])
        assert gone not in log.config(settled=True).peers
        cluster.kill(gone.id)
        log.append(b"y")


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


@pytest.mark.parametrize("size", [0, 10, True, "3"])
def test_a_size_that_no_cluster_has_is_refused(size: object) -> None:
    """An impossible size of a cluster is refused before anything is started."""
    with pytest.raises(InvalidArgumentError, match="size is a number of peers from 1 to 9"):
        EmbeddedCluster(size)  # type: ignore[arg-type]


def test_a_setting_that_there_is_not_is_refused() -> None:
    """The error about an unknown setting names it."""
    with pytest.raises(InvalidArgumentError, match="'hearbeat_s'"):
        EmbeddedCluster(settings={"hearbeat_s": 1.0})


def test_controls_say_what_cannot_be_done() -> None:
    """Controls for a peer that is not there, or that runs already, or of a cluster that does not run, are errors that
    say so."""
    cluster = EmbeddedCluster(1)
    with pytest.raises(InvalidArgumentError, match="not running"):
        cluster.leader()
    with cluster:
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
