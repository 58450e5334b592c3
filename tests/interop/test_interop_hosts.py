"""Three hosts of one store, which share a log, on a foreign broker: the one that is active is killed, stopped,
stands still or is cut off under load, and the next one goes on with its session, and with the watches.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from foreign_brokers import HIVEMQ, skip_without
from paho.mqtt.packettypes import PacketTypes
from support.hosted_stores import BrokerWithoutStore, ForeignBroker, HostedStoreProcess, SharedStore
from support.schedules import scaled
from support.server_clients import Paho
from support.waiting import until

from raft_client._common import exits
from statestore_client import AsyncStateStoreClient
from statestore_client.server.runtime.settings import Endpoints, ServerSettings
from statestore_client.wire.commands import KeyNotify
from statestore_client.wire.protocol import COMMAND_TOPIC, notification_topic, response_topic
from statestore_client.wire.replies import decode_notification

pytestmark = [pytest.mark.ci, pytest.mark.interop, pytest.mark.timeout(300)]

#: What befalls the active host, one after the other.
_FATES = ("kill", "stop", "pause", "cut off") * scaled(1, 10)
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGTERM, "pause": signal.SIGSTOP}
_WAIT_S = 60.0  # for an answer
_AT_ONCE = 20


@asynccontextmanager
async def mosquitto(require_tool: Callable[[str], str], folder: Path) -> AsyncIterator[str]:
    """Its URL."""
    broker = ForeignBroker(require_tool("mosquitto"), folder)
    await broker.start()
    yield broker.url
    await broker.end()


@asynccontextmanager
async def our_own(_require_tool: object, _folder: Path) -> AsyncIterator[str]:
    """Without its store."""
    server = BrokerWithoutStore(ServerSettings(endpoints=Endpoints(port=0)))
    await server.start()
    yield server.urls[0]
    await server.stop()


@asynccontextmanager
async def hivemq(_require_tool: object, folder: Path) -> AsyncIterator[str]:
    """HiveMQ CE. (mochi-mqtt loses requests that are under way when their subscriber is killed.)"""
    skip_without(HIVEMQ)
    with HIVEMQ.running(folder) as url:
        yield url


@pytest.fixture(params=[mosquitto, our_own, hivemq], ids=lambda make: make.__name__)
async def shared(
    request: pytest.FixtureRequest, require_tool: Callable[[str], str], tmp_path: Path
) -> AsyncIterator[SharedStore]:
    """Three hosts that run."""
    async with request.param(require_tool, tmp_path) as url:
        shared = SharedStore(url, tmp_path)
        try:
            await shared.open()
            yield shared
        finally:
            await shared.close()


class _Audit:
    """One client counts up a key, each step from the one before; the other one creates keys, many at a time."""

    def __init__(self, counting: AsyncStateStoreClient, creating: AsyncStateStoreClient) -> None:
        self._counting, self._creating = counting, creating
        self._steps: list[tuple[bytes, object]] = []
        self._created = 0

    async def count(self) -> None:
        while True:
            value = b"%d" % len(self._steps)
            self._steps.append((value, (await self._counting.set("steps", value, timeout=_WAIT_S)).version))

    async def create(self) -> None:
        """Each once: one that was carried out twice would find its key there."""
        while True:
            names = [f"once/{self._created + number}" for number in range(_AT_ONCE)]
            sets = [self._creating.set(name, b"x", condition="NX", timeout=_WAIT_S) for name in names]
            assert all(result.applied for result in await asyncio.gather(*sets))
            self._created += _AT_ONCE

    async def both_go_on(self) -> None:
        """Until what was asked from now on is answered to both."""
        steps, created = len(self._steps), self._created
        await until(lambda: len(self._steps) > steps + 1 and self._created > created + _AT_ONCE)

    async def check(self) -> bytes:
        """What was acknowledged is there, once. Nobody writes. Returns the last step."""
        versions = [version for _, version in self._steps]
        assert versions == sorted(set(versions))
        found = await self._counting.get("steps", timeout=_WAIT_S)
        assert (found.value, found.version) >= self._steps[-1]
        names = [f"once/{number}" for number in range(self._created)]
        assert [each.value for each in await self._creating.get_many(names, timeout=_WAIT_S)] == [b"x"] * len(names)
        return found.value


class _Observers:
    """Two who observe a key: a client of ours, and one who has asked for it once and never does again."""

    def __init__(self, client: AsyncStateStoreClient, key: str, port: int) -> None:
        self._client, self._key = client, key
        self.port = port  # of the broker
        self.seen: list[bytes | None] = []
        self.heard: list[bytes | None] = []
        self._has_begun = asyncio.Event()

    async def watch(self) -> None:
        async with self._client.watch(self._key) as watch:
            self._has_begun.set()
            async for event in watch:
                assert not event.missed
                self.seen.append(event.value)

    async def begin(self) -> Paho:
        """Returns the other one when both observe."""
        await self._has_begun.wait()
        other = await asyncio.to_thread(self._ask_once)
        other.client.on_message = lambda _c, _u, message: self.heard.append(decode_notification(message.payload).value)
        return other

    def _ask_once(self) -> Paho:
        other = Paho(self, "once")
        key = self._key.encode()
        other.subscribe(response_topic("once"), qos=1)
        other.subscribe(notification_topic("once", key), qos=1)
        properties = paho.Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic, properties.CorrelationData = response_topic("once"), b"1"
        other.publish(COMMAND_TOPIC, KeyNotify(key).encode(), 1, properties=properties)
        assert other.message().payload == b"+OK\r\n"
        return other

    async def check(self, last: bytes) -> None:
        """Both have heard of each step up to the last one, in order; a host that goes on may tell one again."""
        await until(lambda: last in self.seen and last in self.heard)
        steps = [b"%d" % number for number in range(len(self.seen))]
        assert self.seen == steps
        assert [*dict.fromkeys(self.heard)] == steps


async def _strike(shared: SharedStore, fate: str) -> None:
    """Returns when another host is active, and the one that was stands by again."""
    former = await shared.active()
    if fate == "cut off":  # from the broker, and not from the others
        await former.line.refuse()
        former.line.cut()
    else:
        former.send(_SIGNALS[fate])
    shared.paused.add(former)  # nobody asks it: it may not know yet
    assert await shared.active() is not former
    shared.paused.discard(former)
    if fate == "cut off":
        await former.line.accept()
    elif fate == "pause":
        former.send(signal.SIGCONT)
    else:
        code, text = await former.ended()
        assert code == (exits.DONE if fate == "stop" else -signal.SIGKILL), text
        await former.start()


async def _check_alone(url: str) -> None:
    """A host without their log finds that a store answers. They know each other."""
    alone = HostedStoreProcess(url)
    await alone.start(awaits=False)
    code, text = await alone.ended()
    assert code != exits.DONE
    assert "a state store answers already" in text


@pytest.mark.turns(3)
async def test_the_next_host_goes_on(shared: SharedStore) -> None:
    """What was acknowledged is not lost, and nothing is carried out twice; the clients see no error."""
    url = shared.url
    async with AsyncStateStoreClient(url) as counting, AsyncStateStoreClient(url) as creating:
        audit = _Audit(counting, creating)
        observers = _Observers(creating, "steps", int(url.rpartition(":")[2]))
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(observers.watch())
            once = await observers.begin()
            running = tasks.create_task(audit.count()), tasks.create_task(audit.create())
            for fate in _FATES:
                await _strike(shared, fate)
                await audit.both_go_on()
            for each in running:
                each.cancel()
            await observers.check(await audit.check())
            watching.cancel()
        await asyncio.to_thread(once.close)
    active = await shared.active()
    _, text = await active.page("/metrics")
    assert 'statestore_log_role{role="active"} 1' in text
    assert "statestore_host_connected 1" in text
    for host in shared.hosts:
        if host is not active:
            status, text = await host.page("/ready")
            assert status == 503
            assert "stands by" in text
    await _check_alone(url)
