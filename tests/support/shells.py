"""One test body for both shells: the blocking client is driven from threads, so that every call can be awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import statestore_client
from statestore_client.aio.acquisition import Acquisition
from statestore_client.sync.leases import GuardedStore, Lease
from statestore_client.sync.locks import Election, Lock, LockObservation
from statestore_client.sync.watch import Watch

__all__ = ["SHELLS", "Blocking", "Shell"]

_END = object()


class Shell:
    """Makes clients of one kind. ``client(...)`` takes what the clients take, and the result is used with ``await``."""

    def __init__(self, name: str, driver: str, executor: ThreadPoolExecutor) -> None:
        self.name = name
        self.driver = driver
        self._executor = executor

    @property
    def is_aio(self) -> bool:
        return self.name == "aio"

    def client(self, settings: Any, **options: Any) -> Any:
        options.setdefault("driver", self.driver)
        if self.is_aio:
            return statestore_client.AsyncStateStoreClient(settings, **options)
        return _Blocking(statestore_client.StateStoreClient(settings, **options), self._executor)

    def over(self, paho_client: Any, **options: Any) -> Any:
        if self.is_aio:
            return statestore_client.AsyncStateStoreClient.over(paho_client, **options)
        return _Blocking(statestore_client.StateStoreClient.over(paho_client, **options), self._executor)


#: Name and driver of each kind of client.
SHELLS = (("sync", "paho"), ("aio", "paho"), ("sync", "native"), ("aio", "native"))


class Blocking:
    """An object of a blocking shell with the methods of its asyncio twin."""

    #: Methods that neither wait nor are coroutines in the asyncio shell.
    plain: frozenset[str] = frozenset()
    #: What clients make, and what that makes: its calls are driven from threads, too.
    made: tuple[type, ...] = ()

    def __init__(self, target: Any, executor: ThreadPoolExecutor) -> None:
        self.target = target
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not inspect.ismethod(value):
            return self._wrap(value)
        if name in self.plain:
            return lambda *args, **kwargs: self._wrap(value(*(getattr(a, "target", a) for a in args), **kwargs))
        return lambda *args, **kwargs: self._run(lambda: value(*args, **kwargs))

    async def _run(self, call: Callable[[], Any]) -> Any:
        return self._wrap(await asyncio.get_running_loop().run_in_executor(self._executor, call))

    def _wrap(self, value: Any) -> Any:
        if value is self.target:
            return self
        return type(self)(value, self._executor) if isinstance(value, self.made) else value

    async def _iterate(self, iterator: Any) -> AsyncIterator[Any]:
        while (item := await self._run(lambda: next(iterator, _END))) is not _END:
            yield item

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate(self.target)

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


class _Blocking(Blocking):
    plain = frozenset({"watch", "watch_prefix", "lock", "check", "election", "guarded", "observe", "on_lost"})
    made = (Watch, Lock, Lease, LockObservation, Election, GuardedStore)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if name == "scan":
            return lambda *args, **kwargs: self._iterate(value(*args, **kwargs))  # which complains at the call
        if name in ("acquire", "campaign") and inspect.ismethod(value):  # may be entered instead of awaited
            return lambda *args, **kwargs: Acquisition(self._run(lambda: value(*args, **kwargs)))
        return super().__getattr__(name)
