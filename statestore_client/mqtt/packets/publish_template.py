"""What the properties of one peer's PUBLISHes have in common, so that only the rest has to be read.

Two messages of a peer differ in their correlation data and in the value of one user property, a timestamp. A template
is the bytes around those two, compared as they are, and the values that they stand for. All lengths are among the
compared bytes: where they agree, the block has the same structure, and every value but those two is the same.
"""

from __future__ import annotations

from typing import Final

import attrs

from statestore_client.mqtt.packets.properties import CORRELATION_DATA, USER_PROPERTY, spans
from statestore_client.mqtt.packets.types import PublishProperties, UserProperties

__all__ = ["Template", "Templates"]

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

    def learn(self, data: bytes, start: int, end: int, given: PublishProperties) -> None:
        """Expect more like the properties there, which no template fitted and which were found to mean ``given``."""
        self._misses += 1
        if end - start > _LONGEST_BLOCK or (self._misses > _EAGER and self._misses % _PAUSE):
            return
        block = data[start:end]
        known = self.get(len(block))
        if len(self) >= _ENTRIES and known is None:
            self.clear()
        self[len(block)] = _template(block, given, None if known is None else known.block)


def _template(block: bytes, given: PublishProperties, other: bytes | None) -> Template:
    """``other``: an earlier block of the same size. The first user property that differs will differ again."""
    correlation = (0, 0)
    users: list[tuple[int, int, int]] = []  # start, value and end of each
    for identifier, start, stop in spans(block, 0, len(block)):
        if identifier == CORRELATION_DATA:
            correlation = (start + 3, stop)
        elif identifier == USER_PROPERTY:
            users.append((start, start + 5 + (block[start + 1] << 8 | block[start + 2]), stop))
    changing = len(users)
    value = (len(block), len(block))
    for index, (start, middle, stop) in enumerate(users):
        if other is not None and block[start:stop] != other[start:stop] and correlation[1] <= start:
            changing, value = index, (middle, stop)
            break
    known = given.user_properties
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
        users_before=known[:changing],
        name=known[changing][0] if changing < len(known) else None,
        users_after=known[changing + 1 :],
    )
