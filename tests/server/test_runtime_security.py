"""The secured server, as bare sockets and other people's clients see it."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from certificates import Certificates
from runtime_tools import TIMEOUT_S, Paho, Wire, eventually, needs_mosquitto

from statestore_client.errors import SettingsError
from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    ConnectProperties,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    Subscription,
)
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer, ServerTls
from statestore_client.server.runtime.passwords_writing import remove_user, set_password
from statestore_client.wire.topics import COMMAND_TOPIC, response_topic

#: Reason codes as the standard numbers them (MQTT 5.0, 2.4).
IMPLEMENTATION_SPECIFIC, BAD_PASSWORD, NOT_AUTHORIZED, UNAVAILABLE, BAD_METHOD, ADMINISTRATIVE = (
    0x83, 0x86, 0x87, 0x88, 0x8C, 0x98,
)  # fmt: skip
SAT = "K8S-SAT"


def shown(server: EmbeddedServer, client_id: str = "c", *, version: int = 5, **options: object) -> int:
    """The reason code that these credentials get."""
    with Wire(server, version=version) as wire:
        connack = wire.connect(client_id, **options)
        assert isinstance(connack, Connack)
        return connack.reason_code


def token(data: bytes | None, method: str = SAT) -> dict[str, object]:
    """CONNECT with enhanced authentication."""
    return {"properties": ConnectProperties(authentication_method=method, authentication_data=data)}


def command(wire: Wire, payload: bytes, *, answer_on: str | None = None, client_id: str = "c") -> bytes:
    """Send a state store command and return its answer."""
    topic = answer_on or response_topic(client_id)
    now = f"{int(time.time() * 1000):015d}:00000:{client_id}"
    properties = PublishProperties(response_topic=topic, correlation_data=payload, user_properties=(("__ts", now),))
    wire.send(Publish(COMMAND_TOPIC, payload, 1, packet_id=9, properties=properties))
    while not isinstance(packet := wire.receive(), Publish):
        assert isinstance(packet, Puback)
    return packet.payload


# -- passwords ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_passwords(version: int) -> None:
    """The right one opens; a wrong one and an unknown user get the same answer, and so does nothing at all its own."""
    with EmbeddedServer(passwords={"pump": "secret"}) as server:
        assert shown(server, version=version, username="pump", password=b"secret") == 0
        assert shown(server, version=version, username="pump", password=b"wrong") == BAD_PASSWORD
        assert shown(server, version=version, username="pump") == BAD_PASSWORD
        assert shown(server, version=version, username="nobody", password=b"secret") == BAD_PASSWORD
        assert shown(server, version=version) == NOT_AUTHORIZED


def test_anonymous_clients_where_they_are_allowed() -> None:
    """They come in without a name; a wrong password is refused all the same."""
    with EmbeddedServer(passwords={"pump": "secret"}, allow_anonymous=True) as server:
        assert shown(server) == 0
        assert shown(server, username="pump", password=b"wrong") == BAD_PASSWORD


def test_a_name_without_a_proof_is_not_believed() -> None:
    """Without passwords a user name opens nothing and gives no rights, however the rules call it."""
    rules = AccessRules.parse("user pump\n  publish t")
    with EmbeddedServer(acl=rules) as server, Wire(server) as wire:
        wire.connect("c", username="pump", password=b"x")
        wire.send(Publish("t", b"", 1, packet_id=1))
        assert wire.receive() == Puback(1, NOT_AUTHORIZED)
    with EmbeddedServer(token_verifier=verifier) as server:
        assert shown(server, username="pump", password=b"x") == BAD_PASSWORD


def test_many_clients_with_passwords(tmp_path: Path) -> None:
    """Others are served while passwords are hashed; a password that was right once is quick."""
    path = tmp_path / "users"
    set_password(path, "pump", b"secret")
    with EmbeddedServer(passwords=path) as server, Wire(server) as first:
        first.connect("first", username="pump", password=b"secret")
        guesses = [Wire(server) for _ in range(10)]
        for number, wire in enumerate(guesses):
            wire.begin(f"guess{number}", username="pump", password=b"%d" % number)
        for number in range(50):
            assert shown(server, f"c{number}", username="pump", password=b"secret") == 0
        first.send(Pingreq())
        assert first.receive() == Pingresp()
        for wire in guesses:
            connack = wire.receive()
            assert isinstance(connack, Connack)
            assert connack.reason_code == BAD_PASSWORD
            wire.sock.close()


def test_files_change_while_the_server_runs(tmp_path: Path) -> None:
    """A new password counts at once, an old connection stays; a user that is gone is disconnected."""
    path = tmp_path / "users"
    set_password(path, "pump", b"old")
    with EmbeddedServer(passwords=path) as server, Wire(server) as wire:
        wire.connect("c", username="pump", password=b"old")
        set_password(path, "pump", b"new")
        assert shown(server, "d", username="pump", password=b"new") == 0
        assert shown(server, "d", username="pump", password=b"old") == BAD_PASSWORD
        wire.send(Pingreq())
        assert wire.receive() == Pingresp()
        assert remove_user(path, "pump")
        disconnect = wire.receive()
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code == ADMINISTRATIVE


# -- tokens ------------------------------------------------------------------------------------------------------------


def verifier(token: bytes) -> str | None:
    """``good-USER`` proves USER."""
    if token == b"unlucky":
        raise OSError("the API server does not answer")
    return token[5:].decode() if token.startswith(b"good-") else None


@pytest.fixture
def verifying() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(token_verifier=verifier) as server:
        yield server


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (token(b"good-pump"), 0),
        (token(b"bad"), NOT_AUTHORIZED),
        (token(b""), NOT_AUTHORIZED),
        (token(None), NOT_AUTHORIZED),
        (token(b"good-pump", "SCRAM-SHA-256"), BAD_METHOD),
        (token(b"good-pump", "k8s-sat"), BAD_METHOD),
        (token(b"unlucky"), UNAVAILABLE),
        ({}, NOT_AUTHORIZED),
    ],
)
def test_tokens(verifying: EmbeddedServer, options: dict[str, object], code: int) -> None:
    """A good one of the right method opens; when nobody can say, the code asks to try again."""
    assert shown(verifying, **options) == code


def test_methods_without_a_verifier(server: EmbeddedServer) -> None:
    """Every method is unknown."""
    assert shown(server, **token(b"good-pump")) == BAD_METHOD


@pytest.mark.parametrize(
    ("method", "data", "expected"),
    [
        (SAT, b"good-pump", Auth(0x00, AuthProperties(SAT))),
        (SAT, b"good-other", NOT_AUTHORIZED),
        (SAT, b"bad", NOT_AUTHORIZED),
        (SAT, b"unlucky", IMPLEMENTATION_SPECIFIC),
        ("other", b"good-pump", BAD_METHOD),
    ],
)
def test_renewals(verifying: EmbeddedServer, method: str, data: bytes, expected: Packet | int) -> None:
    """AUTH 0x19 with another token of the same user goes through; everything else ends the connection."""
    with Wire(verifying) as wire:
        connack = wire.connect("c", **token(b"good-pump"))
        assert isinstance(connack, Connack)
        assert connack.properties.authentication_method == SAT
        wire.send(Auth(0x19, AuthProperties(method, data)))
        answer = wire.receive()
        if isinstance(expected, Auth):
            assert answer == expected
        else:
            assert isinstance(answer, Disconnect)
            assert answer.reason_code == expected


def test_a_slow_verifier_disturbs_nobody() -> None:
    """It runs in a thread: others are served; packets behind CONNECT wait; at most four run at once."""
    release = threading.Event()
    running: list[bytes] = []

    def slow(token: bytes) -> str | None:
        running.append(token)
        assert release.wait(TIMEOUT_S)
        return "u"

    with EmbeddedServer(token_verifier=slow, passwords={"pump": "x"}) as server, Wire(server) as other:
        other.connect("other", username="pump", password=b"x")
        wires = [Wire(server) for _ in range(6)]
        for number, wire in enumerate(wires):
            connect = token(b"t%d" % number)
            wire.begin(f"c{number}", **connect)
        eventually(lambda: len(running) == 4, "four verifiers run")
        other.send(Pingreq())
        assert other.receive() == Pingresp()
        wires[5].sock.close()
        release.set()
        for wire in wires[:5]:
            connack = wire.receive()
            assert isinstance(connack, Connack)
            assert connack.reason_code == 0
            wire.sock.close()


def test_a_client_goes_on_while_its_new_token_is_verified() -> None:
    """A renewal does not interrupt anything (MQTT 5.0, 4.12.1)."""
    release = threading.Event()

    def slow(token: bytes) -> str | None:
        assert token == b"first" or release.wait(TIMEOUT_S)
        return "u"

    with EmbeddedServer(token_verifier=slow) as server, Wire(server) as wire:
        wire.connect("c", **token(b"first"))
        wire.send(Auth(0x19, AuthProperties(SAT, b"second")), Pingreq())
        assert wire.receive() == Pingresp()
        release.set()
        assert wire.receive() == Auth(0x00, AuthProperties(SAT))


def test_a_verifier_that_never_returns() -> None:
    """CONNECT is answered in time all the same, and the server stops."""
    release = threading.Event()

    def hanging(token: bytes) -> str | None:
        release.wait(TIMEOUT_S)
        return None

    limits = BrokerLimits(connect_timeout_s=0.2)
    with EmbeddedServer(token_verifier=hanging, broker_limits=limits) as server:
        assert shown(server, **token(b"x")) == UNAVAILABLE
    release.set()


# -- access rules ------------------------------------------------------------------------------------------------------

RULES = """
user pump
  read a*
  write a1
  watch a1
  publish out/#
  subscribe in/+
