"""Two servers on one log: one is active, the other one follows, passes on, and takes over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import attrs
import msgpack
import pytest
from replicated_servers import KEY, replication, servers, value_of
from support.keys import Certificates
from support.waiting import until

from raft_client import AsyncRaftClient
from raft_client.server import AsyncEmbeddedCluster, BroadcastStateMachine
from statestore_client import AsyncStateStoreClient, ConnectionState, ReplicatedLogError, StateStoreError
from statestore_client.server.cluster import ownership
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.replication import replicated_server
from statestore_client.server.runtime.replication.internal import ClusterSecret
from statestore_client.server.runtime.replication.liveness import HeartbeatListener
from statestore_client.server.runtime.replication.settings import ReplicaSettings
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import Endpoints, ServerSettings
from statestore_client.server.runtime.transport.tls import ServerTls


@attrs.define
class Heard:
    """What a server that listens for signs of life hears."""

    epochs: list[int] = attrs.Factory(list)

    def is_there(self) -> bool:
        """Whether there was one."""
        return bool(self.epochs)

    def hear(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def suspect(self) -> None:
        pass


async def test_both_servers_lead_to_one_store() -> None:
    """The standby passes its clients on."""
    async with servers("a", "b") as pair:
        active, standby = await pair.active(), await pair.standby()
        async with pair.client(active) as here, pair.client(standby) as there:
            await here.set("k", "1")
            assert await value_of(there) == b"1"
            await there.set("k", "2")
            assert await value_of(here) == b"2"
        assert replication(active).role is Role.ACTIVE
        assert replication(standby).role is Role.STANDBY


async def test_probes_tell_the_active_server_from_one_that_stands_by() -> None:
    """Both are healthy, and say what they are; load balancers are sent to the active one."""

    async def ask(server: Server, path: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoints.metrics_port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body

    async with servers("a", "b", endpoints=Endpoints(port=0, metrics_port=0)) as pair:
        active, standby = await pair.active(), await pair.standby()
        assert await ask(active, "/ready") == await ask(active, "/health") == (200, "ready\n")
        assert await ask(standby, "/ready") == (503, "stands by\n")
        assert await ask(standby, "/health") == (200, "stands by\n")


async def test_a_server_that_stops_hands_over() -> None:
    """With all that it had; who was connected goes on."""
    async with servers("a", "b") as pair:
        active, standby = await pair.active(), await pair.standby()
        async with pair.client(standby) as client:
            written = await client.set("k", "1")
            await active.stop()
            item = await client.get("k")
            assert item is not None
            assert (item.value, item.version) == (b"1", written.version)
            later = await client.set("k", "2")
            assert later.version is not None
            assert written.version is not None
            assert later.version > written.version
        assert replication(standby).role is Role.ACTIVE
        assert replication(standby).epoch == 2


async def test_a_log_that_is_slower_than_a_lease_serves() -> None:
    """Reads and writes are answered, on a connection that stays, by one server that stays active."""
    async with servers("a", "b") as pair:
        active, standby = await pair.active(), await pair.standby()
        await pair.cluster.slow_disk(next(iter(pair.cluster.running)), 0.35)
        epoch = replication(active).epoch
        states: list[str] = []
        async with pair.client(standby, on_state=lambda change: states.append(str(change))) as client:
            states.clear()
            for number in range(4):
                await client.set("k", str(number))
                assert await value_of(client) == b"%d" % number
            assert not replication(active).holds_lease
            assert not states
        assert (replication(active).role, replication(active).epoch) == (Role.ACTIVE, epoch)


async def test_who_is_forced_out_follows_again() -> None:
    """It says nothing any more, throws away what it has, and passes its clients on."""
    async with servers("a", "b") as pair:
        former, standby = await pair.active(), await pair.standby()
        async with pair.client(former) as client:
            await client.set("k", "1")
            assert replication(standby).promote()
            await until(lambda: replication(standby).role is Role.ACTIVE)
            await until(lambda: replication(former).role is Role.STANDBY)
            await client.set("k", "2")
            assert await value_of(client) == b"2"
        assert replication(standby).epoch == 2


async def test_a_socket_that_has_said_nothing_keeps_nobody_from_following_again() -> None:
    """The server closes it without a packet, because nothing may come before CONNECT."""
    async with servers("a", "b") as pair:
        former, standby = await pair.active(), await pair.standby()
        reader, writer = await asyncio.open_connection("127.0.0.1", former.endpoints.port)
        await until(lambda: replication(former).commands.status()["clients"] == 1)
        assert replication(standby).promote()
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        await until(lambda: replication(former).role is Role.STANDBY and replication(former).is_ready)
        writer.close()


async def test_a_server_that_cannot_end_its_life_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """After such a defect it would neither follow nor serve, and nobody would know."""
    async with servers("a", "b") as pair:
        former, standby = await pair.active(), await pair.standby()

        def fail() -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(former, "on_inactive", fail)
        assert replication(standby).promote()
        async with asyncio.timeout(5):
            await former.wait_for_failure()
        assert isinstance(former.failure, ReplicatedLogError)


async def test_who_has_just_been_forced_in_hands_over_as_soon_as_it_may() -> None:
    """The lease of the one before has to end first; meanwhile nobody waits in vain."""
    async with servers("a", "b") as pair:
        former, standby = await pair.active(), await pair.standby()
        assert replication(standby).promote()
        await until(lambda: replication(standby).role is Role.ACTIVE)
        assert await replication(standby).hand_over()
        await until(lambda: replication(former).role is Role.ACTIVE)
        async with pair.client(standby) as client:
            await client.set("k", "1")


async def test_a_server_that_cannot_hand_over_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has written does not come into the log: it cannot say that another one may go on from there."""
    monkeypatch.setattr(replicated_server, "_HAND_OVER_S", 0.05)
    async with servers("a", "b") as pair:
        active = await pair.active()
        async with pair.client(active) as client, pair.client(active) as other:
            await pair.cluster.kill("1")
            writing = asyncio.ensure_future(client.set("k", "1"))
            await until(lambda: replication(active).silent_s or not replication(active).holds_lease)
            assert not await replication(active).hand_over()
            await pair.cluster.restart("1")
            await writing
            async with asyncio.timeout(5):
                await other.set("k", "2")  # its connection was held
            async with pair.client(active) as third:
                assert await value_of(third) == b"2"


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
async def test_clients_wait_while_nobody_is_active(has_tls: bool, tmp_path: Path) -> None:
    """A client that comes while the epoch is vacant is served by the next one; it does not have to come again. A TLS
    handshake is with the next active server, although it has begun before."""
    certificates = Certificates(tmp_path)
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file) if has_tls else None
    more = {"tls_ca_file": certificates.ca_file} if has_tls else {}
    async with servers("a", "b", tls=tls) as pair:
        active, standby = await pair.active(), await pair.standby()
        async with pair.client(active, **more) as client:
            await client.set("k", "1")
        assert await replication(active).hand_over("nobody")  # so the others wait for a moment
        await until(lambda: replication(standby).commands.status()["active"] == "")
        async with asyncio.timeout(10), pair.client(standby, reconnect_delay=30.0, **more) as client:
            assert await value_of(client) == b"1"


