"""The properties of answers, written but for two blanks: the correlation data and the value of the last user property.

The counterpart of :mod:`.publish_template` on the sender's side: an answer says the same as the one before it, to
another request and with another timestamp.
"""

from __future__ import annotations

from typing import Final

from statestore_client.mqtt.packets.primitives import encode_text
from statestore_client.mqtt.packets.publish_properties import leading_properties, property_block
from statestore_client.mqtt.packets.types import PublishProperties, UserProperties
from statestore_client.mqtt.packets.user_properties import encode_user_properties

__all__ = ["AnswerTemplate"]

_NO_TEXT: Final = encode_text("")


class AnswerTemplate:
    """Message expiry in seconds, content type, correlation data, ``users``, and a user property called ``name``."""

    __slots__ = ("_content_type", "_expiry", "_leading", "_name", "_trailing", "_users")

    def __init__(self, expiry: int | None, content_type: str | None, users: UserProperties, name: str) -> None:
        """:raises InvalidArgumentError: a value that MQTT does not allow."""
        self._expiry = expiry
        self._content_type = content_type
        self._users = users
        self._name = name
        self._leading = leading_properties(None, expiry, content_type, None)
        self._trailing = encode_user_properties((*users, (name, ""))).removesuffix(_NO_TEXT)

    def fill(self, correlation_data: bytes, value: str) -> tuple[PublishProperties, bytes]:
        """The properties, and the bytes of them: what :attr:`Publish.block` is for.

        :raises InvalidArgumentError: a value that MQTT does not allow.
        """
        users = (*self._users, (self._name, value))
        properties = PublishProperties(None, self._expiry, self._content_type, None, correlation_data, users)
        return properties, property_block(self._leading, correlation_data, self._trailing + encode_text(value))
