"""What a client of a site asks, and what it makes of the replies. Pure: shells send and wait.

A call is a generator: it yields requests, is sent the reply to each, and returns what the caller gets.

Source: facts §5.4, §6.1; ``docs/decisions/sites.md``.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import attrs

from statestore_client.errors import (
    BusyError,
    InvalidArgumentError,
    NotMergedError,
    RemoteProtocolError,
    UnexpectedReplyError,
)
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import (
    MAX_ITEMS,
    MAX_VALUES_BYTES,
    ChangeOwnKey,
    ChangePeer,
    Failure,
    FailureReason,
    Follow,
    Followed,
    Found,
    Get,
    GetFiltered,
    GetHashes,
    GetLostKeys,
    GetOwnKeys,
    GetPeers,
    GetSummary,
    LostKey,
    LostKeys,
    OwnKeyAction,
    OwnKeys,
    OwnKeyState,
    PeerInfo,
    PeersReply,
    Reply,
    Set,
    SetResult,
    Summary,
    Wanted,
)
from statestore_client.wire.kvstore.value import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    MAX_VERSION,
    Comparison,
    NoMergeReason,
    Value,
    compare,
    hash_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

T = TypeVar("T")
R = TypeVar("R", Found, SetResult, Followed, PeersReply, Summary, OwnKeys, LostKeys)

ClientRequest: TypeAlias = (
    Get
    | GetFiltered
    | GetHashes
    | Set
    | ChangeOwnKey
    | Follow
    | GetPeers
    | GetLostKeys
    | GetSummary
    | GetOwnKeys
    | ChangePeer
)
#: What may answer one of them.
REPLIES: Final = (Found, SetResult, Followed, PeersReply, Summary, OwnKeys, LostKeys, Failure)
Call: TypeAlias = Generator[ClientRequest, Reply, T]

#: What else is said of a reason.
_ADVICE: Final[dict[int, str]] = {
    NoMergeReason.OLD_VERSION: ", what is stored has a higher one",
    NoMergeReason.INVALID_VERSION: f", versions are 1 to {MAX_VERSION}",
    NoMergeReason.INVALID_KEY: f", a key has 1 to {MAX_KEY_BYTES} bytes of UTF-8",
    NoMergeReason.NO_ROOM: ", its area is full: raise --site-max-keys or --site-max-bytes, or have less said",
}
_MEANS_SOMETHING: Final = frozenset(r"\.[](){}|*+?^$")


def pattern_of(prefix: str) -> str:
    """The pattern of all keys that begin with this text."""
    return "".join(f"\\{each}" if each in _MEANS_SOMETHING else each for each in prefix)


def wanted_of(prefix: str | None, patterns: Collection[str]) -> tuple[str, ...]:
    """The patterns of a request for keys that begin with a text or with a match of a pattern."""
    if prefix is None:
        return texts("patterns", patterns)
    _check_text("prefix", prefix)
    return (*texts("patterns", patterns), pattern_of(prefix))


def packed(request: ClientRequest) -> bytes:
    """The message. Raises InvalidArgumentError for what no message can hold."""
    try:
        return encode(request)
    # What msgpack raises: numbers that are too large, texts that are not Unicode, objects that are none of its own.
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"no site can be asked that: {error}") from error


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be a text, not {type(value).__name__}", argument=what)


def texts(what: str, values: Iterable[str]) -> tuple[str, ...]:
    """Several of them; a text alone would be taken for its letters. Raises InvalidArgumentError."""
    if isinstance(values, str):
        raise InvalidArgumentError(f"{what} must be several texts, and not one text", argument=what)
    if not isinstance(values, Iterable):
        raise InvalidArgumentError(f"{what} must be several texts, not {type(values).__name__}", argument=what)
    found = tuple(values)
    for each in found:
        _check_text(f"each of {what}", each)
    return found


def check_seconds(what: str, value: object) -> None:
    """Raises InvalidArgumentError for what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidArgumentError(f"{what} must be seconds, not {value!r}", argument=what)


