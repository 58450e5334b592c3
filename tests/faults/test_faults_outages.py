"""Outages: what requests, watches and locks do while the link or the server is away, with both shells."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from reached_states import sent, state_of
from support.proxy import Proxy
from support.shells import SHELLS, Shell
from support.waiting import until

from statestore_client import (
    AsyncStateStoreClient,
    ConnectionLostError,
    ConnectionState,
    LeaseLostError,
    RequestTimeoutError,
    StateStoreError,
)
from statestore_client.server import EmbeddedServer

# -- requests ----------------------------------------------------------------------------------------------------------


async def test_an_empty_server_in_place_of_the_old_one(shell: Shell) -> None:
    """When an empty server replaces the old one, writes in flight may have been applied, reads are repeated, and the
    client goes on."""
    with EmbeddedServer() as old, EmbeddedServer() as new:
        async with Proxy(old.port) as proxy, shell.client(proxy.url) as store:
            proxy.hold("down")
            tasks = [
                asyncio.ensure_future(call)
                for call in (store.set("k", b"1"), store.get("k"), store.delete("k"), anext(store.scan("n*"), None))
            ]
            await sent(store, 4)
            proxy.target_port = new.port
            proxy.cut()
            proxy.flow("down")
            done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 8)
            for failed in (done[0], done[2]):
                assert isinstance(failed, ConnectionLostError)
                assert failed.may_have_been_applied
                assert "lost the session" in str(failed)
            assert done[1] is None
            assert done[3] is None
            assert (await store.set("k", b"2")).applied


async def test_requests_wait_for_the_end_of_an_outage(shell: Shell, server: EmbeddedServer) -> None:
    """A request made while the link is down is sent when it is back, and one that cannot wait fails as not applied."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url) as store:
        await proxy.refuse()
        proxy.cut()
        await state_of(store, ConnectionState.SUSPENDED)
        patient = asyncio.ensure_future(store.set("patient", b"1", timeout=20))
        with pytest.raises(RequestTimeoutError, match="was not sent: not connected") as caught:
            await store.set("hasty", b"1", timeout=0.1)
        assert not caught.value.may_have_been_applied
        await proxy.accept()
        assert (await patient).applied
        assert await store.get("hasty") is None


async def test_a_black_hole_is_left_by_itself(executor: Any, server: EmbeddedServer) -> None:
    """In a black hole a request fails in time, and after two silent seconds the client connects anew."""

    async def one(shell: Shell) -> None:
        async with Proxy(server.port) as proxy, shell.client(proxy.url, keep_alive=600) as store:
            await store.set("k", b"1")
            proxy.hold("up", "down")
            began = time.monotonic()
            with pytest.raises(RequestTimeoutError, match="did not acknowledge") as caught:
                await store.set("k", b"2", timeout=5.2)
            assert caught.value.may_have_been_applied
            assert 5.1 < time.monotonic() - began < 8
            await state_of(store, ConnectionState.SUSPENDED, 3)
            proxy.cut()
            proxy.flow("up", "down")
            assert (await store.get("k", timeout=10)).value in (b"1", b"2")

    await asyncio.gather(*(one(Shell(*names, executor)) for names in SHELLS))


async def test_a_short_timeout_on_a_slow_link_is_no_reason_to_reconnect(shell: Shell, server: EmbeddedServer) -> None:
    """A slow link that was idle is not dropped because one request had a short time-out."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url) as store:
        await store.set("k", b"1")
        machine = getattr(store, "target", store)._engine._machine
        machine._heard_at -= 60  # as if the link had been idle for a minute
        proxy.delay_s = 0.3
        with pytest.raises(RequestTimeoutError):
            await store.get("k", timeout=0.1)
        assert (await store.get("k")).value == b"1"
        assert proxy.connections == 1


async def test_deadlines_hold_while_connecting_takes_long(shell: Shell, server: EmbeddedServer) -> None:
    """Requests fail at their own time while a silent proxy keeps the driver waiting for CONNACK."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, connect_timeout=10) as store:
        proxy.hold("up", "down")
        proxy.cut()
        await state_of(store, ConnectionState.SUSPENDED)
        began = time.monotonic()
        results = await asyncio.gather(
            *(store.get("k", timeout=t) for t in (0.1, 0.3, 0.6)),
            store.get_many(["k"], timeout=0.4),
            return_exceptions=True,
        )
        assert all(isinstance(r, StateStoreError) for r in results)
        assert 0.55 < time.monotonic() - began < 8


