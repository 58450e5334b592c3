"""What can be asked of the key/value machine of a cluster, and what its answers are for users.

Invariant: the pages of one range show one position: that of the first page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from raft_client.core.arguments import Data
from raft_client.core.calls import Failed, Finished, Question, Retry, Verdict
from raft_client.errors import (
    HistoryOutrunError,
    InvalidArgumentError,
    InvalidDataError,
    LeaseEndedError,
    LeaseLimitError,
    OutcomeUnknownError,
    OutOfDateLogError,
    ProtocolError,
)
from raft_client.wire.frames import hot_value
from raft_client.wire.key_value_messages import (
    AskLease,
    AskOutcome,
    LeaseReply,
    NotYet,
    OutcomeReply,
    Outrun,
    Page,
    ReadKeys,
    Refused,
    TransactionStatus,
    decode_lease_reply,
    decode_outcome_reply,
    decode_read_reply,
)
from raft_client.wire.leases import LEAST_TTL_MS, MOST_TTL_MS
from raft_client.wire.log_entry import Position

#: Keys in one page. A page ends after 1 MiB, too.
PAGE_KEYS: Final = 1_000
#: A peer that lags gets so many seconds to apply what another one has shown.
_LAG_PAUSE_S: Final = 0.02


# -- what calls return -------------------------------------------------------------------------------------------------


@hot_value
class KeyState:
    """What a key was at ``position``; ``value`` is None if there was no such key."""

    key: bytes
    value: bytes | None = attrs.field(repr=False)
    position: Position

    @property
    def exists(self) -> bool:
        """Whether there was such a key."""
        return self.value is not None


@hot_value
class WriteOutcome:
    """What became of a change. ``position`` is that of its entry: who reads there, or later, sees it.

    ``done`` is False if a comparison failed: then nothing was changed, or what was to be done otherwise. ``deleted`` is
    how many keys were there to be deleted.
    """

    position: Position
    done: bool = True
    deleted: int = 0


@hot_value
class LeaseInfo:
    """A lease as it is at ``position``: how many seconds it lasts without a word from its owner, and its keys."""

    ttl: float
    keys: tuple[bytes, ...]
    position: Position


# -- arguments ---------------------------------------------------------------------------------------------------------


def key_of(key: Data) -> bytes:
    """The bytes of a key. Raises InvalidDataError for an empty one."""
    name = bytes_of(key, "a key")
    if not name:
        raise InvalidDataError("a key is not empty")
    return name


def bytes_of(text: object, what: str) -> bytes:
    """Bytes, or text as UTF-8."""
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise InvalidDataError(f"{what} is not valid text: {error}") from None
    if not isinstance(text, bytes):
        raise InvalidArgumentError(f"{what} is bytes or text, not {type(text).__name__}")
    return text


def bounds_of(prefix: Data | None, start: Data | None, end: Data | None) -> tuple[bytes, bytes]:
    """The first key of a range, and the key that ends it; an empty one is that of the keyspace."""
    if prefix is None:
        first, last = bytes_of(start or b"", "start"), bytes_of(end or b"", "end")
        if last and first > last:
            raise InvalidArgumentError("start is behind end", argument=("start", "end"))
        return first, last
    if start is not None or end is not None:
        raise InvalidArgumentError("give a prefix, or start and end", argument=("prefix", "start", "end"))
    name = bytes_of(prefix, "a prefix")
    return name, end_of_prefix(name)


def end_of_prefix(prefix: bytes) -> bytes:
    """The first key behind all that begin with ``prefix``; empty if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else b""


def ttl_ms_of(ttl: object) -> int:
    """How many milliseconds a lease lasts, given seconds. Raises InvalidArgumentError."""
    least, most = LEAST_TTL_MS // 1000, MOST_TTL_MS // 1000
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not least <= ttl <= most:
        raise InvalidArgumentError(
            f"ttl must be a number of seconds from {least} to {most}, not {ttl!r}", argument="ttl"
        )
    return round(ttl * 1000)


