"""The page for Prometheus, and peers of it that are not Prometheus; the log as JSON lines."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from support.server_clients import Wire
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.clocks import wall_ns
from statestore_client.mqtt.packets import (
    Connack,
    ConnectProperties,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from statestore_client.server import BrokerLimits, EmbeddedServer
from statestore_client.server.runtime.observability.logs import JsonLines, log_event
from statestore_client.wire.protocol import COMMAND_TOPIC

#: A line of the text format, as Prometheus documents it.
_SAMPLE = re.compile(r'([a-z0-9_]+)(\{[a-z]+="[^"]*"(?:,[a-z]+="[^"]*")*\})? (-?[0-9.e+-]+)')


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(metrics_port=0) as running:
        yield running
        with Wire(running) as probe:  # whatever happened, the server still serves
            probe.connect("probe")
            probe.send(Pingreq())
            assert isinstance(probe.receive(), Pingresp)


def port(server: EmbeddedServer) -> int:
    found = server._running().endpoints.metrics_port
    assert found is not None
    return found


def scrape(server: EmbeddedServer) -> dict[str, float]:
    """All samples; every metric has a HELP and a TYPE line before it."""
    head, _, body = ask(server, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").partition(b"\r\n\r\n")
    assert b"HTTP/1.1 200 OK" in head
    assert b"Content-Type: text/plain; version=0.0.4" in head
    assert b"Content-Length: %d" % len(body) in head
    lines = body.decode().splitlines()
    samples, known = {}, set()
    for line in lines:
        if line.startswith("# "):
            known.add(line.split()[2])
            continue
        match = _SAMPLE.fullmatch(line)
        assert match is not None, line
        assert match[1] in known
        samples[match[1] + (match[2] or "")] = float(match[3])
    return samples


def ask(server: EmbeddedServer, request: bytes) -> bytes:
    """The whole answer to a raw request."""
    with socket.create_connection(("127.0.0.1", port(server)), 10) as sock:
        sock.sendall(request)
        parts = []
        while data := sock.recv(65536):
            parts.append(data)
        return b"".join(parts)


def test_the_figures(server: EmbeddedServer) -> None:
    """The page has the figures of the broker and of the state store."""
    with StateStoreClient(server.url) as store, Wire(server) as wire:
        wire.connect("c")
        store.set("k", b"v")
        store.get("k")
        # an answer is as good as new for a moment
        eventually(lambda: scrape(server).get("statestore_sent_messages_total") == 2, "it has all figures")
        samples = scrape(server)
        assert samples["statestore_clients"] == samples["statestore_sockets"] == 2
        assert samples["statestore_connects_total"] == 2
        assert samples["statestore_store_keys"] == 1
        assert samples['statestore_store_requests_total{command="set"}'] == 1
        assert samples["statestore_received_bytes_total"] > 100
        assert samples["statestore_uptime_seconds"] > 0
        assert samples["process_resident_memory_bytes"] > 1_000_000
        wire.send(b"\xc1\x00")
        wire.rest()
    eventually(lambda: 'statestore_disconnects_total{code="0x81",by="server"}' in scrape(server), "it is counted")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /metrics?x=1 HTTP/1.0\n\n", 200),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", 405),
        (b"\r\n\r\n", 400),
        (b"\x00" * 20 + b"\r\n\r\n", 400),
        (b"x" * 9000, 431),
    ],
)
def test_other_requests(server: EmbeddedServer, request_: bytes, status: int) -> None:
    """Each other request gets one answer, and its connection ends."""
    answer = ask(server, request_)
    assert answer.split()[1] == b"%d" % status
    if request_.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.attack("HTTP", "connections that say nothing")
def test_hostile_readers(server: EmbeddedServer) -> None:
    """Silent connections are limited to sixteen, for a while; Prometheus and the broker are not affected."""
    socks = [socket.create_connection(("127.0.0.1", port(server)), 10) for _ in range(40)]
    try:
        with Wire(server) as wire:
            wire.connect("c")
            for sock in socks[:24]:
                assert _is_closed(sock)
            assert _answers(server)
            wire.send(Pingreq())
            assert isinstance(wire.receive(), Pingresp)
        for sock in socks:
            sock.close()
        eventually(lambda: _answers(server), "there is room again")
    finally:
        for sock in socks:
            sock.close()


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(10) == b""
    except ConnectionResetError:
        return True


def _answers(server: EmbeddedServer) -> bool:
    try:
        return bool(scrape(server))
    except (AssertionError, OSError):
        return False


def test_connections_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The log has which clients came, left and why, and which were refused, with the client id that they asked for."""
    caplog.set_level(logging.INFO, "statestore_client.server")
    with (
        EmbeddedServer(broker_limits=BrokerLimits(connections=1)) as server,
        Wire(server) as first,
        Wire(server) as second,
        Wire(server) as stranger,
    ):
        stranger.send(b"\x10\x00garbage")
        stranger.rest()
        eventually(lambda: "disconnected" in caplog.text, "the stranger is gone")
        first.connect("first", username="ann", password=b"secret")
        second.connect("second")
        second.rest()
        second.sock.close()
        eventually(lambda: "refused" in caplog.text, "it is gone")
        first.send(b"\xc1\x00")
        first.rest()
    events = [(record.event, record.fields) for record in caplog.records if hasattr(record, "fields")]
    by_name = {name: fields for name, fields in events if isinstance(fields, dict)}
    assert [name for name, _ in events] == [
        "listening",
        "disconnected",
        "connected",
        "refused",
        "disconnected",
        "stopped",
    ]
    assert by_name["connected"]["client"] == "first"
    assert (by_name["refused"]["client"], by_name["refused"]["code"]) == ("second", "0x89")
    gone = by_name["disconnected"]
    assert (gone["client"], gone["code"], gone["by"]) == ("first", "0x81", "server")
    assert 0 <= gone["after_s"] < 60
    assert "secret" not in caplog.text


