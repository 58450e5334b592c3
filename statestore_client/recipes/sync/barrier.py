# Generated from statestore_client/recipes/aio/barrier.py by tools/twins.py. Edit that, and run "make twins".
"""A gate that many programs wait at until one opens it."""

from __future__ import annotations

from typing import NoReturn

from statestore_client.core.arguments import check_wait, key_bytes, watched_key
from statestore_client.errors import PickleRefusedError
from statestore_client.recipes.gate import pass_through
from statestore_client.sync.client import StateStoreClient
from statestore_client.sync.steps import elapsed, run_steps


class Barrier:
    """A key: while it is there, :meth:`wait` waits. Whoever may write the key may set it up, and take it away.

    It protects nothing: a program that has come through learns nothing of one that is set up again.
    """

    def __init__(self, store: StateStoreClient, name: str) -> None:
        self._store = store
        self._key = key_bytes(name)

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a barrier cannot be pickled: send client.settings and its name")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key[:80]!r}>"

    def create(self, *, expiry: float | None = None) -> bool:
        """Set it up; False if it was there already. With ``expiry`` it ends after so many seconds, so that a program
        that dies keeps nobody for ever.
        """
        return (self._store.set(self._key, b"closed", condition="NX", expiry=expiry)).applied

    def remove(self) -> bool:
        """Take it away, and let all through that wait; False if there was none."""
        return (self._store.delete(self._key)).count > 0

    def wait(self, timeout: float | None = None) -> bool:
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
        return bool(run_steps(steps, self._store._engine))  # noqa: SLF001 - steps as those of the client's locks