def check_limit(limit: int | None) -> int | None:
    """How many keys are wanted at most; None: all."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidArgumentError(f"limit is a number of keys, at least 1, or None, not {limit!r}", argument="limit")
    return limit


# -- the calls ---------------------------------------------------------------------------------------------------------


class ReadPage(Question):
    """ReadKeys. Result: :class:`Page`."""

    __slots__ = ()

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        match decode_read_reply(frames):
            case Page() as page:
                return Finished(page)
            case Outrun(oldest=oldest, newest=newest):
                text = f"the keys as they were are not remembered any more, only from entry {oldest} on: read them anew"
                return Failed(HistoryOutrunError(text, snapshot_index=oldest, current_index=newest))
            case NotYet(newest=newest):
                return Retry(_LAG_PAUSE_S, OutOfDateLogError(f"the peer has applied the log up to {newest} only"))
            case Refused(reason=reason):
                return Failed(ProtocolError(reason))


class GetOutcome(Question):
    """AskOutcome. Result: :class:`WriteOutcome`."""

    __slots__ = ("_index",)

    def __init__(self, ident: bytes, index: int) -> None:
        super().__init__(AskOutcome(ident, index).to_frames())
        self._index = index

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        match decode_outcome_reply(frames):
            case Refused(reason=reason):
                return Failed(ProtocolError(reason))
            case OutcomeReply(status=TransactionStatus.UNKNOWN):
                return Failed(OutcomeUnknownError(self._index))
            case OutcomeReply(status=TransactionStatus.NO_LEASE):
                return Failed(LeaseEndedError("the lease has ended, and so nothing was done"))
            case OutcomeReply(status=TransactionStatus.TOO_MANY):
                return Failed(LeaseLimitError("there are too many leases, or keys of leases, and so nothing was done"))
            case OutcomeReply(status, term, deleted):
                done = status is TransactionStatus.DONE
                return Finished(WriteOutcome(Position(self._index, term), done, deleted))


class GetLease(Question):
    """AskLease. Result: :class:`LeaseInfo`, or None if there is no such lease."""

    __slots__ = ()

    def __init__(self, ident: bytes, lease: bytes) -> None:
        super().__init__(AskLease(ident, lease).to_frames())

    def receive(self, frames: Sequence[bytes]) -> Verdict:
        match decode_lease_reply(frames):
            case Refused(reason=reason):
                return Failed(ProtocolError(reason))
            case LeaseReply(position, ttl_ms, keys):
                return Finished(None if ttl_ms is None else LeaseInfo(ttl_ms / 1000, keys, position))


class AnyPeer:
    """Which peers are asked, in turn, for what may be stale: first the one that answered last."""

    def __init__(self, number: int) -> None:
        """``number`` differs from client to client: so not all of them ask the same peer."""
        self._number = number
        self._last: str | None = None

    def order(self, urls: Iterable[str]) -> list[str]:
        """All of them, as they are to be asked."""
        found = list(dict.fromkeys(urls))
        place = found.index(self._last) if self._last in found else self._number % len(found)
        return found[place:] + found[:place]

    def answered(self, url: str) -> None:
        """This one is asked first from now on: another one may be further behind."""
        self._last = url


class Range:
    """The pages of a range: which one is to be asked for next."""

    def __init__(
        self, ident: bytes, first: bytes, end: bytes, limit: int | None, *, keys_only: bool, stale: bool
    ) -> None:
        self._ident, self._following, self._end, self._left = ident, first, end, limit
        self._keys_only = keys_only
        self.stale: bool = stale
        #: Of all pages, once the first one is here.
        self.position: Position | None = None
        self.is_complete: bool = False

    def next_page(self) -> ReadPage:
        """The call for it."""
        at = None if self.position is None else self.position.index
        limit = PAGE_KEYS if self._left is None else min(self._left, PAGE_KEYS)
        frames = ReadKeys(
            self._ident, self._following, self._end, limit, at, keys_only=self._keys_only, stale=self.stale
        ).to_frames()
        return ReadPage(frames)

    def take(self, page: Page) -> tuple[tuple[bytes, bytes], ...]:
        """The items of the page that was asked for."""
        if self.position is None:
            self.position = page.position
        if self._left is not None:
            self._left -= len(page.items)
        self._following = page.following
        self.is_complete = not page.following or self._left == 0
        return page.items


def single(ident: bytes, key: bytes, *, stale: bool) -> ReadPage:
    """The call for one key."""
    return ReadPage(ReadKeys(ident, key, key + b"\0", 1, stale=stale).to_frames())


def state_of(key: bytes, page: Page) -> KeyState:
    """What the page says of the one key that was asked for."""
    return KeyState(key, page.items[0][1] if page.items else None, page.position)
