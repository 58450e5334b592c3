"""Which ends of a connection are final: the lists of the official SDKs, code by code."""

from __future__ import annotations

import socket
import ssl

import pytest

from statestore_client import ConnectionLostError, ConnectRefusedError, SettingsError
from statestore_client.mqtt.closing import connect_failed, disconnected, no_connack, peer_closed, refused
from statestore_client.settings import ConnectionSettings

SETTINGS = ConnectionSettings(host="broker")

#: State store facts, 3.4. Trying again the same way is pointless.
FATAL_CONNACK = "81 82 83 84 85 86 87 8A 8C 90 95 99 9A 9B 9C 9D"
#: The same list has 95, packet too large, which ends only the request that was too large.
FATAL_DISCONNECT = "81 82 87 8E 8F 90 94 99 9A 9B 9D 9E A1 A2"
#: All that MQTT 5.0 allows in CONNACK (3.2.2.2) and in DISCONNECT of a server (3.14.2.1), and 8C for AUTH (4.12).
CONNACK = "80 81 82 83 84 85 86 87 88 89 8A 8C 90 95 97 99 9A 9B 9C 9D 9F"
DISCONNECT = (
    "00 80 81 82 83 87 89 8B 8C 8D 8E 8F 90 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F A0 A1 A2"
)  # fmt: skip


@pytest.mark.parametrize("code", [int(code, 16) for code in CONNACK.split()], ids=hex)
def test_refusals(code: int) -> None:
    """CONNACK with a code of the list ends the client with a typed error that has the code."""
    closed = refused(SETTINGS, code, "because")
    assert closed.fatal == (f"{code:02X}" in FATAL_CONNACK.split())
    assert closed.reason_code == code
    assert isinstance(closed.error, ConnectRefusedError)
    assert closed.error.reason_code == code
    assert f"(0x{code:02X}), because" in str(closed.error)
    assert "unknown" not in str(closed.error)


@pytest.mark.parametrize("code", [int(code, 16) for code in DISCONNECT.split()], ids=hex)
def test_disconnects(code: int) -> None:
    """DISCONNECT with a code of the list ends the client, and after any other code it comes again."""
    closed = disconnected(SETTINGS, code)
    assert closed.fatal == (f"{code:02X}" in FATAL_DISCONNECT.split())
    assert closed.reason_code == code
    assert isinstance(closed.error, ConnectionLostError)
    assert f"(0x{code:02X})" in str(closed.error)
    assert "unknown" not in str(closed.error)


def test_a_reason_that_is_the_name_of_the_code_is_told_once() -> None:
    """A reason string that only repeats the code's name, as brokers like to send it, is not said twice."""
    text = str(disconnected(SETTINGS, 0x8B, "Server shutting down").error)
    assert text.endswith("closed the connection: server shutting down (0x8B)")


def test_a_code_from_the_future() -> None:
    """An unknown reason code, as of a later standard, is worth another attempt."""
    assert not refused(SETTINGS, 0xEE).fatal
    assert "unknown reason (0xEE)" in str(disconnected(SETTINGS, 0xEE).error)


def _tls_error(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> ssl.SSLError:
    error = kind(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


def _distrust(code: int, message: str) -> ssl.SSLError:
    """As OpenSSL 3 says it: code and words of ``openssl verify``."""
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("cause", "is_fatal", "text"),
    [
        (_distrust(19, "self-signed certificate"), True, "not trusted (self-signed certificate); see tls_ca_file"),
        (_distrust(10, "certificate has expired"), True, "out of date (certificate has expired); renew it there"),
        (_distrust(9, "certificate is not yet valid"), True, "is the clock of this machine right?"),
        (_distrust(62, "Hostname mismatch"), True, "for another name (Hostname mismatch); use a host name"),
        (_distrust(64, "IP address mismatch"), True, "for another name (IP address mismatch); use a host name"),
        (_tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), True, "(certificate required); see tls_cert_file"),
        (_tls_error("SSLV3_ALERT_CERTIFICATE_EXPIRED"), True, "(certificate expired); see tls_cert_file"),
        (_tls_error("TLSV1_ALERT_UNKNOWN_CA"), True, "(unknown ca); see tls_cert_file"),
        (_tls_error("SSLV3_ALERT_HANDSHAKE_FAILURE"), False, "failed"),
        (_tls_error("TLSV1_ALERT_INTERNAL_ERROR"), False, "failed"),
        (SettingsError("sat_file is empty"), True, "sat_file is empty"),
        (ConnectionRefusedError(), False, "is the broker running"),
        (_tls_error("WRONG_VERSION_NUMBER"), False, "(WRONG_VERSION_NUMBER); is this an MQTT port?"),
        (_tls_error("PACKET_LENGTH_TOO_LONG"), False, "(PACKET_LENGTH_TOO_LONG); is this an MQTT port?"),
        (_tls_error("UNEXPECTED_EOF_WHILE_READING", ssl.SSLEOFError), False, "is this an MQTT port?"),
        (socket.gaierror(-2, "Name or service not known"), False, "the address of broker cannot be found (Name or"),
        (TimeoutError(), False, "no answer within 10 s"),
        (TimeoutError(110, "Connection timed out"), False, "its machine acknowledges nothing (Connection timed out)"),
        (OSError(113, "No route to host"), False, "No route to host"),
    ],
)
def test_what_the_network_says(cause: Exception, is_fatal: bool, text: str) -> None:
    """An error of settings or certificates ends the client, because somebody has to correct it; any other may pass."""
    closed = connect_failed(SETTINGS.evolve(tls=True), cause)
    assert closed.fatal == is_fatal
    assert text in str(closed.error)
    assert not no_connack(SETTINGS).fatal


def test_the_end_of_the_stream() -> None:
    """A stream that ends before CONNACK may be a port with TLS or another protocol; the error says so, and the client
    tries again."""
    assert str(peer_closed(SETTINGS, answered=True).error) == "mqtt://broker:1883 closed the connection"
    early = peer_closed(SETTINGS, answered=False)
    assert not early.fatal
    assert "before it answered CONNECT; is this an MQTT port? It must be one for MQTT 5 without TLS" in str(early.error)
    assert "for MQTT 5 with TLS" in str(peer_closed(SETTINGS.evolve(tls=True), answered=False).error)
