"""Programs without the secret at internal addresses of replicated servers: in the place of a server that is gone, in
between, and as one that dials. They get no client, learn no password, and delay no failover.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from replicated_servers import KEY, replication, servers, value_of
from support.ports import reserved_port
from support.server_processes import ClusterServer, ReplicatedServer, ReplicatedServers
from support.waiting import until

from statestore_client import AsyncStateStoreClient
from statestore_client.errors import RemoteProtocolError
from statestore_client.server import ReplicaSettings
from statestore_client.server.runtime.replication.internal import MAGIC, ClusterSecret, Hello, dial
from statestore_client.server.runtime.replication.liveness import HeartbeatListener
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import ServerSettings

SECRET = ClusterSecret(KEY)


@attrs.define(eq=False)
class Impostor:
    """Listens where a server was. ``heard`` is all that came."""

    says: Callable[[int], bytes]  # to the n-th chunk that it hears, and to a connection before any
    port: int = 0
    heard: bytearray = attrs.Factory(bytearray)
    connections: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Impostor]:
        server = await asyncio.start_server(self._meet, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            writer.write(self.says(0))
            count = 0
            while data := await reader.read(65_536):
                self.heard += data
                count += 1
                writer.write(self.says(count))
        except ConnectionError:
            pass
        finally:
            writer.close()


#: What an impostor knows from the documentation: the frame of everything, but no code.
ANSWER = b"\x00\x04\x92\xc3\xa1a" + bytes(32)
PULSES = ((7).to_bytes(8, "big") + bytes(40)) * 100
IMPOSTORS: dict[str, Callable[[int], bytes]] = {
    "silent": lambda _: b"",
    "of another protocol": lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "of an older release": lambda count: [b"statestore internal 1\n" + bytes(32), b"+" + PULSES][min(count, 1)],
    "eager": lambda count: [MAGIC + bytes(32) + ANSWER + PULSES, b"E" + bytes(32) + ANSWER + PULSES][min(count, 1)],
    "one step after the other": lambda count: [MAGIC, bytes(32), ANSWER + PULSES][min(count, 2)],
}


@attrs.define(eq=False)
class Standby:
    """What a server that listens for signs of life hears."""

    heard: list[int] = attrs.Factory(list)
    suspicions: int = 0

    def hear(self, epoch: int) -> None:
        self.heard.append(epoch)

    def suspect(self) -> None:
        self.suspicions += 1


@pytest.mark.parametrize("kind", IMPOSTORS)
@pytest.mark.attack("replicated servers", "signs of life of a server that is gone")
async def test_an_impostor_gives_no_sign_of_life(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says: so the others take over as if nobody were there."""
    monkeypatch.setattr("statestore_client.server.runtime.replication.liveness._CONNECT_S", 0.1)
    standby = Standby()
    async with Impostor(IMPOSTORS[kind]).listen() as impostor:
        listener = HeartbeatListener(impostor.address, "b", SECRET, standby)
        await until(lambda: impostor.connections >= 3, "it tries again")
        listener.close()
    assert standby.heard == []


