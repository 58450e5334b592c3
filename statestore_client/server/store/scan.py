"""SCAN: which keys match a glob, page by page.

Pages come in byte order of the keys. The continuation token names the last key that was looked at, so keys that come
and go between two pages disturb nothing: a key that existed all the time is returned exactly once. What takes too long
for one page, even a single key of a megabyte, is gone on with in the next.

Source: the list-keys design of the official SDKs; the published document has no SCAN.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import RequestSyntaxError
from statestore_client.server.store.glob import Glob, Progress, compile_glob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.store.keyspace import Keyspace, ScanLimits

__all__ = ["scan"]


@attrs.frozen
class _Place:
    """Where the next page goes on: after ``key``, or in the middle of it."""

    key: bytes
    progress: Progress | None = None


# -- pages ------------------------------------------------------------------------------------------------------------


def scan(
    keyspace: Keyspace, pattern: bytes, token: bytes | None, *, is_live: Callable[[bytes], bool], limits: ScanLimits
) -> tuple[tuple[bytes, ...], bytes | None]:
    """One page of live keys that match, and the token for the next, None after the last. A token tells a key, and is
    believed: clients get it sealed (:mod:`~statestore_client.server.service.service`).

    Raises RequestSyntaxError for a bad pattern, and for what is no token.
    """
    glob = compile_glob(pattern)
    place = None if token is None else _open_token(token)
    if glob.literal:
        found = keyspace.get(pattern) is not None and is_live(pattern) and (place is None or place.key < pattern)
        return (pattern,) if found else (), None
    if place is not None and place.key >= glob.prefix:
        keys = keyspace.keys_from(place.key, inclusive=place.progress is not None)
    else:
        keys = keyspace.keys_from(glob.prefix, inclusive=True)
    page, next_place = _page(keys, glob, place, is_live, limits)
    return page, None if next_place is None else _make_token(next_place)


def _page(
    keys: Iterator[bytes], glob: Glob, place: _Place | None, is_live: Callable[[bytes], bool], limits: ScanLimits
) -> tuple[tuple[bytes, ...], _Place | None]:
    """The keys of a page, and where the next goes on if there may be more."""
    page: list[bytes] = []
    page_bytes = examined_bytes = 0
    enough_bytes = limits.max_examined_bytes
    if glob.steps_per_character:
        enough_bytes = min(enough_bytes, limits.max_steps // glob.steps_per_character)
    last: bytes | None = None
    for examined, key in enumerate(keys):
        if not key.startswith(glob.prefix):
            return tuple(page), None
        examined_bytes += len(key)
        if last is None and (place is not None or len(key) > enough_bytes):
            matched = glob.match_on(key, place.progress if place and place.key == key else None, limits.max_steps)
            if isinstance(matched, Progress):
                return (), _Place(key, matched)
        elif last and (
            examined == limits.max_examined or len(page) == limits.max_keys or examined_bytes > enough_bytes
        ):
            return tuple(page), _Place(last)
        else:
            matched = glob.matches(key)
        if matched and is_live(key):
            page_bytes += len(key)
            if page and page_bytes > limits.max_bytes:
                return tuple(page), _Place(last or key)
            page.append(key)
        last = key
    return tuple(page), None


#: Token versions. What follows the second one: how many pieces were found and where to look for the next, and where
#: they are. Then comes the key.
_AFTER_KEY: Final = b"\x01"
_WITHIN_KEY: Final = b"\x02"
_PROGRESS: Final = struct.Struct(">HI")


def _make_token(place: _Place) -> bytes:
    progress = place.progress
    if progress is None:
        return _AFTER_KEY + place.key
    found = progress.found
    done = _PROGRESS.pack(len(found), progress.position) + struct.pack(f">{len(found)}I", *found)
    return _WITHIN_KEY + done + place.key


def _open_token(token: bytes) -> _Place:
    version, rest = token[:1], token[1:]
    if version == _AFTER_KEY:
        return _Place(rest)
    if version != _WITHIN_KEY:
        raise RequestSyntaxError
    try:
        count, position = _PROGRESS.unpack_from(rest)
        found = struct.unpack_from(f">{count}I", rest, _PROGRESS.size)
    except struct.error:
        raise RequestSyntaxError from None
    return _Place(rest[_PROGRESS.size + 4 * count :], Progress(found, position))
