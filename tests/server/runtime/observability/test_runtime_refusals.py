"""What the server refused is a WARNING, by default, and stays readable whatever hostile peers do."""

from __future__ import annotations

import logging
import random
import re
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from support.keys import Certificates
from support.server_clients import TIMEOUT_S, Wire
from support.waiting import eventually

from statestore_client import ConnectionLostError, NotAuthorizedError, QuotaExceededError, StateStoreClient
from statestore_client.mqtt.packets import (
    Connack,
    ConnectProperties,
    Disconnect,
    Puback,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer, ServerTls, StoreLimits
from statestore_client.server.runtime.observability.logs import RefusalLog
from statestore_client.wire.protocol import COMMAND_TOPIC, notification_topic

GUESSER, BYSTANDER = "127.0.0.1", "127.0.0.2"
#: Lines about one peer at once, and seconds until it has one more, as the documentation says.
LINES, PAUSE_S = 10, 10.0


class Log:
    """The lines of the server so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def records(self) -> list[Any]:
        return [record for record in list(self._caplog.records) if record.name == "statestore_client.server"]

    @property
    def warnings(self) -> list[tuple[str, dict[str, Any]]]:
        return [(record.event, record.fields) for record in self.records if record.levelno == logging.WARNING]

    def wait(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        eventually(lambda: len(self.warnings) >= count, f"{count} warnings")
        return self.warnings


def guess(server: EmbeddedServer, password: bytes, *, source: str = GUESSER, client_id: str = "c") -> int:
    """The reason code that a password gets."""
    with Wire(server, source=source) as wire:
        connack = wire.connect(client_id, username="tok3n-in-the-wrong-place", password=password)
        assert isinstance(connack, Connack)
        return connack.reason_code


# -- the log of refusals, for the tests of this folder -----------------------------------------------------------------


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.WARNING, "statestore_client.server")
    return Log(caplog)


# -- what the server refused is a warning, by default, and stays readable whatever hostile peers do --------------------

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


@pytest.mark.ci
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


# -- how many lines of the log a peer that is refused has --------------------------------------------------------------


def test_a_peer_that_guesses_has_some_lines(log: Log) -> None:
    """A peer that guesses gets some lines, then one every ten seconds with a count; others are not affected."""
    limits = BrokerLimits(failed_attempts=0)
    with EmbeddedServer(passwords={"pump": "right"}, broker_limits=limits) as server:
        driver = server._running()._driver
        for number in range(30):
            guess(server, b"%d" % number)
        guess(server, b"x", source=BYSTANDER)
        assert [fields["peer"].partition(":")[0] for _, fields in log.wait(LINES + 1)] == [GUESSER] * LINES + [
            BYSTANDER
        ]
        eventually(lambda: not driver, "all are gone, and so logged or left out")
        server.clock.advance(PAUSE_S)
        guess(server, b"x")
        guess(server, b"x")
        eventually(lambda: not driver, "both are gone")
        warnings = log.wait(LINES + 2)
        assert len(warnings) == LINES + 2
        assert warnings[-1][1]["left_out"] == 20
        server.clock.advance(PAUSE_S)
        guess(server, b"x")
        assert log.wait(LINES + 3)[-1][1]["left_out"] == 1
    assert not any("left_out" in fields for _, fields in log.warnings[:-2])


def test_refusals_in_one_chunk_are_counted(log: Log) -> None:
    """Hundreds of refusals in one TCP packet are all counted, also those without a line."""
    with EmbeddedServer(acl=AccessRules.parse("")) as server, Wire(server) as wire:
        wire.connect("c")
        wire.send(*[Publish("t", b"", 1, packet_id=n) for n in range(1, 501)])
        assert {wire.receive() for _ in range(500)} == {Puback(n, 0x87) for n in range(1, 501)}
        server.clock.advance(PAUSE_S, keep_alive=False)
        wire.send(Publish("t", b"", 1, packet_id=1))
        warnings = log.wait(LINES + 1)
    assert len(warnings) == LINES + 1
    assert sum(fields.get("left_out", 0) for _, fields in warnings) == 500 - LINES


def test_a_verifier_that_stumbles_does_not_fill_the_disk(log: Log) -> None:
    """Tracebacks of a failing verifier are limited as the other lines are, and have an ERROR each."""

    def verify(_token: bytes) -> str | None:
        raise ValueError("not a token")

    properties = ConnectProperties(authentication_method="K8S-SAT", authentication_data=b"s3cret")
    with EmbeddedServer(token_verifier=verify) as server:
        for _ in range(30):
            with Wire(server) as wire:
                connack = wire.connect("c", properties=properties)
                assert (type(connack), connack.reason_code) == (Connack, 0x88)
    errors = [record for record in log.records if record.levelno == logging.ERROR]
    assert 0 < len(errors) <= len(log.records) <= LINES
    assert all(isinstance(record.exc_info[1], ValueError) for record in errors)


def test_names_of_strangers_stay_on_their_line_and_short(log: Log) -> None:
    """A client id with line separators, a change of direction or a thousand characters stays on its line and is cut."""
    evil = "x\u2028stopped urls=[]\u202e" + "y" * 1_000
    with EmbeddedServer(passwords={"pump": "right"}) as server:
        guess(server, b"wrong", client_id=evil)
        log.wait(1)
    (record,) = log.records
    assert record.getMessage().isprintable()
    assert "x\\u2028stopped urls=[]\\u202eyyy" in record.getMessage()
    assert len(record.getMessage()) < 1000


def test_any_number_of_peers_has_bounded_lines_and_memory(log: Log) -> None:
    """Any number of peers gets a hundred lines and then ten a second, and all else is counted."""
    now = 0.0
    refusals = RefusalLog(lambda: now)
    rng, total, ended = random.Random(1), 100_000, 100.0
    for number in range(total):
        now = number / total * ended
        refusals.line("refused", f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}:1", client="c")
    assert len(refusals._left_out) <= 1000
    assert max(len(refusals._peers), len(refusals._all)) <= 10_000
    assert 1000 <= len(log.warnings) <= 100 + 10 * ended + 1
    told = sum(f.get("left_out", 0) + f.get("left_out_of_others", 0) for _, f in log.warnings)
    kept = sum(refusals._left_out.values()) + refusals._left_out_of_others
    assert len(log.warnings) + told + kept == total


def test_who_counts_as_one_peer(log: Log) -> None:
    """One peer is all ports of an address, an IPv6 network, all Unix sockets, or all absent clients together."""
    refusals = RefusalLog(lambda: 1.0)
    for peers in (
        [f"10.0.0.1:{port}" for port in range(100)],
        [f"2001:db8::{port:x}:1" for port in range(100)],
        ["", "None"] * 50,
        [None] * 100,
    ):
        before = len(log.warnings)
        for peer in peers:
            refusals.line("refused", peer)
        assert len(log.warnings) - before == LINES
