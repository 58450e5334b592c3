"""A lock that is being acquired, or an election that is being won."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any

from statestore_client.aio.lease import AsyncLease

__all__ = ["Acquisition"]


class Acquisition(Coroutine[Any, Any, AsyncLease]):
    """What :meth:`Lock.acquire` and :meth:`Election.campaign` return: await it for the lease, or enter it.

    ``async with lock.acquire(timeout=5) as lease:`` reads as in the blocking client, and gives the lock back. It is a
    coroutine for all else: a task can be made of it.
    """

    __slots__ = ("_lease", "_work")

    def __init__(self, work: Coroutine[Any, Any, AsyncLease]) -> None:
        self._work = work

    def send(self, value: Any, /) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, AsyncLease]:
        return self._work.__await__()

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._work
        return await self._lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lease.__aexit__(kind, error, trace)
