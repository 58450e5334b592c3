"""The keys and values of a cluster: reading and writing them, and pages of them that show one moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

from raft_client.aio.engine import Engine
from raft_client.aio.lease import AsyncKeyLease
from raft_client.aio.mirror import AsyncKeyMirror
from raft_client.aio.primitives import OneReader, check_callback
from raft_client.clocks import monotonic
from raft_client.codecs import Changes, Compares, KeyValueCodec, transaction_of
from raft_client.core import arguments, key_value_calls
from raft_client.core.arguments import DEFAULT_TIMEOUT, Data, Id, Timeout
from raft_client.core.calls import Append, MayLease
from raft_client.core.entries_stream import check_buffer
from raft_client.core.key_value_calls import (
    AnyPeer,
    GetLease,
    GetOutcome,
    KeyState,
    LeaseInfo,
    Range,
    ReadPage,
    WriteOutcome,
)
from raft_client.core.mirrors import Mirror, MirrorEvent
from raft_client.core.watch_events import DEFAULT_QUEUE_BYTES
from raft_client.errors import (
    BusyError,
    LeaseEndedError,
    LeaseLimitError,
    OutOfDateLogError,
    RaftError,
    RequestTimeoutError,
    TransportError,
)
from raft_client.request_id_factory import new_raw_id
from raft_client.settings import RaftSettings
from raft_client.wire.key_value_messages import Page
from raft_client.wire.leases import EndLease, GrantLease, KeepLease, LeaseOperation
from raft_client.wire.log_entry import Position
from raft_client.wire.request_id import RequestId


class AsyncKeyValues:
    """The keys and values of a cluster, as ``client.kv``; its peers have the key/value machine, as ours do.

    Keys and values are bytes; text is encoded as UTF-8. Reading is linearizable: it shows all that was acknowledged
    before it began. With ``stale=True`` any peer answers from what it has applied, also without a leader; a position
    says how old that is. ``timeout`` is as for the methods of the client.

    A change is an entry of the log, as :class:`KeyValueCodec` writes it. It has a request id, as an append: an error
    carries it, and repeated with the same one the change is made once, and has the outcome of the first time.

    State machines that do not know the questions, such as those of Node peers, say nothing: then a call ends with
    :class:`RequestTimeoutError`.
    """

    def __init__(self, engine: Engine, settings: RaftSettings, any_peer: AnyPeer) -> None:
        self._engine = engine
        self._settings = settings
        self._any_peer = any_peer

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, key: Data, *, stale: bool = False, timeout: Timeout = DEFAULT_TIMEOUT) -> KeyState:
        """What ``key`` is, and the position of the log at which it is that."""
        name = key_value_calls.key_of(key)
        call = key_value_calls.single(self._settings.ident, name, stale=stale)
        page = await self.ask_page(call, stale=stale, seconds=self._seconds(timeout))
        return key_value_calls.state_of(name, page)

    def range(
        self,
        prefix: Data | None = None,
        *,
        start: Data | None = None,
        end: Data | None = None,
        limit: int | None = None,
        keys_only: bool = False,
        stale: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> AsyncKeyRange:
        """Pairs of key and value, in the order of keys: those that start with ``prefix``, or those in an interval.

        The interval begins with ``start`` and ends before ``end``; without them, all keys are in it. ``limit`` is how
        many are wanted at most. With ``keys_only`` the values are empty, and are not sent. ``timeout`` is for each
        page.

        An iterator that asks for one page after the other. All of them show the keys at the position of the first one,
        whatever changes meanwhile: peers remember what keys were, for 16 MiB of changes. A reader who takes longer gets
        :class:`HistoryOutrunError`.
        """
        first, last = key_value_calls.bounds_of(prefix, start, end)
        wanted = Range(
            self._settings.ident,
            first,
            last,
            key_value_calls.check_limit(limit),
            keys_only=keys_only,
            stale=stale,
        )
        return AsyncKeyRange(self, wanted, self._seconds(timeout))

    def mirror(
        self,
        prefix: Data = b"",
        *,
        callback: Callable[[MirrorEvent], object] | None = None,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> AsyncKeyMirror:
        """The keys that start with ``prefix`` as a mapping that is complete once it is entered, and follows changes.

        It reads the keys at one position, within ``timeout``, and watches them from there: see :class:`KeyMirror`.
        ``callback`` is called with each change after that, a :class:`MirrorEvent`, by a worker of its own: it may be
        slow, may fail (that is logged) and may use the client. In the asyncio client it may be a coroutine function.
        ``queue_bytes`` may wait for it, and for each reader of ``changes()``.
        """
        check_callback(callback)
        return AsyncKeyMirror(
            self._engine,
            Mirror(self._settings.ident, key_value_calls.bytes_of(prefix, "a prefix")),
            lambda call, seconds: self.ask_page(call, stale=False, seconds=seconds),
            timeout=self._seconds(timeout),
            retry_timeout=self._settings.request_timeout,
            queue_bytes=check_buffer(queue_bytes),
            callback=callback,
        )

    # -- leases --------------------------------------------------------------------------------------------------------

    def lease(
        self,
        ttl: float,
        *,
        on_lost: Callable[[LeaseEndedError], object] | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> AsyncKeyLease:
        """A lease of keys: what is put with it is there until it ends, and it ends with its owner.

        Use it as a context manager: entering begins it, within ``timeout``; a worker of its own keeps it alive, and
        leaving ends it. A process that is killed, or cut off, leaves its keys for ``ttl`` seconds (1 to 86,400), and
        one election more if the leader is lost meanwhile. ``on_lost`` is called with the reason, by that worker, when
        the lease is lost before it is left: it may be slow, may fail (that is logged) and may use the client.
        In the asyncio client it may be a coroutine function.
        """
        check_callback(on_lost)
        return AsyncKeyLease(
            self,
            RequestId(new_raw_id()),
            key_value_calls.ttl_ms_of(ttl) / 1000,
            timeout=self._seconds(timeout),
            on_lost=on_lost,
        )

    async def look_up_lease(self, lease: AsyncKeyLease | Id, *, timeout: Timeout = DEFAULT_TIMEOUT) -> LeaseInfo | None:
        """The ttl and the keys of a lease; None if there is no such lease, or no more."""
        call = GetLease(self._settings.ident, _lease_id(lease))
        return cast("LeaseInfo | None", await self._engine.call(call, timeout=self._seconds(timeout)))

    async def grant_lease(self, lease: RequestId, ttl: float, *, seconds: float | None) -> None:
        """Begin it, for :class:`KeyLease`. Repeated for the same one, it is begun once."""
        deadline = None if seconds is None else monotonic() + seconds
        await self._engine.call(MayLease(self._settings.ident, int.from_bytes(new_raw_id()[-6:])), timeout=seconds)
        left = None if deadline is None else max(0.001, deadline - monotonic())
        await self._say(GrantLease(lease.raw, round(ttl * 1000)), lease.raw, seconds=left)

    async def keep_lease(self, lease: RequestId, *, seconds: float | None) -> None:
        """Let it go on, for :class:`KeyLease`. Raises :class:`LeaseEndedError` if it is over."""
        await self._say(KeepLease(lease.raw), new_raw_id(), seconds=seconds)

    async def end_lease(
        self, lease: AsyncKeyLease | Id, *, request_id: Id | None = None, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> WriteOutcome:
        """End a lease, of whomever, and delete its keys; ``deleted`` of the outcome says how many there were.

        Its owner is told with its next word. Raises :class:`LeaseEndedError` if there is no such lease, or no more.
        """
        raw_id, is_new = self._id_of(request_id)
        operation, seconds = EndLease(_lease_id(lease)), self._seconds(timeout)
        return await self._say(operation, raw_id, is_new=is_new, seconds=seconds)

    async def _say(
        self, operation: LeaseOperation, raw_id: bytes, *, is_new: bool = True, seconds: float | None
    ) -> WriteOutcome:
        return await self._append_and_ask(KeyValueCodec.encode_lease(operation), raw_id, is_new, seconds)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def put(
        self,
        key: Data,
        value: Data,
        *,
        lease: AsyncKeyLease | Id | None = None,
        request_id: Id | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> WriteOutcome:
        """Set a key. The term of the position is not known: that costs one request; to know what was done costs two.

        With a ``lease``, or its id, the key is one of that lease, and costs two requests. A key that is set again
        belongs to the lease that was given last, or to none.
        """
        if lease is not None:
            return await self.transaction(then={key: value}, lease=lease, request_id=request_id, timeout=timeout)
        data = KeyValueCodec.set(key, value)
        return WriteOutcome(Position(await self._append(data, *self._id_of(request_id), self._seconds(timeout))))

    async def delete(
        self, *keys: Data, request_id: Id | None = None, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> WriteOutcome:
        """Delete a key, or several at once. ``deleted`` of the outcome says how many there were."""
        return await self.transaction(then=dict.fromkeys(keys), request_id=request_id, timeout=timeout)

    async def compare_and_set(
        self,
        key: Data,
        expected: Data | None,
        value: Data | None,
        *,
        lease: AsyncKeyLease | Id | None = None,
        request_id: Id | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> WriteOutcome:
        """Set a key if it has the value ``expected``; ``done`` of the outcome says whether it had.

        None stands for no such key: as ``expected`` it must not exist, as ``value`` it is deleted. ``lease`` is as for
        :meth:`put`.
        """
        return await self.transaction(
            compare={key: expected}, then={key: value}, lease=lease, request_id=request_id, timeout=timeout
        )

    async def transaction(
        self,
        *,
        compare: Compares = (),
        then: Changes = (),
        otherwise: Changes = (),
        lease: AsyncKeyLease | Id | None = None,
        request_id: Id | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> WriteOutcome:
        """If all that is in ``compare`` is so, make all changes of ``then``, else all of ``otherwise``; at once.

        ``compare`` maps keys to the values that they must have, None: there must be no such key. ``then`` and
        ``otherwise`` map keys to their new values, None: the key is deleted. Iterables of :class:`Compare` and
        :class:`Change` are taken as well. What is set are keys of the ``lease``, if one is given.

        Raises :class:`LeaseEndedError` and :class:`LeaseLimitError` when nothing was done because of the lease, and
        :class:`OutcomeUnknownError` when it is in the log and the cluster has forgotten what became of it.
        """
        wanted = transaction_of(compare, then, otherwise)
        if isinstance(lease, AsyncKeyLease):
            lease.check()
        own = None if lease is None else _lease_id(lease)
        data = KeyValueCodec.encode(wanted.changes, wanted.compares, wanted.otherwise, lease=own)
        seconds = self._seconds(timeout)
        raw_id, is_new = self._id_of(request_id)
        if own is None and not wanted.has_outcome:
            return WriteOutcome(Position(await self._append(data, raw_id, is_new, seconds)))
        return await self._append_and_ask(data, raw_id, is_new, seconds)

    async def _append_and_ask(self, data: bytes, raw_id: bytes, is_new: bool, seconds: float | None) -> WriteOutcome:
        """Append, and ask what became of it."""
        deadline = None if seconds is None else monotonic() + seconds
        index = await self._append(data, raw_id, is_new, seconds)
        left = None if deadline is None else max(0.001, deadline - monotonic())
        try:
            return cast(WriteOutcome, await self._engine.call(GetOutcome(self._settings.ident, index), timeout=left))
        except RaftError as error:
            is_known = isinstance(error, LeaseEndedError | LeaseLimitError)
            error.may_have_been_applied, error.request_id = not is_known, RequestId(raw_id)
            raise

    async def _append(self, data: bytes, raw_id: bytes, is_new: bool, seconds: float | None) -> int:
        call = Append(self._settings.ident, data, raw_id, has_new_id=is_new)
        return cast(int, await self._engine.call(call, timeout=seconds))

    # -- inside --------------------------------------------------------------------------------------------------------

    async def ask_page(self, call: ReadPage, *, stale: bool, seconds: float | None) -> Page:
        """The answer of the leader; if it may be stale, of the first peer that has one."""
        if not stale:
            return cast(Page, await self._engine.call(call, timeout=seconds))
        deadline = None if seconds is None else monotonic() + seconds
        while True:
            for url in self._any_peer.order(self._engine.machine.peers.values() or self._settings.seeds):
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0.0:
                    raise RequestTimeoutError(f"no peer answered {arguments.within(seconds or 0.0)}")
                most = self._settings.response_timeout if left is None else min(left, self._settings.response_timeout)
                try:
                    page = cast(Page, await self._engine.call(call, timeout=most, target=url))
                except (TransportError, OutOfDateLogError):
                    continue
                self._any_peer.answered(url)
                return page

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._settings.request_timeout if timeout is DEFAULT_TIMEOUT else arguments.check_timeout(timeout)

    @staticmethod
    def _id_of(request_id: Id | None) -> tuple[bytes, bool]:
        """Its 12 bytes, and whether it is new."""
        return (new_raw_id(), True) if request_id is None else (arguments.request_id_of(request_id).raw, False)


def _lease_id(lease: AsyncKeyLease | Id) -> bytes:
    """Its 12 bytes."""
    return (lease.id if isinstance(lease, AsyncKeyLease) else arguments.request_id_of(lease)).raw


class AsyncKeyRange:
    """An iterator of pairs of key and value, all as they were at :attr:`position`. Made by ``client.kv.range()``.

    Nothing is asked before the first pair is wanted, and nothing is held at the peers: a range that is not read to its
    end costs nothing. After an error it may be read on. One reader at a time: a second one gets :class:`BusyError`.
    """

    def __init__(self, keys: AsyncKeyValues, wanted: Range, timeout: float | None) -> None:
        self._keys = keys
        self._range = wanted
        self._timeout = timeout
        self._rest: Iterator[tuple[bytes, bytes]] = iter(())
        self._one_reader = OneReader()

    @property
    def position(self) -> Position:
        """Where in the log it shows the keys; a watch after it gets each later change. Known with the first pair."""
        if self._range.position is None:
            raise BusyError("the range was not read yet, and so it has no position")
        return self._range.position

    def __aiter__(self) -> AsyncIterator[tuple[bytes, bytes]]:
        return self

    async def __anext__(self) -> tuple[bytes, bytes]:
        while True:
            for item in self._rest:
                return item
            if not await self._next_page():
                raise StopAsyncIteration

    async def _next_page(self) -> bool:
        with self._one_reader:
            if self._range.is_complete:
                return False
            call = self._range.next_page()
            page = await self._keys.ask_page(call, stale=self._range.stale, seconds=self._timeout)
            self._rest = iter(self._range.take(page))
            return True
