"""SCAN: which keys match a glob, page by page.

A pattern is matched against the whole key, both as UTF-8 text; a key that is no UTF-8 never matches. ``*`` stands for
any text, ``?`` for one character, ``[abc]``, ``[a-z]`` and ``[!abc]`` for one character out of or not in a set, ``[*]``
for a literal star. Pages come in byte order of the keys. The continuation token names the last key that was looked at,
so keys that come and go between two pages disturb nothing: a key that existed all the time is returned exactly once.

Source: the list-keys design of the official SDKs; the published document has no SCAN.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zlib import crc32

import attrs

from statestore_client.errors import RequestSyntaxError
from statestore_client.server.checks import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.store.keyspace import Keyspace

__all__ = ["Glob", "ScanLimits", "compile_glob", "scan"]

#: Compiling costs more than linear time; no useful pattern is longer than the longest usual key.
MAX_PATTERN_BYTES: Final = 2048

#: What stands between two stars, or after the last one, is looked for at every place of a key: in a key of a megabyte,
#: a text of so many characters takes a quarter of a second.
MAX_FLOATING_CHARACTERS: Final = 128


@attrs.frozen
class ScanLimits:
    """What one page may cost. A page stops at whichever comes first; it has at least one key if one was found."""

    # Keys looked at: about two milliseconds during which nobody else is served.
    max_examined: int = attrs.field(default=5_000, validator=number(1))
    max_keys: int = attrs.field(default=1_000, validator=number(1))
    max_bytes: int = attrs.field(default=262_144, validator=number(1))  # of keys
    # Of keys looked at: those that are long take longer.
    max_examined_bytes: int = attrs.field(default=1_048_576, validator=number(1))


@attrs.frozen
class Glob:
    """A compiled pattern. ``prefix`` is what all matching keys start with; ``literal`` if nothing else can match."""

    pattern: bytes
    prefix: bytes
    literal: bool
    regex: re.Pattern[str] = attrs.field(repr=False)

    def matches(self, key: bytes) -> bool:
        """Whether the whole key matches."""
        try:
            return self.regex.fullmatch(key.decode()) is not None
        except UnicodeDecodeError:
            return False


@lru_cache(maxsize=64)
def compile_glob(pattern: bytes) -> Glob:
    """Read a pattern. Raises RequestSyntaxError for an empty one, no UTF-8, an open bracket, a reversed range, and one
    that is too long, as a whole or after a star.
    """
    if not 0 < len(pattern) <= MAX_PATTERN_BYTES:
        raise RequestSyntaxError
    try:
        text = pattern.decode()
    except UnicodeDecodeError:
        raise RequestSyntaxError from None
    segments = _segments(text)
    special = re.search(r"[*?\[]", text)
    prefix = text if special is None else text[: special.start()]
    return Glob(pattern, prefix.encode(), special is None, re.compile(_regex_text(segments), re.DOTALL))


def _regex_text(segments: list[str]) -> str:
    """The segments between the stars, joined.

    Invariant: matching takes time proportional to the key times the longest segment after a star. Every inner segment
    is taken at its first occurrence and never given back (an atomic group), which is right for globs; plain ``.*``
    would take exponential time for patterns like ``*a*a*a*b``.
    """
    first, *rest = segments
    if not rest:
        return first
    return first + "".join([f"(?>.*?{segment})" for segment in rest[:-1]]) + ".*" + rest[-1]


def _segments(text: str) -> list[str]:
    """The pattern as regular expressions of one or more fixed-length characters, cut at its stars."""
    segments = [""]
    lengths = [0]
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        lengths[-1] += character != "*"
        if character == "*":
            segments.append("")
            lengths.append(0)
        elif character == "?":
            segments[-1] += "."
        elif character == "[":
            end = text.find("]", position + 1 + text.startswith("!", position))
            if end < 0:
                raise RequestSyntaxError
            segments[-1] += _character_set(text[position:end])
            position = end + 1
        else:
            segments[-1] += re.escape(character)
    if max(lengths[1:], default=0) > MAX_FLOATING_CHARACTERS:
        raise RequestSyntaxError
    # A run of stars is one star.
    return [segments[0], *[segment for segment in segments[1:-1] if segment], *segments[1:][-1:]]


def _character_set(body: str) -> str:
    negated = body.startswith("!")
    characters = body[negated:]
    parts = []
    position = 0
    while position < len(characters):
        low = high = characters[position]
        if characters[position + 1 : position + 2] == "-" and position + 2 < len(characters):
            high = characters[position + 2]
            position += 2
        if low > high:
            raise RequestSyntaxError
        parts.append(f"{re.escape(low)}-{re.escape(high)}")
        position += 1
    return f"[{'^' if negated else ''}{''.join(parts)}]"


# -- pages ------------------------------------------------------------------------------------------------------------


def scan(
    keyspace: Keyspace, pattern: bytes, token: bytes | None, *, is_live: Callable[[bytes], bool], limits: ScanLimits
) -> tuple[tuple[bytes, ...], bytes | None]:
    """One page of live keys that match, and the token for the next, None after the last.

    Raises RequestSyntaxError for a bad pattern, and for a token that is not from a page of this pattern.
    """
    glob = compile_glob(pattern)
    last_seen = None if token is None else _open_token(pattern, token)
    if glob.literal:
        found = keyspace.get(pattern) is not None and is_live(pattern) and (last_seen is None or last_seen < pattern)
        return (pattern,) if found else (), None
    if last_seen is not None and last_seen >= glob.prefix:
        keys = keyspace.keys_from(last_seen, inclusive=False)
    else:
        keys = keyspace.keys_from(glob.prefix, inclusive=True)
    page, last_examined = _page(keys, glob, is_live, limits)
    return page, None if last_examined is None else _make_token(pattern, last_examined)


def _page(
    keys: Iterator[bytes], glob: Glob, is_live: Callable[[bytes], bool], limits: ScanLimits
) -> tuple[tuple[bytes, ...], bytes | None]:
    """The keys of a page, and the last key looked at if there may be more."""
    page: list[bytes] = []
    page_bytes = examined_bytes = 0
    last: bytes | None = None
    for examined, key in enumerate(keys):
        if not key.startswith(glob.prefix):
            return tuple(page), None
        examined_bytes += len(key)
        if examined == limits.max_examined or len(page) == limits.max_keys:
            return tuple(page), last
        if examined and examined_bytes > limits.max_examined_bytes:
            return tuple(page), last
        if glob.matches(key) and is_live(key):
            page_bytes += len(key)
            if page and page_bytes > limits.max_bytes:
                return tuple(page), last
            page.append(key)
        last = key
    return tuple(page), None


_TOKEN_VERSION: Final = b"\x01"
_TOKEN_HEAD: Final = 5


def _make_token(pattern: bytes, last: bytes) -> bytes:
    """Opaque to clients. The checksum finds tokens that are sent with another pattern; it keeps no secret."""
    return _TOKEN_VERSION + crc32(pattern).to_bytes(4) + last


def _open_token(pattern: bytes, token: bytes) -> bytes:
    if len(token) <= _TOKEN_HEAD or token[:_TOKEN_HEAD] != _TOKEN_VERSION + crc32(pattern).to_bytes(4):
        raise RequestSyntaxError
    return token[_TOKEN_HEAD:]
