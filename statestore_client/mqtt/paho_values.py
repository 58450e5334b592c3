"""paho's values and ours: what both ways to use paho have in common, with a client of our own or the application's."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, cast

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.properties import Properties

from statestore_client.wire.messages import IncomingMessage

__all__ = ["EncodedProperties", "acknowledge", "incoming_message", "no_delay_below"]


class EncodedProperties(Properties):
    """Properties that were encoded by our own codec; paho only asks for the bytes.

    paho's own objects check and pack every property one by one, which takes longer than the rest of a request.
    """

    def __init__(self, packed: bytes) -> None:
        # Not super().__init__(): it builds the tables for checking and packing, a fifth of the time of a request.
        self.__dict__["packed"] = packed

    def __str__(self) -> str:
        return f"{len(self.pack())} encoded bytes"

    def pack(self) -> bytes:
        return cast("bytes", self.__dict__["packed"])


def no_delay_below(sock: Any) -> None:
    """Switch Nagle's algorithm off on the TCP socket below paho's TLS and WebSocket wrappers, if there is one.

    paho leaves it on, which costs 40 ms a round trip on loopback.
    """
    if sock is None:
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as plain:  # it may be closed by now
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def incoming_message(message: MQTTMessage) -> IncomingMessage:
    """paho's message as ours; :func:`acknowledge` knows its ``ack_id``."""
    properties = message.properties
    return IncomingMessage(
        message.topic,
        bytes(message.payload),
        getattr(properties, "CorrelationData", None),
        tuple(getattr(properties, "UserProperty", ())),
        message.mid << 2 | message.qos if message.qos else 0,
    )


def acknowledge(client: Client, ack_id: int) -> None:
    """PUBACK or PUBCOMP. paho does nothing here, and has done it already, where ``manual_ack`` is not set."""
    client.ack(ack_id >> 2, ack_id & 3)
