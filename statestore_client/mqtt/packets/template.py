"""What the properties of one peer's PUBLISHes have in common, so that only the rest has to be read.

Two messages of a peer differ in their correlation data and in the value of one user property, a timestamp. A template
is the bytes around those two, compared as they are, and the values that they stand for. All lengths are among the
compared bytes: where they agree, the block has the same structure, and every value but those two is the same.
"""

from __future__ import annotations

from typing import Final

import attrs

from statestore_client.mqtt.packets.types import PublishProperties, UserProperties

__all__ = ["Template", "Templates"]

_CORRELATION: Final = 0x09
_USER: Final = 0x26
#: Bytes behind the identifier of a property that has the same size always: payload format, expiry, topic alias.
_FIXED_SIZES: Final = {0x01: 1, 0x02: 4, 0x23: 2}

#: A connection remembers a few kilobytes at most, whatever its peer sends.
_LONGEST_BLOCK: Final = 512
_ENTRIES: Final = 8

#: Making a template takes longer than reading a block. A peer whose messages always differ in other places must not
#: have one made for each of them: after this many, only each 16th is made.
_EAGER: Final = 16
_PAUSE: Final = 16


@attrs.define(eq=False)
class Template:
    """``before`` the correlation data, ``between`` it and the value that changes, ``after`` that value.

    The numbers are offsets into the block. Without correlation data, or without such a value, the range is empty.
    """

    block: bytes  # the message that it was made from
    given: PublishProperties
    before: bytes
    correlation_at: int
    between: bytes
    between_at: int
    after: bytes
    value_at: int
    after_at: int
    has_correlation: bool
    users_before: UserProperties
    name: str | None  # of the user property that changes
    users_after: UserProperties


class Templates(dict[int, Template]):
    """The templates of one connection, by the size of the block: replies and notifications take turns."""

    __slots__ = ("_misses",)

    def __init__(self) -> None:
        super().__init__()
        self._misses = 0

    def learn(self, block: bytes, given: PublishProperties) -> None:
        """Expect more like this block, which no template fitted and which was found to mean ``given``."""
        self._misses += 1
        if len(block) > _LONGEST_BLOCK or (self._misses > _EAGER and self._misses % _PAUSE):
            return
        known = self.get(len(block))
        if len(self) >= _ENTRIES and known is None:
            self.clear()
        self[len(block)] = _template(block, given, None if known is None else known.block)


def _template(block: bytes, given: PublishProperties, other: bytes | None) -> Template:
    """``other``: an earlier block of the same size. The first user property that differs will differ again."""
    correlation, users = _places(block)
    changing = len(users)
    value = (len(block), len(block))
    for index, (start, middle, stop) in enumerate(users):
        if other is not None and block[start:stop] != other[start:stop] and correlation[1] <= start:
            changing, value = index, (middle, stop)
            break
    pairs = given.user_properties
    return Template(
        block=block,
        given=given,
        before=block[: correlation[0]],
        correlation_at=correlation[0],
        between=block[correlation[1] : value[0]],
        between_at=correlation[1],
        after=block[value[1] :],
        value_at=value[0],
        after_at=value[1],
        has_correlation=given.correlation_data is not None,
        users_before=pairs[:changing],
        name=pairs[changing][0] if changing < len(pairs) else None,
        users_after=pairs[changing + 1 :],
    )


def _places(block: bytes) -> tuple[tuple[int, int], list[tuple[int, int, int]]]:
    """Where in a well-formed block the correlation data is; and start, value and end of each user property."""
    correlation = (0, 0)
    users: list[tuple[int, int, int]] = []
    pos = 0
    while pos < len(block):
        start, identifier = pos, block[pos]
        fixed = _FIXED_SIZES.get(identifier)
        pos += 1 + fixed if fixed is not None else 3 + int.from_bytes(block[pos + 1 : pos + 3], "big")
        if identifier == _CORRELATION:
            correlation = (start + 3, pos)
        elif identifier == _USER:
            middle = pos + 2
            pos = middle + int.from_bytes(block[pos:middle], "big")
            users.append((start, middle, pos))
    return correlation, users
