"""Why a connection ended, as the ``Closed`` event of every driver: the error, and whether to try again."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from statestore_client.errors import ConnectionLostError, ConnectRefusedError, SettingsError
from statestore_client.mqtt.packets.types import ReasonCode
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed

#: Trying again the same way cannot help (state store facts, 3.4: the lists of the official SDKs).
_FATAL_CONNACK: Final = frozenset(
    {0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x99, 0x9A, 0x9B, 0x9C, 0x9D}
)
#: As theirs without PACKET_TOO_LARGE: only the request that was too large is at fault, and core rejects it.
_FATAL_DISCONNECT: Final = frozenset(
    {0x81, 0x82, 0x87, 0x8E, 0x8F, 0x90, 0x94, 0x99, 0x9A, 0x9B, 0x9D, 0x9E, 0xA1, 0xA2}
)
#: TLS alerts about the certificate that we showed, or did not show (RFC 8446, 6.2).
_CERTIFICATE_ALERTS: Final = frozenset(
    {
        "ACCESS_DENIED",
        "BAD_CERTIFICATE",
        "CERTIFICATE_EXPIRED",
        "CERTIFICATE_REQUIRED",
        "CERTIFICATE_REVOKED",
        "CERTIFICATE_UNKNOWN",
        "UNKNOWN_CA",
        "UNSUPPORTED_CERTIFICATE",
    }
)

#: Codes of OpenSSL (x509_vfy.h) for certificates that no other authority would make good.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAMES: Final = frozenset({62, 64})  # of a host, of an IP address
#: What OpenSSL says of bytes that are not TLS.
_NO_TLS: Final = frozenset({"PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER"})


def refused(settings: ConnectionSettings, reason_code: int, reason: str | None = None) -> Closed:
    """CONNACK with an error."""
    text = f"the broker at {settings.url} refused the connection: {_name(reason_code, reason)}"
    fatal = reason_code in _FATAL_CONNACK
    return Closed(ConnectRefusedError(text, reason_code=reason_code, fatal=fatal), fatal, reason_code)


def disconnected(settings: ConnectionSettings, reason_code: int, reason: str | None = None) -> Closed:
    """DISCONNECT from the broker."""
    text = f"the broker at {settings.url} closed the connection: {_name(reason_code, reason)}"
    if reason_code == ReasonCode.SESSION_TAKEN_OVER:
        text += "; another connection uses the same client id"
    fatal = reason_code in _FATAL_DISCONNECT
    return Closed(ConnectionLostError(text, fatal=fatal), fatal, reason_code)


def connect_failed(settings: ConnectionSettings, cause: BaseException) -> Closed:
    """The network failed, before or after the connection stood."""
    if isinstance(cause, SettingsError):
        return Closed(cause, fatal=True)
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = _distrust(cause)
        return Closed(ConnectionLostError(f"cannot connect to {settings.url}: {hint}", fatal=True), fatal=True)
    if isinstance(cause, ssl.SSLError) and (alert := _certificate_alert(cause)) is not None:
        hint = f"the broker does not accept this client's certificate ({alert}); see tls_cert_file"
        return Closed(ConnectionLostError(f"cannot connect to {settings.url}: {hint}", fatal=True), fatal=True)
    if isinstance(cause, ssl.SSLEOFError) or (isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS):
        hint = f"the other side does not speak TLS, or broke it off ({cause.reason}); {_question(settings)}"
        return Closed(ConnectionLostError(f"cannot connect to {settings.url}: {hint}"))
    if isinstance(cause, socket.gaierror):
        hint = f"the address of {settings.host} cannot be found ({cause.strerror}); is the name right?"
        return Closed(ConnectionLostError(f"cannot connect to {settings.url}: {hint}"))
    if isinstance(cause, ConnectionRefusedError):
        hint = "connection refused; is the broker running, and is the port right?"
        return Closed(ConnectionLostError(f"cannot connect to {settings.url}: {hint}"))
    if isinstance(cause, TimeoutError) and cause.errno is None:
        hint = f"no answer within {settings.connect_timeout:g} s"
        return Closed(ConnectionLostError(f"cannot connect to {settings.url}: {hint}"))
    if isinstance(cause, TimeoutError):  # TCP's own
        hint = f"its machine acknowledges nothing ({cause.strerror})"
        return Closed(ConnectionLostError(f"the connection to {settings.url} failed: {hint}"))
    return Closed(ConnectionLostError(f"the connection to {settings.url} failed: {cause or type(cause).__name__}"))


def peer_closed(settings: ConnectionSettings, *, answered: bool) -> Closed:
    """The stream ended without a DISCONNECT; before the answer to CONNECT, it may be another kind of port."""
    text = f"{settings.url} closed the connection"
    if not answered:
        text += f" before it answered CONNECT; {_question(settings)}"
    return Closed(ConnectionLostError(text))


def no_connack(settings: ConnectionSettings) -> Closed:
    """TCP stands, but the other side does not speak MQTT."""
    text = f"{settings.url} did not answer CONNECT within {settings.connect_timeout:g} s; {_question(settings)}"
    return Closed(ConnectionLostError(text))


def no_pingresp(settings: ConnectionSettings, waited_s: float) -> Closed:
    """The keep-alive found no sign of life, not even PINGRESP."""
    return Closed(ConnectionLostError(f"no byte from {settings.url} for {waited_s:.1f} s, not even for a ping"))


def protocol_violated(settings: ConnectionSettings, what: object, *, answered: bool) -> Closed:
    """What came is not MQTT, or breaks its rules; before the answer to CONNECT, it may be a server of HTTP."""
    if answered:
        return Closed(ConnectionLostError(f"{settings.url} sent a packet that MQTT does not allow: {what}"))
    return Closed(
        ConnectionLostError(
            f"{settings.url} answered CONNECT with bytes that are not MQTT ({what}); {_question(settings)}"
        )
    )


def _question(settings: ConnectionSettings) -> str:
    return f"is this an MQTT port? It must be one for MQTT 5 {'with' if settings.tls else 'without'} TLS"


def _distrust(error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with the broker's certificate, and what to do about that."""
    why = error.verify_message
    if error.verify_code == _EXPIRED:
        return f"the broker's certificate is out of date ({why}); renew it there, or set the clock of this machine"
    if error.verify_code == _NOT_YET_VALID:
        return f"the broker's certificate is not valid yet ({why}); is the clock of this machine right?"
    if error.verify_code in _OTHER_NAMES:
        return f"the broker's certificate is for another name ({why}); use a host name or address that it has"
    return f"the broker's certificate is not trusted ({why}); see tls_ca_file"


def _certificate_alert(error: ssl.SSLError) -> str | None:
    """What the broker says about our certificate, in OpenSSL's words; None for other errors."""
    reason = error.reason or ""
    alert = reason.partition("_ALERT_")[2]
    return alert.replace("_", " ").lower() if alert in _CERTIFICATE_ALERTS else None


def _name(reason_code: int, reason: str | None) -> str:
    try:
        name = ReasonCode(reason_code).name.replace("_", " ").lower()
    except ValueError:
        name = "unknown reason"
    return f"{name} (0x{reason_code:02X})" + (f", {reason}" if reason and reason.lower() != name else "")
