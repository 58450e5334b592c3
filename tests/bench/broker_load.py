"""Load for a broker: raw sockets, hand-encoded packets, every publisher and subscriber a process of its own.

All messages of a load have the same size, so that a receiver counts bytes and looks at packet identifiers only. That
makes the generator several times as quick as any broker here.
"""

from __future__ import annotations

import multiprocessing
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

__all__ = ["Flow", "Load", "connect_rate", "idle_connections", "run"]

_TOPIC: Final = b"bench/topic"
_PAYLOAD_BYTES: Final = 100
#: At the beginning of each payload of QoS 1 and 2.
_NUMBER_BYTES: Final = 8

#: Mosquitto's own limit for clients that name none.
_WINDOW: Final = 20

#: QoS 0 messages in one write.
_BATCH: Final = 64

#: A subscriber that gets nothing for this long counts what it has, in seconds.
_PATIENCE_S: Final = 3.0

_CHUNK: Final = 256 * 1024
_PUBACK: Final = b"\x40\x02"
_PUBREC: Final = b"\x50\x02"
_PUBREL: Final = b"\x62\x02"
_PUBCOMP: Final = b"\x70\x02"
_ACK_BYTES: Final = 4

_processes: Final = multiprocessing.get_context("fork")


@attrs.frozen
class Load:
    """``messages`` are those of all publishers together; every subscriber gets all of them. ``version`` is 4 or 5.
    A publisher has ``window`` messages of QoS 1 or 2 unacknowledged, at most. With ``hangs_up``, publishers close
    without DISCONNECT when the last acknowledgement is there.
    """

    qos: int
    publishers: int
    subscribers: int
    messages: int
    version: int = 4
    window: int = _WINDOW
    hangs_up: bool = False
    #: Whether the subscribers' sessions outlive their connections: what they get must then be kept. Version 4 only.
    is_kept: bool = False

    @property
    def deliveries(self) -> int:
        return self.messages * self.subscribers

    @property
    def head(self) -> bytes:
        """All of a PUBLISH up to the packet identifier."""
        remaining = 2 + len(_TOPIC) + _PAYLOAD_BYTES + (2 if self.qos else 0) + (self.version == 5)
        return bytes((0x30 | self.qos << 1, remaining)) + _text(_TOPIC)

    @property
    def no_properties(self) -> bytes:
        """What stands between packet identifier and payload."""
        return b"\0" if self.version == 5 else b""

    @property
    def size(self) -> int:
        """Bytes of one PUBLISH."""
        return len(self.head) + (2 if self.qos else 0) + len(self.no_properties) + _PAYLOAD_BYTES


