"""The properties of answers, written but for two blanks: the correlation data and the value of the last user property.

The counterpart of :mod:`.template` on the sender's side: an answer says the same as the one before it, to another
request and with another timestamp.
"""

from __future__ import annotations

from typing import Final

from statestore_client.mqtt.packets.pairs import encode_pairs
from statestore_client.mqtt.packets.primitives import encode_binary, encode_text, encode_variable
from statestore_client.mqtt.packets.publish import encode_head
from statestore_client.mqtt.packets.types import PublishProperties, UserProperties

__all__ = ["PropertiesForm"]

_CORRELATION: Final = b"\x09"
_NO_TEXT: Final = encode_text("")


class PropertiesForm:
    """Message expiry in seconds, content type, correlation data, ``users``, and a user property called ``name``."""

    __slots__ = ("_before", "_between", "_content_type", "_expiry", "_name", "_users")

    def __init__(self, expiry: int | None, content_type: str | None, users: UserProperties, name: str) -> None:
        """:raises InvalidArgumentError: a value that MQTT does not allow."""
        self._expiry = expiry
        self._content_type = content_type
        self._users = users
        self._name = name
        self._before = encode_head(None, expiry, content_type, None) + _CORRELATION
        self._between = encode_pairs((*users, (name, ""))).removesuffix(_NO_TEXT)

    def fill(self, correlation_data: bytes, value: str) -> tuple[PublishProperties, bytes]:
        """The properties, and the bytes of them: what :attr:`Publish.block` is for.

        :raises InvalidArgumentError: a value that MQTT does not allow.
        """
        users = (*self._users, (self._name, value))
        properties = PublishProperties(None, self._expiry, self._content_type, None, correlation_data, users)
        before, between = self._before, self._between
        correlation, text = encode_binary(correlation_data), encode_text(value)
        size = len(before) + len(correlation) + len(between) + len(text)
        return properties, b"".join((encode_variable(size), before, correlation, between, text))