@pytest.mark.parametrize("kind", IMPOSTORS)
@pytest.mark.attack("replicated servers", "take the clients of a server that is gone")
async def test_an_impostor_hears_no_client(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby that takes it for the active server tries to pass a client on, and says nothing of what that sent."""
    monkeypatch.setattr("statestore_client.server.runtime.replication.client_router._DIAL_S", 0.1)
    async with servers("a", "b") as pair, Impostor(IMPOSTORS[kind]).listen() as impostor:
        standby = await pair.standby()
        _, writer = await asyncio.open_connection("127.0.0.1", standby.endpoints.port)
        replication(standby).router.shut(impostor.address)
        writer.write(b"\x10\x20 a user name and a password, in clear")
        await until(lambda: impostor.connections >= 3, "it tries again")
        assert b"password" not in impostor.heard
        assert replication(standby).router.proxied == 1, "the client waits for a server that is one"
        writer.close()


@asynccontextmanager
async def listening_between(target: Callable[[], int]) -> AsyncIterator[tuple[int, bytearray]]:
    """A port from which everything goes on to another one, and what went through."""
    seen = bytearray()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                seen.extend(data)
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", target())
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


@pytest.mark.attack("replicated servers", "read what is passed on")
async def test_who_is_in_between_learns_nothing() -> None:
    """What a standby passes on is encrypted, and the client notices nothing."""
    internal = reserved_port()
    async with listening_between(lambda: internal) as (between, seen), servers() as pair:
        settings = ReplicaSettings(
            log=pair.cluster.seeds, id="a", key=KEY, internal_port=internal, internal_address=f"127.0.0.1:{between}"
        )
        pair.by_id["a"] = active = Server(ServerSettings(log=settings))
        await active.start()
        pair.closing.push_async_callback(active.stop)
        await pair.active()
        standby = await pair.start("b")
        async with pair.client(standby) as client, pair.client(active) as other:
            await client.set("recipe", "the secret of the house")
            assert await value_of(other, "recipe") == b"the secret of the house"
    assert b"splice" not in seen
    assert b"recipe" not in seen
    assert b"secret of the house" not in seen
    assert seen.count(MAGIC) >= 2, "the pulse and the client came this way"


@pytest.mark.parametrize("purpose", ["splice", "pulse", "promote"])
@pytest.mark.attack("replicated servers", "relay a handshake to another server")
async def test_a_handshake_is_relayed_to_no_other_server(purpose: str) -> None:
    """It names the address that was dialled, so another server with the same secret does not take it for its own."""
    async with servers("a", "b") as pair:
        standby = await pair.standby()
        port = int(replication(standby).url.rpartition(":")[2])
        async with listening_between(lambda: port) as (between, _):
            address = f"127.0.0.1:{between}"
            with pytest.raises(RemoteProtocolError, match=f"its address is 127.0.0.1:{port}"):
                await dial(address, Hello(purpose, "c", address, "mqtt"), SECRET)
        assert replication(standby).epoch == 1


@pytest.mark.parametrize("purpose", ["splice", "status"])
async def test_who_has_the_key_encrypts(purpose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect on the other side does not send clients in clear."""

    class WithoutTls(ClusterSecret):
        def __bool__(self) -> bool:
            return False

    async with servers("a") as pair:
        address = replication(await pair.active()).url
        with pytest.raises(EOFError):
            await dial(address, Hello(purpose, "b", address, "mqtt"), WithoutTls(KEY))
        stream, _ = await dial(address, Hello("status", "b", address), SECRET)
        assert json.loads(await stream.read_all())["role"] == "active"


@pytest.mark.attack("replicated servers", "fill the log with refusals")
async def test_strangers_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each of the first, then one at times that says how many were left out; the next server gets in."""
    async with servers("a", "b") as pair:
        active = await pair.active()
        host, _, port = replication(active).url.partition(":")
        caplog.set_level(logging.INFO)
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"P" + bytes(100)) * 50:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            assert (await reader.read()).startswith(MAGIC)
            writer.close()
        lines = [record.message for record in caplog.records if "server refused" in record.message]
        assert 1 <= len(lines) <= 10
        async with pair.client(await pair.standby()) as client:
            await client.set("k", "1")


async def test_a_flood_of_strangers_keeps_no_server_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many that say nothing, the oldest of the most crowded address goes: a server elsewhere has its time."""
    monkeypatch.setattr("statestore_client.server.runtime.replication.internal._MOST_STRANGERS", 5)
    async with servers("a") as pair:
        host, _, port = replication(await pair.active()).url.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        assert await reader.readexactly(len(MAGIC)) == MAGIC
        flood = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        assert await asyncio.wait_for(flood[0][0].read(), 1.5) == MAGIC, "the first of these has gone"
        writer.write(b"P")
        assert len(await reader.readexactly(32)) == 32, "the other one goes on"
        for _, each in [*flood, (reader, writer)]:
            each.close()


async def test_a_command_that_fails_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a closed connection, which would look like another key."""
    async with servers("a") as pair:
        active = replication(await pair.active())

        async def fail(_purpose: str, _argument: str) -> dict[str, object]:
            raise RuntimeError("a defect")

        monkeypatch.setattr(active._internal_listener, "_command", fail)
        with pytest.raises(RemoteProtocolError, match="a defect"):
            await dial(active.url, Hello("status", "b", active.url), SECRET)


class Keyed(ClusterServer):
    """With a secret."""

    @property
    def options(self) -> tuple[str, ...]:
        return (*super().options, "--cluster-key-file", str(self.data.parent / "key"))


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["eager", "silent"])
@pytest.mark.attack("replicated servers", "delay a failover")
async def test_an_impostor_in_the_place_of_a_killed_server_delays_no_failover(
    tmp_path: Path, kind: str, figures: Callable[[str], None]
) -> None:
    """It is there before the others have noticed. A client goes on within 1.5 s; where other tests take the processors,
    within a few seconds: an impostor that is believed keeps it out for as long as it is there.
    """
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_bytes(KEY)
    cluster = ReplicatedServers.with_own_peers(tmp_path, "a", "b", "c")
    kept: dict[str, ReplicatedServer] = {}
    for name, server in cluster.servers.items():
        assert isinstance(server, ClusterServer)
        kept[name] = Keyed(name, server.log, data=server.data)
    cluster.servers = kept
    try:
        await cluster.start_all()
        active = await cluster.active()
        others = [each for each in kept.values() if each is not active]
        url = f"mqtt://127.0.0.1:{others[0].port}"
        async with AsyncStateStoreClient(url, retry_first_connect=True) as client:  # it may have begun a moment ago
            await client.set("k", "1")
            began = time.monotonic()
            await active.end(signal.SIGKILL)
            async with Impostor(IMPOSTORS[kind], port=active.internal_port).listen() as impostor:
                await client.set("k", "2", timeout=30.0)
                gap = time.monotonic() - began
                assert impostor.connections > 0
            assert b"\x10" not in impostor.heard[:1]
        figures(f"{kind}: next acknowledged SET after {gap:.2f} s")
        assert gap < 6
    finally:
        await cluster.end_all()
