"""Clusters whose peers and clients have CURVE keys: who gets in, who does not, and what is said about it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
import zmq.auth
from support.keys import add_client, add_peer, make_keys, settings_for
from support.ports import reserved_port
from support.waiting import eventually, until

from raft_client import AsyncRaftClient, ConfigError, NoLeaderError, Peer, RaftClient, RaftSettings, SettingsError
from raft_client.clocks import boot_s
from raft_client.links import Link, Links
from raft_client.server.embedded_cluster import AsyncEmbeddedCluster, EmbeddedCluster
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.curve_keys import CurveKeys
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.client_requests import Outcome, RequestConfig, Trim, TrimReply
from raft_client.wire.peer_messages import AppendEntries, RequestVote


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keys of three peers and of a client."""
    return make_keys(tmp_path / "keys")


def warnings_of(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    """What the peers have logged that says this."""
    messages = [record.getMessage() for record in caplog.records if record.name == "raft_client.server"]
    return [message for message in messages if about in message]


def test_a_cluster_with_keys_elects_appends_and_survives_its_leader(keys: Path) -> None:
    """Peers with keys elect a leader, take over when it is killed, and take it back when it is started again."""
    with EmbeddedCluster(3, curve_keys=keys) as cluster, RaftClient(settings_for(keys, cluster.peers)) as log:
        log.append(b"one")
        for data in (b"two", b"three"):
            killed = cluster.leader()
            cluster.kill(killed)
            log.append(data)
            cluster.restart(killed)
        cluster.kill(cluster.leader())  # two are left, so the one that was away must have caught up
        log.append(b"four")
        assert [entry.data for entry in log.entries() if entry.is_state] == [b"one", b"two", b"three", b"four"]


def stranger(keys: Path, peers: tuple[Peer, ...], kind: str) -> RaftSettings:
    """Settings of a client that does not get in."""
    good = settings_for(keys, peers)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return {
        "no keys": RaftSettings(seeds=good.seeds),
        "an unknown key": good.evolve(curve_public_key=public, curve_secret_key=secret),
        "another key for the peers": good.evolve(curve_peer_keys=dict.fromkeys(good.seeds, public)),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "told", "logged"),
    [
        ("no keys", "has it CURVE keys", "from an address that libzmq does not tell"),
        ("an unknown key", "does not know the key of this client", "from 127.0.0.1: its key is not in"),
        ("another key for the peers", "or others than this client thinks", "from an address that libzmq does not tell"),
    ],
)
@pytest.mark.attack("peers of the log", "come in without a key")
async def test_a_stranger_is_refused(
    keys: Path, caplog: pytest.LogCaptureFixture, kind: str, told: str, logged: str
) -> None:
    """A client without a key that fits ends with NoLeaderError, which says why, and the peer logs it once."""
    async with AsyncEmbeddedCluster(1, curve_keys=keys) as cluster:
        for _ in range(2):
            client = AsyncRaftClient(stranger(keys, cluster.peers, kind), request_timeout=0.5)
            with pytest.raises(NoLeaderError, match=told):
                await client.open()
            await client.close()
        assert len(warnings_of(caplog, logged)) == 1
        # On a slow machine a client gives up within a handshake, and libzmq does not tell that from a missing key.
        others = {"from an address that libzmq does not tell", logged}
        assert len(warnings_of(caplog, "refuses connections")) <= len(others)
        async with AsyncRaftClient(settings_for(keys, cluster.peers)) as log:
            assert await log.append(b"x") == 1


