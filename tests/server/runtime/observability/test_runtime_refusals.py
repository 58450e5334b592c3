"""What the server refused is a WARNING, by default, and stays readable whatever hostile peers do."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from refusal_lines import LINES, PAUSE_S, Log, guess
from support.keys import Certificates
from support.server_clients import TIMEOUT_S, Wire
from support.waiting import eventually

from statestore_client import ConnectionLostError, NotAuthorizedError, QuotaExceededError, StateStoreClient
from statestore_client.mqtt.packets import (
    ConnectProperties,
    Disconnect,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer, ServerTls, StoreLimits
from statestore_client.wire.topics import COMMAND_TOPIC, notification_topic

# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_wrong_password(log: Log) -> None:
    """A wrong password is logged with client id, peer and reason, without the password or a name that nobody proved."""
    with EmbeddedServer(passwords={"pump": "right"}) as server:
        assert guess(server, b"wr0ng", client_id="pump-7") == 0x86
        ((event, fields),) = log.wait(1)
    assert event == "refused"
    assert fields.pop("peer").startswith("127.0.0.1:")
    assert fields.pop("after_s") >= 0
    assert fields == {
        "client": "pump-7", "user": None, "code": "0x86", "reason": "wrong user name or password", "by": "server"
    }  # fmt: skip
    assert not re.search("wr0ng|right|tok3n", "".join(record.getMessage() for record in log.records))


def test_a_wrong_token(log: Log) -> None:
    """A wrong token is logged without the token."""
    properties = ConnectProperties(authentication_method="K8S-SAT", authentication_data=b"s3cret")
    with EmbeddedServer(token_verifier=lambda _token: None) as server, Wire(server) as wire:
        wire.connect("c", properties=properties)
        ((event, fields),) = log.wait(1)
    assert (event, fields["code"]) == ("refused", "0x87")
    assert "s3cret" not in log.records[0].getMessage()


@pytest.mark.parametrize(("version", "qos"), [(5, 0), (5, 1), (5, 2), (4, 0), (4, 1)])
@pytest.mark.parametrize("topic", ["secret/plans", "$SYS/broker/uptime"])
def test_a_forbidden_publish(log: Log, version: int, qos: int, topic: str) -> None:
    """A PUBLISH forbidden by rules, or on a server's topic, is logged, whether an acknowledgement says so or the
    connection ends."""
    rules = AccessRules.parse("everybody\n  publish open/#\n")
    with EmbeddedServer(acl=rules) as server, Wire(server, version=version) as wire:
        wire.connect("c")
        wire.send(Publish(topic, b"v4lue", qos, packet_id=1 if qos else None))
        warnings = log.wait(1 if version == 5 and qos else 2)
    event, fields = warnings[0]
    peer = fields.pop("peer")
    assert (event, fields) == ("not authorized", {"client": "c", "user": None, "action": "publish", "what": topic})
    assert [(event, fields["code"], fields["peer"]) for event, fields in warnings[1:]] == (
        [] if version == 5 and qos else [("disconnected", "0x87", peer)]
    )
    assert "v4lue" not in "".join(record.getMessage() for record in log.records)


@pytest.mark.parametrize("version", [4, 5])
def test_a_forbidden_subscription(log: Log, version: int) -> None:
    """Each refused filter is one line of the log, in either version."""
    rules = AccessRules.parse("everybody\n  subscribe open/#\n")
    with EmbeddedServer(acl=rules) as server, Wire(server, version=version) as wire:
        wire.connect("c")
        wire.send(Subscribe(1, tuple(Subscription(name, 1) for name in ("open/a", "#", "secret/+"))))
        assert isinstance(wire.receive(), Suback)
        warnings = log.wait(2)
    assert [(event, fields["action"], fields["what"]) for event, fields in warnings] == [
        ("not authorized", "subscribe", "#"), ("not authorized", "subscribe", "secret/+")
    ]  # fmt: skip


def test_a_forbidden_will(log: Log) -> None:
    """A forbidden will is logged when it is refused, and when changed rules prevent it later."""
    rules = AccessRules.parse("everybody\n  publish open\n")
    with EmbeddedServer(acl=rules) as server:
        with Wire(server) as wire:
            wire.connect("c", will=Will("secret", b""))
        ((event, fields),) = log.wait(1)
        assert (event, fields["reason"]) == ("refused", "the topic of the will is not permitted")
        with Wire(server) as wire:
            wire.connect("d", will=Will("open", b""))
            session = server._running().broker._state.sessions.get("d")
            assert session is not None
            session.permissions = AccessRules.parse("").permissions(None, "d")
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        event, fields = log.wait(2)[1]
    assert (event, fields) == ("not authorized", {"client": "d", "user": None, "action": "publish", "what": "open"})


def test_what_a_function_forbids(log: Log) -> None:
    """A refusal by the function ``authorize`` is logged as one by a file of rules."""
    with EmbeddedServer(authorize=lambda *_: False) as server, StateStoreClient(server.url) as store:
        with pytest.raises(NotAuthorizedError):
            store.get("k")
        ((event, fields),) = log.wait(1)
    assert (event, fields["action"], fields["what"]) == ("not authorized", "read", "k")


def test_an_answer_to_a_forbidden_topic(log: Log) -> None:
    """An answer to a forbidden topic, or one that looks like a notification, is logged before the connection ends."""
    rules = AccessRules.parse("everybody\n  read *\n")
    properties = PublishProperties(response_topic="elsewhere", correlation_data=b"1")
    with EmbeddedServer(acl=rules) as server, Wire(server) as one, Wire(server) as other:
        one.connect("one")
        one.send(Publish(COMMAND_TOPIC, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", 1, packet_id=1, properties=properties))
        warnings = log.wait(2)
        other.connect("other")
        other.send(Publish(notification_topic("one", b"k"), b"", 1, packet_id=1))
        warnings = log.wait(3)
    assert [(event, fields.get("what"), fields.get("code")) for event, fields in warnings] == [
        ("not authorized", "elsewhere", None), ("disconnected", None, "0x87"), ("disconnected", None, "0x87")
    ]  # fmt: skip


def test_the_quota_of_the_store(log: Log) -> None:
    """A refusal for the quota of keys or watches is logged with the key."""
    limits = StoreLimits(max_keys=1, max_observations_per_client=1)
    with EmbeddedServer(store_limits=limits) as server, StateStoreClient(server.url) as store:
        store.set("one", "1")
        with store.watch("one"):
            with pytest.raises(QuotaExceededError):
                store.set("two", "v4lue")
            with pytest.raises(QuotaExceededError):
                store.watch("three").start()
    assert [(event, fields["action"], fields["what"]) for event, fields in log.warnings] == [
        ("no room", "write", "two"), ("no room", "watch", "three")
    ]  # fmt: skip
    assert "v4lue" not in "".join(record.getMessage() for record in log.records)


@pytest.mark.parametrize(
    ("limits", "code"),
    [({"connections": 1}, "0x89"), ({"connections_per_address": 1}, "0x97"), ({"connections_per_user": 1}, "0x97")],
)
def test_the_quotas_of_connections(log: Log, limits: dict[str, int], code: str) -> None:
    """A connection beyond a quota is logged when CONNACK refuses it."""
    with EmbeddedServer(broker_limits=BrokerLimits(**limits), passwords={"u": "p"}) as server, Wire(server) as first:
        first.connect("one", username="u", password=b"p")
        with Wire(server) as second:
            second.connect("two", username="u", password=b"p")
        ((event, fields),) = log.wait(1)
    assert (event, fields["client"], fields["code"]) == ("refused", "two", code)


@pytest.mark.parametrize("endpoint", ["mqtt", "mqtts"])
def test_sockets_that_were_one_too_many_at_the_door(log: Log, tmp_path: Path, endpoint: str) -> None:
    """Unauthenticated sockets that were closed for others are logged, also in the middle of a TLS handshake."""
    certificates = Certificates(tmp_path)
    tls = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    limits = BrokerLimits(unauthenticated_connections=1)
    with EmbeddedServer(broker_limits=limits, tls=tls if endpoint == "mqtts" else None) as server:
        for _ in range(3):
            socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S).detach()
        warnings = log.wait(2)
    assert {fields["reason"] for _, fields in warnings} == {"too many connections that have not said who they are"}
    assert all(fields["peer"].startswith("127.0.0.1:") for _, fields in warnings)


def test_a_certificate_that_does_not_count(log: Log, tmp_path: Path) -> None:
    """A missing or wrong client certificate is logged, and a client that rejects the server's; a port scan is not."""
    certificates = Certificates(tmp_path)
    ca_file = certificates.ca_file
    files = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file, ca_file=ca_file)
    ours: list[str] = []  # another test's client may still look for the server that had this port before

    def connect() -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)
        ours.append("{}:{}".format(*sock.getsockname()))
        return sock

    def lines() -> list[tuple[str, dict[str, Any]]]:
        return [line for line in log.warnings if line[1]["peer"] in ours]

    with EmbeddedServer(tls=files) as server:
        connect().close()
        with pytest.raises(ssl.SSLCertVerificationError), connect() as sock:
            ssl.create_default_context().wrap_socket(sock, server_hostname="127.0.0.1")
        context = ssl.create_default_context(cafile=certificates.ca_file)
        with (
            pytest.raises(OSError),
            connect() as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as secured,
        ):
            secured.recv(1)
        eventually(lambda: len(lines()) >= 2, "2 warnings about these clients")
        (distrusts, says_why), (event, fields) = sorted(lines(), key=lambda line: str(line[1]["by"]))
    assert (event, fields["code"], fields["by"]) == ("refused", "tls", "server")
    assert "CERTIFICATE" in fields["reason"].upper()
    assert (distrusts, says_why["code"], says_why["by"]) == ("refused", "tls", "peer")
    assert "alert unknown ca" in says_why["reason"]


