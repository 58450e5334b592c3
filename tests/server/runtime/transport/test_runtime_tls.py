"""The server over TLS: versions, handshakes that end or hang, certificates, and the users that they name."""

from __future__ import annotations

import random
import re
import socket
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from support.keys import Certificates
from support.server_clients import TIMEOUT_S, Wire, needs_mosquitto
from support.waiting import eventually

from statestore_client import ConnectionLostError, StateStoreClient
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.mqtt.packets import Connack, Disconnect, Pingreq, Pingresp, Puback, Publish
from statestore_client.server import AccessRules, BrokerLimits, EmbeddedServer, ServerTls
from statestore_client.server.runtime.security.files import Trust, certificate_id, ends_of

#: The reason code as the standard numbers it (MQTT 5.0, 2.4).
NOT_AUTHORIZED = 0x87


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("server-tls"))


def tls_of(certificates: Certificates, *, with_ca: bool = False) -> ServerTls:
    ca_file = certificates.ca_file if with_ca else None
    return ServerTls(cert_file=certificates.server_file, key_file=certificates.server_key_file, ca_file=ca_file)


def client_context(certificates: Certificates, files: tuple[str, str] | None = None) -> ssl.SSLContext:
    """Of a client, which has a certificate and its key if there are ``files``."""
    context = ssl.create_default_context(cafile=certificates.ca_file)
    if files is not None:
        context.load_cert_chain(*files)
    return context


@pytest.mark.attack("MQTT by TLS", "old versions of TLS")
def test_old_versions_are_refused(certificates: Certificates) -> None:
    """TLS 1.2 and 1.3 are accepted, and 1.1 is not."""
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
    """DISCONNECT arrives before the end of the connection, although what the peer sent is unread."""
    with (
        EmbeddedServer(tls=tls_of(certificates), acl=AccessRules.parse("")) as server,
        Wire(server, tls=client_context(certificates)) as wire,
    ):
        wire.connect("c")
        wire.send(Publish("t"), *[Publish("t", b"x" * 1000)] * 500)
        disconnect = wire.receive()
        assert (type(disconnect), disconnect.reason_code) == (Disconnect, NOT_AUTHORIZED)


def test_stopping_in_the_middle_of_a_handshake(certificates: Certificates) -> None:
    """Silent peers in the middle of a handshake do not delay stopping."""
    with EmbeddedServer(tls=tls_of(certificates)) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) for _ in range(3)]
        with Wire(server, tls=client_context(certificates)) as wire:
            wire.connect("c")
        began = time.monotonic()
    assert time.monotonic() - began < 8  # the handshake's time-out is 10 s
    for sock in silent:
        assert sock.recv(1) == b""
        sock.close()


@pytest.mark.attack("MQTT by TLS", "handshakes that are silent")
def test_a_silent_handshake_ends(certificates: Certificates) -> None:
    """A silent handshake ends after the time for CONNECT."""
    limits = BrokerLimits(connect_timeout_s=0.2)
    with (
        EmbeddedServer(tls=tls_of(certificates), broker_limits=limits) as server,
        socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock,
    ):
        assert sock.recv(1) == b""


def test_certificates_are_renewed_while_the_server_runs(certificates: Certificates, tmp_path: Path) -> None:
    """New connections get a renewed certificate within a second, and a broken file changes nothing."""
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
    """The password of a key comes from a file; without it nobody is prompted, and the message names the files."""
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


