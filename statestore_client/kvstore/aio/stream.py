"""What happens at a site, as it happens: changes of keys, changes of its peers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Final, Generic, NoReturn, Self, TypeVar

from statestore_client.clocks import monotonic
from statestore_client.errors import ClosedError, PickleRefusedError, RequestTimeoutError
from statestore_client.kvstore.aio.link import CallbackWorker, SiteLink
from statestore_client.kvstore.calls import check_seconds
from statestore_client.kvstore.following import HOLD_S, Follower

__all__ = ["AsyncSiteStream"]

logger: Final = logging.getLogger("statestore_client")

S = TypeVar("S")
T = TypeVar("T")


class AsyncSiteStream(Generic[S, T]):
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

    async def start(self) -> Self:
        """Read the snapshot. Raises as a request of the client does."""
        try:
            self._snapshot = await self._link.run(self._follower.begin())
            if self._callback is not None:
                if self._initial is not None:
                    self._waiting.extend(self._initial(self._snapshot))
                self._worker = CallbackWorker(partial(self._deliver, self._callback))
        except BaseException:
            await self._link.close()
            raise
        return self

    async def get(self, timeout: float | None = None) -> T | None:
        """The next change; None if there is none within ``timeout`` seconds. Raises ClosedError after :meth:`close`.

        While the site does not answer, it may take as long as a request more.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        deadline = None if timeout is None else monotonic() + timeout
        while not self._waiting:
            left = HOLD_S if deadline is None else min(HOLD_S, deadline - monotonic())
            try:
                self._waiting.extend(await self._link.run(self._follower.proceed(max(0.0, left))))
                self.is_connected = True
            except RequestTimeoutError:
                self.is_connected = False
            if not self._waiting and left <= 0:
                return None
        return self._waiting.popleft()

    async def _deliver(self, callback: Callable[[T], object]) -> None:
        try:
            async for change in self:
                await CallbackWorker.call(callback, change)
        except Exception as error:  # nobody waits for this, and nobody else would hear of it
            self.error = error
            logger.exception("the stream of the site at %s has ended", self._link.url)

    async def close(self) -> None:
        """Follow no longer. An iteration ends; a callback is not called again."""
        await self._link.close()
        if self._worker is not None:
            await self._worker.stop()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            try:
                change = await self.get()
            except ClosedError:
                raise StopAsyncIteration from None
            if change is not None:
                return change

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a stream cannot be pickled: send the URL of the site, and subscribe where the events are needed"
        )

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