"""
GET, SET, WATCH = (
    b"*2\r\n$3\r\nGET\r\n$2\r\n%s\r\n",
    b"*3\r\n$3\r\nSET\r\n$2\r\n%s\r\n$1\r\nx\r\n",
    b"*2\r\n$9\r\nKEYNOTIFY\r\n$2\r\n%s\r\n",
)
DEL, SCAN = b"*2\r\n$3\r\nDEL\r\n$2\r\n%s\r\n", b"*2\r\n$4\r\nSCAN\r\n$2\r\n%s\r\n"


@pytest.mark.parametrize("dialect", ["service", "document"])
def test_commands_under_rules(dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is forbidden is answered ``not authorized`` in the words of the document, logged, and changes nothing."""
    refusal = {"service": b"-ERR not authorized\r\n", "document": b"-ERR not authorized"}[dialect]
    passwords = {"pump": "x", "boss": "y"}
    rules = AccessRules.parse(RULES + "user boss\n  read *\n  write *\n")
    with (
        EmbeddedServer(dialect=dialect, passwords=passwords, acl=rules) as server,
        Wire(server) as pump,
        Wire(server) as boss,
    ):
        pump.connect("c", username="pump", password=b"x")
        boss.connect("b", username="boss", password=b"y")
        for wire, client_id in ((pump, "c"), (boss, "b")):
            wire.send(Subscribe(1, (Subscription(response_topic(client_id), 1),)))
            assert wire.receive() == Suback(1, (1,))
        assert command(boss, SET % b"a2", client_id="b").startswith(b"+OK")
        assert command(pump, SET % b"a1").startswith(b"+OK")
        assert command(pump, GET % b"a1") == b"$1\r\nx\r\n"
        assert command(pump, WATCH % b"a1").startswith(b"+OK")
        assert command(pump, SCAN % b"a*").startswith(b"*")
        with caplog.at_level(logging.WARNING, "statestore_client.server"):
            assert command(pump, SET % b"a2") == refusal
            assert command(pump, DEL % b"a2") == refusal
            assert command(pump, GET % b"b1") == refusal
            assert command(pump, SCAN % b"b*") == refusal
            notify_refusal = refusal if dialect == "service" else b"-ERR: not authorized\r\n"
            assert command(pump, WATCH % b"a2") == notify_refusal
        lines = [record.fields for record in caplog.records]
        assert lines == [
            {"client": "c", "user": "pump", "action": action, "what": what}
            for action, what in [("write", "a2"), ("write", "a2"), ("read", "b1"), ("scan", "b*"), ("watch", "a2")]
        ]
        assert command(boss, GET % b"a2", client_id="b") == b"$1\r\nx\r\n"
        assert command(boss, GET % b"b1", client_id="b") == b"$-1\r\n"