async def test_a_server_listens_when_it_knows_who_is_active() -> None:
    """Without the log it does not know: a client is better off at another address."""
    async with servers("a") as pair:
        await pair.active()
        await pair.cluster.kill("1")
        late = Server(ServerSettings(log=ReplicaSettings(log=pair.cluster.seeds, id="b", key=KEY)))
        starting = asyncio.ensure_future(late.start())
        pair.closing.push_async_callback(late.stop)
        await asyncio.wait([starting], timeout=0.3)
        assert not starting.done()
        assert late.urls == []
        await pair.cluster.restart("1")
        await starting
        async with pair.client(late) as client:
            await client.set("k", "1")


async def test_nothing_is_said_without_the_log() -> None:
    """What was written is not acknowledged, what is asked for is not answered; with the log both are."""
    async with servers("a") as pair:
        active = await pair.active()
        async with pair.client(active) as client:
            await client.set("k", "1")
            await pair.cluster.kill("1")
            await until(lambda: not replication(active).holds_lease, "the lease is over")
            asked = asyncio.ensure_future(client.get("k"))
            written = asyncio.ensure_future(client.set("k", "2"))
            done, _ = await asyncio.wait((asked, written), timeout=0.5)
            assert not done
            await pair.cluster.restart("1")
            assert (await asked) is not None
            assert (await written).applied


