"""The monitor of a store that is hosted on a broker: it shows that one's client."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console
from support.hosted_stores import BrokerWithoutStore

from statestore_client import AsyncStateStoreClient
from statestore_client.cli.monitor import MonitorAddress, open_feed
from statestore_client.cli.top import MonitorSummary, rendered
from statestore_client.server.runtime.host.hosted_store import HostedStore
from statestore_client.server.runtime.host.settings import HostSettings
from statestore_client.server.runtime.settings import Endpoints, ServerSettings
from statestore_client.settings import ConnectionSettings


@pytest.fixture
async def broker() -> AsyncIterator[BrokerWithoutStore]:
    server = BrokerWithoutStore(ServerSettings(endpoints=Endpoints(port=0)))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def host(broker: BrokerWithoutStore) -> AsyncIterator[HostedStore]:
    """One that is connected."""
    connection = ConnectionSettings.from_url(broker.urls[0])
    store = HostedStore(HostSettings(connection=connection, metrics_port=0, monitor_port=0))
    await store.start()
    await store.wait_until_ready()
    yield store
    await store.stop()


def _look(url: str, is_seen: Callable[[dict[str, Any]], bool]) -> MonitorSummary:
    """What ``statestore top`` knows as soon as it sees this."""
    summary = MonitorSummary()
    with open_feed(MonitorAddress("127.0.0.1", int(url.rpartition(":")[2]), is_tls=False)) as messages:
        for message in messages:
            summary.take(*message)
            if is_seen(summary.encoded()):
                return summary
    raise AssertionError("the monitor has ended")


def _page(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=20)) as connection:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        return response.status, response.read()


async def test_the_monitor_shows_the_client_of_a_broker(broker: BrokerWithoutStore, host: HostedStore) -> None:
    """Its address, whether it is connected, how far it is behind, and what is in flight; keys and locks as of a server.
    What only the broker knows is null. When the broker is away, ``/ready`` and the monitor say so.
    """
    url, address = host.monitor_url, broker.urls[0]
    assert url is not None
    assert host.metrics_url is not None
    async with AsyncStateStoreClient(address, client_id="pump-7") as client, client.watch("jobs/1"):
        await client.set("jobs/1", b"pump-7", condition="NX", expiry=60)
        found = await asyncio.to_thread(
            _look, url, lambda found: found["broker"]["state"] == "connected" and found["locks"]
        )
        assert found.encoded()["broker"] == {
            "address": address,
            "state": "connected",
            "lag_s": 0.0,
            "in_flight": 0,
            "open_requests": 0,
            "waiting_requests": 0,
        }
        assert [lock["holder"] for lock in found.encoded()["locks"]] == ["pump-7"]
        watches, sessions, retained = [
            json.loads((await asyncio.to_thread(_page, f"{url}/{path}"))[1])
            for path in ("watches", "sessions", "retained")
        ]
        watch = {"client": "pump-7", "keys": ["jobs/1"], "count": 1, "queued": None, "in_flight": None}
        assert watches["watches"] == [watch]
        assert sessions["sessions"] is retained["messages"] is None
    console = Console(width=120)
    with console.capture() as capture:
        console.print(rendered(found))
    assert "client of that broker: connected, 0 ms behind" in capture.get()
    assert "open requests 0  in flight 0" in capture.get()
    await broker.stop()
    await asyncio.to_thread(_look, url, lambda found: found["broker"]["state"] == "away")
    ready = host.metrics_url.replace("/metrics", "/ready")
    assert await asyncio.to_thread(_page, ready) == (503, b"the broker is away\n")