async def test_a_delay_does_not_slow_a_pipeline_down(shell: Shell, server: EmbeddedServer) -> None:
    """With 50 ms in each direction, 128 requests in a window of 64 take a few round trips, not 128."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url) as store:
        proxy.delay_s = 0.05
        began = time.monotonic()
        await store.set_many((f"k{i}", b"") for i in range(128))
        assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 64,
        b"\xff" * 64,
        b"\x30\xff\xff\xff\xff\x01",  # remaining length of five bytes
        b"\x40\x00",  # PUBACK without a packet identifier
        b"\x32\x06\x00\x01a\x00\x01\xff",  # PUBLISH with properties that end too early
        b"\x90\x03\x00\x63\x00",  # SUBACK for something never asked
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"\x20\x03\x00\x00\x00",  # a second CONNACK
        b"\x32\x0a\x00\x03\xff\xff\xff\x00\x07\x00ab",  # a topic that is not UTF-8
    ],
)
async def test_garbage_from_the_server_is_survived(shell: Shell, server: EmbeddedServer, garbage: bytes) -> None:
    """After garbage from the server the client drops it, or the connection, and the next request is answered."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, retry_first_connect=True) as store:
        await store.set("k", b"1")
        proxy.say(garbage)
        assert (await store.get("k", timeout=15)).value == b"1"
        assert (await store.set("k", b"2", timeout=15)).applied


async def test_a_server_that_stops_reading_holds_nobody_up(shell: Shell, server: EmbeddedServer) -> None:
    """While sixteen values of a megabyte fill every buffer, requests still end in time, and so does close()."""
    async with Proxy(server.port) as proxy:
        store = shell.client(proxy.url)
        await store.open()
        proxy.hold("up")
        began = time.monotonic()
        results = await asyncio.gather(
            *(store.set(f"k{i}", bytes(1_000_000), timeout=0.7) for i in range(16)), return_exceptions=True
        )
        assert all(isinstance(r, RequestTimeoutError) for r in results)
        assert time.monotonic() - began < 4
        began = time.monotonic()
        await asyncio.wait_for(store.close(), 8)
        assert time.monotonic() - began < 5


async def test_close_during_an_outage_rejects_what_waits(shell: Shell, server: EmbeddedServer) -> None:
    """close() in an outage fails requests in flight as maybe applied, and does not wait for the network."""
    async with Proxy(server.port) as proxy:
        store = shell.client(proxy.url)
        await store.open()
        proxy.hold("up", "down")
        in_flight = asyncio.ensure_future(store.set("k", b"1", timeout=None))
        await sent(store, 1)
        began = time.monotonic()
        await store.close()
        with pytest.raises(ConnectionLostError, match="closed before the answer") as caught:
            await in_flight
        assert caught.value.may_have_been_applied
        assert time.monotonic() - began < 5


