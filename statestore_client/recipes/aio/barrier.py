"""A gate that many programs wait at until one opens it."""

from __future__ import annotations

from typing import NoReturn

from statestore_client.aio.client import AsyncStateStoreClient
from statestore_client.clocks import monotonic
from statestore_client.core.actions import EventKind
from statestore_client.core.arguments import check_wait, key_bytes
from statestore_client.errors import PickleRefusedError


class AsyncBarrier:
    """A key: while it is there, :meth:`wait` waits. Whoever may write the key may set it up, and take it away.

    It protects nothing: a program that has come through learns nothing of one that is set up again.
    """

    def __init__(self, store: AsyncStateStoreClient, name: str) -> None:
        self._store = store
        self._key = key_bytes(name)

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a barrier cannot be pickled: send client.settings and its name")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key[:80]!r}>"

    async def create(self, *, expiry: float | None = None) -> bool:
        """Set it up; False if it was there already. With ``expiry`` it ends after so many seconds, so that a program
        that dies keeps nobody for ever.
        """
        return (await self._store.set(self._key, b"closed", condition="NX", expiry=expiry)).applied

    async def remove(self) -> bool:
        """Take it away, and let all through that wait; False if there was none."""
        return (await self._store.delete(self._key)).count > 0

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is not there, up to ``timeout`` seconds (None: for ever); False if it still is.

        One that is taken away and set up again at once may let a program through, or not.
        """
        seconds = check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        async with self._store.watch(self._key, initial=True) as watch:
            event = await watch.get(timeout=0)
            if event is None and await self._store.get(self._key) is None:
                return True
            while event is None or event.kind is not EventKind.DELETE:
                left = None if deadline is None else max(0.0, deadline - monotonic())
                event = await watch.get(timeout=left)
                if event is None:
                    return False
        return True
