"""Clients for tests of a running server: paho, mosquitto's programs, bare sockets; servers with faults; and commands
that are held up on purpose.
"""

from __future__ import annotations

import queue
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

import paho.mqtt.client as paho
import pytest

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    encode,
)
from statestore_client.server import EmbeddedServer

# -- runtime tools -----------------------------------------------------------------------------------------------------

# Clients for tests of the running server: paho, mosquitto's programs, and bare sockets.


needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_sub") is None,
    reason="the programs mosquitto_pub and mosquitto_sub (Debian: mosquitto-clients) are not installed",
)

TIMEOUT_S = 10.0

# CONNECT of MQTT 5.0: clean start, keep alive 60, no properties, client identifier "c"; then PINGREQ
CONNECT_AND_PING = bytes.fromhex("100e00044d5154540502003c00000163" + "c000")


def close_paho(client: paho.Client, **options: Any) -> None:
    """Disconnect, and free what paho leaves to the garbage collector: its pair of wake-up sockets."""
    client.disconnect(**options)
    client.loop_stop()
    client._reset_sockets()


class HasPort(Protocol):
    """A server on this machine."""

    @property
    def port(self) -> int: ...


class Paho:
    """A paho client with its thread; what it hears goes into queues."""

    def __init__(self, server: HasPort, client_id: str = "", *, version: int = 5, **options: Any) -> None:
        clean = {} if version == 5 else {"clean_session": options.pop("clean_session", True)}
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=version, **clean)
        self.connects: queue.Queue[Any] = queue.Queue()
        self.disconnects: queue.Queue[Any] = queue.Queue()
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._published: queue.Queue[int] = queue.Queue()
        self.client.on_publish = lambda _c, _u, mid, _code, _properties: self._published.put(mid)
        self.client.on_connect = lambda _c, _u, flags, code, properties: self.connects.put((flags, code, properties))
        self.client.on_disconnect = lambda _c, _u, _flags, code, properties: self.disconnects.put((code, properties))
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, _mid, codes, _p: self._answers.put(codes)
        will = options.pop("will", None)
        if will is not None:
            self.client.will_set(**will)
        self.client.connect("127.0.0.1", server.port, **options)
        self.client.loop_start()
        self.flags, self.code, self.properties = self.connects.get(timeout=TIMEOUT_S)

    def subscribe(self, *arguments: Any, **options: Any) -> Any:
        self.client.subscribe(*arguments, **options)
        return self._answers.get(timeout=TIMEOUT_S)

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **options: Any) -> None:
        """Publish and wait until it is done. Without a connection, one that has a QoS waits for the next one."""
        published = self.client.publish(topic, payload, qos, **options)
        if not (qos and published.rc == paho.MQTT_ERR_NO_CONN):  # paho says this for what it has queued
            assert published.rc == paho.MQTT_ERR_SUCCESS, paho.error_string(published.rc)
        while self._published.get(timeout=TIMEOUT_S) != published.mid:
            pass

    def message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=TIMEOUT_S)

    def close(self) -> None:
        close_paho(self.client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Wire:
    """A bare socket that speaks packets when asked to, and any bytes otherwise."""

    def __init__(
        self,
        server: EmbeddedServer,
        *,
        version: int = 5,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
        port: int | None = None,
        source: str = "",
    ) -> None:
        """``source`` is the address that it comes from: all of 127.0.0.0/8 is this machine."""
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(TIMEOUT_S)
        if source:
            self.sock.bind((source, 0))
        self.sock.connect(("127.0.0.1", server.port if port is None else port))
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self._version = version
        self._decoder = PacketDecoder(version=version, max_packet_size=1 << 28)
        self._packets: list[Packet] = []

    def send(self, *packets: Packet | bytes) -> None:
        self.sock.sendall(b"".join(p if isinstance(p, bytes) else encode(p, self._version) for p in packets))

    def connect(self, client_id: str, **options: Any) -> Packet:
        self.begin(client_id, **options)
        return self.receive()

    def begin(self, client_id: str, **options: Any) -> None:
        """Say CONNECT, and do not wait for the answer."""
        self.send(Connect(client_id, version=self._version, **options))

    def receive(self) -> Packet:
        """The next packet."""
        while not self._packets:
            data = self.sock.recv(65536)
            assert data, "the server closed the connection"
            self._packets += self._decoder.feed(data)
        return self._packets.pop(0)

    def expect_nothing(self) -> None:
        """Nothing has come that was not received, and nothing comes within a moment."""
        usual = self.sock.gettimeout()
        self.sock.settimeout(0.02)
        with pytest.raises(TimeoutError):
            self.receive()
        self.sock.settimeout(usual)

    def rest(self) -> list[Packet]:
        """Everything until the server closes its side. A reset is an error: it would have destroyed what was sent."""
        while data := self.sock.recv(65536):
            self._packets += self._decoder.feed(data)
        packets, self._packets = self._packets, []
        return packets

    def reset(self) -> None:
        """Close as a crashing machine does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(0)`` ... ``work(count - 1)`` at the same time; the first failure is raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def serves(server: EmbeddedServer) -> bool:
    """Whether it lets somebody in and answers."""
    with Wire(server) as probe:
        if not isinstance(probe.connect("probe"), Connack):
            return False
        probe.send(Pingreq())
        return isinstance(probe.receive(), Pingresp)


# -- gate --------------------------------------------------------------------------------------------------------------

# A server that stands still until it is told to go on.


class Gate:
    """``EmbeddedServer(authorize=gate)`` answers no request before ``gate.open()``, or 10 seconds."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, _client_id: str, _command: Any) -> bool:
        self.reached.set()
        return self._open.wait(10)

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        """Stand still again, from the next request on."""
        self._open.clear()


# -- faulty ------------------------------------------------------------------------------------------------------------

# A server on which things go wrong on purpose, and a client of it: fixtures and helpers for the tests of faults.


NOBODY = 0x10  # the PUBACK of a message that nobody subscribed to


@pytest.fixture(name="server")
def faulty_server() -> Iterator[EmbeddedServer]:
    """With faults."""
    with EmbeddedServer(faults=True) as running:
        yield running


@pytest.fixture(name="wire")
def connected_wire(server: EmbeddedServer) -> Iterator[Wire]:
    """A client with a session that lasts."""
    with Wire(server) as connected:
        connected.connect("c", properties=ConnectProperties(session_expiry=600))
        yield connected


def is_cut(wire: Wire) -> bool:
    """Whether the link breaks without a word."""
    try:
        return wire.rest() == []
    except ConnectionError:
        return True


def resumed(server: EmbeddedServer) -> Wire:
    wire = Wire(server)
    connack = wire.connect("c", clean_start=False, properties=ConnectProperties(session_expiry=600))
    assert isinstance(connack, Connack)
    assert connack.session_present
    return wire
