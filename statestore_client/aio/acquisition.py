"""A lock that is being acquired, or an election that is being won."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec

from statestore_client.aio.leases import AsyncLease

P = ParamSpec("P")


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


def acquisition(method: Callable[P, Coroutine[Any, Any, AsyncLease]]) -> Callable[P, Acquisition]:
    """The method, whose coroutine may be entered as well."""

    @wraps(method)
    def begin(*arguments: P.args, **options: P.kwargs) -> Acquisition:
        return Acquisition(method(*arguments, **options))

    begin.__annotations__ = method.__annotations__ | {"return": "Acquisition"}
    return begin