@pytest.mark.parametrize("endpoint", ["mqtts", "wss"])
def test_a_context_of_the_users_own_sends_alerts(certificates: Certificates, endpoint: str) -> None:
    """With an SSLContext in place of files, a client without a certificate hears that one is required, and one that
    speaks no version of TLS that the server speaks gets an alert, not just the end of the connection.
    """
    own = certificates.server_context()
    own.verify_mode = ssl.CERT_REQUIRED
    own.load_verify_locations(certificates.ca_file)
    with EmbeddedServer(tls=own, wss_port=0) as server:
        url = server.urls[endpoint]
        with pytest.raises(ConnectionLostError, match=r"certificate required.*tls_cert_file"):
            StateStoreClient(url, tls_ca_file=certificates.ca_file).open()
    old = certificates.server_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_3
    with (
        EmbeddedServer(tls=old) as server,
        socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock,
    ):
        context = client_context(certificates)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
            context.wrap_socket(sock, server_hostname="127.0.0.1")


def test_one_file_may_have_certificate_and_key(certificates: Certificates, tmp_path: Path) -> None:
    """One PEM with certificate and key is enough, for the server and for its clients; without a key it is named."""
    both = []
    for name, cert, key in (
        ("server", certificates.server_file, certificates.server_key_file),
        ("client", certificates.client_file, certificates.client_key_file),
    ):
        file = tmp_path / f"{name}-both.pem"
        file.write_bytes(Path(cert).read_bytes() + Path(key).read_bytes())
        both.append(str(file))
    with EmbeddedServer(tls=ServerTls(cert_file=both[0], ca_file=certificates.ca_file)) as server:
        options = {"tls_ca_file": certificates.ca_file}
        with StateStoreClient(server.url, tls_cert_file=both[1], **options) as store:
            assert store.set("k", "v")
        with pytest.raises(SettingsError, match=r"client\.pem' and the key in it cannot be loaded"):
            StateStoreClient(server.url, tls_cert_file=certificates.client_file, **options).open()
    with (
        pytest.raises(SettingsError, match=r"server\.pem cannot be loaded: there is no private key in .*server\.pem$"),
        EmbeddedServer(tls=ServerTls(cert_file=certificates.server_file)),
    ):
        pass


@pytest.mark.parametrize("field", ["cert_file", "key_file", "ca_file", "key_password_file"])
def test_files_of_tls_that_are_missing(certificates: Certificates, field: str) -> None:
    """A missing file is named, and the server does not start."""
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file} | {field: "/nowhere"}
    with pytest.raises(SettingsError, match="/nowhere"), EmbeddedServer(tls=ServerTls(**files)):
        pass


@pytest.mark.parametrize(
    ("field", "content", "missing"),
    [("cert_file", "server_key_file", "certificate"), ("key_file", "server_file", "private key"),
     ("ca_file", "server_key_file", "certificate")],
)  # fmt: skip
def test_files_of_tls_that_are_mixed_up(certificates: Certificates, field: str, content: str, missing: str) -> None:
    """When files are mixed up, the message says what is missing in which file."""
    file = getattr(certificates, content)
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file} | {field: file}
    with (
        pytest.raises(SettingsError, match=f"cannot be loaded: there is no {missing} in {re.escape(file)}$"),
        EmbeddedServer(tls=ServerTls(**files)),
    ):
        pass


def test_the_certificate_names_the_user(certificates: Certificates) -> None:
    """Without a user name the certificate's common name counts in the rules, and a password wins over it."""
    rules = AccessRules.parse("user pump\n  publish t\n")
    cert, key = certificates.issue("pump", "pump@example.org", common_name="pump")
    with EmbeddedServer(tls=tls_of(certificates, with_ca=True), acl=rules) as server:
        for files, code in (((cert, key), 0x10), ((certificates.client_file, certificates.client_key_file), 0x87)):
            with Wire(server, tls=client_context(certificates, files)) as wire:
                wire.connect("c", username="claimed")
                wire.send(Publish("t", b"", 1, packet_id=1))
                assert wire.receive() == Puback(1, code)


