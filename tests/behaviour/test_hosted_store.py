"""The state store as a client of mosquitto: the same clients, and what becomes of their requests when the host is
killed, stands still or loses its broker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.hosted_stores import ForeignBroker, HostedStoreProcess
from support.schedules import scaled
from support.shells import Shell

from statestore_client import AsyncStateStoreClient, FencingTokenTooOldError

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


@pytest.fixture
async def broker(require_tool: Callable[[str], str], tmp_path: Path) -> AsyncIterator[ForeignBroker]:
    """A broker without a state store."""
    broker = ForeignBroker(require_tool("mosquitto"), tmp_path)
    await broker.start()
    yield broker
    await broker.end()


@pytest.fixture
async def host(broker: ForeignBroker, tmp_path: Path) -> AsyncIterator[HostedStoreProcess]:
    """A durable store on it."""
    host = HostedStoreProcess(broker.url, ("--data", str(tmp_path / "data")))
    await host.start()
    yield host
    assert host.process is not None
    if host.process.returncode is None:
        host.process.send_signal(signal.SIGCONT)
        await host.end()


@pytest.mark.usefixtures("host")
async def test_the_clients_work_on_a_foreign_broker(shell: Shell, broker: ForeignBroker) -> None:
    """Set, get, conditions, delete, scan, a lock whose token fences, and a watch do what they do on our own server."""
    async with shell.client(broker.url) as store:
        assert (await store.set("a/1", b"1")).applied
        assert (await store.get("a/1")).value == b"1"
        assert not (await store.set("a/1", b"2", condition="NX")).applied
        assert not (await store.vdelete("a/1", b"2")).matched
        async with store.watch("a/1") as watch:
            await store.set("a/1", b"3")
            async for event in watch:
                if event.value == b"3":
                    break
        assert [key async for key in store.scan("a/*")] == [b"a/1"]
        assert await store.delete("a/1")
        assert (await store.get("a/1")) is None
    async with shell.client(broker.url) as one, shell.client(broker.url) as other:
        lease = await one.lock("lock").acquire()
        old = lease.fencing_token
        await lease.release()
        lease = await other.lock("lock").acquire()
        await other.set("guarded", b"new", fencing_token=lease.fencing_token)
        with pytest.raises(FencingTokenTooOldError):
            await one.set("guarded", b"old", fencing_token=old)
        await lease.release()


@pytest.mark.usefixtures("host")
async def test_pipelined_requests_are_all_answered(broker: ForeignBroker) -> None:
    """5,000 requests at once, far beyond what mosquitto has in flight, are answered each with its own version."""
    count = scaled(5_000, 50_000)
    async with AsyncStateStoreClient(broker.url, max_in_flight=500) as store:
        results = await store.set_many((b"%d" % n, b"x") for n in range(count))
        assert len({result.version for result in results}) == count


async def _write(store: AsyncStateStoreClient, stop: asyncio.Event) -> list[tuple[bytes, object]]:
    """Count up a key of its own, each step from the one before; returns what was acknowledged."""
    done: list[tuple[bytes, object]] = []
    while not stop.is_set():
        value = b"%d" % len(done)
        done.append((value, (await store.set("steps", value, timeout=60)).version))
    return done


async def test_a_killed_host_loses_nothing(broker: ForeignBroker, host: HostedStoreProcess) -> None:
    """A host that is killed under load, again and again, has all that was acknowledged, once; no request fails."""
    async with AsyncStateStoreClient(broker.url) as store, AsyncStateStoreClient(broker.url) as other:
        stop = asyncio.Event()
        writer = asyncio.ensure_future(_write(store, stop))
        created = [asyncio.ensure_future(other.set(f"once/{n}", b"x", condition="NX", timeout=60)) for n in range(20)]
        for _ in range(scaled(3, 10)):
            await asyncio.sleep(0.3)  # of load between two kills
            await host.end(signal.SIGKILL)
            await host.start()
        stop.set()
        done = await writer
        assert all([(await each).applied for each in created])
        versions = [version for _, version in done]
        assert versions == sorted(set(versions))
        found = await store.get("steps")
        assert (found.value, found.version) == done[-1]


async def test_a_host_that_stands_still_answers_afterwards(broker: ForeignBroker, host: HostedStoreProcess) -> None:
    """Requests wait in the broker while the host stands still."""
    async with AsyncStateStoreClient(broker.url) as store:
        await store.set("k", b"1")
        assert host.process is not None
        host.process.send_signal(signal.SIGSTOP)
        waiting = [asyncio.ensure_future(store.set("k", b"%d" % n, timeout=30)) for n in range(50)]
        await asyncio.sleep(1.0)  # the fault itself: the host stands still for as long
        assert not any(each.done() for each in waiting)
        host.process.send_signal(signal.SIGCONT)
        assert all([(await each).applied for each in waiting])


async def test_the_broker_is_started_again(broker: ForeignBroker, host: HostedStoreProcess) -> None:
    """The host connects again, says so to probes, and the store has what it had."""
    async with AsyncStateStoreClient(broker.url, max_reconnect_delay=0.5) as store:
        await store.set("k", b"1")
        assert (await host.page("/ready"))[0] == 200, await host.end()
        await broker.end(signal.SIGKILL)

        while (await host.page("/ready"))[0] != 503:
            pass
        await broker.start()
        await store.set("k2", b"2", timeout=60)
        assert (await store.get("k")).value == b"1"
        status, text = await host.page("/metrics")
        assert status == 200
        assert "statestore_host_connected 1" in text
        assert "statestore_host_losses_total 1" in text


async def test_a_second_host_with_the_same_id_shows(broker: ForeignBroker, host: HostedStoreProcess) -> None:
    """One of two hosts with one client id ends, with an error that says why."""
    second = HostedStoreProcess(broker.url)
    await second.start(awaits=False)
    code, text = await second.ended()
    assert code != 0
    assert "a state store" in text
    assert "answers" in text
    assert host.process is not None
    assert host.process.returncode is None


async def test_a_request_without_a_client_id_is_answered_and_observes_nothing(
    broker: ForeignBroker, host: HostedStoreProcess
) -> None:
    """A KEYNOTIFY whose response topic does not say whose it is gets an error that tells what is missing."""
    del host
    process = await asyncio.create_subprocess_exec(
        "mosquitto_rr", "-p", str(broker.port), "-V", "5", "-q", "1", "-W", "10",
        "-t", "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke", "-e", "answers",
        "-D", "publish", "correlation-data", "c1", "-m", "*2\r\n$9\r\nKEYNOTIFY\r\n$1\r\nk\r\n",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    text, _ = await asyncio.wait_for(process.communicate(), 30)
    assert text.startswith(b"-ERR")
    assert b"clients/ID/" in text
