"""What the benchmarks compare with: SETs and GETs as one would write them by hand with paho-mqtt, and nothing more.

No reconnecting, no deadlines, no typed errors, no clock: what remains is the price of paho itself. It sets
``TCP_NODELAY``, without which every round trip takes 40 ms.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from statestore_client.wire.commands import Get, Set
from statestore_client.wire.protocol import COMMAND_TOPIC, response_topic

__all__ = ["PahoBaseline"]

#: Keys of a benchmark expire.
_EXPIRY_MS: Final = 60_000


class PahoBaseline:
    """Use as a context manager. One caller at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._client_id = f"paho-{uuid.uuid4().hex}"
        self._response_topic = response_topic(self._client_id)
        self._waiting: dict[bytes, threading.Event | None] = {}
        self._ready = threading.Event()
        self._room = threading.Semaphore(0)
        self._client = client = Client(
            CallbackAPIVersion.VERSION2, client_id=self._client_id, protocol=MQTTProtocolVersion.MQTTv5
        )
        client.max_inflight_messages = 0
        client.on_socket_open = _no_delay
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.connect(host, port)

    def __enter__(self) -> Self:
        self._client.loop_start()
        if not self._ready.wait(10):
            raise TimeoutError("no connection")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def set(self, key: bytes, value: bytes) -> None:
        """One SET, waiting for its reply."""
        self._one(Set(key, value, expiry_ms=_EXPIRY_MS))

    def get(self, key: bytes) -> None:
        """One GET, waiting for its reply."""
        self._one(Get(key))

    def set_many(self, pairs: list[tuple[bytes, bytes]], window: int) -> None:
        """All SETs, ``window`` in flight."""
        self._many([Set(key, value, expiry_ms=_EXPIRY_MS) for key, value in pairs], window)

    def get_many(self, keys: list[bytes], window: int) -> None:
        """All GETs, ``window`` in flight."""
        self._many([Get(key) for key in keys], window)

    def _one(self, command: Set | Get) -> None:
        arrived = threading.Event()
        self._send(command, arrived)
        if not arrived.wait(10):
            raise TimeoutError("no reply")

    def _many(self, commands: Sequence[Set | Get], window: int) -> None:
        for position, command in enumerate(commands):
            if position >= window:
                self._take_reply()
            self._send(command, None)
        for _ in range(min(window, len(commands))):
            self._take_reply()

    def _take_reply(self) -> None:
        if not self._room.acquire(timeout=10):
            raise TimeoutError("no reply")

    def _send(self, command: Set | Get, arrived: threading.Event | None) -> None:
        correlation = uuid.uuid4().bytes
        self._waiting[correlation] = arrived
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = self._response_topic
        properties.CorrelationData = correlation
        properties.MessageExpiryInterval = 10
        properties.ContentType = "application/octet-stream"
        properties.UserProperty = [
            ("__ts", f"{time.time_ns() // 1_000_000:015d}:00000:{self._client_id}"),
            ("__srcId", self._client_id),
            ("__protVer", "1.0"),
            ("$partition", self._client_id),
        ]
        self._client.publish(COMMAND_TOPIC, command.encode(), qos=1, properties=properties)

    def _on_connect(self, client: Client, *_: Any) -> None:
        client.subscribe(self._response_topic, qos=1)

    def _on_subscribe(self, *_: Any) -> None:
        self._ready.set()

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        correlation = getattr(message.properties, "CorrelationData", b"")
        if correlation not in self._waiting or message.payload[:1] not in b"+$":  # OK, a value
            return
        arrived = self._waiting.pop(correlation)
        if arrived is not None:
            arrived.set()
        else:
            self._room.release()


def _no_delay(_client: Client, _userdata: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
