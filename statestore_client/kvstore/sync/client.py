# Generated from statestore_client/kvstore/aio/client.py by tools/twins.py. Edit that, and run "make twins".
"""A client of a site of the KvStore, and its streams of what happens there: changes of keys, changes of its peers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Final, Generic, NoReturn, Self, TypeVar

from statestore_client.clocks import monotonic
from statestore_client.curve_keys import ClientKeys
from statestore_client.errors import ClosedError, PickleRefusedError, RequestTimeoutError
from statestore_client.kvstore.calls import (
    HOLD_S,
    AreaFollower,
    Differences,
    Follower,
    KeyChange,
    LostKeysFollower,
    PeersFollower,
    SiteCalls,
    check_seconds,
    texts,
    wanted_of,
)
from statestore_client.kvstore.sync.link import CallbackWorker, SiteLink
from statestore_client.wire.kvstore.messages import (
    LostKey,
    OwnKeyAction,
    OwnKeyState,
    PeerInfo,
    PeersReply,
    Summary,
    Wanted,
)
from statestore_client.wire.kvstore.value import NoMergeReason, Value

logger: Final = logging.getLogger("statestore_client")

S = TypeVar("S")
T = TypeVar("T")


class SiteStream(Generic[S, T]):
    """A snapshot, and what changes after it, without a gap. Use it as a context manager: entering reads the snapshot.

    If the site cannot be reached the stream waits, and goes on where it was. If the site was started again, or the
    reader was too slow, the differences to what it was told before come next: no final state is missed, states in
    between may be. It has a connection of its own.
    """

    def __init__(
        self,
        link: SiteLink,
        follower: Follower[S, T],
        callback: Callable[[T], object] | None = None,
        initial: Callable[[S], list[T]] | None = None,
    ) -> None:
        if callback is not None:
            CallbackWorker.check(callback)
        self._link = link
        self._follower = follower
        self._callback = callback
        self._initial = initial
        self._worker: CallbackWorker | None = None
        self._waiting: deque[T] = deque()
        self._snapshot: S | None = None
        #: False while the site does not answer; what it said last may be old then.
        self.is_connected: bool = True
        #: What has ended a stream that has a callback, if it was not :meth:`close`. It is in the log, too.
        self.error: Exception | None = None

    @property
    def snapshot(self) -> S:
        """What was there when the stream began. Raises ClosedError before that."""
        if self._snapshot is None:
            raise ClosedError("a stream of a site begins when it is entered")
        return self._snapshot

    def start(self) -> Self:
        """Read the snapshot. Raises as a request of the client does."""
        try:
            self._snapshot = self._link.run(self._follower.begin())
            if self._callback is not None:
                if self._initial is not None:
                    self._waiting.extend(self._initial(self._snapshot))
                self._worker = CallbackWorker(partial(self._deliver, self._callback))
        except BaseException:
            self._link.close()
            raise
        return self

    def get(self, timeout: float | None = None) -> T | None:
        """The next change; None if there is none within ``timeout`` seconds. Raises ClosedError after :meth:`close`.

        While the site does not answer, it may take as long as a request more.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        deadline = None if timeout is None else monotonic() + timeout
        while not self._waiting:
            left = HOLD_S if deadline is None else min(HOLD_S, deadline - monotonic())
            try:
                self._waiting.extend(self._link.run(self._follower.proceed(max(0.0, left))))
                self.is_connected = True
            except RequestTimeoutError:
                self.is_connected = False
            if not self._waiting and left <= 0:
                return None
        return self._waiting.popleft()

    def _deliver(self, callback: Callable[[T], object]) -> None:
        try:
            for change in self:
                CallbackWorker.call(callback, change)
        except Exception as error:  # nobody waits for this, and nobody else would hear of it
            self.error = error
            logger.exception("the stream of the site at %s has ended", self._link.url)

    def close(self) -> None:
        """Follow no longer. An iteration ends; a callback is not called again."""
        self._link.close()
        if self._worker is not None:
            self._worker.stop()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            try:
                change = self.get()
            except ClosedError:
                raise StopIteration from None
            if change is not None:
                return change

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a stream cannot be pickled: send the URL of the site, and subscribe where the events are needed"
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SiteClient:
    """The blocking client. Talks to one site, in one area; use it as a context manager.

    ``url`` is where the site listens, ``tcp://host:port`` or ``ipc://path``. A request that is not answered within
    ``timeout_s`` seconds raises RequestTimeoutError, whose ``may_have_been_applied`` tells if the site may have done
    it; repeating a request does no harm. A site with keys needs ``keys``; without them everything is in the clear.
    Any number of threads may share a client; a process forked from this one may not.

    Calls raise InvalidArgumentError for what the site cannot do (an area that it does not have, say), NotMergedError
    for an entry that it did not take, and ClosedError after :meth:`close`.
    """

    def __init__(
        self, url: str, *, area: str = "default", timeout_s: float = 2.5, keys: ClientKeys | None = None
    ) -> None:
        self._link = SiteLink(url, timeout_s, keys)
        self._calls = SiteCalls(area, self._link.next_id)

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a client holds a socket and cannot be pickled: send the URL, and open another where it is needed"
        )

    def __repr__(self) -> str:
        return f"<SiteClient of {self._link.url}>"

    def in_area(self, area: str) -> Self:
        """The same client in another area, over the same connection. Closing either of them closes both."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _calls=SiteCalls(area, self._link.next_id))
        return other

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Value | None:
        """The entry of a key, with the milliseconds that it has left; None if there is no such key."""
        return self._link.run(self._calls.get(key))

    def get_many(self, keys: Collection[str]) -> dict[str, Value]:
        """The entries of these keys, those that exist."""
        return self._link.run(self._calls.get_many(keys))

    def dump(
        self,
        prefix: str | None = None,
        *,
        patterns: Collection[str] = (),
        originators: Collection[str] = (),
        match_all: bool = False,
    ) -> dict[str, Value]:
        """All entries whose key begins with ``prefix`` or with a match of a pattern, or that come from one of these
        sites; without any of them, all entries. With ``match_all`` key and site must both be wanted.

        A large area is read page by page: what changes meanwhile may be in the result or not.
        """
        return self._link.run(self._calls.dump(prefix, patterns, originators, match_all=match_all, hashes=False))

    def hashes(
        self,
        prefix: str | None = None,
        *,
        patterns: Collection[str] = (),
        originators: Collection[str] = (),
        match_all: bool = False,
    ) -> dict[str, Value]:
        """The same with hashes in place of values, to compare sites."""
        return self._link.run(self._calls.dump(prefix, patterns, originators, match_all=match_all, hashes=True))

    def dump_areas(
        self, areas: Collection[str] | None = None, prefix: str | None = None, *, hashes: bool = False
    ) -> dict[str, dict[str, Value]]:
        """Area -> all its entries, or those whose key begins with ``prefix``: of these areas, without any of all that
        the site has. With ``hashes`` there are hashes in place of values. Areas have no common order.
        """
        return self._link.run(self._calls.dump_areas(areas, prefix, hashes=hashes))

    def differences(
        self,
        known: Mapping[str, Value],
        prefix: str | None = None,
        *,
        patterns: Collection[str] = (),
        originators: Collection[str] = (),
        match_all: bool = False,
    ) -> Differences:
        """What differs between the site and ``known`` (entries with values or hashes), as a full sync would find it:
        entries that are newer at the site, and keys that are newer in ``known``. The filter is that of :meth:`dump`,
        for what the site has. Times to live alone are no difference, unless they were begun again.
        """
        wanted = Wanted(wanted_of(prefix, patterns), texts("originators", originators), match_all)
        return self._link.run(self._calls.differences(known, wanted))

    # -- following -----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        prefix: str | None = None,
        *,
        patterns: Collection[str] = (),
        originators: Collection[str] = (),
        match_all: bool = False,
        hashes: bool = False,
        ttls: bool = False,
        callback: Callable[[KeyChange], object] | None = None,
    ) -> SiteStream[dict[str, Value], KeyChange]:
        """What :meth:`dump` gives with the same filter, and each change of it from then on.

        With ``hashes`` there are hashes in place of values; with ``ttls`` it is also told when the time to live of a
        key begins again. ``callback`` is called with what is there at first, and then with each change, one after the
        other; what it raises is logged. Closing the stream ends it. What else ends a stream with a callback, such as a
        site that has the area no more, is logged, and in its ``error``.
        """
        wanted = Wanted(wanted_of(prefix, patterns), texts("originators", originators), match_all, not ttls, hashes)
        return SiteStream(self._link.another(), AreaFollower(self._calls, wanted), callback, _as_changes)

    def follow_peers(
        self, callback: Callable[[Mapping[str, PeerInfo]], object] | None = None
    ) -> SiteStream[Mapping[str, PeerInfo], Mapping[str, PeerInfo]]:
        """The peers of the site, by name, and all of them again after each change of one of them.

        ``callback`` is called as that of :meth:`subscribe` is.
        """
        return SiteStream(self._link.another(), PeersFollower(self._calls), callback, _as_one)

    def differs(
        self,
        known: Mapping[str, Value],
        prefix: str | None = None,
        *,
        patterns: Collection[str] = (),
        originators: Collection[str] = (),
        match_all: bool = False,
        timeout_s: float = 20.0,
    ) -> bool:
        """Whether the site has something else than ``known`` (entries with values or hashes), now or within
        ``timeout_s``: a long poll. False if nothing but times to live has changed until then.
        """
        wanted = Wanted(wanted_of(prefix, patterns), texts("originators", originators), match_all)
        link = self._link.another()
        try:
            return link.run(self._calls.differs(known, wanted, timeout_s, monotonic))
        finally:
            link.close()

    # -- the site ------------------------------------------------------------------------------------------------------

    def peers(self) -> PeersReply:
        """The other sites that this one knows (``peers``, by name), and addresses where none has answered yet."""
        return self._link.run(self._calls.peers())

    def add_peer(self, url: str) -> None:
        """Have the site dial another one, until it is stopped or told otherwise. An address twice is one."""
        self._link.run(self._calls.change_peer(url, is_wanted=True))

    def remove_peer(self, peer: str) -> bool:
        """Have the site hang up at an address that it dials. It forgets the site there, and is forgotten by it, unless
        they have another connection.

        Or have it forget a site, by its name, that has dialled this one, and is gone for good. One that is connected
        is removed where it is dialled: InvalidArgumentError. False if there is no such address or site.
        """
        return self._link.run(self._calls.change_peer(peer, is_wanted=False))

    def summary(self) -> Summary:
        """The site's name, and numbers of each of its areas: what is there, and what has happened since its start."""
        return self._link.run(self._calls.summary())

    def is_synced(self) -> bool:
        """Whether the syncs of the site's start are over: it has what other sites had then, or none could be reached
        in time (``--site-sync-timeout``).
        """
        return self._link.run(self._calls.is_synced())

    def wait_synced(self, timeout_s: float | None = None) -> bool:
        """Wait for :meth:`is_synced`; False if that takes longer than ``timeout_s`` seconds."""
        link = self._link.another()
        try:
            return link.run(self._calls.wait_synced(timeout_s, monotonic))
        finally:
            link.close()

    def own_keys(self) -> dict[str, OwnKeyState]:
        """What the site keeps alive, and whether another site keeps it alive, too."""
        return self._link.run(self._calls.own_keys())

    def lost_keys(self) -> dict[str, LostKey]:
        """Keys that were :meth:`set` here, and that another site has overridden since, the last one at the end. One
        that is said anew, cleared or erased is in it no more; neither is the oldest of more than 4,096.
        """
        return self._link.run(self._calls.lost_keys())

    def follow_lost_keys(
        self, callback: Callable[[LostKey], object] | None = None
    ) -> SiteStream[dict[str, LostKey], LostKey]:
        """Follow :meth:`lost_keys`: first those that are lost already, then each that is lost, set by any client.

        ``callback`` is called with those that are lost at first, and then with each one, as that of :meth:`subscribe`.
        After a new start of the site nothing is lost: it has nothing to lose.
        """
        return SiteStream(self._link.another(), LostKeysFollower(self._calls), callback, _as_losses)

    # -- keys that the site keeps alive --------------------------------------------------------------------------------

    def set(self, key: str, value: bytes | str, *, version: int | None = None, ttl_ms: int | None = None) -> None:
        """Have the site say this at once, and keep it alive until another site overrides it.

        ``version`` is one above that of what is stored, if none is given; ``ttl_ms`` is that of the site's keys.
        """
        self._link.run(self._calls.change(OwnKeyAction.SET, key, value, version=version, ttl_ms=ttl_ms))

    def persist(self, key: str, value: bytes | str) -> None:
        """Have the site say this within 100 ms, keep it alive, and say it again if another site overrides it.

        If two sites persist one key they override each other for ever, ever more slowly; both log that.
        """
        self._link.run(self._calls.change(OwnKeyAction.PERSIST, key, value))

    def refresh(self, key: str, ttl_ms: int) -> bool:
        """Begin the time to live of a key again, with another TTL. False if there is no such key."""
        return self._link.run(self._calls.change(OwnKeyAction.REFRESH, key, ttl_ms=ttl_ms))

    def unset(self, key: str, value: bytes | str) -> None:
        """Say this value once more, and let the key end with its TTL. Nothing is said of a key that does not exist."""
        self._link.run(self._calls.change(OwnKeyAction.UNSET, key, value))

    def clear(self, key: str) -> bool:
        """Keep it alive no longer: it ends with its TTL. False if the site did not keep it alive."""
        return self._link.run(self._calls.change(OwnKeyAction.CLEAR, key))

    def erase(self, key: str) -> bool:
        """End what the site has said, everywhere: within 5 s where that gets to, else when its TTL is over.

        False if there was nothing to end. What another site has said stays.
        """
        return self._link.run(self._calls.change(OwnKeyAction.ERASE, key))

    # -- keys that nobody keeps alive ----------------------------------------------------------------------------------

    def merge(self, entries: Mapping[str, Value]) -> dict[str, NoMergeReason]:
        """Have the site take entries as they are, with version, originator and time to live, as from another site.

        Returns the keys that it did not take, and why; an entry that is refused changes nothing for the others. The
        keys end with their time to live.
        """
        return self._link.run(self._calls.merge(entries))

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Hang up. Requests under way raise ClosedError. What the site keeps alive stays."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_changes(snapshot: dict[str, Value]) -> list[KeyChange]:
    return [KeyChange(key, entry) for key, entry in snapshot.items()]


def _as_losses(lost: dict[str, LostKey]) -> list[LostKey]:
    return list(lost.values())


def _as_one(peers: Mapping[str, PeerInfo]) -> list[Mapping[str, PeerInfo]]:
    return [peers]