@pytest.mark.parametrize("driver", ["native", "paho"])
def test_a_client_that_distrusts_the_server_in_a_loop(log: Log, tmp_path: Path, driver: str) -> None:
    """A client that distrusts the server in a loop is logged ten times, and then not for a while."""
    for folder in ("ours", "others"):
        (tmp_path / folder).mkdir()
    certificates, strangers = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")
    files = ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file)
    with EmbeddedServer(tls=files) as server:
        began = time.monotonic()
        for attempt in range(1, LINES + 4):
            with pytest.raises(ConnectionLostError, match="not trusted"):
                StateStoreClient(server.url, tls_ca_file=strangers.ca_file, driver=driver).open()
            log.wait(min(attempt, LINES))
    assert LINES <= len(log.warnings) <= LINES + (time.monotonic() - began) / PAUSE_S
    assert {(event, fields["code"], fields["by"]) for event, fields in log.warnings} == {("refused", "tls", "peer")}


def test_coming_and_going_is_no_warning(log: Log) -> None:
    """Connections, disconnections, a takeover, a broken packet and the end of the server are no warnings."""
    with EmbeddedServer() as server, Wire(server) as twin, Wire(server) as broken, Wire(server) as client:
        socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S).close()
        for wire in (twin, broken, client):
            wire.connect("twin" if wire is not broken else "broken")
        assert isinstance(twin.receive(), Disconnect)
        broken.send(b"\xc1\x00")
        broken.rest()
        client.send(Disconnect())
        client.rest()
    assert log.warnings == []
