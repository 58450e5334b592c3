"""Both clients against scripted peers: what calls return and raise, also messages, and what a lost leader means."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import socketserver
import threading
import time
from typing import Any

import pytest
import zmq
from raft_shells import RaftShell
from support.scripted_peers import CONFIG, PEERS, UPDATE, ScriptedCluster
from support.waiting import until

from raft_client import (
    AppendItem,
    BatchError,
    BusyError,
    ClientClosedError,
    ConfigError,
    InvalidArgumentError,
    InvalidDataError,
    Key,
    NoLeaderError,
    Peer,
    PeerConfig,
    PickleRefusedError,
    RaftClient,
    RaftSettings,
    RequestId,
    RequestTimeoutError,
    new_request_id,
)
from raft_client.server import AsyncEmbeddedCluster

ID = RequestId(bytes(range(12)))


async def test_opening_finds_the_leader(raft: RaftShell, peers: ScriptedCluster) -> None:
    """After open() the client knows the leader and the peers of the cluster."""
    async with raft.client(peers.seeds) as client:
        assert client.leader == Peer("1", peers.peers["1"].url)
        assert client.peers == {p.id: p.url for p in peers.peers.values()}
        assert (await client.config()).leader_url == peers.peers["1"].url


async def test_an_append_returns_its_index(raft: RaftShell, peers: ScriptedCluster) -> None:
    """An append encodes text as UTF-8 and returns its index, the same for the same request id."""
    async with raft.client(peers.seeds) as client:
        assert await client.append(b"\x00\xff") == 1
        assert await client.append("wörter", ID) == 2
        assert await client.append("something else", str(ID)) == 2
        assert await client.append(b"x", ID.raw) == 2
    assert [entry[20:] for entry in peers.log] == [b"\x00\xff", "wörter".encode()]
    assert peers.log[1][:12] == ID.raw


async def test_many_appends_return_their_indexes_in_order(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Many appends return their indexes in order, and read a generator as the cluster takes its entries."""
    async with raft.client(peers.seeds) as client:
        indexes = await client.append_many((b"%d" % n for n in range(500)), in_flight=16)
        assert indexes == list(range(1, 501))
        assert [entry[20:] for entry in peers.log] == [b"%d" % n for n in range(500)]
        assert await client.append_many([]) == []


