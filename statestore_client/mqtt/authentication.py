"""Enhanced authentication of a client (MQTT 5.0, 4.12): a conversation of AUTH packets before CONNACK, and again later.

::

    CONNECT(method, data) -> AUTH 0x18 -> AUTH 0x18 ... -> CONNACK
    AUTH 0x19 -> AUTH 0x18 -> AUTH 0x18 ... -> AUTH 0x00            while the connection goes on
"""

from __future__ import annotations

from typing import Protocol

import attrs

from statestore_client.errors import ConnectionLostError, RemoteProtocolError
from statestore_client.mqtt.packets import Auth, AuthProperties, ReasonCode


class Authenticator(Protocol):
    """A method of authentication, SCRAM-SHA-256 for example, or a token of a service account."""

    @property
    def method(self) -> str:
        """The name that client and broker agreed upon."""

    def data(self, challenge: bytes | None) -> bytes:
        """The answer to what the broker sent; None is the beginning of a conversation.

        Also called with the data that comes with the broker's success, for methods that prove the broker, too; what it
        returns then is not sent. An exception ends the connection. It must not block.
        """


@attrs.define(eq=False)
class Authentication:
    """One connection's conversations. Without an authenticator, every AUTH is the broker's mistake.

    :raises ConnectionLostError: the authenticator failed.
    :raises RemoteProtocolError: the broker sent what it must not.
    """

    _authenticator: Authenticator | None
    is_running: bool = False
    _is_renewal: bool = False

    @property
    def method(self) -> str | None:
        """The name of the method, for CONNECT."""
        return None if self._authenticator is None else self._authenticator.method

    def begin(self) -> bytes | None:
        """The data of CONNECT; None without an authenticator."""
        if self._authenticator is None:
            return None
        self.is_running = True
        return self._data(self._authenticator, None)

    def renew(self) -> Auth | None:
        """The AUTH that begins a new conversation on a connection that stands; None while one is running.

        Also None without an authenticator, because AUTH without a method is not allowed.
        """
        if self._authenticator is None or self.is_running:
            return None
        self.is_running = self._is_renewal = True
        return self._auth(self._authenticator, ReasonCode.REAUTHENTICATE, None)

    def receive(self, packet: Auth) -> Auth | None:
        """The answer to the broker's AUTH; None when it was its last word."""
        authenticator = self._authenticator
        if authenticator is None or not self.is_running:
            raise RemoteProtocolError("an AUTH came that nobody asked for")
        self._check_method(authenticator, packet.properties.authentication_method)
        if packet.reason_code == ReasonCode.CONTINUE_AUTHENTICATION:
            return self._auth(authenticator, packet.reason_code, packet.properties.authentication_data or b"")
        if packet.reason_code != ReasonCode.SUCCESS or not self._is_renewal:
            # CONNACK ends the first conversation; to begin a new one is the client's part (4.12.1).
            raise RemoteProtocolError(f"an AUTH with reason code {packet.reason_code:#04x} came")
        self._finish(authenticator, packet.properties.authentication_data)
        return None

    def accepted(self, method: str | None, data: bytes | None) -> None:
        """CONNACK with success came, with these properties."""
        if self._authenticator is not None:
            self._check_method(self._authenticator, method)
            self._finish(self._authenticator, data)

    def _finish(self, authenticator: Authenticator, data: bytes | None) -> None:
        if data is not None:
            self._data(authenticator, data)
        self.is_running = False

    def _check_method(self, authenticator: Authenticator, method: str | None) -> None:
        if method != authenticator.method:
            # The same in all packets of a connection. [MQTT-4.12.0-5]
            raise RemoteProtocolError(f"authentication method {authenticator.method!r} was answered with {method!r}")

    def _auth(self, authenticator: Authenticator, reason_code: int, challenge: bytes | None) -> Auth:
        data = self._data(authenticator, challenge)
        return Auth(reason_code, AuthProperties(authenticator.method, data))

    def _data(self, authenticator: Authenticator, challenge: bytes | None) -> bytes:
        try:
            return authenticator.data(challenge)
        except Exception as error:
            # The user's code; calls of a connection never raise.
            raise ConnectionLostError(f"the authenticator failed: {error}") from error
