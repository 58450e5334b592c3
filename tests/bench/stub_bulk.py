"""The stub for values of megabytes: it looks at the head of a packet and lets the rest drain into one buffer.

Blocking sockets, one thread per connection. A GET is answered with a value as large as the key's text says, sent
without putting it together.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

from statestore_client.mqtt.packets import Connack, Suback, encode
from statestore_client.mqtt.packets.primitives import encode_variable

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["serve_bulk"]

_BUFFER_BYTES = 1 << 20
_GET = b"*2\r\n$3\r\nGET\r\n"


def serve_bulk(control: Connection) -> None:
    """Listen, tell the port, and answer the benchmark's question after the processor time."""
    listener = socket.create_server(("127.0.0.1", 0))
    control.send(listener.getsockname()[1])
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    while True:
        control.recv()
        control.send((time.process_time(), 0))


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_Bulk(connection).run, daemon=True).start()


class _Bulk:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0  # of what was read and not used
        self._packet_id = 0
        self._values: dict[int, bytes] = {}

    def run(self) -> None:
        try:
            while True:
                self._packet()
        except OSError:
            self._socket.close()

    def _packet(self) -> None:
        kind = self._take(1)[0] >> 4
        length = shift = 0
        while True:
            byte = self._take(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        head = bytes(self._take(min(length, 1024)))
        self._drain(length - len(head))
        if kind == 1:
            self._socket.sendall(encode(Connack()))
        elif kind == 8:
            self._socket.sendall(encode(Suback(int.from_bytes(head[:2], "big"), (1,))))
        elif kind == 3:
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        self._packet_id = self._packet_id % 65_535 + 1
        at = 2 + int.from_bytes(head[:2], "big")
        topic = head.index(b"\x08\x00", at + 2) + 1
        topic_end = topic + 2 + int.from_bytes(head[topic : topic + 2], "big")
        mark = head.index(b"\x09\x00\x10", at + 2)
        version = b"%015d:%05d:stub" % (time.time_ns() // 1_000_000, self._packet_id)
        properties = head[mark : mark + 19] + b"\x26\x00\x04__ts" + len(version).to_bytes(2, "big") + version
        get = head.find(_GET, topic_end)
        payload: tuple[bytes, ...] = (b"+OK\r\n",)
        if get >= 0:
            # *2 $3 GET $n <size>: the key is the number of bytes wanted
            size = int(head[get:].split(b"\r\n")[4])
            payload = (b"$%d\r\n" % size, self._value(size), b"\r\n")
        front = b"".join(
            (
                head[topic:topic_end],
                self._packet_id.to_bytes(2, "big"),
                encode_variable(len(properties)),
                properties,
            )
        )
        length = len(front) + sum(map(len, payload))
        puback = b"\x40\x02" + head[at : at + 2]
        self._socket.sendmsg((puback, b"\x32", encode_variable(length), front, payload[0]))
        for part in payload[1:]:
            self._socket.sendall(part)

    def _value(self, size: int) -> bytes:
        if size not in self._values:
            self._values[size] = b"v" * size
        return self._values[size]

    def _take(self, count: int) -> memoryview:
        """The next bytes, at most as many as fit into the buffer."""
        while self._end - self._start < count:
            if self._start:
                rest = bytes(self._buffer[self._start : self._end])
                self._buffer[: len(rest)] = rest
                self._start, self._end = 0, len(rest)
            self._read()
        taken = self._buffer[self._start : self._start + count]
        self._start += count
        return taken

    def _drain(self, count: int) -> None:
        while count:
            have = min(count, self._end - self._start)
            self._start += have
            count -= have
            if count:
                self._start = self._end = 0
                self._read()

    def _read(self) -> None:
        got = self._socket.recv_into(self._buffer[self._end :])
        if not got:
            raise ConnectionError("the client closed the connection")
        self._end += got
