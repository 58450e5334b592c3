"""What a client trusts and shows, from the files that its settings name: TLS, passwords, service account tokens.

TLS is verified, 1.2 or newer, with no exception for localhost. A Kubernetes service account token is a method of
enhanced authentication.

Source: state store facts, 3.4: method ``K8S-SAT``, the token is the authentication data, and it is presented again
with AUTH 0x19 when the file has changed. Kubernetes replaces the file before the token in it expires.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from statestore_client.errors import SettingsError
from statestore_client.settings import ConnectionSettings


def client_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """The context for the settings' files. Raises :class:`SettingsError` that names the file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file, cadata=_read_directory(settings.tls_ca_dir))
    except (OSError, ssl.SSLError) as error:
        where = f"tls_ca_file {settings.tls_ca_file!r}" if settings.tls_ca_dir is None else settings.tls_ca_dir
        raise SettingsError(f"{where} cannot be loaded: {error}", argument="tls_ca_file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # who is trusted need not be a root; before 3.13
    if settings.tls_cert_file is not None:
        password = read_setting_file("tls_key_password_file", settings.tls_key_password_file)
        try:
            # "" instead of None: without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file, password or "")
        except (OSError, ssl.SSLError) as error:
            key_file = settings.tls_key_file
            key = "and the key in it" if key_file is None else f"with tls_key_file {key_file!r}"
            text = f"tls_cert_file {settings.tls_cert_file!r} {key} cannot be loaded: {error}"
            raise SettingsError(text, argument=("tls_cert_file", "tls_key_file")) from error
    return context


def _read_directory(path: str | None) -> str | None:
    """All certificates in the files of a directory, as Kubernetes mounts a trust bundle; it may change at any time."""
    if path is None:
        return None
    try:
        files = [file.read_text("ascii") for file in sorted(Path(path).iterdir()) if file.is_file()]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"tls_ca_dir {path!r} cannot be read: {error}") from error
    if not (certificates := "\n".join(text for text in files if "BEGIN CERTIFICATE" in text)):
        raise SettingsError(f"tls_ca_dir {path!r} holds no file with a certificate (PEM)")
    return certificates


def read_password(settings: ConnectionSettings) -> str | None:
    """The password as it is now; a password file is read at each call."""
    if settings.password_file is None:
        return settings.password
    return read_setting_file("password_file", settings.password_file)


def read_setting_file(name: str, path: str | None) -> str | None:
    """The text of the file that the setting ``name`` names, None for None; :class:`SettingsError` names both."""
    if path is None:
        return None
    try:
        return Path(path).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name} {path!r} cannot be read: {error}", argument=name) from error


#: How often the file is read. Kubernetes renews tokens when a fifth of their life, at least two minutes, is left.
LOOK_EVERY_S: Final = 10.0


class ServiceAccountToken:
    """See :class:`statestore_client.mqtt.authentication.Authenticator`."""

    method: Final = "K8S-SAT"

    def __init__(self, path: str) -> None:
        self._path = path
        self._token = b""

    def load(self) -> None:
        """Read the file. Raises :class:`SettingsError` when that fails or it is empty."""
        self._token = self._read()
        if not self._token:
            raise SettingsError(f"sat_file {self._path!r} is empty")

    def load_changed(self) -> bool:
        """Whether there is another token than the last one. A file that is being replaced has not changed yet."""
        try:
            token = self._read()
        except SettingsError:
            return False
        if not token or token == self._token:
            return False
        self._token = token
        return True

    def data(self, challenge: bytes | None) -> bytes:
        """The token, whatever the broker says."""
        del challenge
        return self._token

    def _read(self) -> bytes:
        return (read_setting_file("sat_file", self._path) or "").strip().encode()