def test_a_certificate_is_enough_where_there_are_passwords(certificates: Certificates) -> None:
    """A client certificate is enough beside passwords, but a claimed user name must be proved; without either, nobody
    comes in."""
    rules = AccessRules.parse("user pump\n  publish t\n")
    context = client_context(certificates, certificates.issue("pump", "pump@example.org", common_name="pump"))
    tls, passwords = tls_of(certificates, with_ca=True), {"boss": "secret"}
    with EmbeddedServer(tls=tls, tls_port=0, passwords=passwords, acl=rules) as server:
        port = int(server.urls["mqtts"].rpartition(":")[2])
        for options, code in (({}, 0), ({"username": "boss", "password": b"secret"}, 0),
                              ({"username": "boss"}, 0x86), ({"username": "pump"}, 0x86)):  # fmt: skip
            with Wire(server, tls=context, port=port) as wire:
                connack = wire.connect("c" if options else "by-certificate", **options)
                assert (type(connack), connack.reason_code) == (Connack, code)
                if not options:
                    wire.send(Publish("t", b"", 1, packet_id=1))
                    assert wire.receive() == Puback(1, 0x10)
        with Wire(server) as wire:
            connack = wire.connect("c")
            assert (type(connack), connack.reason_code) == (Connack, NOT_AUTHORIZED)


def test_a_certificate_without_a_name_is_nobody_in_particular(certificates: Certificates) -> None:
    """A certificate without a name lets its client in, and gives no user's rights."""
    rules = AccessRules.parse("user *\n  publish t\nclient *\n  publish u\n")
    context = client_context(certificates, (certificates.client_file, certificates.client_key_file))
    tls = tls_of(certificates, with_ca=True)
    with EmbeddedServer(tls=tls, passwords={"boss": "x"}, acl=rules) as server, Wire(server, tls=context) as wire:
        connack = wire.connect("c")
        assert (type(connack), connack.reason_code) == (Connack, 0)
        wire.send(Publish("t", b"", 1, packet_id=1), Publish("u", b"", 1, packet_id=2))
        assert [wire.receive(), wire.receive()] == [Puback(1, NOT_AUTHORIZED), Puback(2, 0x10)]


@needs_mosquitto
def test_mosquitto_over_tls_with_everything(certificates: Certificates, require_tool: Callable[[str], str]) -> None:
    """mosquitto_sub works over TLS with a certificate and a password, and is refused a forbidden topic."""
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


# -- certificates that are good no longer ------------------------------------------------------------------------------

#: The reason code as the standard numbers it (MQTT 5.0, 2.4).


@pytest.fixture(scope="module")
def clients(certificates: Certificates) -> dict[str, tuple[str, str]]:
    return {name: certificates.issue(name, f"{name}@example.org", common_name=name) for name in ("good", "bad")}


def serve(certificates: Certificates, lists: Path) -> EmbeddedServer:
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file}
    return EmbeddedServer(tls=ServerTls(**files, ca_file=certificates.ca_file, crl_file=str(lists)))


def comes_in(server: EmbeddedServer, certificates: Certificates, files: tuple[str, str]) -> bool:
    try:
        with Wire(server, tls=client_context(certificates, files)) as wire:
            return isinstance(wire.connect("probe"), Connack)
    except (OSError, AssertionError):
        return False