async def test_one_failure_loses_no_other(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Each item of a batch has its index or its error, in order."""
    async with raft.client(peers.seeds) as client:
        with pytest.raises(BatchError, match="2 of 4 items failed; the first is number 1") as caught:
            await client.append_many([b"a", b"", AppendItem(b"b", ID), AppendItem(b"c", "nonsense")])
        first, empty, third, bad_id = caught.value.results
        assert (first, third) == (1, 2)
        assert isinstance(empty, InvalidDataError)
        assert isinstance(bad_id, InvalidArgumentError)
        assert list(caught.value.failures) == [1, 3]


async def test_a_source_that_fails_ends_the_batch(raft: RaftShell, peers: ScriptedCluster) -> None:
    """An exception of the caller's iterable ends the batch and is raised as it is, and nobody waits for what is under
    way."""

    def source() -> Any:
        yield b"a"
        raise ZeroDivisionError

    async with raft.client(peers.seeds) as client:
        with pytest.raises(ZeroDivisionError):
            await client.append_many(source(), in_flight=1)
        assert await client.append(b"b") == 2


async def test_what_a_peer_would_ignore_is_refused(raft: RaftShell, peers: ScriptedCluster) -> None:
    """An empty entry, which a Node client repeats for ever (facts 2, client defect 4), is refused unsent."""
    async with raft.client(peers.seeds) as client:
        for data in (b"", "", b"x" * (10 * 2**20 + 1), 5, None, ["a"], "\ud800"):
            with pytest.raises(InvalidDataError):
                await client.append(data)
    assert not [seen for seen in peers.seen if seen[2] == UPDATE]


async def test_bad_arguments_are_refused(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Bad arguments are refused before anything is sent, since a malformed message ends the process of a Node peer."""
    calls = (
        lambda c: c.append(b"x", "not an id"),
        lambda c: c.append(b"x", 5),
        lambda c: c.append(b"x", timeout=0),
        lambda c: c.append(b"x", timeout="1"),
        lambda c: c.append_many("text"),
        lambda c: c.append_many(5),
        lambda c: c.append_many([b"x"], in_flight=0),
        lambda c: c.append_many([b"x"], in_flight=True),
        lambda c: c.log_info("9"),
        lambda c: c.log_info(1),
        lambda c: c.update_config([]),
        lambda c: c.update_config("peers"),
        lambda c: c.update_config([("1", "a"), ("1", "b")]),
        lambda c: c.update_config([("1",)]),
        lambda c: c.dispatch(b"x"),
        lambda c: c.dispatch(b"\x3d", b"x"),
        lambda c: c.dispatch(b"echo", 5),
        lambda c: c.dispatch(b"echo", request_id=b"short"),
    )
    async with raft.client(peers.seeds) as client:
        for call in calls:
            with pytest.raises(InvalidArgumentError):
                await call(client)
        assert {kind for _, _, kind, _ in peers.seen} == {CONFIG}  # from the search, to some of them a moment later


async def test_the_log_of_any_peer_can_be_looked_at(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The log state of the leader, or of any peer by id or URL, can be read."""
    peers.fill(3)
    async with raft.client(peers.seeds) as client:
        assert (await client.log_info()).is_leader
        assert not (await client.log_info("2")).is_leader
        assert (await client.log_info(peers.peers["3"].url)).last_index == 3


async def test_one_peer_says_what_it_knows_of_the_cluster(raft: RaftShell) -> None:
    """Any peer says who leads and who its peers are, also when it is alone and nobody leads."""
    async with AsyncEmbeddedCluster(3) as cluster:
        leader = await cluster.leader()
        async with raft.client(cluster.url) as client:
            said = await client.config(leader)
            assert (said.is_leader, said.peers) == (said.leader_id == leader, cluster.peers)
            with pytest.raises(InvalidArgumentError, match="settled"):
                await client.config(leader, settled=True)
            with pytest.raises(InvalidArgumentError, match="there is no peer '9'"):
                await client.config("9")
        for peer in cluster.running[1:]:
            await cluster.kill(peer)
        (alone,) = (peer.url for peer in cluster.peers if peer.id in cluster.running)
        client = raft.client(cluster.url)
        await client.open(wait=False)
        try:
            while (said := await client.config(alone)).leader_id is not None:
                pass  # asked until it has noticed
        finally:
            await client.close()
        assert said == PeerConfig(is_leader=False, leader_id=None, peers=cluster.peers)


async def test_peers_can_be_changed(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A change of peers takes the complete new list and returns the index of the transition."""
    async with raft.client(peers.seeds) as client:
        config = await client.config()
        assert await client.update_config([*config.peers, ("4", "tcp://127.0.0.1:1")]) == 42
        assert (await client.config()).peers[-1] == Peer("4", "tcp://127.0.0.1:1")
        refusal = [b"\x02", b"\x82\xa4name\xa9TypeError\xa7message\xa2no"]
        peers.script("1", PEERS, lambda _frames: [refusal])
        with pytest.raises(ConfigError) as caught:
            await client.update_config(config.peers)
        assert (caught.value.name, caught.value.message) == ("TypeError", "no")


async def test_custom_messages_reach_the_state_machine(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A custom message returns the frames of its answer."""
    async with raft.client(peers.seeds) as client:
        assert await client.dispatch("echo", b"a", "b") == [b"echo", b"a", b"b"]


async def test_the_leader_is_followed_when_it_changes(raft: RaftShell, peers: ScriptedCluster) -> None:
    """When the old leader names the new one, the client goes there and sends the old one nothing more."""
    async with raft.client(peers.seeds) as client:
        await client.append(b"a")
        peers.elect("3")
        assert await client.append(b"b") == 2
        assert client.leader == Peer("3", peers.peers["3"].url)


async def test_a_killed_leader_costs_no_time_out(raft: RaftShell, peers: ScriptedCluster) -> None:
    """When the leader is killed its connection breaks, and everybody is asked at once."""
    async with raft.client(peers.seeds, response_timeout=30) as client:
        await client.append(b"a")
        peers.kill("1")
        peers.elect("2")
        begun = time.monotonic()
        assert await client.append(b"b", timeout=10) == 2
        assert time.monotonic() - begun < 5


async def test_a_frozen_leader_is_given_up_after_the_response_timeout(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A frozen leader is given up after the response time-out."""
    async with raft.client(peers.seeds, response_timeout=0.1) as client:
        await client.append(b"a")
        peers.freeze("1")
        peers.elect("2")
        assert await client.append(b"b") == 2
        peers.thaw("1")


async def test_a_leader_that_comes_back_at_its_address_is_found(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A leader that comes back at its address is found, after all peers were away."""
    async with raft.client(peers.seeds) as client:
        await client.append(b"a")
        for peer in peers.peers:
            peers.kill(peer)
        waiting = asyncio.create_task(client.append(b"b"))
        with pytest.raises(NoLeaderError):
            await client.append(b"c", timeout=0.3)
        for peer in peers.peers:
            peers.restart(peer)
        assert await waiting == 2


async def test_a_wrong_ident_looks_like_silence(raft: RaftShell, peers: ScriptedCluster) -> None:
    """With a wrong ident peers do not answer (facts 1.1), and the error names that as a possible reason."""
    client = raft.client(peers.seeds, cluster="other", request_timeout=0.3)
    hint = (
        "is this a ØMQ Raft peer, and is the port the right one? Peers do not answer a client of another cluster "
        "either: check the setting cluster, which is 'other'"
    )
    with pytest.raises(NoLeaderError, match=re.escape(f"does not answer; {hint}")):
        await client.open()
    await client.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\xe0\x00"])
async def test_a_port_of_something_else(raft: RaftShell, answer: bytes) -> None:
    """Against what is no peer, silent or not, the error asks first whether it is one, and whether the port is right."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(1)
                self.request.sendall(answer)
                while not answer and self.request.recv(1024):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        port = server.server_address[1]
        client = raft.client(f"tcp://127.0.0.1:{port}", request_timeout=0.5)
        with pytest.raises(NoLeaderError) as caught:
            await client.open()
        await client.close()
        server.shutdown()
        thread.join()
    question = caught.value.args[0].partition(f"127.0.0.1:{port} ")[2]
    assert re.match(r"[^?]* ØMQ Raft peer, and (is )?the port the right one\?", question), question


async def test_a_deadline_holds_while_the_leader_only_accepts(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A deadline holds at a leader that accepts but lost its majority; repeated with the error's id, the entry is
    appended once."""
    peers.script("1", UPDATE, lambda _frames: [[b"\x01"]])
    async with raft.client(peers.seeds, response_timeout=0.05, election_grace=0.05) as client:
        with pytest.raises((RequestTimeoutError, NoLeaderError)) as caught:
            await client.append(b"a", timeout=0.4)
        assert caught.value.may_have_been_applied
        peers.script("1", UPDATE, None)
        first = await client.append(b"a", caught.value.request_id)
        assert await client.append(b"a", caught.value.request_id) == first == 1


async def test_many_callers_share_a_client(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Each of many callers gets its own answer while the leader changes."""
    async with raft.client(peers.seeds) as client:

        async def caller(number: int) -> list[int]:
            return [await client.append(b"%d.%d" % (number, n)) for n in range(20)]

        async def trouble() -> None:
            for leader in ("2", "3", "1"):
                await asyncio.to_thread(peers.elect, leader)

        *indexes, _ = await asyncio.gather(*map(caller, range(20)), trouble())
    assert sorted(i for mine in indexes for i in mine) == list(range(1, 401))
    assert all(mine == sorted(mine) for mine in indexes)


async def test_a_closed_client_says_so(raft: RaftShell, peers: ScriptedCluster) -> None:
    """close() ends waiting calls and later ones with an error, and may be called twice."""
    client = raft.client(peers.seeds)
    with pytest.raises(BusyError, match="not opened"):
        await client.append(b"a")
    await client.open()
    peers.freeze("1")
    waiting = [asyncio.create_task(client.append(b"a")) for _ in range(3)]
    await until(lambda: client.stats.requests == 4)
    await client.close()
    for task in waiting:
        with pytest.raises(ClientClosedError, match="closed"):
            await task
    with pytest.raises(ClientClosedError):
        await client.append(b"a")
    await client.close()


async def test_a_client_does_not_pickle_but_its_settings_do(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A client refuses to be pickled, and its settings can be, for Spark's workers."""
    client = raft.client(peers.seeds)
    target = getattr(client, "target", client)
    with pytest.raises(PickleRefusedError, match="pickle its settings"):
        pickle.dumps(target)
    async with raft.client(pickle.loads(pickle.dumps(client.settings))) as other:  # noqa: S301 - our own bytes
        assert await other.append(b"a") == 1
    assert peers.peers["1"].url in repr(client)
    with RaftClient(peers.seeds) as blocking:
        for made in (blocking.entries(0), blocking.subscribe(0), blocking.watch(Key(b"k"))):
            with pytest.raises(PickleRefusedError, match=r"send client\.settings"):
                pickle.dumps(made)


async def test_curve_encrypts_and_tells_strangers_apart(raft: RaftShell) -> None:
    """With CURVE and the peers' public key the client works, and with another key nobody answers."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    options = {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: secret.encode()}
    with ScriptedCluster(options=options) as peers:
        settings = RaftSettings(seeds=peers.seeds, curve_server_key=public)
        async with raft.client(settings) as client:
            assert await client.append(b"a") == 1
        mine, my_secret = (key.decode() for key in zmq.curve_keypair())
        async with raft.client(settings, curve_public_key=mine, curve_secret_key=my_secret) as client:
            assert await client.append(b"b") == 2
        stranger = raft.client(settings, curve_server_key=mine, request_timeout=0.5)
        with pytest.raises(NoLeaderError):
            await stranger.open()
        await stranger.close()
        plain = raft.client(peers.seeds, request_timeout=0.5)
        with pytest.raises(NoLeaderError):
            await plain.open()
        await plain.close()


async def test_the_counters_tell_what_happened(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The counters tell the number of requests, repetitions and searches."""
    async with raft.client(peers.seeds) as client:
        await client.append(b"a")
        peers.elect("2")
        await client.append(b"b")
        assert client.stats.requests == 3
        assert client.stats.repeated == 1
        assert client.stats.searches == 2
        # The leaders have answered; what the others were asked may be lost with their links, which are given up then.
        assert {seen[0] for seen in list(peers.seen) if seen[2] == CONFIG} >= {"1", "2"}


# -- messages to the state machine: sent once, or, with a request id, until they are answered --------------------------


def sent(peers: ScriptedCluster, kind: bytes = b"book") -> list[tuple[str, bytes]]:
    """Which peer got such messages, and under which request id."""
    return [(peer, request_id) for peer, request_id, found, _ in list(peers.seen) if found == kind]


async def test_a_message_with_an_id_reaches_the_next_leader(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A message with an id is repeated at the next leader under the same id, so that the state machine recognises
    it."""
    request_id = new_request_id()
    for peer in "123":
        peers.script(peer, b"book", lambda _frames: [[b"booked"]])
    peers.script("1", b"book", lambda _frames: [])
    async with raft.client(peers.seeds) as client:
        booking = asyncio.create_task(client.dispatch("book", "seat 7", request_id=request_id))
        await until(lambda: bool(sent(peers)))
        peers.elect("2")
        peers.kill("1")
        assert await booking == [b"booked"]
        assert await client.dispatch("book", "seat 7", request_id=str(request_id)) == [b"booked"]
    assert {found for _, found in sent(peers)} == {request_id.raw}
    assert sent(peers)[-1][0] == "2"


async def test_a_message_with_an_id_that_is_not_answered_names_it(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The error of an unanswered message has its id for the next try; the message was repeated meanwhile."""
    request_id = new_request_id()
    async with raft.client(peers.seeds, response_timeout=0.1) as client:
        with pytest.raises(RequestTimeoutError) as failed:
            await client.dispatch(b"nobody knows", request_id=request_id, timeout=0.6)
        assert failed.value.request_id == request_id
        assert failed.value.may_have_been_applied
    assert len(sent(peers, b"nobody knows")) > 1


async def test_a_slow_state_machine_takes_no_room_from_others(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A message whose answer takes long gives its place in the window back, with or without an id."""
    async with raft.client(peers.seeds, max_in_flight=1) as client:
        slow = asyncio.create_task(client.dispatch(b"nobody knows", request_id=new_request_id(), timeout=3.0))
        await until(lambda: bool(sent(peers, b"nobody knows")))
        assert await client.append(b"a", timeout=2.0) == 1
        assert not slow.done()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


async def test_a_message_without_an_id_is_sent_once(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A message without an id is sent once, as only the state machine knows if a repetition does harm."""
    async with raft.client(peers.seeds, response_timeout=0.1) as client:
        with pytest.raises(RequestTimeoutError) as failed:
            await client.dispatch(b"nobody knows", timeout=0.5)
        assert failed.value.request_id is None
        assert failed.value.may_have_been_applied
    assert len(sent(peers, b"nobody knows")) == 1
