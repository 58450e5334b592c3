"""Pipelined batches of requests that survive a lost connection.

Rules:

* Requests whose connection failed are sent again, in their order, before any that come after them in the same batch.
  All commands that go this way may be repeated: they leave the same state.
* It gives up when nothing at all got through for ``retry_timeout_s``, and at once when trying again cannot help.
* A client that is in trouble gets no more requests: each of them would wait for its own time-out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from statestore_client import ConnectionState
from statestore_client.errors import BatchError, ClosedError, StateStoreError, TransportError
from statestore_client.spark.pool import POOL, ClientPool, PoolKey

if TYPE_CHECKING:
    from statestore_client.sync.client import StateStoreClient

__all__ = ["Delivery", "Send"]

#: Sends a batch: ``StateStoreClient.set_many`` or one of its siblings.
Send: TypeAlias = "Callable[[StateStoreClient, Iterable[Any]], Sequence[object]]"

#: ClosedError: the pooled client failed for good before this request left.
_CONNECTION_ERRORS: Final = (TransportError, ClosedError)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0


class Delivery:
    """Sends batches with the pooled client. One per task; not thread-safe."""

    def __init__(
        self,
        key: PoolKey,
        *,
        retry_timeout_s: float,
        pool: ClientPool | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._key = key
        self._retry_timeout_s = retry_timeout_s
        self._pool = POOL if pool is None else pool
        self._clock = clock
        self._sleep = sleep
        #: Requests that were sent more than once.
        self.resent = 0

    def deliver(self, requests: Sequence[Any], send: Send) -> list[object]:
        """One result or error for each request, in order; no error is about the connection.

        Raises the last :class:`TransportError` when it gives up, or a ``fatal`` one. Some requests may have been
        carried out by then.
        """
        outcomes: list[object] = [None] * len(requests)
        pending: Sequence[int] = range(len(requests))
        failing_since: float | None = None
        pause_s = _FIRST_PAUSE_S
        while pending:
            done, failed, error = self._attempt(pending, requests, outcomes, send)
            pending = pending[done + failed :] if not failed else self._again(pending, outcomes, done + failed)
            if error is None:
                failing_since, pause_s = None, _FIRST_PAUSE_S
                continue
            now = self._clock()
            if failing_since is None or done:
                failing_since, pause_s = now, _FIRST_PAUSE_S
            if now - failing_since >= self._retry_timeout_s or (isinstance(error, TransportError) and error.fatal):
                raise error
            self.resent += failed
            self._sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 - jitter
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return outcomes

    def _attempt(
        self, pending: Sequence[int], requests: Sequence[Any], outcomes: list[object], send: Send
    ) -> tuple[int, int, StateStoreError | None]:
        """Send what is pending. How many have an outcome, how many lost their connection, and the last such error."""
        try:
            with self._pool.borrow(self._key) as loan:
                results = _results(loan.client, map(requests.__getitem__, pending), send)
                for position, result in zip(pending, results, strict=False):
                    outcomes[position] = result
                lost = [result for result in results if isinstance(result, _CONNECTION_ERRORS)]
                if lost:
                    loan.spoil()
        except _CONNECTION_ERRORS as connecting:
            return 0, 0, connecting
        return len(results) - len(lost), len(lost), lost[-1] if lost else None

    def _again(self, pending: Sequence[int], outcomes: list[object], sent: int) -> list[int]:
        lost = [i for i in pending[:sent] if isinstance(outcomes[i], _CONNECTION_ERRORS)]
        return [*lost, *pending[sent:]]


def _results(client: StateStoreClient, requests: Iterator[Any], send: Send) -> Sequence[object]:
    """The results of as many requests as the client could take without trouble; at least of one."""
    try:
        return send(client, _while_healthy(client, requests))
    except BatchError as error:
        return error.results


def _while_healthy(client: StateStoreClient, requests: Iterator[Any]) -> Iterator[Any]:
    stats = client.stats
    timeouts = stats.timeouts
    for request in requests:
        yield request
        if stats.timeouts != timeouts or client.state is not ConnectionState.CONNECTED:
            return