def test_an_answer_may_not_go_where_its_client_may_not_publish() -> None:
    """Otherwise the server would publish on behalf of a client that may not; it is disconnected."""
    rules = AccessRules.parse("everybody\n  read *\n  write *\n  publish out/#\n  subscribe #\n")
    with EmbeddedServer(acl=rules) as server, Wire(server) as wire, Wire(server) as valve:
        valve.connect("valve")
        valve.send(Subscribe(1, (Subscription("valves/#", 1), Subscription("out/#", 1))))
        valve.receive()
        wire.connect("c")
        wire.send(Subscribe(1, (Subscription("out/+", 1),)))
        wire.receive()
        assert command(wire, SET % b"aa", answer_on="out/answers").startswith(b"+OK")
        properties = PublishProperties(response_topic="valves/1", correlation_data=b"1")
        wire.send(Publish(COMMAND_TOPIC, GET % b"aa", 1, packet_id=5, properties=properties))
        assert wire.receive() == Puback(5)
        disconnect = wire.receive()
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code == NOT_AUTHORIZED
        message = valve.receive()
        assert isinstance(message, Publish)
        assert message.topic == "out/answers"
        valve.send(Pingreq())
        while not isinstance(packet := valve.receive(), Pingresp):
            assert isinstance(packet, Publish)
            assert packet.topic == "out/answers"


