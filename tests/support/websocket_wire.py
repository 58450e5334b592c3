"""A WebSocket client made by hand, after RFC 6455: it sends what no library would."""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Any, Self

from statestore_client.mqtt.packets import Connect, Packet, PacketDecoder, encode

__all__ = ["BINARY", "CLOSE", "CONTINUATION", "PING", "PONG", "TEXT", "RawWebSocket", "frame", "handshake"]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

_TIMEOUT_S = 10.0


def handshake(*headers: str, path: str = "/mqtt", subprotocol: str | None = "mqtt") -> bytes:
    """RFC 6455, 1.2; the key is the one of 1.3."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode()


def frame(
    opcode: int, payload: bytes = b"", *, flags: int = 0x80, mask: bool = True, length: int | None = None
) -> bytes:
    """RFC 6455, 5.2. ``flags`` are FIN and the reserved bits; the mask of zeros leaves the payload as it is."""
    size = len(payload) if length is None else length
    bit = 0x80 if mask else 0
    if size < 126:
        head = bytes([flags | opcode, bit | size])
    elif size < 65536:
        head = bytes([flags | opcode, bit | 126]) + struct.pack("!H", size)
    else:
        head = bytes([flags | opcode, bit | 127]) + struct.pack("!Q", size)
    return head + (bytes(4) if mask else b"") + payload


class RawWebSocket:
    """A socket; ``shake=False`` leaves the handshake to the test."""

    def __init__(
        self,
        port: int,
        *,
        shake: bool = True,
        tls: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
        version: int = 5,
    ) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(("127.0.0.1", port))
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self._version = version
        self._buffer = bytearray()
        self._decoder = PacketDecoder(version=version, max_packet_size=1 << 28)
        self._packets: list[Packet] = []
        self.response = ""
        if shake:
            self.sock.sendall(handshake())
            self.response = self.http()

    def http(self) -> str:
        """The answer to the handshake, without a body."""
        while b"\r\n\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            assert data, "the server closed the connection"
            self._buffer += data
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        return head.decode()

    def send(self, *packets: Packet | bytes) -> None:
        """All of them in one binary frame."""
        self.sock.sendall(frame(BINARY, self.encoded(*packets)))

    def encoded(self, *packets: Packet | bytes) -> bytes:
        return b"".join(p if isinstance(p, bytes) else encode(p, self._version) for p in packets)

    def next_frame(self) -> tuple[int, bytes] | None:
        """Opcode and payload of the next frame, which servers do not mask; None at the end of the connection."""
        while (found := self._parse()) is None:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._buffer += data
        return found

    def _parse(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        assert buffer[0] & 0xF0 == 0x80, "whole frames without extensions"
        size, begin = buffer[1], 2
        if size == 126:
            size, begin = int.from_bytes(buffer[2:4], "big"), 4
        elif size == 127:
            size, begin = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < begin + size:
            return None
        opcode, payload = buffer[0] & 0x0F, bytes(buffer[begin : begin + size])
        del buffer[: begin + size]
        return opcode, payload

    def receive(self) -> Packet:
        """The next packet."""
        while not self._packets:
            found = self.next_frame()
            assert found is not None, "the server closed the connection"
            assert found[0] == BINARY, found
            self._packets += self._decoder.feed(found[1])
        return self._packets.pop(0)

    def connect(self, client_id: str, **options: Any) -> Packet:
        self.send(Connect(client_id, version=self._version, **options))
        return self.receive()

    def close_code(self) -> int | None:
        """Of the server's goodbye, with which the connection ends; None if it ends without."""
        code = None
        while (found := self.next_frame()) is not None:
            if found[0] == CLOSE:
                code = int.from_bytes(found[1][:2], "big")
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()