async def test_a_half_open_connection_does_not_block_its_successor(shell: Shell, server: EmbeddedServer) -> None:
    """A connection that only the client still believes in does not block the next one after a cut."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url) as store, store.watch("k") as events:
        proxy.cut_server_side()
        waiting = asyncio.ensure_future(store.set("k", b"1", condition="NX", timeout=20))
        await sent(store, 1)
        proxy.cut()
        proxy.flow("up", "down")
        assert (await waiting).applied
        assert (await events.get(timeout=10)).value == b"1"


# -- watches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        ("nothing", None),
        ("two sets", ("set", b"3")),
        ("a delete", ("delete", None)),
        ("a delete and a set", ("set", b"1")),
    ],
)
async def test_a_watch_catches_up_after_an_outage(
    shell: Shell, server: EmbeddedServer, meanwhile: str, expected: tuple[str, bytes | None] | None
) -> None:
    """After an outage with changes a watch gives one event with the latest state, marked as missed, then live
    events."""
    async with AsyncStateStoreClient(server.url) as other, Proxy(server.port) as proxy:
        await other.set("k", b"1")
        watcher = shell.client(proxy.url, client_id="watcher")
        async with watcher as store, store.watch("k", initial=True) as events:
            assert not (await events.get(timeout=5)).missed
            await proxy.refuse()
            proxy.cut()
            await state_of(store, ConnectionState.SUSPENDED)
            # As long as the server takes the watcher for connected, its session keeps what happens: nothing is missed.
            await until(lambda: not server.sessions["watcher"].is_connected)
            if meanwhile == "two sets":
                await other.set_many([("k", b"2"), ("k", b"3")])
            elif meanwhile != "nothing":
                await other.delete("k")
                if meanwhile == "a delete and a set":
                    await other.set("k", b"1")
            await proxy.accept()
            if expected is not None:
                event = await events.get(timeout=10)
                assert (event.kind, event.value, event.missed) == (*expected, True)
            await state_of(store, ConnectionState.CONNECTED)
            await store.get("k")
            async with store.watch("k"):  # returns when the watches stand again
                version = (await other.set("k", b"live")).version
            event = await events.get(timeout=10)
            assert (event.value, event.version, event.missed) == (b"live", version, False)


async def test_a_watch_that_knew_nothing_hears_of_a_delete(shell: Shell, server: EmbeddedServer) -> None:
    """A watch without ``initial`` reports after an outage that its key is gone."""
    async with AsyncStateStoreClient(server.url) as other, Proxy(server.port) as proxy:
        await other.set("k", b"1")
        async with shell.client(proxy.url) as store, store.watch("k") as events:
            await proxy.refuse()
            proxy.cut()
            await state_of(store, ConnectionState.SUSPENDED)
            await other.delete("k")
            await proxy.accept()
            event = await events.get(timeout=10)
            assert (event.kind, event.missed) == ("delete", True)


async def test_a_watch_never_misses_the_last_value(shell: Shell, server: EmbeddedServer) -> None:
    """While the link is cut five times during writes, a watch's versions ascend, and the last value comes."""
    async with (
        AsyncStateStoreClient(server.url) as other,
        Proxy(server.port) as proxy,
        shell.client(proxy.url) as store,
        store.watch("k", initial=True, max_queued=100_000) as events,
    ):
        for i in range(100):
            await other.set("k", b"%d" % i)
            if i % 20 == 19:
                proxy.cut()
        await other.set("k", b"end")
        versions = []
        while True:
            event = await events.get(timeout=15)
            assert event is not None
            versions.append(event.version)
            if event.value == b"end":
                break
        assert versions == sorted(set(versions))


# -- locks -------------------------------------------------------------------------------------------------------------


async def test_a_lease_is_lost_before_another_can_have_it(shell: Shell, server: EmbeddedServer) -> None:
    """A holder that is cut off has lost its lease, and was told so, before the waiting contender is granted one."""
    async with (
        AsyncStateStoreClient(server.url) as other,
        Proxy(server.port) as proxy,
        shell.client(proxy.url) as store,
    ):
        lock = store.lock("job", lease=1.0)
        lease = await lock.acquire()
        contender = asyncio.ensure_future(other.lock("job", lease=10).acquire(timeout=10))
        proxy.hold("up", "down")
        while not lease.ended.is_set():
            assert not contender.done(), "two holders"
            await asyncio.sleep(0.001)
        assert not lease.valid
        with pytest.raises(LeaseLostError, match="ended before it could be renewed"):
            lease.check()
        assert (await contender).fencing_token > lease.fencing_token
        proxy.cut()
        proxy.flow("up", "down")
        assert not await lock.release()
        assert await other.get("job") is not None


async def test_a_lease_survives_a_short_outage(shell: Shell, server: EmbeddedServer) -> None:
    """A lease survives a cut in the middle of renewals with the same token."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url) as store, store.lock("job", lease=3.0) as lease:
        until = lease.valid_until
        proxy.cut()
        while lease.valid_until == until:
            assert not lease.ended.is_set()
            await asyncio.sleep(0.01)
        lease.check()


async def test_acquiring_keeps_its_timeout_in_an_outage(shell: Shell, server: EmbeddedServer) -> None:
    """Acquiring waits through an outage until its time-out, and no longer."""
    async with (
        AsyncStateStoreClient(server.url) as other,
        Proxy(server.port) as proxy,
        shell.client(proxy.url) as store,
    ):
        holder = other.lock("job", lease=30)
        await holder.acquire()
        waiting = asyncio.ensure_future(store.lock("job").acquire(timeout=30))
        await asyncio.wait([waiting], timeout=0.1)
        proxy.hold("up", "down")
        began = time.monotonic()
        for name in ("job", "free"):
            with pytest.raises(RequestTimeoutError, match=r"within 0\.5 s, and whether it is free is not known"):
                await store.lock(name).acquire(timeout=0.5)
        assert time.monotonic() - began < 3
        await holder.release()
        proxy.cut()
        proxy.flow("up", "down")
        assert (await waiting).valid
