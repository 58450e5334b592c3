"""Certificates of an authority that exists for one test run, and directories of CURVE keys, as peers have them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
import zmq.auth
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from raft_client import Peer, RaftSettings

# -- certificates ------------------------------------------------------------------------------------------------------

# Certificates made on the fly, by an authority that exists for one test run.


class Certificates:
    """An authority and a server's certificate for 127.0.0.1. ``folder`` takes the files that settings name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1")
        client = authority.issue_cert("client@example.org")
        self.ca_file = str(folder / "ca.pem")
        self.ca_text = authority.cert_pem.bytes().decode()
        authority.cert_pem.write_to_path(self.ca_file)
        self.server_file = str(folder / "server.pem")
        self.server_key_file = str(folder / "server-key.pem")
        server.cert_chain_pems[0].write_to_path(self.server_file)
        server.private_key_pem.write_to_path(self.server_key_file)
        self.client_file = str(folder / "client.pem")
        self.client_key_file = str(folder / "client-key.pem")
        client.cert_chain_pems[0].write_to_path(self.client_file)
        client.private_key_pem.write_to_path(self.client_key_file)
        self._server = server

    def issue(self, name: str, *identities: str, key_password: str | None = None, **options: Any) -> tuple[str, str]:
        """Another certificate of the same authority: its file and that of its key, which may be encrypted."""
        issued = self.authority.issue_cert(*identities, **options)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        if key_password is not None:
            loaded = load_pem_private_key(key.read_bytes(), None)
            encryption = BestAvailableEncryption(key_password.encode())
            key.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return str(certificate), str(key)

    def revoke(self, file: Path, *certificates: str, expired: bool = False) -> None:
        """Put the authority's list of revoked certificates into a file."""
        authority = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes())
        key = load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
        builder = builder.last_update(now - timedelta(days=2))
        builder = builder.next_update(now + timedelta(days=-1 if expired else 1))
        for name in certificates:
            serial = x509.load_pem_x509_certificate(Path(name).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        assert isinstance(key, (EllipticCurvePrivateKey, RSAPrivateKey))
        made = file.with_suffix(".new")
        made.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
        made.replace(file)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        return context


# -- curve files -------------------------------------------------------------------------------------------------------

# Directories of keys, as peers have them.


def make_keys(folder: Path, peers: Iterable[str] = "123") -> Path:
    """Keys of the peers, secret ones, too, and of a client named ``app``, whose secret key is beside the folder."""
    folder.mkdir()
    for peer_id in peers:
        add_peer(folder, peer_id)
    add_client(folder, "app")
    return folder


def add_peer(folder: Path, peer_id: str) -> None:
    """A key pair for this peer."""
    zmq.auth.create_certificates(folder, peer_id)
    (folder / f"{peer_id}.key_secret").chmod(0o600)


def add_client(folder: Path, name: str) -> tuple[str, str]:
    """A key pair for a client that is let in; the public and the secret key."""
    (folder / "clients").mkdir(exist_ok=True)
    zmq.auth.create_certificates(folder / "clients", name)
    secret_file = (folder / "clients" / f"{name}.key_secret").rename(folder.parent / f"{name}.key_secret")
    secret_file.chmod(0o600)
    return _pair(secret_file)


def settings_for(folder: Path, peers: Iterable[Peer], client: str = "app") -> RaftSettings:
    """How this client reaches these peers."""
    public, secret = _pair(folder.parent / f"{client}.key_secret")
    peers = tuple(peers)
    return RaftSettings(
        seeds=tuple(peer.url for peer in peers),
        curve_peer_keys={peer.url: zmq.auth.load_certificate(folder / f"{peer.id}.key")[0].decode() for peer in peers},
        curve_public_key=public,
        curve_secret_key=secret,
    )


def _pair(file: Path) -> tuple[str, str]:
    public, secret = zmq.auth.load_certificate(file)
    assert secret is not None
    return public.decode(), secret.decode()