def test_topics_under_rules_for_other_clients() -> None:
    """paho hears 0x87 in SUBACK, and its forbidden message arrives nowhere."""
    rules = AccessRules.parse("everybody\n  publish out/#\n  subscribe #\n")
    with EmbeddedServer(acl=rules) as server, Paho(server, "reader") as reader, Paho(server, "writer") as writer:
        assert [code.value for code in reader.subscribe([("#", 0), ("$SYS/#", 0)])] == [0, NOT_AUTHORIZED]
        writer.publish("secret", b"1", 1)
        writer.publish("out/x", b"2", 1)
        assert reader.message().topic == "out/x"


def test_rules_change_while_the_server_runs(tmp_path: Path) -> None:
    """Within a second: who is affected is disconnected with 0x98 and comes again under the new rules."""
    path = tmp_path / "rules"
    path.write_text("everybody\n  subscribe in/#\n")
    with EmbeddedServer(acl=path) as server, Wire(server) as wire:
        wire.connect("c")
        wire.send(Subscribe(1, (Subscription("in/x", 1),)))
        assert wire.receive() == Suback(1, (1,))
        path.write_text("everybody\n  subscribe in/#\n  nonsense\n")
        path.write_text("everybody\n  subscribe in/y\n")
        disconnect = wire.receive()
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code == ADMINISTRATIVE
        with Wire(server) as again:
            again.connect("c")
            again.send(Subscribe(1, (Subscription("in/x", 1),)))
            assert again.receive() == Suback(1, (NOT_AUTHORIZED,))