def _check_entries(what: str, entries: object) -> None:
    if not isinstance(entries, Mapping):
        raise InvalidArgumentError(f"{what} must be a mapping, not {type(entries).__name__}", argument=what)
    for key, entry in entries.items():
        _check_text("each key", key)
        if not isinstance(entry, Value):
            raise InvalidArgumentError(f"the entry of {key[:80]!r} must be a Value, not {type(entry).__name__}")
        if type(entry.version) is not int:
            raise InvalidArgumentError(f"the version of {key[:80]!r} must be an integer, not {entry.version!r}")
        _check_text(f"the originator of {key[:80]!r}", entry.originator)
        value = entry.value
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgumentError(f"the value of {key[:80]!r} must be bytes or None, not {type(value).__name__}")
        if value is not None and len(value) > MAX_VALUE_BYTES:
            raise InvalidArgumentError(f"the value of {key[:80]!r} has more than {MAX_VALUE_BYTES} bytes")


def may_change(request: ClientRequest) -> bool:
    """Whether the request can change something at the site."""
    return isinstance(request, ChangeOwnKey | ChangePeer | Set)


def hold_s(request: ClientRequest) -> float:
    """So long the site may wait before it answers."""
    return request.hold_ms / 1000 if isinstance(request, Follow | GetPeers | GetLostKeys) else 0.0