@pytest.mark.parametrize(("version", "qos", "code"), [(5, 1, 0x83), (5, 2, 0x83), (5, 0, None), (4, 1, 0), (4, 2, 0)])
def test_a_request_without_a_response_topic_is_told(
    caplog: pytest.LogCaptureFixture, version: int, qos: int, code: int | None
) -> None:
    """A request with nowhere to answer is acknowledged with 0x83 where the version has reasons, counted, and a line of
    the log: one for each client and minute, which says how many there were before.
    """
    caplog.set_level(logging.INFO, "statestore_client.server")
    with EmbeddedServer(metrics_port=0) as server:
        for name in ("one", "two"):
            with Wire(server, version=version) as wire:
                wire.connect(name)
                for _ in range(3):
                    wire.send(Publish(COMMAND_TOPIC, b"", qos, packet_id=1 if qos else 0))
                    if code is not None:
                        answer = wire.receive()
                        assert isinstance(answer, (Puback, Pubrec))
                        assert answer.reason_code == code
                    if qos == 2 and not code:
                        wire.send(Pubrel(1))
                        assert isinstance(wire.receive(), Pubcomp)
                wire.send(Pingreq())
                assert isinstance(wire.receive(), Pingresp)
        dropped = 'statestore_store_dropped_total{reason="no_response_topic"}'
        eventually(lambda: scrape(server).get(dropped) == 6, "each is counted")
    lines = [record.fields for record in caplog.records if getattr(record, "event", "") == "request dropped"]
    assert [(line["client"], "response topic" in line["reason"]) for line in lines] == [("one", True), ("two", True)]
    assert all(record.levelno == logging.INFO for record in caplog.records)


def test_a_client_whose_clock_is_ahead_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A line of the log for each client and minute, and how far it was is on the page."""
    set_ = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
    with EmbeddedServer(metrics_port=0) as server, Wire(server) as wire:
        wire.connect("pump-7")
        for ahead_s in (30, 60):
            stamp = f"{wall_ns() // 10**6 + ahead_s * 1000}:0:pump-7"
            properties = PublishProperties(
                response_topic="answers", correlation_data=stamp.encode(), user_properties=(("__ts", stamp),)
            )
            wire.send(Publish(COMMAND_TOPIC, set_, 1, packet_id=1, properties=properties))
            assert isinstance(wire.receive(), Puback)
        ahead = scrape(server)["statestore_store_client_clock_ahead_seconds"]
    lines = [record.fields for record in caplog.records if getattr(record, "event", "") == "a client's clock is ahead"]
    assert [line["client"] for line in lines] == ["pump-7"]
    assert 15 < lines[0]["ahead_s"] < 31
    assert 45 < ahead < 61


def test_all_counters_of_the_store_are_on_the_page(server: EmbeddedServer) -> None:
    """Whatever the state store counts is on the page for Prometheus."""
    properties = PublishProperties(
        response_topic="answers", correlation_data=b"c", user_properties=(("__ts", "1:0:c"),)
    )
    set_key = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
    with StateStoreClient(server.url) as store, store.watch("k"), Wire(server) as wire:
        wire.connect("c")
        for payload, qos, changed in (
            (set_key, 1, properties),
            (set_key, 1, properties),
            (b"nonsense", 1, properties),
            (set_key, 0, properties),
            (set_key, 1, attrs.evolve(properties, response_topic=None)),
            (set_key, 1, attrs.evolve(properties, message_expiry=0)),
            (set_key, 1, attrs.evolve(properties, response_topic=COMMAND_TOPIC)),
        ):
            wire.send(Publish(COMMAND_TOPIC, payload, qos, packet_id=qos, properties=changed))
        wire.rest()
        counters = server._running()._service.counters
        groups = {name.partition(".")[0] for name in counters}
        assert groups >= {"requests", "refusals", "notifications", "dropped", "bad_requests", "kicked", "redelivered"}

        def is_complete() -> bool:
            found = scrape(server)
            return all(
                sum(count for name, count in found.items() if name.startswith(f"statestore_store_{group}_total"))
                == sum(count for name, count in counters.items() if name.partition(".")[0] == group)
                for group in groups
            )

        eventually(is_complete, "all are there")


def test_long_client_ids_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A client identifier, which may have 65 kB, takes two hundred characters of a line."""
    caplog.set_level(logging.INFO, "statestore_client.server")
    with EmbeddedServer() as server, Wire(server) as wire:
        wire.connect("c" * 60_000)
        wire.send(b"\xe0\x00")
        wire.rest()
        eventually(lambda: "disconnected" in caplog.text, "it is gone")
    names = [record.fields["client"] for record in caplog.records if "client" in getattr(record, "fields", {})]
    assert names == ["c" * 200 + "..."] * 2
    assert max(len(record.getMessage()) for record in caplog.records) < 1_000