def test_a_refusal_in_a_loop_does_not_fill_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    """Some lines per second, and the number of those that were left out."""
    with (
        caplog.at_level(logging.WARNING, "statestore_client.server"),
        EmbeddedServer(acl=AccessRules.parse("")) as server,
        Wire(server) as wire,
    ):
        wire.connect("c")
        deadline = time.monotonic() + TIMEOUT_S
        while not any("more" in record.fields for record in caplog.records):
            assert time.monotonic() < deadline
            wire.send(*[Publish("t", b"", 1, packet_id=n) for n in range(1, 101)])
            assert {wire.receive() for _ in range(100)} == {Puback(n, NOT_AUTHORIZED) for n in range(1, 101)}
        assert len(caplog.records) <= 3 * 21


@pytest.mark.parametrize("option", ["passwords", "acl"])
def test_files_with_mistakes_at_the_start(tmp_path: Path, option: str) -> None:
    """The server does not start; the message names file and line."""
    path = tmp_path / "file"
    path.write_text("\nnonsense")
    with pytest.raises(SettingsError, match=r"file, line 2"), EmbeddedServer(**{option: path}):
        pass


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("server-tls"))


def tls_of(certificates: Certificates, *, with_ca: bool = False) -> ServerTls:
    ca_file = certificates.ca_file if with_ca else None
    return ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file, ca_file=ca_file)


def client_context(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.ca_file)


def test_old_versions_are_refused(certificates: Certificates) -> None:
    """TLS 1.2 and 1.3 are spoken, 1.1 is not."""
    with EmbeddedServer(tls=tls_of(certificates)) as server:
        for version, is_spoken in (("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)):
            context = client_context(certificates)
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning, match="TLSv1_1") if not is_spoken else nullcontext():
                context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
            with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock:
                if is_spoken:
                    with context.wrap_socket(sock, server_hostname="127.0.0.1") as secured:
                        assert secured.version() == version.replace("_", ".")
                else:
                    with pytest.raises(OSError, match=r"(?i)alert protocol version|unsupported"):
                        context.wrap_socket(sock, server_hostname="127.0.0.1")


def test_a_disconnect_is_read_over_tls(certificates: Certificates) -> None:
    """The reason arrives before the end of the connection, with what the peer sent still unread."""
    with (
        EmbeddedServer(tls=tls_of(certificates), acl=AccessRules.parse("")) as server,
        Wire(server, tls=client_context(certificates)) as wire,
    ):
        wire.connect("c")
        wire.send(Publish("t"), *[Publish("t", b"x" * 1000)] * 500)
        disconnect = wire.receive()
        assert isinstance(disconnect, Disconnect)
        assert disconnect.reason_code == NOT_AUTHORIZED


def test_stopping_in_the_middle_of_a_handshake(certificates: Certificates) -> None:
    """Peers that connected and say nothing do not hold the server."""
    with EmbeddedServer(tls=tls_of(certificates)) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) for _ in range(3)]
        with Wire(server, tls=client_context(certificates)) as wire:
            wire.connect("c")
        began = time.monotonic()
    assert time.monotonic() - began < 3
    for sock in silent:
        assert sock.recv(1) == b""
        sock.close()


def test_a_silent_handshake_ends(certificates: Certificates) -> None:
    """In the time for connecting."""
    limits = BrokerLimits(connect_timeout_s=0.2)
    with (
        EmbeddedServer(tls=tls_of(certificates), broker_limits=limits) as server,
        socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock,
    ):
        assert sock.recv(1) == b""


def test_handshakes_count_as_connections(certificates: Certificates) -> None:
    """A limit on connections holds before anybody is known."""
    limits = BrokerLimits(connections=1)  # and 16 more sockets, before they are dropped unheard
    with EmbeddedServer(tls=tls_of(certificates), broker_limits=limits) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) for _ in range(17)]
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock:
            assert _is_dropped(sock)
        for other in silent:
            other.close()


