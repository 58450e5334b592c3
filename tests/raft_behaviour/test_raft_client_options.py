"""What a client does and tells by itself: heartbeat, settings of watches, keys of peers, listeners and the log."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import zmq
from raft_shells import RaftShell
from support.ports import reserved_port
from support.scripted_peers import CONFIG, UPDATE, ScriptedCluster
from support.waiting import until

from raft_client import (
    ClientClosedError,
    ConnectionState,
    Freshness,
    InvalidArgumentError,
    KeyValueCodec,
    NoLeaderError,
    NotLeaderError,
    Peer,
    Progress,
    RaftClient,
    RaftError,
    SubscriberOverflowError,
    Suspended,
)
from raft_client.core.requests import StateChanged
from raft_client.reports import log_change
from raft_client.server import ClientDispatch, EmbeddedCluster, EmbeddedPeer, Fsync, KeyValueStateMachine


def questions(peers: ScriptedCluster) -> int:
    """How often a peer was asked for the list of peers."""
    return sum(kind == CONFIG for _, _, kind, _ in list(peers.seen))


async def take_all(watch: Any) -> None:
    """What waits, and what ended it."""
    while await watch.get(timeout=10) is not None:
        pass


# -- single peers ------------------------------------------------------------------------------------------------------


class Named(KeyValueStateMachine):
    """Each one has a number of its own, which it tells beside how many entries it has applied."""

    names = count()

    def __init__(self) -> None:
        super().__init__()
        self.name = b"%d" % next(self.names)

    def dispatch(self, _request: ClientDispatch) -> Sequence[bytes]:
        return [self.name, b"%d" % self.last_applied]


async def test_each_peer_answers_for_its_state_machine(raft: RaftShell) -> None:
    """A message to one peer, by its id or URL, is answered by that one, a follower too, and with what was acknowledged
    before."""
    with EmbeddedCluster(3, machine=Named, fsync=Fsync.OFF) as cluster:
        async with raft.client(cluster.url) as client:
            index = await client.append("an entry")
            answers = [await client.dispatch("who", peer=peer.id) for peer in cluster.peers]
            assert len({name for name, _ in answers}) == 3
            assert [applied for _, applied in answers] == [b"%d" % index] * 3
            assert [await client.dispatch("who", peer=peer.url) for peer in cluster.peers] == answers
            assert await client.dispatch("who") in answers
            with pytest.raises(InvalidArgumentError):
                await client.dispatch("who", peer="nobody")


async def test_the_url_of_broadcasts_is_told(raft: RaftShell) -> None:
    """A SUB socket at the URL that the leader tells hears its broadcasts."""
    with EmbeddedCluster(1, fsync=Fsync.OFF) as cluster, zmq.Context() as context, context.socket(zmq.SUB) as socket:
        async with raft.client(cluster.url) as client:
            socket.rcvtimeo = 10_000
            socket.subscribe(b"")
            socket.connect(await client.publication_url())
            assert await asyncio.to_thread(socket.recv_multipart)


# -- opening -----------------------------------------------------------------------------------------------------------


async def test_a_failed_open_can_be_tried_again(raft: RaftShell, tmp_path: Path) -> None:
    """open(), and entering, really try again after they have failed; a client that was left is closed."""
    port = reserved_port()
    log = raft.client(f"tcp://127.0.0.1:{port}", request_timeout=0.2)
    with pytest.raises(NoLeaderError):
        await log.open()
    for _ in range(2):
        with pytest.raises(NoLeaderError):
            async with log:
                pytest.fail("it cannot be entered")
    with EmbeddedPeer("1", {"1": f"tcp://127.0.0.1:{port}"}, tmp_path):
        async with log:
            assert await log.append(b"entry", timeout=10) >= 1
    with pytest.raises(ClientClosedError):
        await log.open()
    for _ in range(2):
        with pytest.raises(ClientClosedError):
            async with log:
                pytest.fail("it was closed")


async def test_opening_without_waiting(raft: RaftShell, tmp_path: Path) -> None:
    """open(wait=False) returns at once, and so does entering; calls look for the leader until their time-out."""
    port = reserved_port()
    log = raft.client(f"tcp://127.0.0.1:{port}")
    async with await log.open(wait=False):
        with pytest.raises(NoLeaderError):
            await log.append(b"entry", timeout=0.1)
        waiting = asyncio.ensure_future(log.append(b"entry", timeout=20))
        with EmbeddedPeer("1", {"1": f"tcp://127.0.0.1:{port}"}, tmp_path):
            assert await waiting >= 1
            await log.open(timeout=10)
            assert log.state is ConnectionState.CONNECTED
    with pytest.raises(InvalidArgumentError, match="wait must be True or False"):
        await raft.client("tcp://127.0.0.1:1").open(wait=1)


# -- heartbeat ---------------------------------------------------------------------------------------------------------


async def test_an_idle_client_learns_of_other_peers(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The heartbeat of an idle client finds new peers, also when all that it knew are replaced one by one."""
    async with raft.client(peers.seeds.split(",")[0], heartbeat=0.1) as client:
        await until(lambda: len(client.peers) == 3)
        peers.begin_change([["2", peers.peers["2"].url], ["3", peers.peers["3"].url]])
        peers.end_change()
        await until(lambda: sorted(client.peers) == ["2", "3"])


