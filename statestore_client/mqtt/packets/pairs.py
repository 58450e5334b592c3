"""User properties on their way out: the names repeat, and the values of most names, too.

Only most: a timestamp is new in every message. Remembering it costs more than encoding it and drives out what is worth
remembering, so the values of a name are remembered while they are few.
"""

from __future__ import annotations

from typing import Final

from statestore_client.mqtt.packets.memo import Memo
from statestore_client.mqtt.packets.primitives import encode_text
from statestore_client.mqtt.packets.types import UserProperties

__all__ = ["encode_pairs"]

_USER: Final = b"\x26"

#: A name with more values than this is taken for one whose values do not repeat.
_VALUES: Final = 16
_LONGEST_VALUE: Final = 192


class _Name(dict[str, bytes]):
    """The user properties with this name that were written, by value. Invariant: at most ``_VALUES`` short ones."""

    __slots__ = ("_head",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._head = _USER + encode_text(name)

    def write(self, value: str) -> bytes:
        pair = self._head + encode_text(value)
        if len(self) < _VALUES and len(value) <= _LONGEST_VALUE:
            self[value] = pair
        return pair


class _Names(Memo[str, _Name]):
    ENTRIES = 256


_NAMES: Final = _Names(_Name)

# All pairs but the last one of the latest message, and their bytes: one sender's messages often differ in the last pair
# only. One tuple, replaced whole: no thread sees half of it.
_latest: tuple[UserProperties, bytes] = ((), b"")


def encode_pairs(pairs: UserProperties) -> bytes:
    """The user properties in their order.

    :raises InvalidArgumentError: a text that MQTT does not allow.
    """
    global _latest
    if not pairs:
        return b""
    name, value = pairs[-1]
    known = _NAMES[name]
    last = known.get(value) or known.write(value)
    if len(pairs) == 1:
        return last
    others = pairs[:-1]
    before, block = _latest
    if before != others:
        block = b"".join([_NAMES[name].get(value) or _NAMES[name].write(value) for name, value in others])
        _latest = (others, block)
    return block + last