def _is_dropped(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_certificates_are_renewed_while_the_server_runs(certificates: Certificates, tmp_path: Path) -> None:
    """New connections see the new certificate within a second; a broken file changes nothing."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name: str) -> str:
        new_cert, new_key = certificates.issue(name, "127.0.0.1", common_name=name)
        cert.write_bytes(Path(new_cert).read_bytes())
        key.write_bytes(Path(new_key).read_bytes())
        return name

    def seen() -> str:
        with (
            socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock,
            client_context(certificates).wrap_socket(sock, server_hostname="127.0.0.1") as secured,
        ):
            subject = secured.getpeercert()["subject"]
            return dict(pair for part in subject for pair in part)["commonName"]

    first = put("first")
    with EmbeddedServer(tls=ServerTls(cert_file=str(cert), key_file=str(key))) as server:
        assert seen() == first
        second = put("second")
        eventually(lambda: seen() == second, "the new certificate is shown")
        cert.write_text("nonsense")
        assert seen() == second


def test_an_encrypted_key(certificates: Certificates, tmp_path: Path) -> None:
    """Its password comes from a file; without one nobody is asked, and the message names the files."""
    cert, key = certificates.issue("encrypted", "127.0.0.1", key_password="open sesame")
    word = tmp_path / "word"
    word.write_text("open sesame\n")
    with (
        EmbeddedServer(tls=ServerTls(cert_file=cert, key_file=key, key_password_file=str(word))) as server,
        Wire(server, tls=client_context(certificates)) as wire,
    ):
        wire.connect("c")
    with (
        pytest.raises(SettingsError, match=r"encrypted\.pem with key .*encrypted-key\.pem cannot be loaded"),
        EmbeddedServer(tls=ServerTls(cert_file=cert, key_file=key)),
    ):
        pass


@pytest.mark.parametrize("field", ["cert_file", "key_file", "ca_file", "key_password_file"])
def test_files_of_tls_that_are_missing(certificates: Certificates, field: str) -> None:
    """The server does not start, and the file is named."""
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file} | {field: "/nowhere"}
    with pytest.raises(SettingsError, match="/nowhere"), EmbeddedServer(tls=ServerTls(**files)):
        pass


def test_the_certificate_names_the_user(certificates: Certificates) -> None:
    """Without a user name, the common name of a client's certificate counts in the rules; a password beats it."""
    rules = AccessRules.parse("user pump\n  publish t\n")
    cert, key = certificates.issue("pump", "pump@example.org", common_name="pump")
    with EmbeddedServer(tls=tls_of(certificates, with_ca=True), acl=rules) as server:
        for files, code in (((cert, key), 0x10), ((certificates.client_file, certificates.client_key_file), 0x87)):
            context = client_context(certificates)
            context.load_cert_chain(*files)
            with Wire(server, tls=context) as wire:
                wire.connect("c", username="claimed")
                wire.send(Publish("t", b"", 1, packet_id=1))
                assert wire.receive() == Puback(1, code)


@needs_mosquitto
def test_mosquitto_over_tls_with_everything(certificates: Certificates, require_tool: Callable[[str], str]) -> None:
    """Another TLS and MQTT implementation: certificate, password, and a forbidden topic."""
    rules = AccessRules.parse("user pump\n  publish open\n")
    tls = tls_of(certificates, with_ca=True)
    with EmbeddedServer(tls=tls, passwords={"pump": "secret"}, acl=rules) as server:
        base = [
            require_tool("mosquitto_pub"), "-h", "127.0.0.1", "-p", str(server.port), "-V", "5", "-q", "1", "-m", "x",
            "--cafile", certificates.ca_file, "--cert", certificates.client_file, "--key", certificates.client_key_file,
            "-u", "pump",
        ]  # fmt: skip
        assert subprocess.run([*base, "-P", "secret", "-t", "open"], timeout=30).returncode == 0
        wrong = subprocess.run([*base, "-P", "wrong", "-t", "open"], timeout=30, capture_output=True, text=True)
        assert "bad user name or password" in wrong.stderr.lower()
        forbidden = subprocess.run([*base, "-P", "secret", "-t", "no"], timeout=30, capture_output=True, text=True)
        assert "not authorized" in forbidden.stderr.lower()
