"""The keys with one prefix as a mapping that follows the cluster, and an iterator of what changes in it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import partial
from types import TracebackType
from typing import Final, NoReturn, Self, TypeVar, overload

from raft_client.aio.engine import Engine
from raft_client.aio.primitives import OneReader, ReadySignal, Whole, Worker, call_back
from raft_client.aio.watch import AsyncWatch
from raft_client.clocks import monotonic
from raft_client.codecs import KeyValueCodec
from raft_client.core import arguments
from raft_client.core.arguments import Data
from raft_client.core.key_value_calls import ReadPage, bytes_of
from raft_client.core.mirrors import ChangeQueue, Mirror, MirrorEvent
from raft_client.core.selectors import Prefix
from raft_client.core.stream_actions import Freshness, SubscriptionState
from raft_client.errors import BusyError, ClientClosedError, PickleRefusedError
from raft_client.wire.key_value_messages import Page
from raft_client.wire.log_entry import Position

logger: logging.Logger = logging.getLogger("raft_client")

D = TypeVar("D")
_CODEC: Final = KeyValueCodec()


class AsyncKeyMirror(Mapping[bytes, bytes]):
    """The keys that start with a prefix, and their values: all of them, and as they are now. Made by ``kv.mirror()``.

    Use it as a context manager: entering returns when all keys are there, as they were at one :attr:`position`; from
    then on a worker of its own applies each change as the leader tells it. Reading asks nobody. It shows no entry by
    half, and never an older state than it has shown. ``len()``, ``in``, iterating and comparing work as with a
    ``dict``; keys may be text. What iterates sees one moment; for a ``dict`` of one moment take :meth:`snapshot`.

    It follows the leader. When it cannot be told what it has missed (the log was compacted, or the client heard nothing
    for long) it reads the keys again, and what differs are changes like others. :attr:`state` says meanwhile that what
    is shown may be out of date. It ends with an :attr:`error` only if the log is another one, or the client is closed;
    what it has shown last stays. It holds all its keys, and twice while it reads them again.
    """

    def __init__(
        self,
        engine: Engine,
        mirror: Mirror,
        ask: Callable[[ReadPage, float | None], Awaitable[Page]],
        *,
        timeout: float | None,
        retry_timeout: float,
        queue_bytes: int,
        callback: Callable[[MirrorEvent], object] | None,
    ) -> None:
        self._engine = engine
        self._mirror = mirror
        self._ask = ask
        self._timeout = timeout
        self._retry_timeout = retry_timeout
        self._queue_bytes = queue_bytes
        self._callback = callback
        self._whole = Whole()
        self._one_starter = OneReader()
        self._watch: AsyncWatch | None = None
        self._workers: list[Worker] = []  # kept, so that none is collected while it waits
        self._closed = False

    # -- the keys ------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Data) -> bytes:
        name = bytes_of(key, "a key") if isinstance(key, str) else key
        self._check()
        with self._whole:
            return self._mirror.values[name]

    @overload
    def get(self, key: Data, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: Data, default: bytes | D) -> bytes | D: ...
    def get(self, key: Data, default: object = None) -> object:
        """The value of a key, or ``default`` if there is no such key."""
        try:
            return self[key]
        except KeyError:
            return default

    def __len__(self) -> int:
        self._check()
        with self._whole:
            return len(self._mirror.values)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.snapshot())

    def keys(self) -> KeysView[bytes]:
        """The keys, as they are at this moment."""
        return self.snapshot().keys()

    def values(self) -> ValuesView[bytes]:
        """Their values, as they are at this moment."""
        return self.snapshot().values()

    def items(self) -> ItemsView[bytes, bytes]:
        """Pairs of key and value, as they are at this moment."""
        return self.snapshot().items()

    def snapshot(self) -> dict[bytes, bytes]:
        """A copy of all that is shown, as it is at this moment."""
        self._check()
        with self._whole:
            return self._mirror.values.copy()

    # -- how far it is -------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """What is shown is what the keys were there; a key that is read after this is as new, or newer."""
        return self._check()

    @property
    def state(self) -> SubscriptionState:
        """Whether what is shown is up to date (fresh), changes are missing (stale), or no leader is heard (silent)."""
        self._check()
        watch = self._watch
        if self._mirror.error is not None:
            return SubscriptionState(Freshness.SILENT)
        if watch is None or watch.error is not None:
            return SubscriptionState(Freshness.STALE)
        return watch.state

    @property
    def error(self) -> Exception | None:
        """Why nothing more changes; None while the mirror follows."""
        return self._mirror.error

    async def wait(self, position: Position | int, timeout: float | None = None) -> bool:
        """Wait until the entry at ``position`` is among what is shown; False if it is not after ``timeout`` seconds.

        After a write, give the position of its outcome to read what was written. None waits for ever, and 0 only
        looks. An entry that changes none of the keys is noticed within a second. Raises the error that ended the mirror
        if it never will be.
        """
        index, seconds = Position.of(position).index, arguments.check_wait(timeout)
        self._check()
        deadline = None if seconds is None else monotonic() + seconds
        signal = ReadySignal()
        with self._whole:
            self._mirror.add_waiting(signal)
        try:
            while True:
                signal.ready = False
                if self._mirror.shows(index):
                    return True
                if self._mirror.error is not None:
                    raise self._mirror.error
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0.0:
                    return False
                await signal.wait(left)
        finally:
            with self._whole:
                self._mirror.drop_waiting(signal)

    # -- what changes --------------------------------------------------------------------------------------------------

    def changes(self, *, initial: bool = False) -> AsyncMirrorChanges:
        """Return an endless iterator of :class:`MirrorEvent`, which begins with the first change after this call.

        Changes wait in it until you iterate. Call it before you read the keys, and you miss none: its events lead from
        the keys of this moment to the keys of then. With ``initial`` the first event has all keys of this moment, as a
        difference from none, also if there are none. Each call makes an iterator of its own, for one reader. When more
        than ``queue_bytes`` wait for a reader, they become one event that says what differs.
        """
        self._check()
        signal = ReadySignal()
        queue = ChangeQueue(self._queue_bytes, signal)
        with self._whole:
            self._mirror.add_reader(queue, initial=initial)
        return AsyncMirrorChanges(self._engine, self._mirror, queue, signal, self._whole)

    # -- the beginning and the end -------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Read all keys; returns when they are there. Entering does it, too. Nothing happens if they are.

        Raises what :meth:`KeyValues.range` raises. ``timeout`` is for all pages together.
        """
        if self._closed:
            raise ClientClosedError("the mirror is closed")
        with self._one_starter:
            if self._watch is None:
                await self._start()
        return self

    async def _start(self) -> None:
        await self._read(None if self._timeout is None else monotonic() + self._timeout)
        if self._mirror.error is not None:
            raise self._mirror.error
        try:
            self._watch = self._new_watch()
            number = self._watch.id
            if self._callback is not None:
                deliver = partial(self._deliver, self.changes(), self._callback)
                self._workers.append(Worker(deliver, f"raft mirror {number} callback"))
            self._workers.append(Worker(self._follow, f"raft mirror {number}"))
            for worker in self._workers:
                worker.start()
        except BaseException:
            await self.close()  # with it workers end that run
            raise

    async def close(self) -> None:
        """Follow no longer: nothing more changes, and no callback starts after this. What was shown last stays.

        Iterations of changes in another task end. Closing twice is harmless.
        """
        self._closed = True
        with self._whole:
            self._mirror.end(ClientClosedError("the mirror is closed"))
        if self._watch is not None:
            await self._watch.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a mirror cannot be pickled: send client.settings, and make another one there")

    def __repr__(self) -> str:
        mirror = self._mirror
        state = "ended" if mirror.error is not None else "reading" if mirror.is_reading else "following"
        return f"<{type(self).__name__} {mirror.prefix!r}, {len(mirror.values)} keys at {mirror.position}, {state}>"

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check(self) -> Position:
        """Raise before all is read, and where there is no worker: in a forked process, and in a codec or condition."""
        self._engine.check_process()
        if self._mirror.position is None:
            raise BusyError("the mirror was not entered, and so it shows nothing yet")
        return self._mirror.position

    async def _read(self, deadline: float | None) -> None:
        """Until all pages are here, or it is over."""
        while self._mirror.is_reading and not self._closed:
            if self._mirror.position is None:
                seconds = None if deadline is None else max(0.001, deadline - monotonic())
            else:
                seconds = self._retry_timeout  # then it looks whether it was closed
            try:
                page = await self._ask(self._mirror.next_page(), seconds)
            except Exception as error:  # noqa: BLE001 - it decides what becomes of it
                with self._whole:
                    self._mirror.page_failed(error)
            else:
                with self._whole:
                    self._mirror.take_page(page)

    def _new_watch(self) -> AsyncWatch:
        prefix, after = Prefix(self._mirror.prefix), self._mirror.position
        return AsyncWatch(self._engine, _CODEC, lambda watches: watches.watch(prefix, after=after, tells_progress=True))

    async def _follow(self) -> None:
        """The worker: until the mirror is over."""
        while (watch := self._watch) is not None and self._mirror.error is None:
            try:
                item = await watch.get()
            except Exception as error:  # noqa: BLE001 - it decides what becomes of it
                await self._read_again(error)
            else:
                assert item is not None  # noqa: S101 - get() without a time-out returns an item or raises
                with self._whole:
                    self._mirror.take_item(item)
        if not isinstance(self._mirror.error, ClientClosedError):
            logger.error("the mirror of %r has ended: %s", self._mirror.prefix, self._mirror.error)

    async def _read_again(self, error: Exception) -> None:
        """The watch has ended."""
        with self._whole:
            self._mirror.watch_ended(error)
        await self._read(None)
        if self._mirror.error is None:
            try:
                self._watch = watch = self._new_watch()
            except Exception as why:  # noqa: BLE001 - the client was closed
                with self._whole:
                    self._mirror.end(why)
                return
            if self._closed:  # meanwhile, and the last watch with it
                await watch.close()

    async def _deliver(self, changes: AsyncMirrorChanges, callback: Callable[[MirrorEvent], object]) -> None:
        """The worker of the callback: an event that it fails on is logged, and the next one follows."""
        while True:
            try:
                event = await changes.get()
            except Exception:  # noqa: BLE001 - the mirror has ended, which was logged
                return
            if self._closed:
                return
            try:
                await call_back(callback, event)
            except Exception:
                logger.exception("the callback of the mirror of %r failed", self._mirror.prefix)


