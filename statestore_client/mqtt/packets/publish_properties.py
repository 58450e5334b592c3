"""The properties of a PUBLISH as bytes: where all of them are written, for clients and servers.

How each one looks is in the table of :mod:`.properties`. Here they are put together from three parts, of which one
changes with each message: what stands before the correlation data, the correlation data, and what comes after it. The
first is mostly the same from message to message, and what a server adds for a receiver is that receiver's always; both
are remembered. Source: MQTT 5.0 section 3.3.2.3.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from statestore_client.mqtt.packets import properties as layouts
from statestore_client.mqtt.packets.primitives import encode_binary, encode_variable
from statestore_client.mqtt.packets.types import PublishProperties
from statestore_client.mqtt.packets.user_properties import encode_user_properties

__all__ = ["delivery_properties", "encode_properties", "leading_properties", "property_block"]

_CORRELATION_DATA: Final = bytes((layouts.CORRELATION_DATA,))


def encode_properties(given: PublishProperties) -> bytes:
    """The property length and the properties, in the order of their identifiers.

    :raises InvalidArgumentError: a value that MQTT does not allow. So do the others.
    """
    leading = leading_properties(given.payload_format, given.message_expiry, given.content_type, given.response_topic)
    trailing = encode_user_properties(given.user_properties)
    if given.subscription_ids or given.topic_alias is not None:
        trailing = delivery_properties(given.subscription_ids, given.topic_alias) + trailing
    return property_block(leading, given.correlation_data, trailing)


def property_block(leading: bytes, correlation_data: bytes | None, trailing: bytes) -> bytes:
    """The property length and the properties; ``leading`` and ``trailing`` are encoded already."""
    if correlation_data is None:
        return b"".join((encode_variable(len(leading) + len(trailing)), leading, trailing))
    correlation = encode_binary(correlation_data)
    size = len(leading) + 1 + len(correlation) + len(trailing)
    return b"".join((encode_variable(size), leading, _CORRELATION_DATA, correlation, trailing))


@lru_cache(maxsize=64)  # of at most 128 KiB each
def leading_properties(
    payload_format: int | None, expiry: int | None, content_type: str | None, response_topic: str | None
) -> bytes:
    """What stands before the correlation data; ``expiry`` in seconds."""
    return layouts.PUBLISH.encode_fields(PublishProperties(payload_format, expiry, content_type, response_topic))


def delivery_properties(subscription_ids: tuple[int, ...], topic_alias: int | None) -> bytes:
    """What a server adds for one receiver; of these, a client has the topic alias only."""
    ids = b"".join([_subscription_id(number) for number in subscription_ids])
    return ids if topic_alias is None else ids + _topic_alias(topic_alias)


@lru_cache(maxsize=1024)  # one by one: there may be thousands of them in a message
def _subscription_id(number: int) -> bytes:
    return layouts.PUBLISH.encode_fields(PublishProperties(subscription_ids=(number,)))


@lru_cache(maxsize=1024)
def _topic_alias(number: int) -> bytes:
    return layouts.PUBLISH.encode_fields(PublishProperties(topic_alias=number))
