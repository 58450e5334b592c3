"""User properties on their way out: the names repeat, and the values of most names, too.

Only most: a timestamp is new in every message. Remembering it costs more than encoding it and drives out what is worth
remembering, so the values of a name are remembered while they are few.
"""

from __future__ import annotations

from typing import Final

from statestore_client.mqtt.packets.bounded_cache import BoundedCache
from statestore_client.mqtt.packets.primitives import encode_text
from statestore_client.mqtt.packets.properties import USER_PROPERTY
from statestore_client.mqtt.packets.types import UserProperties

__all__ = ["encode_user_properties"]

#: A name with more values than this is taken for one whose values do not repeat.
_VALUES: Final = 16
_LONGEST_VALUE: Final = 192


class _Name(dict[str, bytes]):
    """The user properties with this name that were written, by value. Invariant: at most ``_VALUES`` short ones."""

    __slots__ = ("_start",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._start = bytes((USER_PROPERTY,)) + encode_text(name)

    def write(self, value: str) -> bytes:
        data = self._start + encode_text(value)
        if len(self) < _VALUES and len(value) <= _LONGEST_VALUE:
            self[value] = data
        return data


class _Names(BoundedCache[str, _Name]):
    ENTRIES = 256


_NAMES: Final = _Names(_Name)

# All user properties but the last one of the latest message, and their bytes: one sender's messages often differ in
# the last one only. One tuple, replaced whole: no thread sees half of it.
_latest: tuple[UserProperties, bytes] = ((), b"")


def encode_user_properties(properties: UserProperties) -> bytes:
    """The user properties in their order, each with its identifier.

    :raises InvalidArgumentError: a text that MQTT does not allow.
    """
    global _latest
    if not properties:
        return b""
    name, value = properties[-1]
    known = _NAMES[name]
    last = known.get(value) or known.write(value)
    if len(properties) == 1:
        return last
    others = properties[:-1]
    before, block = _latest
    if before != others:
        block = b"".join([_NAMES[name].get(value) or _NAMES[name].write(value) for name, value in others])
        _latest = (others, block)
    return block + last
