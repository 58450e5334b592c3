"""A Kubernetes service account token as a method of enhanced authentication.

Source: state store facts, 3.4: method ``K8S-SAT``, the token is the authentication data, and it is presented again
with AUTH 0x19 when the file has changed. Kubernetes replaces the file before the token in it expires.
"""

from __future__ import annotations

from typing import Final

from statestore_client.errors import SettingsError
from statestore_client.mqtt.tls import read_setting_file

__all__ = ["LOOK_EVERY_S", "ServiceAccountToken"]

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