def test_a_link_that_broke_before_the_first_question_says_why(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason counts also if sending notices first that the link is gone: libzmq has it so once in 20 times."""
    connect = Links.connect

    def slowly(links: Links, url: str) -> Link:
        link = connect(links, url)
        eventually(lambda: link.sockets[1].poll(0), "the end of the handshake")
        return link

    monkeypatch.setattr(Links, "connect", slowly)
    monkeypatch.setattr(Link, "send", lambda _link, _frames: False)
    with (
        EmbeddedCluster(1, curve_keys=keys) as cluster,
        pytest.raises(NoLeaderError, match="has it CURVE keys"),
        RaftClient(cluster.url, request_timeout=0.5),
    ):
        pass


def test_a_client_with_keys_does_not_talk_to_peers_without(keys: Path) -> None:
    """A client that was given keys says nothing to a cluster in the clear, and says why."""
    with (
        EmbeddedCluster(1) as cluster,
        pytest.raises(NoLeaderError, match="has it CURVE keys"),
        RaftClient(settings_for(keys, cluster.peers), request_timeout=0.5),
    ):
        pass


async def test_a_client_that_is_added_gets_in(keys: Path) -> None:
    """The key of a client counts soon after its file is there; no peer has to be started again."""
    async with AsyncEmbeddedCluster(1, curve_keys=keys) as cluster:
        async with AsyncRaftClient(settings_for(keys, cluster.peers)) as log:
            await log.append(b"x")
        add_client(keys, "late")
        async with AsyncRaftClient(settings_for(keys, cluster.peers, "late")) as log:
            await log.append(b"y")


def test_a_member_is_added_only_when_its_key_is_there(keys: Path) -> None:
    """A change that adds a peer without a key file is refused, naming the file; when it is there, the change is made,
    also if the peers that do not lead see it later."""
    with EmbeddedCluster(3, curve_keys=keys) as cluster, RaftClient(settings_for(keys, cluster.peers)) as log:
        more = [*cluster.peers, Peer("4", "tcp://127.0.0.1:1")]
        with pytest.raises(ConfigError, match=r"no key file 4\.key"):
            log.update_config(more)
        add_peer(keys, "4")
        log.update_config(more)
        assert "4" in {peer.id for peer in log.config(settled=True).peers}


async def peer_alone(
    keys: Path,
    data: Path,
    members: tuple[Peer, ...],
    peer_id: str = "1",
    url: str = "tcp://127.0.0.1:*",
    timeout_s: float = 60.0,
) -> RaftPeer:
    """One of these members, which stands for election after ``timeout_s``."""
    log = DiskLog.open(data, peer_id=peer_id, ident=b"", peers=members)
    settings = NodeSettings(peer_id=peer_id, election_timeout_min_s=timeout_s, election_timeout_max_s=timeout_s)
    peer = RaftPeer(settings, log, KeyValueStateMachine(), url=url, keys=CurveKeys(keys, peer_id))
    await peer.start()
    return peer


async def test_a_peer_whose_key_is_another_one_is_kept_out(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer at the address of a member, with another key than that, hears nothing and is not heard; the members say so
    once, whenever they try to connect."""
    caplog.set_level(logging.INFO)

    def lost_by() -> list[str]:
        return [text for text in caplog.messages if "has lost peer" in text]

    async with (
        AsyncEmbeddedCluster(3, curve_keys=keys) as cluster,
        AsyncRaftClient(settings_for(keys, cluster.peers)) as log,
    ):
        await log.append(b"x")
        leader = await cluster.leader()
        member = next(peer for peer in cluster.peers if peer.id != leader)
        caplog.clear()  # a cluster whose port another process took has begun twice, and lost its first peers
        await cluster.kill(member.id)
        await until(lambda: len(lost_by()) == 2, "both have lost it")
        others = make_keys(tmp_path / "others", member.id)
        for each in cluster.running:
            shutil.copy(keys / f"{each}.key", others)
        impostor = await peer_alone(others, tmp_path / "data", cluster.peers, member.id, member.url)
        try:
            await until(lambda: warnings_of(caplog, "refuses connections from 127.0.0.1"), "those who do not let it in")
            await until(lambda: warnings_of(caplog, f"cannot connect to peer {member.id}"), "those who do not get in")
            await log.append(b"y")
            assert (impostor.status().leader_id, impostor.status().commit_index) == (None, 0)
            refused = [peer._sockets.dealers[member.id] for peer in cluster._running.values()]
            for dealer in refused:
                dealer.is_refused = False
            await until(lambda: all(dealer.is_refused for dealer in refused), "both have tried again")
            assert len(lost_by()) == 2
        finally:
            await impostor.close()
        # Its two members refuse it, and it refuses them: each says so of the one address that all have.
        assert len(warnings_of(caplog, "refuses connections from 127.0.0.1")) <= 3
        assert len(warnings_of(caplog, f"cannot connect to peer {member.id}")) <= 2


@pytest.mark.attack("peers of the log", "speak in the name of a peer without its key")
async def test_nobody_speaks_in_the_name_of_a_peer_without_its_key(keys: Path, tmp_path: Path) -> None:
    """What a leader says is heard from the one that has its key, not from a client and not from another peer."""
    members = (Peer("1", "tcp://127.0.0.1:1"), Peer("2", "tcp://127.0.0.1:2"), Peer("3", "tcp://127.0.0.1:3"))
    heartbeat = AppendEntries(b"", "2", 7, 0, 0, 0, ()).to_frames()
    peer = await peer_alone(keys, tmp_path / "data", members)
    reason = "in the name of a peer whose key its sender does not have"
    try:
        with zmq.Context() as context:
            with speaking_to(peer.url, context, keys, tmp_path / "app.key_secret") as dealer:
                dealer.send_multipart([b"\x01", *heartbeat])
                await until(lambda: peer.dropped[reason] == 1, "what the client says")
                dealer.send_multipart([b"\x02", *Trim(b"", "2", 5).to_frames()])
                await until(lambda: peer.dropped[reason] == 2, "what it says of the log")
                dealer.send_multipart([b"\x03", *Trim(b"", "", 5).to_frames()])  # in its own name
                await until(lambda: dealer.poll(0) != 0, "the answer")
                assert TrimReply.from_frames(dealer.recv_multipart()[1:]) == TrimReply(Outcome.NOT_LEADER)
            with speaking_to(peer.url, context, keys, keys / "3.key_secret") as dealer:
                dealer.send_multipart([b"\x01", *heartbeat])
                await until(lambda: peer.dropped[reason] == 3, "what peer 3 says")
            assert (peer.status().term, peer.status().leader_id, peer._trimming.index) == (0, None, 0)
            with speaking_to(peer.url, context, keys, keys / "2.key_secret") as dealer:
                dealer.send_multipart([b"\x01", *heartbeat])
                await until(lambda: peer.status().leader_id == "2", "the leader")
                dealer.send_multipart([b"\x02", *Trim(b"", "2", 5).to_frames()])
                await until(lambda: peer._trimming.index == 5, "what the leader says of the log")
    finally:
        await peer.close()


@pytest.mark.attack("peers of the log", "depose a leader with the key of a member that was removed")
async def test_nothing_is_heard_from_who_has_a_key_that_was_taken_away(keys: Path, tmp_path: Path) -> None:
    """A removed member, or a client, has connected long ago. When its key is gone, nothing that it says is heard: no
    vote of a later term, which would depose the leader, and no request; others go on."""
    members = (Peer("1", "tcp://127.0.0.1:1"), Peer("2", "tcp://127.0.0.1:2"), Peer("3", "tcp://127.0.0.1:3"))
    peer = await peer_alone(keys, tmp_path / "data", members)
    reason = "from a sender whose key was removed"
    config = RequestConfig(b"").to_frames()
    try:
        with (
            zmq.Context() as context,
            speaking_to(peer.url, context, keys, keys / "3.key_secret") as member,
            speaking_to(peer.url, context, keys, tmp_path / "app.key_secret") as client,
            speaking_to(peer.url, context, keys, keys / "2.key_secret") as other,
        ):
            for number, dealer in enumerate((member, client, other)):
                dealer.send_multipart([bytes([number]), *config])
                await until(lambda dealer=dealer: dealer.poll(0) != 0, "the answer")
                dealer.recv_multipart()
            vote = RequestVote(b"", "3", 9, 1000, 9, True).to_frames()
            (keys / "3.key").unlink()
            (keys / "clients" / "app.key").unlink()
            known = peer._keys
            assert known is not None
            await until(lambda: not known.is_there("3", boot_s()), "the next look at the directory")
            for dealer in (member, client):
                dealer.send_multipart([b"\x04", *config])
            member.send_multipart([b"\x05", *vote])
            await until(lambda: peer.dropped[reason] == 3, "what is not heard")
            assert peer.status().term == 0
            other.send_multipart([b"\x06", *config])
            await until(lambda: other.poll(0) != 0, "the answer")
            assert not member.poll(0)
            assert not client.poll(0)
    finally:
        await peer.close()


def speaking_to(url: str, context: zmq.Context[zmq.Socket[bytes]], keys: Path, secret_file: Path) -> zmq.Socket[bytes]:
    """A socket with the keys of that file, connected to peer 1."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.curve_publickey, secret = zmq.auth.load_certificate(secret_file)
    assert secret is not None
    dealer.curve_secretkey = secret
    dealer.curve_serverkey = zmq.auth.load_certificate(keys / "1.key")[0]
    dealer.connect(url)
    return dealer


async def test_a_member_is_reached_as_soon_as_its_key_is_there(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that lacks the key of a member, or has a wrong one, says so once, and connects when it has it."""
    (keys / "2.key").rename(tmp_path / "2.key")
    members = (Peer("1", "tcp://127.0.0.1:1"), Peer("2", "tcp://127.0.0.1:2"))
    with caplog.at_level(logging.WARNING, "raft_client.server"):
        peer = await peer_alone(keys, tmp_path / "data", members, timeout_s=0.2)
        try:
            await until(lambda: warnings_of(caplog, "2.key that can be used"), "the warning")
            assert not peer._sockets.dealers
            (tmp_path / "2.key").rename(keys / "2.key")
            await until(lambda: "2" in peer._sockets.dealers, "the connection")
        finally:
            await peer.close()
    assert len(warnings_of(caplog, "cannot connect to peer 2")) == 1


async def test_a_key_that_is_corrected_is_used(keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A peer with a wrong key for another one takes the right one when the file has it, without being started again."""
    spoilt = make_keys(tmp_path / "spoilt", "2")  # its pair of peer 2 is another one
    for name in ("1.key", "1.key_secret"):
        shutil.copy(keys / name, spoilt)
    members = (Peer("1", f"tcp://127.0.0.1:{reserved_port()}"), Peer("2", f"tcp://127.0.0.1:{reserved_port()}"))
    one = await peer_alone(spoilt, tmp_path / "one", members, "1", members[0].url, timeout_s=0.2)
    try:
        two = await peer_alone(keys, tmp_path / "two", members, "2", members[1].url, timeout_s=0.2)
        try:
            await until(lambda: warnings_of(caplog, "peer 1 cannot connect to peer 2"), "the warning")
            assert (one.status().leader_id, two.status().leader_id) == (None, None)
            shutil.copy(keys / "2.key", spoilt)
            await until(lambda: one.status().leader_id in ("1", "2"), "a leader")
        finally:
            await two.close()
    finally:
        await one.close()
    assert len(warnings_of(caplog, "peer 1 cannot connect to peer 2")) == 1


# -- the directory of keys of a peer: what is in it, and what is refused -----------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The keys of three peers and of a client."""
    return make_keys(tmp_path / "keys")


def public_key(file: Path) -> bytes:
    """The one in it."""
    return zmq.auth.load_certificate(file)[0]


def test_keys_say_whose_they_are(folder: Path) -> None:
    """The key of a peer is known by the peer's id, and that of a client by its file, which is no id of a peer."""
    keys = CurveKeys(folder, "1")
    assert keys.peer_ids == {"1", "2", "3"}
    assert keys.of_peer("2") == public_key(folder / "2.key")
    assert keys.of_peer("4") is None
    assert keys.user(public_key(folder / "2.key")) == "2"
    assert keys.user(public_key(folder / "clients" / "app.key")) == "clients/app"
    assert keys.user(zmq.curve_keypair()[0]) is None


def test_a_second_key_is_let_in_and_is_the_other_one_to_expect(folder: Path, tmp_path: Path) -> None:
    """Of peers and clients that have a first one, and as long as the file is there."""
    new = make_keys(tmp_path / "new")
    (folder / "also" / "clients").mkdir(parents=True)
    shutil.copy(new / "2.key", folder / "also")
    shutil.copy(new / "3.key", folder / "also" / "4.key")
    shutil.copy(new / "clients" / "app.key", folder / "also" / "clients")
    old_key, new_key = public_key(folder / "2.key"), public_key(new / "2.key")
    keys = CurveKeys(folder, "1")
    assert keys.user(old_key) == keys.user(new_key) == "2"
    assert keys.user(public_key(new / "clients" / "app.key")) == "clients/app"
    assert keys.of_peer("4") is None
    assert [keys.of_peer("2"), keys.of_peer("2", old_key), keys.of_peer("2", new_key)] == [old_key, new_key, old_key]
    shutil.rmtree(folder / "also")
    keys.read_again()
    assert keys.user(new_key) is None
    assert keys.of_peer("2", old_key) == old_key


def test_a_client_finds_out_which_of_two_keys_a_peer_has(keys: Path) -> None:
    """It appends and reads, whichever is named first."""
    with EmbeddedCluster(1, curve_keys=keys) as cluster:
        good = settings_for(keys, cluster.peers)
        [(url, key)] = good.curve_peer_keys
        other = zmq.curve_keypair()[0].decode()
        for first, second in [(key, other), (other, key)]:
            with RaftClient(good.evolve(curve_peer_keys=f"{url}={first},{url}={second}")) as log:
                index = log.append(b"x")
                with log.subscribe(index - 1) as entries:
                    reader = iter(entries)
                    assert next(reader).data == b"x"
                    log.append(b"y")
                    assert next(reader).data == b"y"


@pytest.mark.attack("peers of the log", "names of peers that are paths of files")
def test_names_of_peers_open_no_files(folder: Path) -> None:
    """A peer that is named as a path is not looked for: there is no key for it."""
    assert CurveKeys(folder, "1").of_peer("clients/app") is None


def test_the_directory_is_read_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is added or taken away counts a second later; a file that cannot be used is logged once, and lets nobody
    in."""
    keys = CurveKeys(folder, "1")
    keys.refresh(10.0)
    add_peer(folder, "4")
    (folder / "2.key").unlink()
    (folder / "3.key").write_text("nonsense")
    keys.refresh(10.9)
    assert keys.peer_ids == {"1", "2", "3"}
    with caplog.at_level(logging.WARNING, "raft_client.server"):
        for now in (11.0, 12.0):
            keys.refresh(now)
    assert keys.peer_ids == {"1", "4"}
    assert ["3.key cannot be used" in record.getMessage() for record in caplog.records] == [True]


def write(name: str, text: str) -> Callable[[Path], object]:
    """Another content of a file."""
    return lambda folder: (folder / name).write_text(text)


GOOD = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"  # a key out of ZeroMQ's own documentation (zmq_curve(7))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (shutil.rmtree, "there is none"),
        (lambda folder: (folder / "1.key_secret").unlink(), "1.key_secret cannot be used: No such file"),
        (lambda folder: (folder / "1.key_secret").chmod(0o640), "can be read by other users: chmod 600"),
        (write("1.key_secret", ""), "1.key_secret cannot be used: No public key"),
        (write("1.key_secret", f'public-key = "{GOOD}"\n'), "1.key_secret cannot be used: it has no secret-key"),
        (write("1.key_secret", f'public-key = "{GOOD}"\nsecret-key = "short"'), "not 40 characters of Z85"),
        (write("1.key_secret", f'public-key = "{GOOD}"\nsecret-key = "{GOOD}"'), "does not belong to its secret-key"),
        (write("1.key", f'public-key = "{GOOD}"\n'), "is not the public key of the pair in 1.key_secret"),
        (write("2.key", ""), "2.key cannot be used: No public key"),
        (write("2.key", 'public-key = "' + "#" * 40 + '"'), "2.key cannot be used: a key in it is not 40 characters"),
        (write("2.key", 'public-key = "' + "é" * 20 + '"'), "2.key cannot be used: a key in it is not 40 characters"),
        (write("clients/app.key", "x"), "app.key cannot be used: No public key"),
        (lambda folder: shutil.copy(folder / "2.key", folder / "clients"), "2.key is also the key of another name"),
    ],
)
def test_what_cannot_work_is_refused(folder: Path, spoil: Callable[[Path], object], told: str) -> None:
    """Keys that are missing, malformed, open to others or those of two are refused, and the error names the file, not
    the key."""
    spoil(folder)
    with pytest.raises(SettingsError, match=told) as refused:
        CurveKeys(folder, "1")
    assert "secret-key =" not in str(refused.value)


def test_the_keys_of_members_can_be_asked_for(folder: Path) -> None:
    """A program that knows the members may ask whether each has a key; the error names the file that is missing."""
    keys = CurveKeys(folder, "1")
    keys.check(["1", "2"])
    with pytest.raises(SettingsError, match=r"there is no .*/4\.key"):
        keys.check(["1", "4"])


def test_an_id_that_is_no_name_of_a_file_has_no_keys(folder: Path) -> None:
    """A peer cannot have an id with a slash and a key."""
    with pytest.raises(SettingsError, match="its id is no name of a file"):
        CurveKeys(folder, "../1")


def test_without_libsodium_keys_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where libzmq has no CURVE, a peer and a client that should have keys say so."""
    monkeypatch.setattr(zmq, "has", lambda _what: False)
    with pytest.raises(SettingsError, match="CURVE is not in this libzmq"):
        CurveKeys(folder, "1")
    client = RaftClient("tcp://127.0.0.1:1", curve_server_key=GOOD)
    with pytest.raises(SettingsError, match="CURVE is not in this libzmq"):
        client.open()
    client.close()


def test_a_client_and_a_peer_may_have_the_same_name(folder: Path) -> None:
    """The name of a client is for people: it may be that of a peer, and is no peer's for that."""
    add_client(folder, "1")
    assert CurveKeys(folder, "1").user(public_key(folder / "clients" / "1.key")) == "clients/1"