def _parts(entries: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """As much as a site takes in one message; one large value goes alone."""
    part: dict[str, Value] = {}
    size = 0
    for key, entry in entries.items():
        more = len(key) + len(entry.value or b"")
        if part and (len(part) == MAX_ITEMS or size + more > MAX_VALUES_BYTES):
            yield part
            part, size = {}, 0
        part[key] = entry
        size += more
    if part:
        yield part


class SiteCalls:
    """The calls of one client, for one area. ``next_id`` gives a number that no request has had."""

    def __init__(self, area: str, next_id: Callable[[], int]) -> None:
        _check_text("area", area)
        self.area = area
        self.next_id = next_id

    def get_many(self, keys: Collection[str]) -> Call[dict[str, Value]]:
        """Those that exist. What does not fit into one reply is asked for again."""
        found: dict[str, Value] = {}
        rest = tuple(dict.fromkeys(texts("keys", keys)))
        while rest:
            asked, later = rest[:MAX_ITEMS], rest[MAX_ITEMS:]
            reply = checked(Found, (yield Get(self.next_id(), self.area, asked)))
            found.update(reply.entries)
            if reply.next is None:
                rest = later
                continue
            if not reply.entries:
                raise UnexpectedReplyError("a reply of the site that has no entries, and says that there are more")
            rest = (*(key for key in asked if key not in found), *later)
        return found

    def get(self, key: str) -> Call[Value | None]:
        """None if there is no such key."""
        _check_text("key", key)
        found = yield from self.get_many((key,))
        return found.get(key)

    def dump(
        self,
        prefix: str | None,
        patterns: Collection[str],
        originators: Collection[str],
        *,
        match_all: bool,
        hashes: bool,
    ) -> Call[dict[str, Value]]:
        """All that pass, page by page."""
        found: dict[str, Value] = {}
        wanted, sites = wanted_of(prefix, patterns), texts("originators", originators)
        start: int | None = 0
        while start is not None:
            request = GetFiltered(self.next_id(), self.area, wanted, sites, match_all, omit_values=hashes, start=start)
            reply = checked(Found, (yield request))
            found.update(reply.entries)
            start = _following(start, reply.next)
        return found

    def dump_areas(
        self, areas: Collection[str] | None, prefix: str | None, *, hashes: bool
    ) -> Call[dict[str, dict[str, Value]]]:
        """Of several areas, or of all that the site has; one after the other."""
        if areas is None:
            areas = sorted((yield from self.summary()).areas)
        found = {}
        for area in dict.fromkeys(texts("areas", areas)):
            calls = SiteCalls(area, self.next_id)
            found[area] = yield from calls.dump(prefix, (), (), match_all=False, hashes=hashes)
        return found

    def differences(self, known: Mapping[str, Value], wanted: Wanted) -> Call[Differences]:
        """The hashes of the site say which entries differ; those that are newer there are read then."""
        _check_entries("known", known)
        there = yield from self.dump(None, wanted.patterns, wanted.originators, match_all=wanted.match_all, hashes=True)
        newer, older = compared(there, known)
        return Differences((yield from self.get_many(newer)), older)

    def own_keys(self) -> Call[dict[str, OwnKeyState]]:
        """Page by page."""
        found: dict[str, OwnKeyState] = {}
        start: int | None = 0
        while start is not None:
            reply = checked(OwnKeys, (yield GetOwnKeys(self.next_id(), self.area, start)))
            found.update(reply.keys)
            start = _following(start, reply.next)
        return found

    def peers(self) -> Call[PeersReply]:
        """As they are now."""
        return checked(PeersReply, (yield GetPeers(self.next_id(), self.area)))

    def summary(self) -> Call[Summary]:
        """Of all areas."""
        return checked(Summary, (yield GetSummary(self.next_id())))

    def change_peer(self, url: str, *, is_wanted: bool) -> Call[bool]:
        """False if there was nothing to do. Raises InvalidArgumentError for an address that no site can have."""
        _check_text("url", url)
        return not checked(SetResult, (yield ChangePeer(self.next_id(), url, is_wanted))).reasons

    def is_synced(self) -> Call[bool]:
        """Whether the syncs of the site's start are over."""
        summary = yield from self.summary()
        return all(numbers.get("synced", 1) for numbers in summary.areas.values())

    def wait_synced(self, timeout_s: float | None, clock: Callable[[], float]) -> Call[bool]:
        """False if it takes longer. It is looked at again after each change of a peer, and after :data:`HOLD_S`."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        ends_at = math.inf if timeout_s is None else clock() + timeout_s
        history, after = 0, None
        while not (yield from self.is_synced()):
            left = ends_at - clock()
            if left <= 0:
                return False
            request = GetPeers(self.next_id(), self.area, history, after, round(1000 * min(HOLD_S, left)) + 1)
            reply = checked(PeersReply, (yield request))
            history, after = reply.history, reply.last
        return True

    def lost_keys(self) -> Call[dict[str, LostKey]]:
        """Page by page, the last loss at the end."""
        return LostKeysFollower(self).begin()

    def merge(self, entries: Mapping[str, Value]) -> Call[dict[str, NoMergeReason]]:
        """Why some were not taken. Raises InvalidArgumentError for what does not fit into a message."""
        reasons: dict[str, NoMergeReason] = {}
        _check_entries("entries", entries)
        for part in _parts(entries):
            reply = checked(SetResult, (yield Set(self.next_id(), self.area, part)))
            reasons.update((key, _reason(number)) for key, number in reply.reasons.items())
        return reasons

    def differs(
        self, known: Mapping[str, Value], wanted: Wanted, timeout_s: float, clock: Callable[[], float]
    ) -> Call[bool]:
        """Whether the area differs from what the caller knows, now or within this time."""
        check_seconds("timeout_s", timeout_s)
        _check_entries("known", known)
        ends_at = clock() + timeout_s
        reply = checked(Followed, (yield Follow(self.next_id(), self.area, wanted)))
        found = yield from self.dump(None, wanted.patterns, wanted.originators, match_all=wanted.match_all, hashes=True)
        there = {key: identity(entry) for key, entry in found.items()}
        if there != {key: identity(entry) for key, entry in known.items()}:
            return True
        while (left := ends_at - clock()) > 0:
            hold_ms = round(1000 * min(left, 1.0)) + 1
            request = Follow(self.next_id(), self.area, wanted, reply.history, reply.last, hold_ms)
            reply = checked(Followed, (yield request))
            if reply.is_gap or any(piece.expired_keys for piece in reply.pieces):
                return True
            if any(there.get(key) != identity(entry) for piece in reply.pieces for key, entry in piece.entries.items()):
                return True
        return False

    def change(
        self,
        action: OwnKeyAction,
        key: str,
        value: bytes | str | None = None,
        *,
        version: int | None = None,
        ttl_ms: int | None = None,
    ) -> Call[bool]:
        """False if there was nothing to do. Raises NotMergedError for what the site did not take."""
        _check_text("key", key)
        for name, number in (("version", version), ("ttl_ms", ttl_ms)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidArgumentError(f"{name} is {number!r}; it must be a positive integer", argument=name)
        try:
            data = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"the value of {key[:80]!r}: {error}") from error
        request = ChangeOwnKey(self.next_id(), self.area, action, key, data, version, ttl_ms)
        reason = checked(SetResult, (yield request)).reasons.get(key)
        if reason is None:
            return True
        if reason == NoMergeReason.NO_NEED_TO_UPDATE and data is None:
            return False
        known = {each.value: each.name for each in NoMergeReason}
        why = f"{known.get(reason, reason)}{_ADVICE.get(reason, '')}"
        raise NotMergedError(f"the site did not take {key[:80]!r}: {why}", key=key, reason=reason)


@attrs.frozen
class Differences:
    """Between a site and what a program knows. ``newer``: what the site has and the program has not, or older.
    ``older``: keys that are newer in the program, or missing at the site: it can be told them with ``merge``.

    A key whose two values differ under one version and originator, which only a mistake makes, is in both.
    """

    newer: dict[str, Value]
    older: tuple[str, ...]


def compared(here: Mapping[str, Value], there: Mapping[str, Value]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that are newer here, and those that are newer there, or only there; in order.

    As a full sync compares them: by hashes, where there is no value.
    """
    newer: list[str] = []
    older: list[str] = []
    for key in sorted(here.keys() | there.keys()):
        mine, theirs = here.get(key), there.get(key)
        if mine is None or theirs is None:
            (older if mine is None else newer).append(key)
            continue
        outcome = compare(_hashed(mine), _hashed(theirs))
        if outcome in (Comparison.FIRST, Comparison.UNKNOWN):
            newer.append(key)
        if outcome in (Comparison.SECOND, Comparison.UNKNOWN):
            older.append(key)
    return tuple(newer), tuple(older)


def _hashed(entry: Value) -> Value:
    return attrs.evolve(entry, hash=identity(entry)[2])


def identity(entry: Value) -> tuple[int, str, int | None]:
    """What an entry says: version, originator, hash of these and its value."""
    if entry.value is None:
        return entry.version, entry.originator, entry.hash
    return entry.version, entry.originator, hash_of(entry.version, entry.originator, entry.value)


def _reason(number: int) -> NoMergeReason:
    """One that this release does not know is UNKNOWN."""
    return NoMergeReason(number) if number in set(NoMergeReason) else NoMergeReason.UNKNOWN


def _following(start: int, following: int | None) -> int | None:
    if following is not None and following <= start:
        raise UnexpectedReplyError("a page of the site that does not go on where the one before has ended")
    return following


def checked(kind: type[R], reply: Reply) -> R:
    """The reply, if it is of this kind; raises what it says, or UnexpectedReplyError, if it is not."""
    if isinstance(reply, kind):
        return reply
    if isinstance(reply, Failure):
        if reply.reason == FailureReason.TOO_MANY_HELD:
            raise BusyError(f"the site holds too many requests: {reply.text}")
        if reply.reason in (FailureReason.UNKNOWN_AREA, FailureReason.BAD_REQUEST):
            raise InvalidArgumentError(reply.text)
        raise RemoteProtocolError(f"the site does not know this request: {reply.text}")
    raise UnexpectedReplyError(f"the site has answered with {type(reply).__name__}, and not with {kind.__name__}")


# -- following ---------------------------------------------------------------------------------------------------------
#
# What a client that follows a site knows, and what it makes of the replies. Pure: shells send and wait.
#
# The client says up to where it has seen what the site has published. If the site does not have what came after that
# (it was started again, or the client was too slow), the client reads a snapshot, and the differences to what it knows
# are the changes: no final state is missed, states in between may be.
#
# Source: KvStore, "KvStore Client"; facts §6.4, §6.5; ``docs/decisions/sites.md``.


#: So long the site holds a request; a site that is gone, or another start of it, is noticed soon after that.
HOLD_S: Final = 1.0

S = TypeVar("S", covariant=True)


@attrs.frozen
class KeyChange:
    """What has become of a key. ``entry``: with the milliseconds that it has left; None if its time to live is over.

    ``number`` is that of the publication of the site that says so: they rise by one, from 1 at its start. None for what
    was found in a snapshot. It does not count where changes are compared.
    """

    key: str
    entry: Value | None
    number: int | None = attrs.field(default=None, eq=False)

    @property
    def is_ttl_only(self) -> bool:
        """The key lives on, and what it says is the same; only clients that ask for TTLs are told."""
        return self.entry is not None and self.entry.value is None and self.entry.hash is None


class Follower(Protocol[S, T]):
    """Something at a site that can be followed."""

    def begin(self) -> Call[S]:
        """All of it, as it is now."""

    def proceed(self, hold_s: float) -> Call[list[T]]:
        """What has changed since; none after ``hold_s``."""


class AreaFollower:
    """Follows the keys of an area that a client wants."""

    def __init__(self, calls: SiteCalls, wanted: Wanted) -> None:
        self._calls = calls
        self._wanted = wanted
        self._history = 0
        self._after = 0
        #: Key -> version, originator, hash: what the application knows.
        self._known: dict[str, tuple[int, str, int | None]] = {}

    def begin(self) -> Call[dict[str, Value]]:
        """All that is wanted. What changes while the pages are read is in the history, and comes next."""
        reply = yield from self._follow(None, 0.0)
        wanted = self._wanted
        snapshot = yield from self._calls.dump(
            None, wanted.patterns, wanted.originators, match_all=wanted.match_all, hashes=wanted.omit_values
        )
        self._history, self._after = reply.history, reply.last
        self._known = {key: identity(entry) for key, entry in snapshot.items()}
        return snapshot

    def proceed(self, hold_s: float) -> Call[list[KeyChange]]:
        """In the order in which the site has published them; the differences to a snapshot in any order."""
        reply = yield from self._follow(self._after, hold_s)
        if reply.is_gap:
            before = self._known
            snapshot = yield from self.begin()
            changes = [KeyChange(key, entry) for key, entry in snapshot.items() if self._known[key] != before.get(key)]
            return changes + [KeyChange(key, None) for key in before if key not in snapshot]
        self._after = reply.last
        changes = []
        for piece in reply.pieces:
            number = piece.number
            changes += [KeyChange(key, entry, number) for key, entry in piece.entries.items() if self._take(key, entry)]
            ended = [key for key in piece.expired_keys if self._known.pop(key, None) is not None]
            changes += [KeyChange(key, None, number) for key in ended]
        return changes

    def _follow(self, after: int | None, hold_s: float) -> Call[Followed]:
        request = Follow(
            self._calls.next_id(), self._calls.area, self._wanted, self._history, after, round(1000 * hold_s)
        )
        return checked(Followed, (yield request))

    def _take(self, key: str, entry: Value) -> bool:
        """Whether it is news. The snapshot may have had it, or a newer one, already."""
        known = self._known.get(key)
        if entry.value is None and entry.hash is None:
            return known is not None and known[:2] == (entry.version, entry.originator)
        said = identity(entry)
        if known is not None and (known == said or known[:2] > said[:2]):
            return not self._wanted.ignore_ttl and known == said
        self._known[key] = said
        return True


class LostKeysFollower:
    """Follows the keys that were set at a site, and that other sites override."""

    def __init__(self, calls: SiteCalls) -> None:
        self._calls = calls
        self._history = 0
        self._after: int | None = None

    def begin(self) -> Call[dict[str, LostKey]]:
        """Those that are lost now."""
        found: dict[str, LostKey] = {}
        while losses := (yield from self.proceed(0.0)):
            found.update((loss.key, loss) for loss in losses)
        return found

    def proceed(self, hold_s: float) -> Call[list[LostKey]]:
        """Those that are lost since. After a new start of the site, all that it has lost in its new life."""
        calls = self._calls
        request = GetLostKeys(calls.next_id(), calls.area, self._history, self._after, round(1000 * hold_s))
        reply = checked(LostKeys, (yield request))
        self._history, self._after = reply.history, reply.last
        return [LostKey(calls.area, key, *loss) for key, loss in reply.keys.items()]


class PeersFollower:
    """Follows the peers of a site."""

    def __init__(self, calls: SiteCalls) -> None:
        self._calls = calls
        self._history = 0
        self._after: int | None = None

    def begin(self) -> Call[Mapping[str, PeerInfo]]:
        """Those that it has now."""
        return (yield from self._ask(0.0)).peers

    def proceed(self, hold_s: float) -> Call[list[Mapping[str, PeerInfo]]]:
        """Those that it has after a change."""
        before = self._history, self._after
        reply = yield from self._ask(hold_s)
        return [] if (self._history, self._after) == before else [reply.peers]

    def _ask(self, hold_s: float) -> Call[PeersReply]:
        request = GetPeers(self._calls.next_id(), self._calls.area, self._history, self._after, round(1000 * hold_s))
        reply = checked(PeersReply, (yield request))
        self._history, self._after = reply.history, reply.last
        return reply
