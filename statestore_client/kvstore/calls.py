"""What a client of a site asks, and what it makes of the replies. Pure: shells send and wait.

A call is a generator: it yields requests, is sent the reply to each, and returns what the caller gets.

Source: facts §5.4, §6.1; ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from statestore_client.errors import InvalidArgumentError, NotMergedError, RemoteProtocolError, UnexpectedReplyError
from statestore_client.wire.kvstore.messages import (
    ChangeOwnKey,
    Failure,
    FailureReason,
    Found,
    Get,
    GetFiltered,
    GetHashes,
    OwnKeyAction,
    Reply,
    SetResult,
)
from statestore_client.wire.kvstore.value import NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from statestore_client.wire.kvstore.value import Value

__all__ = ["Call", "ClientRequest", "SiteCalls", "may_change", "pattern_of"]

T = TypeVar("T")
R = TypeVar("R", Found, SetResult)

ClientRequest: TypeAlias = Get | GetFiltered | GetHashes | ChangeOwnKey
Call: TypeAlias = Generator[ClientRequest, Reply, T]

_MEANS_SOMETHING: Final = frozenset(r"\.[](){}|*+?^$")


def pattern_of(prefix: str) -> str:
    """The pattern of all keys that begin with this text."""
    return "".join(f"\\{each}" if each in _MEANS_SOMETHING else each for each in prefix)


def may_change(request: ClientRequest) -> bool:
    """Whether the request can change something at the site."""
    return isinstance(request, ChangeOwnKey)


class SiteCalls:
    """The calls of one client, for one area. ``next_id`` gives a number that no request has had."""

    def __init__(self, area: str, next_id: Callable[[], int]) -> None:
        self._area = area
        self._next_id = next_id

    def get_many(self, keys: Collection[str]) -> Call[dict[str, Value]]:
        """Those that exist. What does not fit into one reply is asked for again."""
        if isinstance(keys, str):
            raise InvalidArgumentError("keys must be several keys, and not one text")
        found: dict[str, Value] = {}
        rest = tuple(dict.fromkeys(keys))
        while rest:
            reply = _checked(Found, (yield Get(self._next_id(), self._area, rest)))
            found.update(reply.entries)
            if reply.next is None:
                break
            if not reply.entries:
                raise UnexpectedReplyError("a reply of the site that has no entries, and says that there are more")
            rest = tuple(key for key in rest if key not in found)
        return found

    def get(self, key: str) -> Call[Value | None]:
        """None if there is no such key."""
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
        wanted = (*patterns, *([] if prefix is None else [pattern_of(prefix)]))
        start: int | None = 0
        while start is not None:
            request = GetFiltered(
                self._next_id(), self._area, wanted, tuple(originators), match_all, omit_values=hashes, start=start
            )
            reply = _checked(Found, (yield request))
            found.update(reply.entries)
            if reply.next is not None and reply.next <= start:
                raise UnexpectedReplyError("a page of the site that does not go on where the one before has ended")
            start = reply.next
        return found

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
        data = value.encode() if isinstance(value, str) else value
        for name, number in (("version", version), ("ttl_ms", ttl_ms)):
            if number is not None and number < 0:
                raise InvalidArgumentError(f"{name} is {number}; it must be positive")
        request = ChangeOwnKey(self._next_id(), self._area, action, key, data, version, ttl_ms)
        reason = _checked(SetResult, (yield request)).reasons.get(key)
        if reason is None:
            return True
        if reason == NoMergeReason.NO_NEED_TO_UPDATE and data is None:
            return False
        known = {each.value: each.name for each in NoMergeReason}
        raise NotMergedError(f"the site did not take {key[:80]!r}: {known.get(reason, reason)}", key=key, reason=reason)


def _checked(kind: type[R], reply: Reply) -> R:
    if isinstance(reply, kind):
        return reply
    if isinstance(reply, Failure):
        if reply.reason in (FailureReason.UNKNOWN_AREA, FailureReason.BAD_REQUEST):
            raise InvalidArgumentError(reply.text)
        raise RemoteProtocolError(f"the site does not know this request: {reply.text}")
    raise UnexpectedReplyError(f"the site has answered with {type(reply).__name__}, and not with {kind.__name__}")
