"""The secret that the servers of a cluster share: the keys that are made from it, and TLS between them.

Python's TLS knows no pre-shared keys before 3.13, so the receiver of a connection shows a certificate whose private key
is made from the secret. Nobody without the secret can show it, and who dials has the same one to compare. That the
dialler has the secret, too, is proven inside by a code (:mod:`.internal_handshake`): no one else is in between then.

Source: HKDF of RFC 5869; TLS 1.3 of RFC 8446; Ed25519 certificates of RFC 8410.
"""

from __future__ import annotations

import datetime
import hmac
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import IO, Final

from statestore_client.errors import SettingsError

__all__ = ["ClusterSecret", "derive"]

_SALT: Final = b"statestore internal 2"
#: It is the same in each server and each of its lives: made from the secret alone.
_SERIAL: Final = 1
_FROM: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)  # RFC 5280: none that is known


def derive(salt: bytes, secret: bytes, info: bytes) -> bytes:
    """32 bytes for the purpose that ``info`` names: HKDF of RFC 5869 with SHA-256, one block."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\1", "sha256")


class ClusterSecret:
    """Without a secret, which is for servers on one machine, codes keep nobody out and nothing is encrypted."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.key: Final = derive(_SALT, secret, b"codes")

    def __bool__(self) -> bool:
        return bool(self._secret)

    @cached_property
    def receiver_tls(self) -> ssl.SSLContext:
        """Raises SettingsError if the certificate cannot be made."""
        certificate, private = self._pem
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with _file_for_openssl() as (file, path):
            file.write(certificate + private)
            file.flush()
            context.load_cert_chain(path)
        return context

    @cached_property
    def dialler_tls(self) -> ssl.SSLContext:
        """Trusts nothing but that certificate. Raises SettingsError if it cannot be made."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the handshake inside names the address
        context.load_verify_locations(cadata=self._pem[0].decode())
        return context

    @cached_property
    def _pem(self) -> tuple[bytes, bytes]:
        """Certificate and private key."""
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        except ImportError:
            raise SettingsError(
                "servers with a --cluster-key-file encrypt what they say to each other: "
                "pip install 'statestore-client[cluster]'"
            ) from None
        private = Ed25519PrivateKey.from_private_bytes(derive(_SALT, self._secret, b"certificate"))
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "statestore cluster")])
        certificate = (
            x509.CertificateBuilder(name, name, private.public_key(), _SERIAL, _FROM, _UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(private, None)
        )
        return (
            certificate.public_bytes(Encoding.PEM),
            private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


@contextmanager
def _file_for_openssl() -> Iterator[tuple[IO[bytes], str]]:
    """A file that nobody else can read, and its path: OpenSSL reads keys from files only.

    On Linux it is in memory, so the key is on no disk, and no directory has to be writable. Raises OSError.
    """
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("statestore"), "wb") as file:
            yield file, f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as named:  # mode 0600
            yield named, named.name
