"""The driver of the broker: a defect that shows on one connection, and clients that are served in one moment."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from statestore_client.mqtt.packets import Connect, Pingreq, Publish, Subscribe, Subscription
from statestore_client.server.broker import Broker, Connection
from statestore_client.server.runtime.broker_driver import BrokerDriver
from statestore_client.server.runtime.fairness import SLICE_S, ConcurrencyProbe
from statestore_client.wire.instant import Instant


class Peer:
    """A link to a socket that takes everything, unless it ``is_broken``; ``writes`` is how often it was written to."""

    def __init__(self, driver: BrokerDriver, name: str) -> None:
        self.connection: Connection = driver.opened(self, name)
        self.is_broken = self.is_aborted = self.is_resumed = False
        self.writes = 0
        driver.received(self.connection, (Connect(name),))

    def _fail(self) -> None:
        if self.is_broken:
            raise RuntimeError("a defect")

    def flush(self) -> None:
        self._fail()
        if self.connection.outbox:
            self.connection.take()
            self.writes += 1

    def resume_reading(self) -> None:
        self._fail()
        self.is_resumed = True

    def read_now(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture
async def peers() -> list[Peer]:
    """Five of them, in the order in which they are written to. The middle one is broken."""
    driver = BrokerDriver(Broker(random=random.Random(1)), lambda: Instant(10.0, 1), asyncio.get_running_loop())
    peers = [Peer(driver, f"peer-{number}") for number in range(5)]
    for peer in peers:
        driver.received(peer.connection, (Subscribe(1, (Subscription("t", 0),)),))
    await asyncio.sleep(0)
    for peer in peers:
        peer.writes = 0
    peers[2].is_broken = True
    driver.received(peers[0].connection, (Publish("t", b"x"),))
    await asyncio.sleep(0)
    driver._resume_all()
    return peers


async def test_who_cannot_be_written_to_holds_up_nobody(peers: list[Peer], caplog: pytest.LogCaptureFixture) -> None:
    """If writing to a connection fails, it ends and is logged, and those behind it are still written to."""
    assert [bool(peer.writes) for peer in peers] == [True, True, False, True, True]
    assert [peer.is_aborted for peer in peers] == [False, False, True, False, False]
    logged = caplog.get_records("setup")[0]
    assert logged.levelno == logging.ERROR
    assert "failed" in logged.getMessage()


async def test_who_cannot_be_written_to_later_holds_up_nobody() -> None:
    """What waited until it was durable is written as well: a connection that cannot be ends, and the others get it."""
    driver = BrokerDriver(Broker(random=random.Random(1)), lambda: Instant(10.0, 1), asyncio.get_running_loop())
    peers = [Peer(driver, f"peer-{number}") for number in range(3)]
    peers[1].is_broken = True
    for peer in peers:
        driver._send(peer.connection)
    assert [peer.is_aborted for peer in peers] == [False, True, False]


async def test_who_cannot_be_read_on_holds_up_nobody(peers: list[Peer]) -> None:
    """If resuming one connection fails, the others that were held are read again all the same."""
    assert [peer.is_resumed for peer in peers] == [True, True, False, True, True]


# -- several clients that are served in the same moment share the writes that they cause -------------------------------


class World:
    """A driver with a clock that is set by hand."""

    def __init__(self, peers: int) -> None:
        self.monotonic = 10.0
        broker = Broker(random=random.Random(1))
        self.driver = BrokerDriver(broker, lambda: Instant(self.monotonic, 1), asyncio.get_running_loop())
        self.peers = [Peer(self.driver, f"peer-{number}") for number in range(peers)]
        self.monotonic += 1

    def ping(self) -> list[int]:
        """Every peer sends something; how often each of them was written to so far."""
        for peer in self.peers:
            self.driver.received(peer.connection, (Pingreq(),))
        return [peer.writes for peer in self.peers]


def _moments(served: list[list[str]]) -> list[bool]:
    """Whether the last one served in each moment of a millisecond was in a crowd."""
    crowd = ConcurrencyProbe()
    return [
        [crowd.is_high(ord(client), 0.001 * number) for client in some][-1] for number, some in enumerate(served, 1)
    ]


def test_a_crowd_is_noticed_a_moment_later() -> None:
    """Four different clients within a millisecond make the next one crowded, and three do not."""
    assert _moments([[*"abcd"], ["a"], ["a"]]) == [False, True, False]
    assert _moments([[*"abc"], ["a"]]) == [False, False]
    assert _moments([[*"aaaabbbb"], ["a"]]) == [False, False]


@pytest.mark.parametrize("peers", [1, 3])
async def test_a_few_clients_are_answered_at_once(peers: int) -> None:
    """A few clients are answered at once."""
    world = World(peers)
    first = world.ping()
    world.monotonic += 0.001
    assert world.ping() == [count + 1 for count in first]


async def test_a_crowd_is_answered_in_the_same_round() -> None:
    """In a crowd everybody is written to once, after all that were ready have been served."""
    world = World(5)
    before = world.ping()
    world.monotonic += 0.001
    assert world.ping() == before
    assert world.ping() == before
    await asyncio.sleep(0)
    assert [peer.writes for peer in world.peers] == [count + 1 for count in before]


async def test_no_longer_than_a_turn() -> None:
    """In a long round the first clients do not wait for the last ones."""
    world = World(5)
    before = world.ping()
    world.monotonic += 0.001
    assert world.ping() == before
    world.monotonic += SLICE_S
    for peer in world.peers[:4]:  # a crowd of four in this moment, found out in the one before
        world.driver.received(peer.connection, (Pingreq(),))
    assert world.peers[4].writes == before[4] + 1
