"""What servers of a log say of themselves in the morning, and while nobody can be active: lines, probes, refusals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from replicated_servers import replication, servers, value_of
from support.waiting import until

from statestore_client import StateStoreError
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import Endpoints

#: CONNECT, clean start, client id "c": of MQTT 5.0 with request problem information, of MQTT 5.0 that takes no packet
#: larger than 20 bytes, and of MQTT 3.1.1.
CONNECT_5 = bytes.fromhex("10 10 0004 4d515454 05 02 003c 02 17 01 0001 63")
CONNECT_5_SMALL = bytes.fromhex("10 15 0004 4d515454 05 02 003c 07 17 01 27 00000014 0001 63")
CONNECT_3_1_1 = bytes.fromhex("10 0d 0004 4d515454 04 02 003c 0001 63")
UPGRADE = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n"

WHY = b"the replicated log has no leader, so no server is active"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Those of the cluster that contain a text."""
    caplog.set_level(logging.INFO, "statestore_client.server.cluster")
    name = "statestore_client.server.cluster"
    return lambda text: [each.message for each in caplog.records if each.name == name and text in each.message]


async def _said(port: int, data: bytes) -> bytes:
    """The whole answer to this, once the server has closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data[:5])
    await writer.drain()
    await asyncio.sleep(0)
    writer.write(data[5:])
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


async def _probe(server: Server, path: str) -> str:
    answer = await _said(server.endpoints.metrics_port or 0, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    return f"{head.split()[1]} {body.strip()}"


async def test_servers_say_that_the_log_has_no_leader(lines: Callable[[str], list[str]]) -> None:
    """In their logs, to probes, and to clients that come: at once, whether the server was active or stood by."""
    async with servers("a", "b", endpoints=Endpoints(port=0, ws_port=0, metrics_port=0)) as pair:
        active, standby = await pair.active(), await pair.standby()
        await pair.cluster.kill("1")
        await until(lambda: len(lines("the replicated log has no leader")) == 2, "both servers have said so")
        assert await _probe(active, "/ready") == "503 the replicated log has no leader"
        assert await _probe(active, "/health") == "200 the replicated log has no leader"
        assert await _probe(standby, "/ready") == "503 stands by: the replicated log has no leader"
        for server in (active, standby):
            ports = server.endpoints
            # CONNACK: no session, 0x88 server unavailable, and the reason string (property 0x1F).
            assert await _said(ports.port, CONNECT_5) == b"\x20\x3e\x00\x88\x3b\x1f\x00\x38" + WHY
            assert await _said(ports.port, CONNECT_5_SMALL) == b"\x20\x03\x00\x88\x00"
            assert await _said(ports.port, CONNECT_3_1_1) == b"\x20\x02\x00\x03"
            assert await _said(ports.ws_port or 0, UPGRADE) == (
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 57\r\nConnection: close\r\n\r\n" + WHY + b"\n"
            )
            assert await _said(ports.port, b"GET / HTTP/1.1\r\n\r\n") == b""
        with pytest.raises(StateStoreError, match="the replicated log has no leader"):
            await pair.client(standby, connect_timeout=2.0).open()
        await pair.cluster.restart("1")
        await until(lambda: len(lines("the replicated log has a leader again")) == 2, "both have said that, too")
        async with pair.client(standby) as client:
            await client.set("k", "1")
            assert await value_of(client) == b"1"
        assert await _probe(await pair.active(), "/ready") == "200 ready"


async def test_the_log_of_a_night_tells_who_was_active_and_why(lines: Callable[[str], list[str]]) -> None:
    """A new log, a hand-over, a server whose process ends, one that is told to take over."""
    async with servers("a") as pair:
        first = await pair.active()
        assert "promoted epoch=1" in lines("promoted")[0]
        assert "reason='the log is new'" in lines("promoted")[0]
        second = await pair.start("b")
        await until(lambda: lines("a standby listens id='b'"))
        assert await replication(first).hand_over()
        await until(lambda: replication(second).role is Role.ACTIVE)
        await until(lambda: lines("active server epoch=2 id='b'"))
        assert "former='' nobody_active_s=" in lines("promoted epoch=2")[0]
        assert "reason='the former one has handed over'" in lines("promoted epoch=2")[0]
        await until(lambda: replication(first).is_ready)
        assert replication(first).promote()
        await until(lambda: replication(first).role is Role.ACTIVE)
        assert "former='b'" in lines("promoted epoch=3")[0]
        assert "reason='this server was told to take over'" in lines("promoted epoch=3")[0]
        await until(lambda: lines("a standby listens id='b'")[1:], "the former one stands by")
        await second.stop()
        await until(lambda: lines("a standby is gone id='b' others=0"))
