"""Figures and the monitor of a server with 100,000 keys and 50,000 sessions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from support.waiting import eventually

from statestore_client.mqtt.packets import Connect, ConnectProperties, Disconnect
from statestore_client.server import BrokerLimits, EmbeddedServer
from statestore_client.server.store import RequestContext
from statestore_client.server.testing.controls import ControlledServer
from statestore_client.wire.commands import KeyNotify, Set
from statestore_client.wire.hlc import HlcTimestamp

pytestmark = pytest.mark.ci  # to fill the server takes most of a minute on a busy machine
KEYS = 100_000
SESSIONS = 50_000
MOST_BYTES = 1_000_000
MOST_S = 0.1


PARTS = 20


def fill(server: ControlledServer, part: int) -> None:
    """In the thread of the server, without sockets; a part at a time, because a call has a time-out."""
    now, store, broker = server._clock(), server._store, server.broker
    for number in range(part, KEYS, PARTS):
        context = RequestContext(f"c{number % SESSIONS}", HlcTimestamp(now.wall_ms, number, "c"), None, now)
        store.apply(Set(b"plant/%d/value" % number, b"21.5"), context)
        if not number % 10:
            store.apply(KeyNotify(b"plant/%d/value" % number), context)
    lasting = ConnectProperties(session_expiry=3_600)
    for number in range(part, SESSIONS, PARTS):
        connection = broker.connection_opened(now)
        packets = (Connect(client_id=f"c{number}", clean_start=True, keep_alive=60, properties=lasting), Disconnect())
        broker.receive(connection, packets, now)
        broker.connection_lost(connection, now)
    broker.take_dirty()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    limits = BrokerLimits(sessions=SESSIONS)
    with EmbeddedServer(metrics_port=0, monitor_port=0, record_messages=0, broker_limits=limits) as running:
        controlled = running._running()
        for part in range(PARTS):
            controlled.call(lambda part=part: fill(controlled, part))
        yield running


def cpu_s(server: EmbeddedServer, action: Callable[[], object]) -> float:
    """Of the server's thread, the least of five: other programs do not count."""

    def measured() -> float:
        began = time.thread_time()
        action()
        return time.thread_time() - began

    return min(server._running().call(measured) for _ in range(5))


def test_the_page_for_prometheus_does_not_grow_with_what_the_server_holds(server: EmbeddedServer) -> None:
    """It has the figures of all of it, is far smaller than 1 MB, and is made in less than 100 ms."""
    with urlopen(server.urls["http"]) as answer:  # noqa: S310 - of this test's own server
        page = answer.read()
    assert b"\nstatestore_store_keys 100000\n" in page
    assert b"\nstatestore_sessions 50000\n" in page
    assert len(page) < MOST_BYTES
    monitor = server._running()._monitor
    assert monitor is not None
    assert monitor._monitor is not None
    assert cpu_s(server, monitor._monitor._render) < MOST_S


def test_ten_viewers_cost_less_than_a_fiftieth_of_a_processor(server: EmbeddedServer) -> None:
    """To tell ten viewers what is new, once a second, takes less than 20 ms of the server's thread."""
    service = server._running()._monitor
    assert service is not None
    monitor = service._monitor
    assert monitor is not None
    with ExitStack() as viewers:
        for _ in range(10):
            connection = HTTPConnection(urlsplit(server.monitor_url).netloc, timeout=20)
            viewers.callback(connection.close)
            connection.request("GET", "/events")
            assert viewers.enter_context(connection.getresponse()).status == 200
        eventually(lambda: service.viewers == 10, "all of them look")
        assert cpu_s(server, lambda: monitor._send(0.0)) < 0.02


def test_a_tick_and_each_page_of_the_monitor_take_a_moment(server: EmbeddedServer) -> None:
    """What the monitor does each second, and each question that it is asked, take less than 100 ms and 1 MB."""
    monitor = server._running()._monitor
    assert monitor is not None
    assert monitor._monitor is not None
    assert monitor._pages is not None
    tick = monitor._monitor
    assert cpu_s(server, lambda: tick._news(0.0)) < MOST_S
    assert cpu_s(server, tick._hello) < MOST_S
    questions = monitor._pages._questions
    from statestore_client.server.runtime.monitor.access import Viewer

    for path in ("/keys", "/sessions", "/watches", "/retained"):
        for query in ({}, {"prefix": "plant/9", "at": "", "filter": "plant/#", "skip": "9000"}):
            assert cpu_s(server, lambda path=path, query=query: questions[path](query, Viewer())) < MOST_S, path
            assert len(json.dumps(questions[path](query, Viewer()))) < MOST_BYTES
