"""A number in the state store that many programs add to at the same time."""

from __future__ import annotations

from typing import NoReturn

from statestore_client.aio.client import AsyncStateStoreClient
from statestore_client.core.arguments import key_bytes
from statestore_client.errors import PickleRefusedError
from statestore_client.recipes.counting import adding, number_of


class AsyncCounter:
    """A number that is added to, in the key ``name``, as a decimal number; missing, it is 0.

    Each addition reads and writes the key under the lock ``lock``, ``NAME/lock`` if none is given, as
    :meth:`Lock.edit` does: what is read is claimed for the lock's token first. So additions that return have counted
    exactly once, also where a process stands still between its reading and its writing. ``lease`` is for how long the
    others wait for one that dies in between, in seconds. From the first addition on the key takes no write without a
    fencing token.

    One object adds one amount after the other; processes, and threads that are in a hurry, take one each.
    """

    def __init__(
        self, store: AsyncStateStoreClient, name: str, *, lock: str | None = None, lease: float = 10.0
    ) -> None:
        self._store = store
        self._key = key_bytes(name)
        self._lock = store.lock(f"{name}/lock" if lock is None else lock, lease=lease)

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a counter cannot be pickled: send client.settings and its name")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key[:80]!r}>"

    async def add(self, amount: int = 1, *, timeout: float | None = None) -> int:
        """Add ``amount``, which may be negative; returns the sum. Waits up to ``timeout`` seconds for its turn (None:
        for ever).

        Raises what :meth:`Lock.edit` raises. An error whose ``may_have_been_applied`` is True leaves open whether this
        amount has counted; without that it has not. Raises InvalidArgumentError if the key holds something else.
        """
        item = await self._lock.edit(self._key, adding(self._key, amount), timeout=timeout)
        return number_of(self._key, None if item is None else item.value)

    async def get(self) -> int:
        """The number, as it is now."""
        item = await self._store.get(self._key)
        return number_of(self._key, None if item is None else item.value)
