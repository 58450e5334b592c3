"""Certificates that are good no longer: at the handshake, and while their connections stand."""

from __future__ import annotations

import random
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from support.keys import Certificates
from support.server_clients import Wire
from support.waiting import eventually

from statestore_client import ConnectionLostError, StateStoreClient
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.mqtt.packets import Connack, Disconnect, Pingreq, Pingresp
from statestore_client.server import EmbeddedServer, ServerTls
from statestore_client.server.runtime.security.revocation import revoked_serials

#: The reason code as the standard numbers it (MQTT 5.0, 2.4).
NOT_AUTHORIZED = 0x87


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of this file's own."""
    return Certificates(tmp_path_factory.mktemp("revocation"))


@pytest.fixture(scope="module")
def clients(certificates: Certificates) -> dict[str, tuple[str, str]]:
    return {name: certificates.issue(name, f"{name}@example.org", common_name=name) for name in ("good", "bad")}


def serve(certificates: Certificates, lists: Path) -> EmbeddedServer:
    files = {"cert_file": certificates.server_file, "key_file": certificates.server_key_file}
    return EmbeddedServer(tls=ServerTls(**files, ca_file=certificates.ca_file, crl_file=str(lists)))


def context_of(certificates: Certificates, files: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca_file)
    context.load_cert_chain(*files)
    return context


def comes_in(server: EmbeddedServer, certificates: Certificates, files: tuple[str, str]) -> bool:
    try:
        with Wire(server, tls=context_of(certificates, files)) as wire:
            return isinstance(wire.connect("probe"), Connack)
    except (OSError, AssertionError):
        return False


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


def test_revoking_while_the_server_runs(
    certificates: Certificates, clients: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """Revoking while the server runs counts for new connections and ends existing ones; a broken file changes
    nothing."""
    certificates.revoke(lists := tmp_path / "lists")
    with (
        serve(certificates, lists) as server,
        Wire(server, tls=context_of(certificates, clients["good"])) as good,
        Wire(server, tls=context_of(certificates, clients["bad"])) as bad,
    ):
        good.connect("good")
        bad.connect("bad")
        certificates.revoke(lists, clients["bad"][0])
        told = bad.receive()
        assert isinstance(told, Disconnect)
        assert told.reason_code == NOT_AUTHORIZED
        assert not comes_in(server, certificates, clients["bad"])
        lists.write_text("nonsense")
        server._running().call(server._running().reload)
        assert not comes_in(server, certificates, clients["bad"])
        assert comes_in(server, certificates, clients["good"])
        good.send(Pingreq())
        assert good.receive() == Pingresp()
        certificates.revoke(lists)
        eventually(lambda: comes_in(server, certificates, clients["bad"]), "it is good again")


def test_a_list_that_is_out_of_date_lets_nobody_in(
    certificates: Certificates, clients: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """With a list that is out of date nobody comes in, because later revocations are unknown."""
    certificates.revoke(lists := tmp_path / "lists", expired=True)
    with serve(certificates, lists) as server:
        assert not comes_in(server, certificates, clients["good"])


def test_lists_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    """With an unusable list the server does not start, and says why."""
    for file, why in ((tmp_path / "nowhere", "No such file"), (Path(certificates.ca_file), "there is no X509 CRL in")):
        with pytest.raises(SettingsError, match=f"revoked certificates .*{why}"), serve(certificates, file):
            pass
    with pytest.raises(InvalidArgumentError, match="crl_file needs a ca_file"):
        ServerTls(cert_file="c", key_file="k", crl_file="x")


@pytest.mark.parametrize("count", [0, 1, 300])
def test_serial_numbers_are_read_from_lists(count: int) -> None:
    """All serial numbers of any length are read, with and without a next date, from several lists in one file."""
    key, rng, pem, expected = generate_private_key(SECP256R1()), random.Random(count), b"a comment\n", set()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for year in (2026, 2055):  # UTCTime and GeneralizedTime
        builder = x509.CertificateRevocationListBuilder().issuer_name(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
        )
        builder = builder.last_update(now).next_update(now.replace(year=year) + timedelta(days=1))
        for _ in range(count):
            serial = rng.getrandbits(rng.randrange(1, 159)) or 1
            expected.add(serial)
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        number = x509.CRLNumber(year)
        pem += builder.add_extension(number, critical=False).sign(key, SHA256()).public_bytes(Encoding.PEM)
    assert revoked_serials(pem) == expected