class AsyncMirrorChanges:
    """An endless iterator of what changes in a mirror, each item a :class:`MirrorEvent`. Made by ``mirror.changes()``.

    It ends when it, its mirror or the client is closed. One reader: a second one gets :class:`BusyError`.
    """

    def __init__(self, engine: Engine, mirror: Mirror, queue: ChangeQueue, signal: ReadySignal, whole: Whole) -> None:
        self._engine = engine
        self._mirror = mirror
        self._queue = queue
        self._signal = signal
        self._whole = whole
        self._one_reader = OneReader()
        self._closed = False

    async def get(self, timeout: float | None = None) -> MirrorEvent | None:
        """The next event, or None when none came within ``timeout`` seconds (None waits for ever; 0 only looks).

        Raises :class:`ClientClosedError` once it, the mirror or the client is closed, and the error that ended the
        mirror, after all events before it.
        """
        seconds = arguments.check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        self._engine.check_process()
        with self._one_reader:
            await self._engine.give_way()  # asyncio only: a thread holds up no other
            while True:
                if (event := self._next()) is not None:
                    return event
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0.0:
                    return None
                await self._signal.wait(left)

    def _next(self) -> MirrorEvent | None:
        self._signal.ready = False
        with self._whole:
            error = self._mirror.error
            if self._closed or isinstance(error, ClientClosedError):
                raise ClientClosedError("the changes of the mirror are closed")
            event = self._queue.pop()
        if event is None and error is not None:
            raise error
        return event

    async def close(self) -> None:
        """End it; an iteration in another task ends. Closing twice is harmless."""
        self._closed = True
        with self._whole:
            self._mirror.drop_reader(self._queue)
        self._signal.notify()

    def __aiter__(self) -> AsyncIterator[MirrorEvent]:
        return self

    async def __anext__(self) -> MirrorEvent:
        try:
            event = await self.get()
        except ClientClosedError:
            raise StopAsyncIteration from None
        assert event is not None  # noqa: S101 - get() without a time-out returns an event or raises
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
