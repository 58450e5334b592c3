"""One test body for both shells: the blocking client is driven from threads, so that every call can be awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import raft_client
from raft_client.sync import Entries, Subscriber, Watch

__all__ = ["RaftShell"]

#: These neither wait nor are coroutines in the asyncio shell.
_PLAIN = frozenset({"expect", "entries", "subscribe", "watch"})
_END = object()


class RaftShell:
    """Makes clients of one kind. ``client(...)`` takes what the clients take, and the result is used with ``await``."""

    def __init__(self, name: str, executor: ThreadPoolExecutor) -> None:
        self.name = name
        self._executor = executor

    @property
    def is_aio(self) -> bool:
        return self.name == "aio"

    def client(self, settings: Any, **options: Any) -> Any:
        if self.is_aio:
            return raft_client.AsyncRaftClient(settings, **options)
        return Blocking(raft_client.RaftClient(settings, **options), self._executor)


class Blocking:
    """An object of the blocking shell with the methods of its asyncio twin."""

    def __init__(self, target: Any, executor: ThreadPoolExecutor) -> None:
        self.target = target
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not inspect.ismethod(value):
            return value
        if name in _PLAIN:
            return lambda *args, **kwargs: self._wrap(value(*args, **kwargs))
        return lambda *args, **kwargs: self._run(lambda: value(*args, **kwargs))

    async def _run(self, call: Callable[[], Any]) -> Any:
        return self._wrap(await asyncio.get_running_loop().run_in_executor(self._executor, call))

    def _wrap(self, value: Any) -> Any:
        if value is self.target:
            return self
        return Blocking(value, self._executor) if isinstance(value, (Entries, Subscriber, Watch)) else value

    async def _iterate(self, iterator: Any) -> AsyncIterator[Any]:
        while (item := await self._run(lambda: next(iterator, _END))) is not _END:
            yield item

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate(iter(self.target))

    async def __anext__(self) -> Any:
        item = await self._run(lambda: next(self.target, _END))
        if item is _END:
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Any:
        return await self._run(self.target.__enter__)

    async def __aexit__(self, *exception: object) -> None:
        await self._run(lambda: self.target.__exit__(*exception))

    def __repr__(self) -> str:
        return repr(self.target)
