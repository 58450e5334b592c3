"""A defect that shows on one connection: the others must not suffer from it."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from statestore_client.mqtt.packets import Connect, Publish, Subscribe, Subscription
from statestore_client.server.broker import Broker, Connection
from statestore_client.server.runtime.broker_driver import BrokerDriver
from statestore_client.wire.instant import Instant


class Peer:
    """A link to a socket that takes everything, unless it ``is_broken``."""

    def __init__(self, driver: BrokerDriver, name: str) -> None:
        self.connection: Connection = driver.opened(self, name)
        self.is_broken = self.is_aborted = self.is_resumed = False
        self.written = 0
        driver.received(self.connection, (Connect(name),))

    def _fail(self) -> None:
        if self.is_broken:
            raise RuntimeError("a defect")

    def flush(self) -> None:
        self._fail()
        self.written += len(self.connection.take()) if self.connection.outbox else 0

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
        peer.written = 0
    peers[2].is_broken = True
    driver.received(peers[0].connection, (Publish("t", b"x"),))
    await asyncio.sleep(0)
    driver._resume_all()
    return peers


async def test_who_cannot_be_written_to_holds_up_nobody(peers: list[Peer], caplog: pytest.LogCaptureFixture) -> None:
    """If writing to a connection fails, it ends and is logged, and those behind it are still written to."""
    assert [bool(peer.written) for peer in peers] == [True, True, False, True, True]
    assert [peer.is_aborted for peer in peers] == [False, False, True, False, False]
    logged = caplog.get_records("setup")[0]
    assert logged.levelno == logging.ERROR
    assert "failed" in logged.getMessage()


async def test_who_cannot_be_read_on_holds_up_nobody(peers: list[Peer]) -> None:
    """If resuming one connection fails, the others that were held are read again all the same."""
    assert [peer.is_resumed for peer in peers] == [True, True, False, True, True]
