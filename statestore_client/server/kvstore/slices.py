"""Large work in pieces, so that something else can be done in between: entries to merge or to send, and dumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.kvstore.admission import entry_bytes
from statestore_client.wire.kvstore.messages import MAX_VALUES_BYTES
from statestore_client.wire.kvstore.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from statestore_client.server.kvstore.key_filter import KeyFilter
    from statestore_client.server.kvstore.store import AreaStore

__all__ = ["LOOKED_AT", "PART_BYTES", "SYNC_BYTES", "SYNC_KEYS", "Page", "packed_bytes", "page", "slices"]

#: What is sent, or merged, at once has at most this many bytes. A larger entry goes alone. Far below MAX_MESSAGE.
PART_BYTES: Final = MAX_VALUES_BYTES
#: A part of a full sync: keys, and bytes. Either side takes some half a millisecond for it. Many parts are under way at
#: once, and must not hold up heartbeats on a slow line for long.
SYNC_KEYS: Final = 32
SYNC_BYTES: Final = 4 * 1024
#: Bytes of a packed entry besides its key, originator and value, at most.
_FRAME: Final = 64
#: Entries that are merged at once: half a millisecond.
_SLICE: Final = 128
#: Keys that a dump looks at before it takes a break, and entries in a page.
LOOKED_AT: Final = 256


def packed_bytes(key: str, entry: Value) -> int:
    """What an entry takes in a message, at most."""
    return entry_bytes(key, entry) + _FRAME


def slices(entries: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Pieces to merge one at a time. As each entry is decided about for itself, the results together are the same."""
    piece: dict[str, Value] = {}
    size = 0
    for key, entry in entries.items():
        more = packed_bytes(key, entry)
        if piece and (len(piece) >= _SLICE or size + more > PART_BYTES):
            yield piece
            piece, size = {}, 0
        piece[key] = entry
        size += more
    if piece:
        yield piece


@attrs.frozen
class Page:
    """A piece of a dump. ``next_key``: what to go on with; None at the end."""

    entries: dict[str, Value]
    next_key: str | None


def page(
    store: AreaStore,
    keys: Iterable[str],
    key_filter: KeyFilter,
    now: float,
    *,
    omit_values: bool = False,
) -> Page:
    """The entries that pass, from the beginning of ``keys``, as far as one message and half a millisecond go.

    Keys that are not in the store any more are left out. ``omit_values`` gives hashes in place of values. Entries have
    the TTL that is left of them; those with hardly any are left out.
    """
    found: dict[str, Value] = {}
    size = 0
    for number, key in enumerate(keys):
        if number >= LOOKED_AT:
            return Page(store.leaving(found, now), key)
        entry = store.get(key)
        if entry is None or not key_filter.matches(key, entry):
            continue
        if omit_values:
            entry = entry.without_value()
        more = packed_bytes(key, entry)
        if found and size + more > PART_BYTES:
            return Page(store.leaving(found, now), key)
        found[key] = entry
        size += more
    return Page(store.leaving(found, now), None)
