"""MQTT over WebSocket: frames around the bytes, by the sans-I/O half of the ``websockets`` library.

Bytes in, bytes out; no socket. MQTT 5.0, section 6: the subprotocol is "mqtt", data frames are binary, and a frame may
hold half a packet or many. Compression is not offered: state store values are small or compressed already.
"""

from __future__ import annotations

from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from statestore_client.errors import ConnectionLostError, SettingsError
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed
from statestore_client.wire.protocol import MAX_PACKET_SIZE

#: A frame is kept until it is whole. The largest MQTT packet bounds what a broker may make us keep.
_MAX_FRAME: Final = MAX_PACKET_SIZE
_NORMAL_CLOSURE: Final = 1000
_UNSUPPORTED_DATA: Final = 1003
_POLICY_VIOLATION: Final = 1008
#: Answers to pings that wait to be written: more than anybody needs, and each costs memory.
_MOST_PONGS: Final = 10_000
#: Bytes between two looks at them.
_PORTION: Final = 16 * 1024
_SUBPROTOCOL: Final = Subprotocol("mqtt")


class WebSocket:
    """The client's end of one WebSocket. Raises :class:`SettingsError` for a path that cannot be in a URL."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._url = settings.url
        self._violation: str | None = None
        try:
            uri = parse_uri(settings.url)
        except InvalidURI as error:
            raise SettingsError(f"websocket_path {settings.websocket_path!r} cannot be used: {error}") from error
        self._protocol = ClientProtocol(uri, subprotocols=[_SUBPROTOCOL], max_size=_MAX_FRAME)
        self._protocol.send_request(self._protocol.connect())

    @property
    def is_open(self) -> bool:
        """Whether the broker has agreed to speak WebSocket: before that, nothing else may be sent."""
        return self._protocol.state is State.OPEN

    def receive(self, data: bytes) -> bytes:
        """Bytes from the network, in any portions; returns the MQTT bytes that they complete."""
        parts: list[bytes] = []
        for start in range(0, len(data), _PORTION):
            self._protocol.receive_data(data[start : start + _PORTION])
            self._collect(parts)
            if self._violation is not None:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _collect(self, parts: list[bytes]) -> None:
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):
                continue  # the response to the handshake
            if event.opcode in (Opcode.BINARY, Opcode.CONT):
                parts.append(bytes(event.data))
            elif event.opcode is Opcode.TEXT:
                self._fail(_UNSUPPORTED_DATA, "a text frame; MQTT is carried in binary frames")  # [MQTT-6.0.0-1]
                return
        if len(self._protocol.writes) > _MOST_PONGS:
            self._fail(_POLICY_VIOLATION, f"{_MOST_PONGS} pings, and it does not read the answers")

    def _fail(self, code: int, violation: str) -> None:
        self._violation = violation
        self._protocol.fail(code, violation)

    def receive_eof(self) -> None:
        """The network says that nothing more comes."""
        self._protocol.receive_eof()

    def wrap(self, pieces: list[bytes]) -> list[bytes]:
        """What to write for these MQTT bytes, each in a frame of its own, and for WebSocket itself (pongs, closing)."""
        for piece in pieces:
            self._protocol.send_binary(piece)
        return self.pending()

    def pending(self) -> list[bytes]:
        """What WebSocket itself has to send."""
        return [data for data in self._protocol.data_to_send() if data]  # an empty one asks for a half-close

    def close(self) -> None:
        """Send a close frame, if the connection is open."""
        if self.is_open:
            self._protocol.send_close(_NORMAL_CLOSURE)

    def why_closed(self) -> Closed | None:
        """What ended the WebSocket, or None while it can carry bytes."""
        protocol = self._protocol
        if protocol.handshake_exc is not None:
            return Closed(ConnectionLostError(f"{self._url} does not speak WebSocket: {_why(protocol.handshake_exc)}"))
        close = protocol.close_rcvd
        if close is not None and not protocol.close_rcvd_then_sent:
            return None  # it answers our own goodbye
        if close is not None:
            reason = f", {close.reason}" if close.reason else ""
            return Closed(ConnectionLostError(f"{self._url} closed the WebSocket with code {close.code}{reason}"))
        violation = self._violation or protocol.parser_exc
        if protocol.close_sent is not None and violation is not None:
            return Closed(ConnectionLostError(f"{self._url} broke the WebSocket protocol: {violation}"))
        return None


def _why(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        return f"it answered with HTTP status {error.response.status_code}; is websocket_path right?"
    return str(error)