@pytest.mark.parametrize("writes", [False, True], ids=["get", "set"])
async def test_clients_that_wait_for_a_log_without_a_leader_are_let_go(
    writes: bool, figures: Callable[[str], None]
) -> None:
    """Another server may be better, for what they ask for, and for what they write. An election does not take that
    long.
    """
    async with servers("a") as pair:
        active = await pair.active()
        async with pair.client(active) as client:
            await client.set("k", "1")
            began = monotonic()
            await pair.cluster.kill("1")
            await until(lambda: not replication(active).holds_lease, "the lease is over")
            asked: asyncio.Future[object] = asyncio.ensure_future(client.set("k", "2") if writes else client.get("k"))
            await until(lambda: "suspended" in str(client.state).lower(), "the connection was closed")
            took_s = monotonic() - began
            figures(f"let go after {took_s:.2f} s")
            assert 0.9 < took_s < 3.0
            await pair.cluster.restart("1")
            assert (await asked) is not None


async def test_a_server_that_says_nothing_is_doubted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has given a sign of life again: who was passed on since has reached it."""
    monkeypatch.setattr("statestore_client.server.runtime.replication.liveness._SILENCE_S", 0.3)
    async with servers("a") as alone:
        lives = replication(await alone.active())
        dialled: list[str] = []
        add = lives._pulse.add
        monkeypatch.setattr(lives._internal_listener, "_add_pulse", lambda *each: (dialled.append("b"), add(*each)))
        heard, doubts = Heard(), list[int]()
        listener = HeartbeatListener(lives.url, "b", ClusterSecret(KEY), heard, lambda: doubts.append(len(dialled)))
        await until(heard.is_there, "it is heard")
        monkeypatch.setattr(lives._pulse, "_may_pulse", lambda: None)
        await until(lambda: doubts, "it is doubted")
        looked = len(dialled)
        await until(lambda: len(dialled) >= looked + 3, "it was listened to anew, in vain")
        assert len(doubts) == 1
        listener.close()


async def test_who_was_passed_on_to_a_server_in_doubt_is_cut() -> None:
    """Its machine may be cut off from this one only: then it stays active, and no other epoch begins."""
    states: list[ConnectionState] = []
    async with servers("a", "b") as pair:
        standby = await pair.standby()
        async with pair.client(standby, on_state=lambda state, _error: states.append(state)) as client:
            await client.set("k", "1")
            replication(standby).router.doubt()
            await until(lambda: ConnectionState.SUSPENDED in states, "the client was cut")
            await client.set("k", "2")


@pytest.mark.parametrize("endpoint", ["mqtts", "ws"])
async def test_every_endpoint_passes_on(endpoint: str, tmp_path: Path) -> None:
    """TLS goes on to its end, which is the active server."""
    certificates = Certificates(tmp_path)
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)

    async with servers() as pair:
        active = await pair.start("a", tls=tls, endpoints=Endpoints(tls_port=0, ws_port=0))
        await pair.active()
        standby = await pair.start("b", tls=tls, endpoints=Endpoints(tls_port=0, ws_port=0))
        url = next(url for url in standby.urls if url.startswith(f"{endpoint}:"))
        plain = next(url for url in active.urls if url.startswith("mqtt:"))
        more = {"tls_ca_file": certificates.ca_file} if endpoint == "mqtts" else {}
        async with AsyncStateStoreClient(url, **more) as client, AsyncStateStoreClient(plain) as other:
            await client.set("k", "1")
            assert await value_of(other) == b"1"


async def test_the_active_server_knows_where_clients_come_from(caplog: pytest.LogCaptureFixture) -> None:
    """Its log has the address of the client, not that of the standby."""
    caplog.set_level(logging.INFO)
    async with servers("a", "b") as pair:
        standby = await pair.standby()
        async with pair.client(standby, client_id="me"):
            line = next(record.message for record in caplog.records if "connected client='me'" in record.message)
        await until(lambda: replication(standby).router.proxied == 0)
        assert "127.0.0.1:" in line


async def test_without_the_key_nobody_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    """The log line says what to do."""
    async with servers("a") as pair:
        await pair.active()
        stranger = await pair.start("b", key=b"another key, by mistake")
        async with asyncio.timeout(20):
            _reader, writer = await asyncio.open_connection("127.0.0.1", stranger.endpoints.port)
            writer.write(b"\x10")
            await until(lambda: "--cluster-key-file" in caplog.text)
            writer.close()


async def test_two_servers_with_one_id(caplog: pytest.LogCaptureFixture) -> None:
    """Only one is active, and its log says so once."""
    async with servers("a") as pair:
        active = await pair.active()
        other = Server(ServerSettings(log=ReplicaSettings(log=pair.cluster.seeds, id="a", key=KEY)))
        await other.start()
        pair.closing.push_async_callback(other.stop)
        await until(lambda: "give each of them an id of its own" in caplog.text, "the operator is told")
        async with pair.client(other) as client:
            await client.set("k", "1")
        assert replication(active).role is Role.ACTIVE
        assert replication(other).role is not Role.ACTIVE
        assert caplog.text.count("give each of them an id of its own") == 1


async def test_one_client_id_at_two_servers_is_one_client() -> None:
    """The second one takes the session over, wherever it comes in."""
    async with servers("a", "b") as pair:
        active, standby = await pair.active(), await pair.standby()
        async with pair.client(active, client_id="me") as first:
            await first.set("k", "1")
            async with pair.client(standby, client_id="me") as second:
                await until(lambda: "closed" in str(first.state).lower(), "the first one has lost its session")
                item = await second.get("k")
                assert item is not None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"something else", "not MessagePack"),
        (msgpack.packb([2, 1]), "version 2"),
        (msgpack.packb({"a": 1}), "not of servers of the state store"),
    ],
)
async def test_a_log_of_something_else_stops_the_server(data: bytes, why: str) -> None:
    """Nothing is written into it."""
    async with AsyncEmbeddedCluster(1, machine=BroadcastStateMachine) as cluster, AsyncRaftClient(cluster.url) as log:
        index = await log.append(data)
        server = Server(ServerSettings(log=ReplicaSettings(log=cluster.seeds, id="a")))
        with pytest.raises(ReplicatedLogError, match=why):
            await server.start()
        assert (await log.log_info()).last_applied == index


async def test_a_batch_that_the_log_does_not_take_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why. Nothing of the batch was said or written, and the other server goes on with all before."""
    async with servers("a", "b") as pair:
        active, standby = await pair.active(), await pair.standby()
        async with pair.client(standby) as client:
            await client.set("k", "1")
            monkeypatch.setattr(ownership, "MAX_BATCH", 1000)
            with pytest.raises(StateStoreError):
                await client.set("k", bytes(1000), timeout=0.5)
            async with asyncio.timeout(5):
                await active.wait_for_failure()
            assert isinstance(active.failure, ReplicatedLogError)
            assert "the log takes 1000" in str(active.failure)
            monkeypatch.undo()
            await active.stop()
            assert await client.get("k") is not None
