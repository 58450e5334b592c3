"""Watches on every key that begins with a prefix.

The protocol notifies of single keys only, so a prefix is watched in two ways at once: SCAN lists the keys that there
are, again and again, and each of them is watched by itself (``watches.py``)::

    SCAN, page by page --> each new key: KEYNOTIFY, GET if its value is owed --> all active: the watch stands
      ^                                                                                       |
      +-------------------- ``rescan`` seconds later, and after each reconnect ---------------+

Invariant: a listing has the last word on which keys are watched, never on what is in them. A key that it leaves out
though nothing was notified, or names though it was deleted, is read.
Invariant: what is known to be absent stays watched until a complete listing leaves it out, and no longer.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import attrs

from statestore_client.core.actions import (
    EventKind,
    Observer,
    Output,
    PrefixTerms,
    Waiter,
    WatchEvent,
    WatchOptions,
)
from statestore_client.core.arguments import watched_key
from statestore_client.core.results import KeyPage
from statestore_client.core.watches import WatchTable
from statestore_client.errors import (
    ClosedError,
    InvalidArgumentError,
    StateStoreError,
    TooManyKeysError,
    UnexpectedReplyError,
    UnknownCommandError,
)
from statestore_client.wire.commands import Scan
from statestore_client.wire.instant import Instant


class _NoWaiter:
    """Stands for the caller in the watches of single keys: no caller waits for one of them."""

    def resolve(self, result: object) -> None:
        """Do nothing."""

    def reject(self, error: StateStoreError) -> None:
        """Do nothing."""


_NO_WAITER: Final = _NoWaiter()
#: What keeps a character of a prefix from standing for others in a pattern (state store facts, 1.6).
_LITERAL: Final = {ord(character): f"[{character}]" for character in "*?["}


@attrs.define(eq=False)
class PrefixWatch:
    """One watch on a prefix."""

    prefix: bytes
    observer: Observer
    waiter: Waiter | None  # waits until the watch stands; None afterwards
    options: WatchOptions
    terms: PrefixTerms
    keys: dict[bytes, None] = attrs.Factory(dict)  # in the order in which they were found
    starting: dict[bytes, None] = attrs.Factory(dict)  # those that must be active before it stands, or stands again
    listed: set[bytes] = attrs.Factory(set)  # by the listing under way
    token: bytes | None = None  # of its next page
    is_complete: bool = False  # there was a complete listing on this connection
    due: float = math.inf  # when the next one is, monotonic seconds
    attempt: int = 0  # number of the SCAN that it waits for
    suspended: bool = False  # it has had an event that says so

    @property
    def scan(self) -> Scan:
        """The command for the next page."""
        return Scan(self.prefix.decode().translate(_LITERAL).encode() + b"*", self.token)


class PrefixTable:
    """The watches on prefixes of one client.

    Adds the keys that the server has to be asked for to ``to_ask``.
    """

    def __init__(self, client_id: str, *, table: WatchTable, output: Output, to_ask: OrderedDict[bytes, None]) -> None:
        self._client_id = client_id
        self._table = table
        self._output = output
        self._to_ask = to_ask
        self.watches: dict[int, PrefixWatch] = {}  # by the identity of their observers

    def __bool__(self) -> bool:
        return bool(self.watches)

    def __iter__(self) -> Iterator[PrefixWatch]:
        return iter(list(self.watches.values()))

    def add(
        self, prefix: bytes, observer: Observer, waiter: Waiter, options: WatchOptions, terms: PrefixTerms
    ) -> PrefixWatch:
        """Watch what begins with ``prefix``; a listing is to follow."""
        watch = self.watches[id(observer)] = PrefixWatch(prefix, observer, waiter, options, terms)
        return watch

    def remove(self, observer: Observer) -> bool:
        """Forget a watch and its keys. Returns False if it is none of these."""
        watch = self.watches.get(id(observer))
        if watch is not None:
            self._forget(watch, ClosedError("the watch is closed"))
        return watch is not None

    def suspended(self) -> None:
        """The link broke: whatever is known of the keys has to be learnt anew."""
        for watch in self.watches.values():
            watch.starting = dict.fromkeys(watch.keys)
            watch.listed.clear()
            watch.token, watch.attempt, watch.due, watch.is_complete = None, 0, math.inf, False
            if watch.options.connection_events and watch.waiter is None and not watch.suspended:
                watch.suspended = True
                self._notify(watch, EventKind.SUSPENDED)

    def next_deadline(self) -> float:
        """When the next listing is due, in monotonic seconds."""
        return min((watch.due for watch in self.watches.values()), default=math.inf)

    def due(self, now: Instant) -> list[PrefixWatch]:
        """Those whose keys are to be listed now."""
        watches = [watch for watch in self.watches.values() if watch.due <= now.monotonic]
        for watch in watches:
            watch.due = math.inf
        return watches

    def receive_page(self, watch: PrefixWatch, page: KeyPage, now: Instant) -> bool:
        """SCAN was answered. Returns whether it has to be sent for the next page."""
        try:
            for key in page.keys:
                self._receive_key(watch, key)
        except StateStoreError as error:
            self.end(watch, error)
            return False
        watch.token = page.token
        if watch.token is not None:
            return True
        self._review(watch)
        watch.listed.clear()
        watch.is_complete = True
        watch.due = math.inf if watch.terms.rescan is None else now.monotonic + watch.terms.rescan
        self._stands(watch)
        return False

    def _receive_key(self, watch: PrefixWatch, key: bytes) -> None:
        if not key.startswith(watch.prefix):
            raise UnexpectedReplyError(
                f"SCAN of keys that begin with {watch.prefix[:80]!r} was answered with {key[:80]!r}"
            )
        watch.listed.add(key)
        if key not in watch.keys:
            self._add_key(watch, key)
        # Keys that were deleted since the listing before are in the second number, and in no listing.
        if len(watch.listed) > watch.terms.max_keys or len(watch.keys) > 2 * watch.terms.max_keys:
            raise TooManyKeysError(
                f"more than {watch.terms.max_keys} keys begin with {watch.prefix[:80]!r}; raise max_keys, or watch a "
                "longer prefix, or one key that is changed whenever another one is"
            )

    def _add_key(self, watch: PrefixWatch, key: bytes) -> None:
        """Watch a key that was not there when it was looked last: its value is news, and there may have been others."""
        try:
            watched_key(key, self._client_id)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"among keys that begin with {watch.prefix[:80]!r}: {error}") from None
        is_late = watch.waiter is None
        options = WatchOptions(initial=is_late or watch.options.initial)
        watch.keys[key] = None
        if self._table.add(key, watch.observer, _NO_WAITER, options, listed=True, late=is_late):
            self._to_ask[key] = None
        if (watch.waiter is not None or not watch.is_complete) and not self._table.is_active(key):
            watch.starting[key] = None

    def _review(self, watch: PrefixWatch) -> None:
        """The listing is complete: stop watching keys that are gone, and read those where it contradicts a watch."""
        for key in list(watch.keys):
            if not self._table.is_active(key):
                continue  # it is being asked for
            is_listed, is_absent = key in watch.listed, self._table.is_absent(key)
            if is_absent and not is_listed:
                self._remove_key(watch, key)
            elif is_absent is is_listed and self._table.polling(key):
                self._to_ask[key] = None

    def activated(self, key: bytes) -> None:
        """A key is watched, and nothing of it is owed."""
        for watch in self.watches.values():
            if key in watch.starting:
                del watch.starting[key]
                self._stands(watch)

    def failed(self, key: bytes, error: StateStoreError) -> None:
        """The server refused to watch a key: every watch that needs it ends."""
        for watch in self:
            if key in watch.keys:
                self.end(watch, error)

    def end(self, watch: PrefixWatch, error: StateStoreError) -> None:
        """The watch ends with an error."""
        if isinstance(error, UnknownCommandError):
            error = _without_scan(error)
        self._forget(watch, error)
        self._output.notify(watch.observer, error)

    def close(self, error: StateStoreError) -> None:
        """All watches end with an error."""
        for watch in self:
            self.end(watch, error)

    def _forget(self, watch: PrefixWatch, error: StateStoreError) -> None:
        del self.watches[id(watch.observer)]
        watch.attempt = 0
        if watch.waiter is not None:
            watch.waiter.reject(error)
        for key in list(watch.keys):
            self._remove_key(watch, key)

    def _remove_key(self, watch: PrefixWatch, key: bytes) -> None:
        del watch.keys[key]
        if self._table.remove(key, watch.observer):
            self._to_ask[key] = None

    def _stands(self, watch: PrefixWatch) -> None:
        """Report that the watch stands, if no change of a listed key can be missed from now on."""
        if watch.starting or not watch.is_complete:
            return
        if watch.waiter is not None:
            watch.waiter.resolve(None)
            watch.waiter = None
        if watch.suspended:
            watch.suspended = False
            self._notify(watch, EventKind.RESUMED)

    def _notify(self, watch: PrefixWatch, kind: EventKind) -> None:
        self._output.notify(watch.observer, WatchEvent(kind, watch.prefix, None, None))


def _without_scan(error: UnknownCommandError) -> UnknownCommandError:
    explained = UnknownCommandError(
        f"{error.message}: this server cannot list keys, and a watch on a prefix needs that; watch each key by itself, "
        "or one key that is changed whenever another one is"
    )
    explained.command, explained.key = error.command, error.key
    return explained
