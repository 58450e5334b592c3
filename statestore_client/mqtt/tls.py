"""TLS for client connections: verified, TLS 1.2 or newer, with no exception for localhost."""

from __future__ import annotations

import ssl
from pathlib import Path

from statestore_client.errors import SettingsError
from statestore_client.settings import ConnectionSettings

__all__ = ["client_context", "read_password", "read_setting_file"]


def client_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """The context for the settings' files. Raises :class:`SettingsError` that names the file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file, cadata=_read_directory(settings.tls_ca_dir))
    except (OSError, ssl.SSLError) as error:
        where = f"tls_ca_file {settings.tls_ca_file!r}" if settings.tls_ca_dir is None else settings.tls_ca_dir
        raise SettingsError(f"{where} cannot be loaded: {error}") from error
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
            raise SettingsError(f"tls_cert_file {settings.tls_cert_file!r} {key} cannot be loaded: {error}") from error
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
        raise SettingsError(f"{name} {path!r} cannot be read: {error}") from error