def test_what_found_no_room_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Filters and messages that were answered with 0x97 are logged with the client."""
    caplog.set_level(logging.WARNING, "statestore_client.server")
    limits = BrokerLimits(subscriptions_per_session=1, retained_messages=0)
    with EmbeddedServer(broker_limits=limits) as server, Wire(server) as client:
        client.connect("me", username="ann")
        peer = "{}:{}".format(*client.sock.getsockname())
        client.send(Subscribe(1, (Subscription("first", 1), Subscription("second", 1))))
        suback = client.receive()
        assert isinstance(suback, Suback)
        assert suback.reason_codes == (1, 0x97)
        client.send(Publish("kept", b"secret", qos=1, retain=True, packet_id=1))
        assert client.receive() == Puback(1, 0x97)
        client.send(Publish("kept", b"secret", qos=2, retain=True, packet_id=2))
        assert client.receive() == Pubrec(2, 0x97)
        eventually(lambda: caplog.text.count("no room") == 3, "all are logged")
    who = {"client": "me", "user": None, "peer": peer}
    assert [vars(record)["fields"] for record in caplog.records] == [
        who | {"action": "subscribe", "what": "second"},
        who | {"action": "publish", "what": "kept"},
        who | {"action": "publish", "what": "kept"},
    ]
    assert "secret" not in caplog.text


def test_who_lost_messages_in_the_log_the_metrics_and_its_connack(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A WARNING names the session that is full, not its publisher, and the count goes on after a restart."""
    caplog.set_level(logging.WARNING, "statestore_client.server")
    lasting = ConnectProperties(session_expiry=600)
    limits = BrokerLimits(queued_messages=1)
    for run in (1, 2):
        with EmbeddedServer(broker_limits=limits, data=tmp_path) as server, Wire(server) as writer:
            if run == 1:
                with Wire(server) as forgotten:
                    forgotten.connect("forgotten", properties=lasting)
                    forgotten.send(Subscribe(1, (Subscription("#", 1),)))
                    assert isinstance(forgotten.receive(), Suback)
                    forgotten.send(Disconnect())
                eventually(lambda server=server: not server.sessions["forgotten"].is_connected, "it has left")
            writer.connect("writer")
            for number in range(1, 4):
                writer.send(Publish("t", b"secret", qos=1, packet_id=number))
                assert writer.receive() == Puback(number)
            eventually(lambda run=run: caplog.text.count("queue full") == run, "it is logged")
    assert [vars(record)["fields"]["client"] for record in caplog.records] == ["forgotten"] * 2
    assert [vars(record)["fields"]["dropped"] for record in caplog.records] == [1, 3]
    assert "secret" not in caplog.text
    with EmbeddedServer(broker_limits=limits, data=tmp_path) as server, Wire(server) as back:
        connack = back.connect("forgotten", clean_start=False, properties=lasting)
        assert isinstance(connack, Connack)
        (told,) = connack.properties.user_properties
        assert told[0] == "dropped-messages"
        assert told[1].startswith("5 since 20")


def test_json_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one JSON object per line for any text of strangers, other loggers' lines, and exceptions."""
    caplog.set_level(logging.INFO)
    log_event(logging.WARNING, "refused", client='evil"\n\u2028{', code="0x87")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("other").exception("it %s", "failed")
    lines = [JsonLines().format(record) for record in caplog.records]
    assert all("\n" not in line and line.isascii() for line in lines)
    event, other = map(json.loads, lines)
    assert (event["level"], event["event"], event["client"]) == ("warning", "refused", 'evil"\n\u2028{')
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", event["time"])
    assert (other["event"], other["logger"], other["message"]) == ("log", "other", "it failed")
    assert "ValueError: why" in other["exception"]
