"""How a key of one site's state store is called at all others: ``sites/NAME/KEY``, in the KvStore and in their stores.

So no two sites ever speak of the same key, and whoever sees one knows whose it is. Source:
``docs/decisions/0048-a-bridge-between-the-stores.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.wire.kvstore.value import MAX_KEY_BYTES, MAX_VERSION, RESERVED

if TYPE_CHECKING:
    from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["RESERVED_BYTES", "exported_name", "key_under", "owner_of", "version_of"]

#: What other sites have is below this. No client writes there, and nothing from there is exported.
RESERVED_BYTES: Final = RESERVED.encode()

_COUNTER_BITS: Final = 20
_MAX_COUNTER: Final = (1 << _COUNTER_BITS) - 1
#: Half of all versions, so that there is always one above. A clock of the year 2109 is the first to reach it.
_MAX_EXPORTED: Final = MAX_VERSION // 2


def exported_name(site: str, key: bytes) -> str | None:
    """The name of this site's key in the KvStore; None if it cannot have one: it is not UTF-8, or too long."""
    try:
        name = f"{RESERVED}{site}/{key.decode()}"
    except UnicodeDecodeError:
        return None
    return name if key and len(name.encode()) <= MAX_KEY_BYTES else None


def owner_of(name: str) -> str | None:
    """The site whose key that is; None if it is not the name of an exported key."""
    if not name.startswith(RESERVED):
        return None
    site, _, key = name[len(RESERVED) :].partition("/")
    return site if site and key else None


def key_under(site: str, name: str) -> bytes:
    """What :func:`exported_name` was made of."""
    return name[len(RESERVED) + len(site) + 1 :].encode()


def version_of(version: HlcTimestamp) -> int:
    """A number in the order of the versions of the state store.

    Where more than a million SETs share a millisecond, two versions may get one number; the KvStore then takes the
    next one.
    """
    return min(version.wall_ms << _COUNTER_BITS | min(version.counter, _MAX_COUNTER), _MAX_EXPORTED)
