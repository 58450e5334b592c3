"""What others see of a take-over: times to live, locks, wills, commands, and the sites that this one is a peer of."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from replicated_servers import Servers, replication, servers
from support.ports import reserved_port
from support.server_clients import Paho, Wire
from support.waiting import until

from statestore_client.cli.app import cli
from statestore_client.mqtt.packets import Will
from statestore_client.server import SiteEndpoints
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import ServerSettings

_LEASE_S = 1.0


async def _take_over(pair: Servers) -> Server:
    """The standby is the active server, without being asked to by the former one. Returns the new one."""
    standby = await pair.standby()
    assert replication(standby).promote()
    await until(lambda: replication(standby).role is Role.ACTIVE, "the standby has taken over")
    return standby


@pytest.mark.ci
async def test_a_lock_is_renewed_over_a_take_over() -> None:
    """Its lease is longer than the take-over, and shorter than the test: it goes on under the same holder."""
    async with servers("a", "b") as pair:
        standby = await pair.standby()
        async with (
            pair.client(standby) as holder,
            pair.client(standby) as other,
            holder.lock("l", lease=_LEASE_S) as lease,
        ):
            await _take_over(pair)
            ends = time.monotonic() + 2 * _LEASE_S
            while time.monotonic() < ends:
                assert await other.lock("l", lease=_LEASE_S).holder() == lease.holder
                assert not lease.ended.is_set()
                await asyncio.sleep(0.05)  # looked at again and again, for as long as two leases
            await holder.set("guarded", "1", fencing_token=lease.fencing_token)


@pytest.mark.ci
async def test_a_lock_of_a_holder_that_is_gone_ends_in_time(figures: Callable[[str], None]) -> None:
    """Its time to live goes on over a take-over, and does not begin again: the next holder waits for the rest."""
    ttl_s = 2.0
    async with servers("a", "b") as pair:
        standby = await pair.standby()
        async with pair.client(standby) as gone, pair.client(standby) as other:
            began = time.monotonic()
            await gone.set("l", "gone", condition="NX", expiry=ttl_s)  # as a lock does; nobody renews it
            await asyncio.sleep(0.75 * ttl_s)  # most of it is over: beginning again would end much later
            await _take_over(pair)
            async with other.lock("l", lease=_LEASE_S):
                took = time.monotonic() - began
        figures(f"{took:.2f} s after it was taken for {ttl_s:g} s")
        assert ttl_s <= took <= 1.5 * ttl_s


@pytest.mark.ci
async def test_a_server_that_began_while_all_was_quiet_knows_the_time(figures: Callable[[str], None]) -> None:
    """It has seen the last entry of the active server long after that was made. A key does not last longer for that."""
    ttl_s, quiet_s = 3.0, 2.0
    async with servers("a") as pair:
        active = await pair.active()
        async with pair.client(active) as client:
            before = time.monotonic()
            await client.set("k", "1", expiry=ttl_s)
            began = time.monotonic()
        await asyncio.sleep(quiet_s)  # nothing is written
        standby = await pair.start("b")
        written = replication(active).index
        await until(lambda: replication(standby).index > written, "the active server has written because of the other")
        await _take_over(pair)
        async with pair.client(standby) as client:
            while await client.get("k") is not None:
                pass  # each look is a round trip
        ended = time.monotonic()
    figures(f"{ended - began:.2f} s after it was set for {ttl_s:g} s")
    assert ended - before >= ttl_s
    assert ended - began <= ttl_s + 0.75 * quiet_s


@pytest.mark.ci
async def test_a_will_is_sent_once() -> None:
    """The client is lost together with the active server: the next one waits for it, and then sends its will."""
    async with servers("a", "b") as pair:
        standby = await pair.standby()
        endpoint = standby.endpoints
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 300
        subscriber = await asyncio.to_thread(Paho, endpoint, "subscriber", properties=lasting)
        await asyncio.to_thread(subscriber.subscribe, "will/#", qos=1)
        wire = await asyncio.to_thread(Wire, endpoint)
        await asyncio.to_thread(wire.connect, "client", will=Will("will/client", b"gone", qos=1))
        wire.sock.close()
        await _take_over(pair)
        try:
            message = await asyncio.to_thread(subscriber.messages.get, timeout=20)
            assert (message.topic, message.payload) == ("will/client", b"gone")
            await asyncio.to_thread(subscriber.publish, "will/end", b"", 1)
            message = await asyncio.to_thread(subscriber.messages.get, timeout=20)
            assert message.topic == "will/end"
        finally:
            subscriber.close()


@pytest.mark.ci
async def test_a_log_without_a_leader_is_the_death_of_no_client() -> None:
    """The server lets clients go that wait for it. Who comes back when there is a leader again leaves no will."""
    async with servers("a") as pair:
        server = await pair.active()
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 300
        subscriber = await asyncio.to_thread(Paho, server.endpoints, "subscriber", properties=lasting)
        await asyncio.to_thread(subscriber.subscribe, "will/#", qos=1)
        wire = await asyncio.to_thread(Wire, server.endpoints)
        will = Will("will/client", b"gone", qos=1)
        await asyncio.to_thread(wire.connect, "client", will=will)
        async with pair.client(server) as client:
            await pair.cluster.kill("1")
            waiting = asyncio.ensure_future(client.set("k", "1"))
            await until(lambda: replication(server).clients == 0, "all were let go")
            wire.sock.close()
            await pair.cluster.restart("1")
            wire = await asyncio.to_thread(Wire, server.endpoints)
            await asyncio.to_thread(wire.connect, "client", will=will)
            await waiting
            await client.set("k", "2")
        await until(lambda: subscriber.client.is_connected(), "it has connected again")
        try:
            await asyncio.to_thread(subscriber.publish, "will/end", b"", 1)
            message = await asyncio.to_thread(subscriber.messages.get, timeout=20)
            assert message.topic == "will/end"
        finally:
            subscriber.close()
            wire.sock.close()


async def test_sessions_and_retained_messages_are_looked_at_through_any_server() -> None:
    """The standby passes the commands on; what they remove is gone after a take-over, too."""
    async with servers("a", "b") as pair:
        active, standby = await pair.active(), await pair.standby()
        publisher = await asyncio.to_thread(Paho, active.endpoints, "publisher")
        await asyncio.to_thread(publisher.publish, "r/1", b"kept", 1, retain=True)
        await asyncio.to_thread(publisher.publish, "r/2", b"removed", 1, retain=True)

        async def run(*arguments: str) -> str:
            words = ["--url", standby.urls[0], *arguments]
            done = await asyncio.to_thread(CliRunner().invoke, cli, words)
            assert done.exit_code == 0, done.output
            return done.output

        sessions = [json.loads(line) for line in (await run("sessions", "list", "--json")).splitlines()]
        assert "publisher" in {each["client_id"] for each in sessions}
        await run("retained", "remove", "r/2")
        await _take_over(pair)
        found = [json.loads(line) for line in (await run("retained", "list", "--json")).splitlines()]
        assert [each["topic"] for each in found] == ["r/1"]
        publisher.close()


async def test_a_site_stays_one_site() -> None:
    """Only the active server is a site, under the one name. After a take-over the other site has all keys of it all the
    time, and what is new within five seconds.
    """
    urls = {server_id: f"tcp://127.0.0.1:{reserved_port()}" for server_id in "ab"}
    async with servers() as pair:
        for server_id, url in urls.items():
            await pair.start(server_id, site=SiteEndpoints(name="rome", listen=url, exports=("line/",)))
            await pair.active()
        oslo = Server(ServerSettings(site=SiteEndpoints(name="oslo", peers=tuple(urls.values()), imports=True)))
        await oslo.start()
        try:
            async with pair.client(await pair.active()) as at_rome, pair.client(oslo) as at_oslo:
                await at_rome.set("line/1", "runs")

                async def has(key: str, value: bytes) -> bool:
                    item = await at_oslo.get(f"sites/rome/{key}")
                    return item is not None and item.value == value

                async def arrives(key: str, value: bytes) -> float:
                    began = time.monotonic()
                    while not await has(key, value):
                        assert time.monotonic() - began < 20
                        await asyncio.sleep(0.02)
                    return time.monotonic() - began

                await arrives("line/1", b"runs")
                standby = await pair.standby()
                assert standby.site is None
                assert await _take_over(pair) is standby
                assert standby.site is not None
                async with pair.client(standby) as at_next:
                    await at_next.set("line/2", "new")
                    arriving = asyncio.ensure_future(arrives("line/2", b"new"))
                    while not arriving.done():
                        assert await has("line/1", b"runs")
                        await asyncio.sleep(0.02)
                    assert await arriving < 5
                await until(lambda: [each for each in pair.by_id.values() if each.site is not None] == [standby])
        finally:
            await oslo.stop()
