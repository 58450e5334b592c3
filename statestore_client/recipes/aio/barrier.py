"""A gate that many programs wait at until one opens it."""

from __future__ import annotations

from typing import NoReturn

from statestore_client.aio.client import AsyncStateStoreClient
from statestore_client.aio.steps import elapsed, run_steps
from statestore_client.core.arguments import check_wait, key_bytes, watched_key
from statestore_client.errors import PickleRefusedError
from statestore_client.recipes.gate import pass_through


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

        One that is taken away and set up again at once may let a program through, or not. It is told at once, and
        looks every five seconds, too, for brokers that lose notifications.
        """
        steps = pass_through(
            watched_key(self._key, self._store.client_id),
            now=elapsed(),
            timeout=check_wait(timeout),
            request_timeout=self._store.settings.request_timeout,
        )
        return bool(await run_steps(steps, self._store._engine))  # noqa: SLF001 - steps as those of the client's locks