@pytest.mark.attack("MQTT by TLS", "a revoked certificate")
def test_a_revoked_certificate_opens_nothing(
    certificates: Certificates, clients: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """A revoked certificate gets a TLS alert, our client stops with an error that names the setting, and others come
    in."""
    certificates.revoke(lists := tmp_path / "lists", clients["bad"][0])
    with serve(certificates, lists) as server:
        assert comes_in(server, certificates, clients["good"])
        cert, key = clients["bad"]
        store = StateStoreClient(server.url, tls_ca_file=certificates.ca_file, tls_cert_file=cert, tls_key_file=key)
        with pytest.raises(ConnectionLostError, match=r"certificate revoked.*tls_cert_file"):
            store.open()


@pytest.mark.ci
def test_revoking_while_the_server_runs(
    certificates: Certificates, clients: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """Revoking while the server runs counts for new connections and ends existing ones; a broken file changes
    nothing."""
    certificates.revoke(lists := tmp_path / "lists")
    with (
        serve(certificates, lists) as server,
        Wire(server, tls=client_context(certificates, clients["good"])) as good,
        Wire(server, tls=client_context(certificates, clients["bad"])) as bad,
    ):
        good.connect("good")
        bad.connect("bad")
        certificates.revoke(lists, clients["bad"][0])
        told = bad.receive()
        assert (type(told), told.reason_code) == (Disconnect, NOT_AUTHORIZED)
        assert not comes_in(server, certificates, clients["bad"])
        lists.write_text("nonsense")
        server._running().call(server._running().reload)
        assert not comes_in(server, certificates, clients["bad"])
        assert comes_in(server, certificates, clients["good"])
        good.send(Pingreq())
        assert good.receive() == Pingresp()
        certificates.revoke(lists)
        eventually(lambda: comes_in(server, certificates, clients["bad"]), "it is good again")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority, which is trusted, too."""
    return Certificates(tmp_path_factory.mktemp("other-tls"))


def reload(server: EmbeddedServer) -> None:
    server._running().call(server._running().reload)


def is_served(wire: Wire) -> bool:
    wire.send(Pingreq())
    return wire.receive() == Pingresp()


def test_a_list_counts_for_its_own_authority(
    certificates: Certificates, others: Certificates, clients: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """The number of a certificate on the list of another authority means another certificate: nobody is ended."""
    certificates.revoke(own := tmp_path / "own")
    others.revoke(foreign := tmp_path / "foreign")
    authorities, lists = tmp_path / "ca", tmp_path / "lists"
    authorities.write_text(certificates.ca_text + others.ca_text)
    lists.write_bytes(own.read_bytes() + foreign.read_bytes())
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file}
    tls = ServerTls(**files, ca_file=str(authorities), crl_file=str(lists))
    with EmbeddedServer(tls=tls) as server, Wire(server, tls=client_context(certificates, clients["good"])) as good:
        good.connect("good")
        others.revoke(foreign, clients["good"][0])
        lists.write_bytes(own.read_bytes() + foreign.read_bytes())
        reload(server)
        assert is_served(good)
        assert comes_in(server, certificates, clients["good"])
        certificates.revoke(own, clients["good"][0])
        lists.write_bytes(own.read_bytes() + foreign.read_bytes())
        reload(server)
        told = good.receive()
        assert (type(told), told.reason_code) == (Disconnect, NOT_AUTHORIZED)


@pytest.mark.attack("MQTT by TLS", "stay with the certificate of an authority that is trusted no longer")
def test_connections_end_with_the_trust_in_their_authority(
    certificates: Certificates, others: Certificates, clients: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """When an authority leaves the file, its clients are disconnected and do not come in again; those of one that stays
    go on; of whom a root has certified only by another one, the client has to show it again."""
    middle = certificates.authority.create_child_ca()
    issued = middle.issue_cert("deep@example.org")
    deep = str(tmp_path / "deep.pem"), str(tmp_path / "deep-key.pem")
    Path(deep[0]).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(deep[1])
    stranger = others.client_file, others.client_key_file
    authorities = tmp_path / "ca"
    authorities.write_text(certificates.ca_text + others.ca_text)
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file}
    with (
        EmbeddedServer(tls=ServerTls(**files, ca_file=str(authorities))) as server,
        Wire(server, tls=client_context(certificates, clients["good"])) as stays,
        Wire(server, tls=client_context(certificates, deep)) as returns,
        Wire(server, tls=client_context(certificates, stranger)) as goes,
    ):
        for name, wire in (("stays", stays), ("returns", returns), ("goes", goes)):
            wire.connect(name)
        authorities.write_text("a comment\n" + certificates.ca_text + others.ca_text)
        reload(server)
        assert all(is_served(wire) for wire in (stays, returns, goes))
        authorities.write_text(certificates.ca_text)
        reload(server)
        for wire in (goes, returns):
            told = wire.receive()
            assert (type(told), told.reason_code) == (Disconnect, NOT_AUTHORIZED)
        assert is_served(stays)
        assert comes_in(server, certificates, deep)
        assert not comes_in(server, certificates, stranger)


def test_nobody_comes_in_by_a_handshake_that_began_before(
    certificates: Certificates, others: Certificates, tmp_path: Path
) -> None:
    """A handshake that is under way when an authority goes was begun with the old ones, and comes to nothing."""
    authorities = tmp_path / "ca"
    authorities.write_text(certificates.ca_text + others.ca_text)
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file}
    context = client_context(certificates, (others.client_file, others.client_key_file))
    with (
        EmbeddedServer(tls=ServerTls(**files, ca_file=str(authorities))) as server,
        socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        sock.sendall(outgoing.read())
        incoming.write(sock.recv(65_536))  # it has answered, so it has begun
        authorities.write_text(certificates.ca_text)
        reload(server)
        while True:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                incoming.write(sock.recv(65_536))
            else:
                break
        sock.sendall(outgoing.read())
        with suppress(ConnectionError):
            while sock.recv(65_536):  # session tickets, and then the end
                pass


def test_a_list_that_is_out_of_date_lets_nobody_in(
    certificates: Certificates, clients: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """With a list that is out of date nobody comes in, because later revocations are unknown."""
    certificates.revoke(lists := tmp_path / "lists", expired=True)
    with serve(certificates, lists) as server:
        assert not comes_in(server, certificates, clients["good"])


def test_files_that_expire_are_told_in_time(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log when the server starts, when a file is another one, and each day; and as figures."""
    now = datetime.now(UTC).replace(microsecond=0)
    cert, key, lists = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "lists.pem"

    def put(name: str, days: float) -> datetime:
        not_after = now + timedelta(days=days)
        new_cert, new_key = certificates.issue(name, "127.0.0.1", not_before=now - timedelta(9), not_after=not_after)
        key.write_bytes(Path(new_key).read_bytes())
        Path(new_cert).replace(cert)
        return not_after

    def lines() -> list[str]:
        return [each.message for each in caplog.records if "expire" in each.message]

    certificates.revoke(lists)  # for a day from now on
    ends = put("soon", 29)
    tls = ServerTls(cert_file=str(cert), key_file=str(key), ca_file=certificates.ca_file, crl_file=str(lists))
    with EmbeddedServer(tls=tls, metrics_port=0) as server:
        assert lines() == [
            f"certificates expire soon of='server' not_after='{ends.isoformat()}' days_left=28",
            *(each for each in lines() if "of='revoked'" in each and each.endswith("days_left=0")),
        ]
        assert len(lines()) == 2
        with urlopen(server.urls["http"], timeout=10) as page:  # noqa: S310 - our own server
            figures = page.read().decode()
        name = "statestore_certificate_not_after_seconds"
        assert f'{name}{{of="server"}} {int(ends.timestamp())}\n' in figures
        assert f'{name}{{of="authorities"}} ' in figures
        before = len(lines())
        ended = put("past", -1)
        eventually(lambda: len(lines()) > before, "the log says so")
        assert lines()[before] == f"certificates have expired of='server' not_after='{ended.isoformat()}'"


def test_a_certificate_that_is_good_for_long_is_not_worth_a_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is one of many years that have four digits."""
    with EmbeddedServer(tls=tls_of(certificates, with_ca=True)):
        assert "expire" not in caplog.text


def test_when_certificates_and_lists_end() -> None:
    """As another library reads them, in both ways to write a year; a list without a next date says nothing."""
    pem, expected = b"", []
    for year in (1999, 2026, 2049, 2055):
        start = datetime(year, 3, 1, 12, 30, 59, tzinfo=UTC)
        builder = x509.CertificateBuilder().issuer_name(name_of("x")).subject_name(name_of("y")).serial_number(7)
        builder = (
            builder.public_key(KEY.public_key()).not_valid_before(start - timedelta(days=1)).not_valid_after(start)
        )
        pem += builder.sign(KEY, SHA256()).public_bytes(Encoding.PEM)
        expected.append(start.timestamp())
    for year in (2026, 2055):
        start = datetime(year, 3, 1, 12, 30, 59, tzinfo=UTC)
        revoked = x509.CertificateRevocationListBuilder().issuer_name(name_of("x"))
        revoked = revoked.last_update(start - timedelta(days=1)).next_update(start)
        pem += revoked.sign(KEY, SHA256()).public_bytes(Encoding.PEM)
        expected.append(start.timestamp())
    assert ends_of(pem) == expected
    # TBSCertList: version 2, an algorithm, an issuer without parts, and the time of this update alone.
    tbs = bytes.fromhex("3019 020101 3003060155 3000 170d 3236303130313030303030305a".replace(" ", ""))
    whole = bytes([0x30, len(tbs)]) + tbs
    alone = b"-----BEGIN X509 CRL-----\n" + b64encode(whole) + b"\n-----END X509 CRL-----\n"
    assert ends_of(alone) == []


def test_lists_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    """With an unusable list the server does not start, and says why."""
    for file, why in ((tmp_path / "nowhere", "No such file"), (Path(certificates.ca_file), "there is no X509 CRL in")):
        with pytest.raises(SettingsError, match=f"revoked certificates .*{why}"), serve(certificates, file):
            pass
    with pytest.raises(InvalidArgumentError, match="crl_file needs a ca_file"):
        ServerTls(cert_file="c", key_file="k", crl_file="x")


@pytest.mark.parametrize("count", [0, 1, 300])
def test_numbers_are_read_from_lists(count: int) -> None:
    """All numbers of any length are read with their issuer, with and without a next date, from several lists in one
    file."""
    key, rng, pem, expected = generate_private_key(SECP256R1()), random.Random(count), b"a comment\n", set()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for year in (2026, 2055):  # UTCTime and GeneralizedTime
        authority = name_of(f"authority {year}")
        builder = x509.CertificateRevocationListBuilder().issuer_name(authority)
        builder = builder.last_update(now).next_update(now.replace(year=year) + timedelta(days=1))
        for _ in range(count):
            serial = rng.getrandbits(rng.randrange(1, 159)) or 1
            expected.add(certificate_id(certificate(authority, serial)))
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        number = x509.CRLNumber(year)
        pem += builder.add_extension(number, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)
    assert Trust.of(b"", pem).revoked == expected


def name_of(text: str, kind: _ASN1Type = _ASN1Type.UTF8String) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "An  Organization", _type=kind),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, text, _type=kind),
        ]
    )


KEY = generate_private_key(SECP256R1())


def certificate(issuer: x509.Name, serial: int, subject: x509.Name | None = None) -> bytes:
    """In DER."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject or name_of("a client"))
    builder = builder.serial_number(serial).public_key(KEY.public_key())
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(KEY, SHA256()).public_bytes(Encoding.DER)


def test_names_are_compared_as_tls_does_it() -> None:
    """Another encoding, other spaces and capitals are the same name; another text or another order is another one."""
    known = certificate_id(certificate(name_of("Möller"), 7))
    assert certificate_id(certificate(name_of("  mÖLLER ", _ASN1Type.BMPString), 7)) == known
    assert certificate_id(certificate(name_of("möller", _ASN1Type.UniversalString), 7)) == known
    assert certificate_id(certificate(name_of("Muller"), 7)) != known
    assert certificate_id(certificate(name_of("Möller"), 8)) != known
    assert certificate_id(certificate(x509.Name(reversed([*name_of("Möller")])), 7)) != known
