"""Keys of CURVE in files: what sites of the KvStore, clients of them and of a log read, and what they refuse.

The files have the format of ZeroMQ certificates, as ``zmq.auth.create_certificates()`` and czmq write them. What is
refused, and in which words, is what peers of a Raft cluster refuse: a test asks both packages the same.

Source: ZeroMQ RFC 26 (CurveZMQ), zmq_curve(7); ``docs/decisions/keys-and-rights.md``.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import Final, Self

import attrs
import zmq
import zmq.auth
from zmq.utils import z85

from statestore_client.errors import SettingsError

_KEY_BYTES: Final = 32
_OTHERS: Final = 0o077


@attrs.frozen
class KeyPair:
    """One's own, in Z85."""

    public: bytes
    secret: bytes = attrs.field(repr=False)

    @classmethod
    def of_secret(cls, secret: bytes) -> Self:
        """The pair whose secret key is these 32 bytes. Raises SettingsError if this libzmq has no CURVE."""
        check_curve()
        encoded = z85.encode(secret)
        return cls(zmq.curve_public(encoded), encoded)


@attrs.frozen(kw_only=True)
class ClientKeys:
    """What a client of a site with keys needs: the public key of the site, and a pair of its own, in Z85.

    Raises SettingsError for what is no key, and for a pair that does not belong together.
    """

    curve_server_key: str
    curve_public_key: str
    curve_secret_key: str = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        check_curve()
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not _is_key(value.encode(errors="replace")):
                raise SettingsError(f"{field.name} must be a CURVE key: 40 characters of Z85")
        if zmq.curve_public(self.curve_secret_key.encode()) != self.curve_public_key.encode():
            raise SettingsError("curve_public_key does not belong to curve_secret_key")

    @classmethod
    def read(cls, own: str | os.PathLike[str], site: str | os.PathLike[str]) -> Self:
        """From files: ``own`` has the client's pair (``app.key_secret``), ``site`` the site's public key
        (``bonn.key``). Raises SettingsError, which names the file that is at fault.
        """
        check_curve()
        pair = read_pair(Path(own))
        return cls(
            curve_server_key=read_public_key(Path(site)).decode(),
            curve_public_key=pair.public.decode(),
            curve_secret_key=pair.secret.decode(),
        )


def check_curve() -> None:
    """Raises SettingsError if this libzmq was built without what CURVE needs."""
    if not zmq.has("curve"):
        raise SettingsError("CURVE is not in this libzmq: install pyzmq from a wheel, or build libzmq with libsodium")


def read_pair(file: Path) -> KeyPair:
    """A file that nobody else can read. Raises SettingsError, without the key."""
    try:
        if os.name == "posix" and file.stat().st_mode & _OTHERS:
            raise SettingsError(f"the secret key in {file} can be read by other users: chmod 600 {file}")
        public, secret = zmq.auth.load_certificate(file)
        if secret is None:
            raise ValueError("it has no secret-key")
        if zmq.curve_public(_checked(secret)) != _checked(public):
            raise ValueError("its public-key does not belong to its secret-key")
    except SettingsError:
        raise
    except (OSError, ValueError) as error:
        raise SettingsError(_fault(file, error)) from None
    return KeyPair(public, secret)


def read_public_key(file: Path) -> bytes:
    """Raises SettingsError."""
    try:
        return _checked(zmq.auth.load_certificate(file)[0])
    except (OSError, ValueError) as error:
        raise SettingsError(_fault(file, error)) from None


def write_public_key(file: Path, pair: KeyPair) -> None:
    """As :func:`read_public_key` reads it. Raises OSError."""
    file.write_text(f'curve\n    public-key = "{pair.public.decode()}"\n', "ascii")


def write_pair(file: Path, pair: KeyPair) -> None:
    """As :func:`read_pair` reads it. Raises OSError."""
    public, secret = pair.public.decode(), pair.secret.decode()
    write_private(file, f'curve\n    public-key = "{public}"\n    secret-key = "{secret}"\n')


def write_private(file: Path, text: str) -> None:
    """A file that is never readable by others, and never half written. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as new:  # mode 0600
        new.write(text)
    Path(new.name).replace(file)


def _fault(file: Path, error: OSError | ValueError) -> str:
    """Why it cannot be used."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"the key file {file} cannot be used: {text}"


def _checked(key: bytes) -> bytes:
    if not _is_key(key):
        raise ValueError("a key in it is not 40 characters of Z85")
    return key


def _is_key(key: bytes) -> bool:
    try:
        return len(z85.decode(key)) == _KEY_BYTES
    except (ValueError, KeyError, struct.error):
        return False