@attrs.frozen
class Flow:
    """What arrived of a load."""

    delivered: int
    seconds: float  # from the start of the publishers to the last message
    out_of_order: int


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def _open(port: int, client_id: bytes, version: int = 4, *, is_kept: bool = False) -> socket.socket:
    """A connection whose CONNACK has come."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(_connect(client_id, version, is_kept=is_kept))
    _read_packet(sock)
    return sock


def _connect(client_id: bytes, version: int, *, is_kept: bool = False) -> bytes:
    body = (
        b"\0\4MQTT" + bytes((version, 0 if is_kept else 2, 0, 0)) + (b"\0" if version == 5 else b"") + _text(client_id)
    )
    return bytes((0x10, len(body))) + body


def _read_packet(sock: socket.socket) -> bytes:
    """One packet of less than 128 bytes."""
    head = sock.recv(2, socket.MSG_WAITALL)
    return head + sock.recv(head[1], socket.MSG_WAITALL)


# -- publishers -------------------------------------------------------------------------------------------------------


def _publish(port: int, load: Load, number: int, start: Barrier, may_leave: Barrier) -> None:
    with _open(port, b"pub-%d" % number, load.version) as sock:
        start.wait()
        messages = load.messages // load.publishers
        if load.qos == 0:
            _publish_0(sock, load, messages)
        elif load.qos == 1:
            _publish_1(sock, load, messages)
        else:
            _publish_2(sock, load, messages)
        if load.hangs_up:
            return
        may_leave.wait()


def _publish_0(sock: socket.socket, load: Load, messages: int) -> None:
    frame = load.head + load.no_properties + b"x" * _PAYLOAD_BYTES
    batch = frame * _BATCH
    for _ in range(messages // _BATCH):
        sock.sendall(batch)
    sock.sendall(frame * (messages % _BATCH))


def _frames(load: Load) -> Iterator[bytes]:
    head, middle, rest = load.head, load.no_properties, b"x" * (_PAYLOAD_BYTES - _NUMBER_BYTES)
    for number in count():
        packet_id = (number % 60_000 + 1).to_bytes(2, "big")
        yield b"".join((head, packet_id, middle, number.to_bytes(_NUMBER_BYTES, "big"), rest))


def _publish_1(sock: socket.socket, load: Load, messages: int) -> None:
    frames = _frames(load)
    sent, received = min(load.window, messages), 0
    sock.sendall(b"".join([next(frames) for _ in range(sent)]))
    while received < messages * _ACK_BYTES:
        received += len(sock.recv(_CHUNK))
        more = min(received // _ACK_BYTES + load.window, messages) - sent
        if more:
            sent += more
            sock.sendall(b"".join([next(frames) for _ in range(more)]))


def _publish_2(sock: socket.socket, load: Load, messages: int) -> None:
    frames = _frames(load)
    sent, completed, data = min(load.window, messages), 0, b""
    sock.sendall(b"".join([next(frames) for _ in range(sent)]))
    while completed < messages:
        data += sock.recv(_CHUNK)
        out = []
        whole = len(data) - len(data) % _ACK_BYTES
        for at in range(0, whole, _ACK_BYTES):
            if data[at] == _PUBREC[0]:
                out.append(_PUBREL + data[at + 2 : at + 4])
                continue
            completed += 1
            if sent < messages:
                sent += 1
                out.append(next(frames))
        data = data[whole:]
        sock.sendall(b"".join(out))


# -- subscribers ------------------------------------------------------------------------------------------------------


def _subscribe(port: int, load: Load, number: int, start: Barrier, result: Connection) -> None:
    with _open(port, b"sub-%d" % number, load.version, is_kept=load.is_kept) as sock:
        body = b"\0\1" + load.no_properties + _text(_TOPIC) + bytes((load.qos,))
        sock.sendall(bytes((0x82, len(body))) + body)
        _read_packet(sock)
        start.wait()
        sock.settimeout(_PATIENCE_S)
        receive = (_receive_0, _receive_1, _receive_2)[load.qos]
        result.send(receive(sock, load))


def _receive_0(sock: socket.socket, load: Load) -> tuple[int, float, int]:
    wanted, received, last = load.messages * load.size, 0, time.perf_counter()
    try:
        while received < wanted:
            received += len(sock.recv(_CHUNK))
            last = time.perf_counter()
    except TimeoutError:
        pass
    return received // load.size, last, 0


def _receive_1(sock: socket.socket, load: Load) -> tuple[int, float, int]:
    size, id_at = load.size, len(load.head)
    received, last, data, numbers = 0, time.perf_counter(), b"", _Numbers(load)
    try:
        while received < load.messages:
            data += sock.recv(_CHUNK)
            last = time.perf_counter()
            whole = len(data) - len(data) % size
            acks = [_PUBACK + data[at : at + 2] for at in range(id_at, whole, size)]
            numbers.note(data, range(0, whole, size))
            received += len(acks)
            data = data[whole:]
            sock.sendall(b"".join(acks))
    except TimeoutError:
        pass
    return received, last, numbers.out_of_order


def _receive_2(sock: socket.socket, load: Load) -> tuple[int, float, int]:
    size, id_at = load.size, len(load.head)
    received, last, data, numbers = 0, time.perf_counter(), b"", _Numbers(load)
    try:
        while received < load.messages:
            data += sock.recv(_CHUNK)
            last = time.perf_counter()
            answers, at, end = [], 0, len(data)
            while at + _ACK_BYTES <= end:
                if data[at] == _PUBREL[0]:
                    answers.append(_PUBCOMP + data[at + 2 : at + 4])
                    at += _ACK_BYTES
                    received += 1
                elif at + size <= end:
                    answers.append(_PUBREC + data[at + id_at : at + id_at + 2])
                    numbers.note(data, (at,))
                    at += size
                else:
                    break
            data = data[at:]
            sock.sendall(b"".join(answers))
    except TimeoutError:
        pass
    return received, last, numbers.out_of_order


class _Numbers:
    """Looks whether the messages of a single publisher come in their order; for loads that are not timed."""

    def __init__(self, load: Load) -> None:
        self._at = len(load.head) + 2 + len(load.no_properties)
        self._is_off = not load.hangs_up
        self._next = 0
        self.out_of_order = 0

    def note(self, data: bytes, starts: range | tuple[int, ...]) -> None:
        if self._is_off:
            return
        for start in starts:
            at = start + self._at
            self.out_of_order += int.from_bytes(data[at : at + _NUMBER_BYTES], "big") != self._next
            self._next += 1


# -- all of them ------------------------------------------------------------------------------------------------------


def run(port: int, load: Load) -> Flow:
    """Put the load on the broker."""
    start = _processes.Barrier(load.publishers + load.subscribers + 1)
    may_leave = _processes.Barrier(load.publishers + 1)
    pipes = [_processes.Pipe(duplex=False) for _ in range(load.subscribers)]
    children = [
        _processes.Process(target=_subscribe, args=(port, load, number, start, send))
        for number, (_, send) in enumerate(pipes)
    ]
    children += [
        _processes.Process(target=_publish, args=(port, load, number, start, may_leave))
        for number in range(load.publishers)
    ]
    for child in children:
        child.start()
    start.wait(30)
    began = time.perf_counter()
    results = [receive.recv() for receive, _ in pipes]
    if not load.hangs_up:
        may_leave.wait(30)
    for child in children:
        child.join(10)
    last = max(last for _, last, _ in results)
    return Flow(sum(got for got, _, _ in results), last - began, sum(wrong for _, _, wrong in results))


# -- connections ------------------------------------------------------------------------------------------------------


def connect_rate(port: int, connections: int, at_a_time: int) -> float:
    """Connections a second, from the first SYN to the CONNACK; then they are closed without DISCONNECT."""
    began = time.perf_counter()
    for first in range(0, connections, at_a_time):
        some = [socket.create_connection(("127.0.0.1", port)) for _ in range(at_a_time)]
        for number, sock in enumerate(some, first):
            sock.sendall(_connect(b"c-%d" % number, 4))
        for sock in some:
            sock.recv(_ACK_BYTES, socket.MSG_WAITALL)
        for sock in some:
            sock.close()
    return connections / (time.perf_counter() - began)


@contextmanager
def idle_connections(port: int, connections: int, first: int = 0) -> Iterator[None]:
    """So many clients, connected and silent."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack:
        for number in range(first, first + connections):
            stack.enter_context(_open(port, b"idle-%d" % number))
        yield
