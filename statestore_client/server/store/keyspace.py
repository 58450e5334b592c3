"""The keys, their values, and what they cost whom: a key is its last writer's. SCAN lists them in pages."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import RequestSyntaxError
from statestore_client.server.checks import kind, number, required
from statestore_client.server.key_index import KeyIndex
from statestore_client.server.shares import Shares
from statestore_client.server.store.glob import Glob, Progress, compile_glob
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from statestore_client.wire.hlc import HlcTimestamp
    from statestore_client.wire.instant import Instant
    from statestore_client.wire.replies import Notification, Reply

# -- values ------------------------------------------------------------------------------------------------------------
#
# What goes into the store and comes out of it.


@attrs.frozen
class ScanLimits:
    """What one page may cost. A page stops at whichever comes first. It may be empty, and have a successor."""

    # Keys looked at: about two milliseconds during which nobody else is served.
    max_examined: int = attrs.field(default=5_000, validator=number(1))
    max_keys: int = attrs.field(default=1_000, validator=number(1))
    max_bytes: int = attrs.field(default=262_144, validator=number(1))  # of keys; a longer one is returned alone
    # Of keys looked at: those that are long take longer.
    max_examined_bytes: int = attrs.field(default=1_048_576, validator=number(1))
    # Of matching: about ten milliseconds if all have to be taken, which is rare.
    max_steps: int = attrs.field(default=3_000_000, validator=number(1))


@attrs.frozen
class StoreLimits:
    """The quotas: bytes count keys, values, observed keys, and a fixed overhead for each. Observations have quotas of
    their own, so that those who may only watch cannot use up what is there to be written. Each quota is for all clients
    together, and has an eighth more for users who have little; see ``server.shares``. Those *per
    user* do not bound clients without a user; 0 is any number. A key is its last writer's.

    Raises InvalidArgumentError for what is not a limit.
    """

    max_keys: int = attrs.field(default=1_000_000, validator=number(1))
    max_bytes: int = attrs.field(default=1_073_741_824, validator=number(1))
    max_keys_per_user: int = attrs.field(default=0, validator=number(0))
    max_bytes_per_user: int = attrs.field(default=0, validator=number(0))
    max_observations: int = attrs.field(default=1_000_000, validator=number(1))
    max_observation_bytes: int = attrs.field(default=268_435_456, validator=number(1))
    max_observations_per_user: int = attrs.field(default=0, validator=number(0))
    max_observation_bytes_per_user: int = attrs.field(default=0, validator=number(0))
    # What one client may observe: where there are no users, nothing else is between it and the quota of everybody.
    max_observations_per_client: int = attrs.field(default=50_000, validator=number(1))
    max_observation_bytes_per_client: int = attrs.field(default=67_108_864, validator=number(1))
    scan: ScanLimits = attrs.field(factory=ScanLimits, validator=required(kind(ScanLimits)))


@attrs.frozen
class StoreUsage:
    """What the quota is compared with, and the quota. ``unlisted_keys`` are those that are not UTF-8: no SCAN lists
    them.
    """

    keys: int
    unlisted_keys: int
    bytes: int
    observations: int
    observation_bytes: int
    limits: StoreLimits


@hot_value
class Change:
    """One observer is to be told that ``key`` changed."""

    client_id: str
    key: bytes
    notification: Notification
    version: HlcTimestamp


@hot_value
class Outcome:
    """What a command came to. ``changes`` are in the order in which they happened, and to be sent in that order.

    ``version`` belongs into the reply's ``__ts``; None where no version exists: GET and deletion of a missing key,
    KEYNOTIFY, SCAN, and every refusal. ``is_kept``: what was changed is there after a restart, so the answer must be.
    """

    reply: Reply
    version: HlcTimestamp | None = None
    changes: tuple[Change, ...] = ()
    is_kept: bool = True


@hot_value
class RequestContext:
    """What came with the command."""

    client_id: str
    timestamp: HlcTimestamp | None
    fencing_token: HlcTimestamp | None
    now: Instant
    user: str | None = None  # whose client it is, None for nobody's in particular


# -- observers ---------------------------------------------------------------------------------------------------------
#
# Which clients observe which keys.
#
# Source: state store protocol, "KEYNOTIFY request messages" and "KEYNOTIFY notification topics and lifecycle": one
# observation per client and key, forgotten when the client disconnects. They have quotas of their own, and take nothing
# of what there is for keys.


#: What an observation costs beside the bytes of its key: two dictionary slots, and mostly their dictionaries.
OBSERVATION_OVERHEAD_BYTES: Final = 256

#: What the names of quotas of one client end with.
PER_CLIENT: Final = "-per-client"

_Ordered = dict[str, None]  # a set that remembers the order, so that equal inputs give equal outputs


class Observers:
    """Invariant: both directions hold the same pairs; ``number`` and ``bytes`` are how many there are and what they
    cost, each pair for the user that its client had when it first observed something. (A client that comes back as
    another user has been disconnected.)
    """

    __slots__ = ("_by_client", "_bytes_of", "_limits", "_user_of", "by_key", "bytes", "number")

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self.number: Final = Shares("observations", limits.max_observations, limits.max_observations_per_user)
        self.bytes: Final = Shares(
            "observation-bytes", limits.max_observation_bytes, limits.max_observation_bytes_per_user
        )
        #: Those that are observed; to be looked at only.
        self.by_key: dict[bytes, _Ordered] = {}
        self._by_client: dict[str, dict[bytes, None]] = {}
        self._bytes_of: dict[str, int] = {}  # for each client what its pairs cost
        self._user_of: dict[str, str | None] = {}  # of each client

    def lacking(self, client_id: str, key: bytes, user: str | None) -> str | None:
        """The name of the quota that does not allow this observation; None if all do, or if it is there already."""
        if self.has(client_id, key):
            return None
        cost, limits = len(key) + OBSERVATION_OVERHEAD_BYTES, self._limits
        if len(self._by_client.get(client_id, ())) >= limits.max_observations_per_client:
            return self.number.name + PER_CLIENT
        if self._bytes_of.get(client_id, 0) + cost > limits.max_observation_bytes_per_client:
            return self.bytes.name + PER_CLIENT
        user = self._user_of.get(client_id, user)
        return self.number.lacking(user, 1, 1) or self.bytes.lacking(user, cost, cost)

    def clients(self) -> Iterable[tuple[str, Collection[bytes]]]:
        """Each client that observes something, and what. Do not change them while iterating."""
        return self._by_client.items()

    def of(self, key: bytes) -> Iterable[str]:
        """The clients that observe the key, in the order in which they started to."""
        return self.by_key.get(key, ())

    def has(self, client_id: str, key: bytes) -> bool:
        """Whether the client observes the key."""
        return client_id in self.by_key.get(key, ())

    def add(self, client_id: str, key: bytes, user: str | None = None) -> None:
        """Start observing. Again for the same key changes nothing."""
        if not self.has(client_id, key):
            self.by_key.setdefault(key, {})[client_id] = None
            self._by_client.setdefault(client_id, {})[key] = None
            self._count(client_id, self._user_of.setdefault(client_id, user), key, 1)

    def remove(self, client_id: str, key: bytes) -> bool:
        """Stop observing; False when the client did not observe the key."""
        keys = self._by_client.get(client_id)
        if keys is None or key not in keys:
            return False
        del keys[key]
        self._forget(client_id, key)
        if not keys:
            del self._by_client[client_id], self._bytes_of[client_id], self._user_of[client_id]
        return True

    def remove_client(self, client_id: str) -> None:
        """Forget everything that the client observes."""
        for key in self._by_client.pop(client_id, ()):
            self._forget(client_id, key)
        self._bytes_of.pop(client_id, None)
        self._user_of.pop(client_id, None)

    def _forget(self, client_id: str, key: bytes) -> None:
        clients = self.by_key[key]
        del clients[client_id]
        if not clients:
            del self.by_key[key]
        self._count(client_id, self._user_of[client_id], key, -1)

    def _count(self, client_id: str, user: str | None, key: bytes, sign: int) -> None:
        cost = sign * (len(key) + OBSERVATION_OVERHEAD_BYTES)
        self.number.add(user, sign)
        self.bytes.add(user, cost)
        self._bytes_of[client_id] = self._bytes_of.get(client_id, 0) + cost


# -- keyspace ----------------------------------------------------------------------------------------------------------


#: What a key costs beside its own bytes and its value's: the entry, its version, and two index slots.
KEY_OVERHEAD_BYTES: Final = 320


class Durability(IntEnum):
    """What the disk has of a key."""

    NOTHING = 0
    MARK = 1
    VALUE = 2


class Entry:
    """What is stored under one key. Mutable and slotted: there may be millions."""

    __slots__ = ("expires_at", "fence", "kept", "user", "value", "version")

    def __init__(
        self,
        value: bytes,
        version: HlcTimestamp,
        fence: HlcTimestamp | None,
        expires_at: float | None,
        kept: Durability,
        user: str | None = None,
    ) -> None:
        self.value: bytes = value
        self.version: HlcTimestamp = version
        self.fence: HlcTimestamp | None = fence  # the fencing token that protects the key
        self.expires_at: float | None = expires_at  # monotonic seconds
        self.kept: Durability = kept  # what the disk has of it
        self.user: str | None = user  # who wrote it last; see Keyspace.replace_value


class Keyspace:
    """A dictionary with a sorted index of its keys for SCAN.

    Invariant: ``bytes`` has the sum of key, value and KEY_OVERHEAD_BYTES over all entries, and ``keys`` their number,
    each for the user of the entry; ``unlisted`` is the number of keys that are not UTF-8, which SCAN never lists.
    """

    __slots__ = ("_entries", "_index", "bytes", "get", "keys", "unlisted")

    def __init__(self, limits: StoreLimits) -> None:
        self._entries: dict[bytes, Entry] = {}
        #: The entry of a key, expired or not; None if there is none. The dictionary's own method: every command asks.
        self.get: Final = self._entries.get
        self._index: KeyIndex[bytes] = KeyIndex()
        self.keys: Final = Shares("keys", limits.max_keys, limits.max_keys_per_user)
        self.bytes: Final = Shares("bytes", limits.max_bytes, limits.max_bytes_per_user)
        self.unlisted: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: bytes, entry: Entry) -> None:
        """Store an entry under a key that has none."""
        self._entries[key] = entry
        self._index.add(key)
        self.unlisted += not _is_text(key)
        self.keys.add(entry.user, 1)
        self.bytes.add(entry.user, len(key) + len(entry.value) + KEY_OVERHEAD_BYTES)

    def lacking(self, key: bytes, value: bytes, entry: Entry | None, user: str | None) -> str | None:
        """The name of the quota that does not allow this value of a key, whose entry is this so far; None if all do."""
        size = len(key) + len(value) + KEY_OVERHEAD_BYTES
        if entry is None:
            return self.keys.lacking(user, 1, 1) or self.bytes.lacking(user, size, size)
        more = len(value) - len(entry.value)
        if entry.user == user:
            return self.bytes.lacking(user, more, more)
        return self.keys.lacking(user, 0, 1) or self.bytes.lacking(user, more, size)

    def replace_value(self, key: bytes, entry: Entry, value: bytes, user: str | None) -> None:
        """Give a stored entry another value, of this user. The index, and so the number of keys, is not involved."""
        if entry.user == user:
            if more := len(value) - len(entry.value):
                self.bytes.add(user, more)
        else:
            self._give_back(key, entry)
            self.keys.add(user, 1)
            self.bytes.add(user, len(key) + len(value) + KEY_OVERHEAD_BYTES)
            entry.user = user
        entry.value = value

    def remove(self, key: bytes) -> Entry:
        """Forget a key and hand back its entry."""
        entry = self._entries.pop(key)
        self._index.remove(key)
        self.unlisted -= not _is_text(key)
        self._give_back(key, entry)
        return entry

    def _give_back(self, key: bytes, entry: Entry) -> None:
        self.keys.add(entry.user, -1)
        self.bytes.add(entry.user, -(len(key) + len(entry.value) + KEY_OVERHEAD_BYTES))

    def keys_from(self, start: bytes, *, inclusive: bool) -> Iterator[bytes]:
        """The keys from ``start`` on, in byte order. Do not change the keyspace while iterating."""
        return self._index.keys_from(start, inclusive=inclusive)


def _is_text(key: bytes) -> bool:
    if key.isascii():
        return True
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- scan --------------------------------------------------------------------------------------------------------------
#
# SCAN: which keys match a glob, page by page.
#
# Pages come in byte order of the keys. The continuation token names the last key that was looked at, so keys that come
# and go between two pages disturb nothing: a key that existed all the time is returned exactly once. What takes too
# long for one page, even a single key of a megabyte, is gone on with in the next.
#
# Source: the list-keys design of the official SDKs; the published document has no SCAN.


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
    return _scan(keyspace, compile_glob(pattern), pattern, token, is_live, limits, len)


def scan_entries(
    keyspace: Keyspace, pattern: bytes, token: bytes | None, *, is_live: Callable[[bytes], bool], limits: ScanLimits
) -> tuple[tuple[bytes, ...], bytes | None]:
    """The same where the whole entries are wanted. A prefix and a star stand for all keys that begin with it, text or
    not, as in access rules; and a page has room for the entries.
    """
    glob = compile_glob(pattern)
    if glob.prefix + b"*" == pattern:
        glob = attrs.evolve(glob, takes_all=True)

    def size(key: bytes) -> int:
        entry = keyspace.get(key)
        return len(key) + (0 if entry is None else len(entry.value))

    most = max(1, limits.max_keys // _ENTRY_IN_KEYS)
    return _scan(keyspace, glob, pattern, token, is_live, attrs.evolve(limits, max_keys=most), size)


#: An entry takes as long as this many keys, to be looked up and encoded.
_ENTRY_IN_KEYS: Final = 4


def _scan(
    keyspace: Keyspace,
    glob: Glob,
    pattern: bytes,
    token: bytes | None,
    is_live: Callable[[bytes], bool],
    limits: ScanLimits,
    size: Callable[[bytes], int],
) -> tuple[tuple[bytes, ...], bytes | None]:
    place = None if token is None else _open_token(token)
    if glob.literal:
        found = keyspace.get(pattern) is not None and is_live(pattern) and (place is None or place.key < pattern)
        return (pattern,) if found else (), None
    if place is not None and place.key >= glob.prefix:
        keys = keyspace.keys_from(place.key, inclusive=place.progress is not None)
    else:
        keys = keyspace.keys_from(glob.prefix, inclusive=True)
    page, next_place = _page(keys, glob, place, is_live, limits, size)
    return page, None if next_place is None else _make_token(next_place)


def _page(
    keys: Iterator[bytes],
    glob: Glob,
    place: _Place | None,
    is_live: Callable[[bytes], bool],
    limits: ScanLimits,
    size: Callable[[bytes], int],
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
            page_bytes += size(key)
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
