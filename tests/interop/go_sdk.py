"""What the official Go SDK puts on the wire, and what it makes of the answers, on paho: another MQTT implementation.

The SDK itself cannot be had where its module proxy refuses it. This client does what was observed of it, and nothing
that ours does: every property, topic and acceptance rule is from the state store facts, 1.1, 1.2 and 1.5, and the
sequences of the lock from 3.2 (``go/services/leasedlock``): one that an SDK would not accept raises GoSdkError.
"""

from __future__ import annotations

import queue
import time
import uuid
from random import Random
from types import TracebackType
from typing import Any, Final, Self

import attrs
import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from support.server_clients import close_paho

__all__ = ["Answer", "GoClient", "GoLock", "GoSdkError", "Notification", "resp"]

_SERVICE: Final = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
_NOTIFY: Final = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/"
_CONTENT_TYPE: Final = "application/octet-stream"
_TIMEOUT_S: Final = 10.0


class GoSdkError(Exception):
    """The SDK would return an error here; the text says which rule of the facts was broken."""


@attrs.frozen
class Answer:
    """``version`` is None where the SDK has the zero version."""

    payload: bytes
    version: str | None


@attrs.frozen
class Notification:
    operation: bytes
    value: bytes | None
    version: str | None


def resp(*words: bytes) -> bytes:
    """An array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class GoClient:
    """One application: session client and state store client. Blocking; the notifications of all keys in one queue."""

    def __init__(self, port: int, client_id: str, *, seed: int = 1) -> None:
        self.client_id = client_id
        self.notifications: queue.Queue[tuple[bytes, Notification]] = queue.Queue()
        self._hex = client_id.encode().hex().upper()
        self._response_topic = f"clients/{self._hex}/{_SERVICE}/response"
        self._answers: dict[bytes, queue.Queue[paho.MQTTMessage]] = {}
        self._events: queue.Queue[str] = queue.Queue()
        self._random = Random(seed)  # the user properties come in the order of a Go map
        self._count = 0
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
        self._client.on_connect = lambda *_: self._events.put("connected")
        self._client.on_subscribe = lambda *_: self._events.put("subscribed")
        self._client.on_message = self._arrived
        self._start(port)

    def _start(self, port: int) -> None:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 0xFFFF_FFFF
        properties.UserProperty = ("metriccategory", "aiosdk-go")
        self._client.connect("127.0.0.1", port, 60, clean_start=False, properties=properties)
        self._client.loop_start()
        assert self._events.get(timeout=_TIMEOUT_S) == "connected"
        self._client.subscribe(self._response_topic, options=SubscribeOptions(qos=1, noLocal=True))
        assert self._events.get(timeout=_TIMEOUT_S) == "subscribed"

    # -- requests ------------------------------------------------------------------------------------------------------

    def invoke(self, *words: bytes, token: str | None = None) -> Answer:
        """One command, and its answer as far as the SDK accepts it."""
        correlation = _uuid_v7()
        answers = self._answers[correlation] = queue.Queue()
        properties = self._properties(correlation, token)
        self._client.publish(_SERVICE, resp(*words), qos=1, properties=properties)
        return _accept(answers.get(timeout=_TIMEOUT_S))

    def _properties(self, correlation: bytes, token: str | None) -> Properties:
        self._count += 1
        pairs = [
            ("__srcId", self.client_id),
            ("__ts", f"{time.time_ns() // 1_000_000:015}:{self._count:05}:{uuid.UUID(bytes=correlation)}"),
            ("__protVer", "1.0"),
            ("$partition", self.client_id),
            ("$high_priority", ""),
            *([] if token is None else [("__ft", token)]),
        ]
        self._random.shuffle(pairs)
        properties = Properties(PacketTypes.PUBLISH)
        properties.PayloadFormatIndicator = 0
        properties.MessageExpiryInterval = 10
        properties.ContentType = _CONTENT_TYPE
        properties.ResponseTopic = self._response_topic
        properties.CorrelationData = correlation
        for pair in pairs:
            properties.UserProperty = pair
        return properties

    def _arrived(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        """No subscription is made for notifications: they are pushed to the connection (facts 0.7)."""
        if message.topic == self._response_topic:
            correlation = bytes(getattr(message.properties, "CorrelationData", b""))
            if correlation in self._answers:
                self._answers.pop(correlation).put(message)
        elif message.topic.startswith(f"{_NOTIFY}{self._hex}/command/notify/"):
            key = bytes.fromhex(message.topic.rpartition("/")[2])
            self.notifications.put((key, _notification(message)))

    def close(self) -> None:
        """As ``Stop()``: DISCONNECT with session expiry 0."""
        properties = Properties(PacketTypes.DISCONNECT)
        properties.SessionExpiryInterval = 0
        close_paho(self._client, properties=properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _uuid_v7() -> bytes:
    milliseconds = time.time_ns() // 1_000_000
    return (milliseconds << 80 | 0x7 << 76 | uuid.uuid4().int & (1 << 76) - 1).to_bytes(16, "big")


def _user_properties(message: paho.MQTTMessage) -> dict[str, str]:
    return dict(getattr(message.properties, "UserProperty", []))


def _accept(message: paho.MQTTMessage) -> Answer:
    """Facts 1.2, the column of Go."""
    properties = _user_properties(message)
    if not properties.get("__stat", "").isdecimal():
        raise GoSdkError(f"status missing or invalid: {properties}")
    if int(properties["__stat"]) >= 400:
        raise GoSdkError(f"status {properties['__stat']}: {properties.get('__stMsg')}")
    if not properties.get("__protVer", "1.0").startswith("1."):
        raise GoSdkError("unsupported version")
    if getattr(message.properties, "ContentType", _CONTENT_TYPE) != _CONTENT_TYPE:
        raise GoSdkError("content type mismatch")
    if not message.payload or not message.payload.endswith(b"\r\n"):
        raise GoSdkError("wrong payload")
    if message.payload.startswith(b"-ERR "):
        raise GoSdkError(message.payload[5:-2].decode())
    return Answer(message.payload, _version(properties))


def _version(properties: dict[str, str]) -> str | None:
    version = properties.get("__ts")
    if version is not None:
        wall, counter, node = version.split(":")
        if int(wall) > time.time() * 1000 + 60_000 or int(counter) < 0 or not node:
            raise GoSdkError("clock drift exceeds maximum")
    return version


def _notification(message: paho.MQTTMessage) -> Notification:
    """``NOTIFY SET VALUE v`` or ``NOTIFY DELETE``; any other word counts as no deletion (facts 0.1)."""
    words = message.payload.split(b"\r\n")[2::2]
    assert words[0] == b"NOTIFY"
    value = words[3] if len(words) > 3 else None
    return Notification(words[1], value, _version(_user_properties(message)))


class GoLock:
    """``leasedlock.Lock``: the notification is asked for first, then tried, then waited for."""

    def __init__(self, client: GoClient, name: bytes, *, session_id: str = "") -> None:
        self._client = client
        self._name = name
        self._holder = (f"{client.client_id}:{session_id}" if session_id else client.client_id).encode()

    def acquire(self, lease_ms: int) -> str | None:
        """One attempt. The fencing token, or None when somebody else has it."""
        answer = self._client.invoke(b"SET", self._name, self._holder, b"NEX", b"PX", b"%d" % lease_ms)
        return answer.version if answer.payload == b"+OK\r\n" else None

    def lock(self, lease_ms: int) -> str:
        """Until it is acquired. There is no poll: a notification that does not come is waited for in vain."""
        client = self._client
        assert client.invoke(b"KEYNOTIFY", self._name).payload == b"+OK\r\n"
        try:
            while (token := self.acquire(lease_ms)) is None:
                while (event := client.notifications.get(timeout=_TIMEOUT_S))[1].operation != b"DELETE":
                    assert event[0] == self._name
            return token
        finally:
            client.invoke(b"KEYNOTIFY", self._name, b"STOP")

    def unlock(self) -> None:
        self._client.invoke(b"VDEL", self._name, self._holder)

    def holder(self) -> bytes | None:
        """By the version: an answer with one means that the lock is held (facts 0.5)."""
        answer = self._client.invoke(b"GET", self._name)
        return None if answer.version is None else answer.payload.split(b"\r\n")[1]