async def test_without_a_heartbeat_an_idle_client_is_silent(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A client without a heartbeat sends nothing while idle; one with it asks regularly, and not after it was
    closed."""
    async with raft.client(peers.seeds):
        before = questions(peers)
        async with raft.client(peers.seeds.split(",")[0], heartbeat=0.1):
            await until(lambda: questions(peers) > before + 5)
            routes = {seen[0] for seen in list(peers.seen)[-4:]}
        assert routes == {"1"}
        after = questions(peers)
        await asyncio.sleep(0.3)  # long enough for some beats: that nothing comes has no condition to wait for
        assert questions(peers) == after


async def test_a_heartbeat_bears_an_election(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A heartbeat finds the next leader after an election, so that the next call need not look for it."""
    async with raft.client(peers.seeds, heartbeat=0.1, request_timeout=1.0) as client:
        peers.elect(None)
        await until(lambda: client.leader is None)
        peers.elect("3")
        await until(lambda: client.leader is not None and client.leader.id == "3")


# Python rightly complains of the sockets that nobody closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_client_that_nobody_closed_leaves_no_thread(peers: ScriptedCluster) -> None:
    """A client that nobody closed leaves no thread, and is collected as garbage without waiting for its open
    sockets."""
    client = RaftClient(peers.seeds, heartbeat=0.1).open()
    assert any(thread.name == "raft heartbeat" for thread in threading.enumerate())
    del client
    gc.collect()
    deadline = time.monotonic() + 20
    while any(thread.name == "raft heartbeat" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        gc.collect()  # it may have held the client a moment ago, to ask
        time.sleep(0.05)


# -- watches -----------------------------------------------------------------------------------------------------------


async def test_progress_comes_as_often_as_wanted(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Progress comes every ten seconds, unless the setting says otherwise."""
    async with raft.client(peers.seeds, progress_interval=0.05) as client, client.watch(prefix="a", after=0) as watch:
        await client.append(KeyValueCodec.set("b", ""))
        item = await watch.get(timeout=8)
        assert isinstance(item, Progress)
        assert item.index == 1


async def test_silence_is_told_after_the_setting(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A silent leader is reported after the time of the setting, by default after a second."""
    client = raft.client(peers.seeds, broadcast_timeout=30.0)
    impatient = raft.client(peers.seeds, broadcast_timeout=0.3)
    async with client, impatient:
        patient = client.watch(after=0, connection_events=True)
        hasty = impatient.watch(after=0, connection_events=True)
        subscriber = impatient.subscribe(0)
        await client.append(KeyValueCodec.set("a", ""))
        for reader in (patient, hasty, subscriber):
            assert (await reader.get(timeout=10)).index == 1
        while not hasty.is_live:
            await hasty.get(timeout=0.1)
        peers.freeze("1")
        item = await hasty.get(timeout=20)
        while not isinstance(item, Suspended):  # it may have been told on a slow machine, and be well again
            item = await hasty.get(timeout=20)
        while subscriber.state.freshness is not Freshness.SILENT:
            assert await subscriber.get(timeout=0.1) is None
        assert await patient.get(timeout=0.5) is None
        peers.thaw("1")


async def test_the_limit_of_all_watches_is_a_setting(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The setting limits what all watches hold together; each has a share, and the error names the setting."""
    async with raft.client(peers.seeds, watch_bytes=2000) as client, client.watch(after=0, overflow="error") as watch:
        await client.append(KeyValueCodec.set("0", ""))
        assert (await watch.get(timeout=10)).index == 1
        while not watch.is_live:
            await watch.get(timeout=0.1)
        while watch.error is None:  # a reader that took all would keep up with broadcasts that come one by one
            await client.append_many(KeyValueCodec.set(f"{n}", bytes(100)) for n in range(40))
            await watch.get(timeout=10)
        with pytest.raises(SubscriberOverflowError, match="share of the 2000 bytes"):
            await take_all(watch)


# -- CURVE -------------------------------------------------------------------------------------------------------------


def keys() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


async def test_each_peer_may_have_a_key_of_its_own(raft: RaftShell) -> None:
    """Each peer may have its own key, for requests, for its broadcasts and after a change of leader; others have the
    common one."""
    pairs = {peer: keys() for peer in "123"}
    options_of: dict[str, dict[int, Any]] = {
        peer: {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: secret.encode()} for peer, (_, secret) in pairs.items()
    }
    with ScriptedCluster(options_of=options_of) as peers:
        own = {peers.peers[peer].url: pairs[peer][0] for peer in "12"}
        options = {"curve_peer_keys": own, "curve_server_key": pairs["3"][0]}
        async with raft.client(peers.seeds, **options) as client, client.subscribe() as subscriber:
            for leader in "123":
                peers.elect(leader)
                index = await client.append(leader)
                assert (await subscriber.get(timeout=20)).index == index


async def test_a_peer_without_a_key_is_not_talked_to(raft: RaftShell) -> None:
    """A peer without a key is not spoken to, neither in the clear nor with another's key, and the error says what is
    missing."""
    public, secret = keys()
    options = {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: secret.encode()}
    with ScriptedCluster(options=options) as peers:
        own = {peers.peers["1"].url: public}
        async with raft.client(peers.seeds, curve_peer_keys=own) as client:
            assert await client.append(b"a") == 1
            peers.elect("2")
            with pytest.raises(NoLeaderError, match="no key in curve_peer_keys"):
                await client.append(b"b", timeout=1.0)
    assert {peer for peer, *_ in peers.seen} == {"1"}


# -- listeners and the log are told of each leader ---------------------------------------------------------------------


async def test_listeners_hear_of_every_leader(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Listeners are told once each, in order: leader found, lost and why, found again, closed."""
    states: list[tuple[str, str]] = []
    leaders: list[str] = []

    def on_state(state: ConnectionState, error: RaftError | None) -> None:
        states.append((str(state), type(error).__name__ if error is not None else ""))

    client = raft.client(peers.seeds, on_state=on_state, on_leader=lambda peer: leaders.append(peer.id))
    assert client.state is ConnectionState.CONNECTING
    async with client:
        assert client.state is ConnectionState.CONNECTED
        await client.append(b"a")
        peers.elect("2")
        await client.append(b"b")
        await until(lambda: len(leaders) == 2)
        peers.elect("3")
        peers.kill("2")
        await client.append(b"c")
        await until(lambda: len(leaders) == 3)
    await until(lambda: states[-1:] == [("closed", "")])
    lost = [error for state, error in states if state == "suspended"]
    assert lost == [NotLeaderError.__name__, "ConnectionLostError"]
    assert [state for state, _ in states] == [*["connected", "suspended"] * 2, "connected", "closed"]
    assert leaders == ["1", "2", "3"]


async def test_a_silent_leader_is_a_reason_of_its_own(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A silent leader is a reason of its own, because nothing broke and nobody refused. Listeners are functions."""
    for name in ("on_state", "on_leader"):
        with pytest.raises(InvalidArgumentError, match="function"):
            raft.client("tcp://127.0.0.1:1", **{name: "print"})
    errors: list[RaftError] = []
    options = {"on_state": lambda _state, error: errors.append(error) if error is not None else None}
    async with raft.client(peers.seeds, response_timeout=0.2, **options) as client:
        peers.freeze("1")
        appending = asyncio.create_task(client.append(b"a", timeout=20))
        await until(lambda: bool(errors))
        peers.elect("2")
        await appending
    assert "said nothing within 0.2 s" in str(errors[0])


async def test_a_listener_may_fail_and_use_the_client(raft: RaftShell, peers: ScriptedCluster, caplog: Any) -> None:
    """A listener runs in a worker of its own, so it may use the client, and its exceptions are logged."""
    gate = threading.Event()
    config: list[Any] = []
    client = raft.client(peers.seeds, on_state=lambda *_: 1 // 0)
    async with client:
        assert await client.append(b"a") == 1
        await until(lambda: "on_state" in caplog.text)

    def blocking(_peer: Any) -> None:
        gate.wait(20)
        config.append(client.target.config())

    async def waiting(_peer: Any) -> None:
        await asyncio.to_thread(gate.wait, 20)
        config.append(await client.config())

    client = raft.client(peers.seeds, on_leader=waiting if raft.is_aio else blocking)
    async with client:
        assert await client.append(b"b") == 2
        gate.set()
        await until(lambda: bool(config))


async def test_a_lost_leader_is_one_warning(raft: RaftShell, peers: ScriptedCluster, caplog: Any) -> None:
    """A lost leader is one WARNING with its reason, the next leader one INFO, and the search between them logs
    nothing."""
    caplog.set_level(logging.INFO, "raft_client")
    async with raft.client(peers.seeds, response_timeout=0.1) as client:
        await client.append(b"a")
        peers.elect(None)
        peers.kill("1")
        appending = asyncio.create_task(client.append(b"b", timeout=20))
        await until(lambda: "suspended" in caplog.text)
        await until(lambda: len([s for s in list(peers.seen) if s[0] == "2" and s[2] == b"\x5e"]) > 5)
        peers.elect("2")
        await appending
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "raft_client"]
    assert [level for level, _ in told] == ["INFO", "WARNING", "INFO"]
    assert told[0][1].endswith(f"the leader is 1 at {peers.peers['1'].url}")
    assert "broke the connection" in told[1][1]
    assert "leader is 2" in told[2][1]
    assert [s[2] for s in peers.seen].count(UPDATE) >= 2


def test_what_peers_say_stays_on_its_line(caplog: Any) -> None:
    """Names from peers with line breaks, colours or separators stay on their line of the log."""
    caplog.set_level(logging.INFO, "raft_client")
    evil = "2\r\nWARNING \x1b[31mthe bank\u2028was robbed"
    log_change(["tcp://a:1"], StateChanged(ConnectionState.CONNECTED, leader=Peer(evil, "tcp://b:1")))
    log_change(["tcp://a:1"], StateChanged(ConnectionState.SUSPENDED, error=NotLeaderError(f"it names {evil}")))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert caplog.text.count("2\\r\\nWARNING") == 2
