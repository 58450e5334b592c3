"""Pipelined batches of requests that survive a lost connection.

Rules:

* Requests whose connection failed are sent again, in their order, before any that come after them in the same batch.
  All commands that go this way may be repeated: they leave the same state.
* It gives up when nothing at all got through for ``retry_timeout_s``, and at once when trying again cannot help. No
  attempt lasts longer than what is left of this time: a broker that says nothing costs as much as one that refuses.
* A client that has failed requests gets no more of them: each would wait for its own time-out.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from statestore_client import ConnectionState
from statestore_client.clocks import monotonic
from statestore_client.errors import (
    BatchError,
    ClosedError,
    ConnectionLostError,
    RequestTimeoutError,
    StateStoreError,
    TransportError,
)
from statestore_client.spark.pool import POOL, ClientPool, PoolKey

if TYPE_CHECKING:
    from statestore_client.sync.client import StateStoreClient

__all__ = ["Delivery", "Send"]

#: Sends a batch: ``StateStoreClient.set_many`` or one of its siblings. The number is the time-out of each request (s).
Send: TypeAlias = "Callable[[StateStoreClient, Iterable[Any], float], Sequence[object]]"

#: ClosedError: the pooled client failed for good before this request left.
_CONNECTION_ERRORS: Final = (TransportError, ClosedError)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
#: With less time than this left, there is no use in another attempt.
_SHORTEST_ATTEMPT_S: Final = 0.05


class Delivery:
    """Sends batches with the pooled client. One per task; not thread-safe. ``what`` names the requests in errors."""

    def __init__(
        self,
        key: PoolKey,
        *,
        retry_timeout_s: float,
        what: str = "requests",
        pool: ClientPool | None = None,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._key = key
        self._retry_timeout_s = retry_timeout_s
        self._what = what
        self._pool = POOL if pool is None else pool
        self._clock = clock
        self._sleep = sleep
        self._moved_at = 0.0  # when the last request could leave, because another one had its answer
        #: Requests that were sent more than once.
        self.resent: int = 0

    def deliver(self, requests: Sequence[Any], send: Send) -> list[object]:
        """One result or error for each request, in order; no error is about the connection.

        Raises a :class:`TransportError` when it gives up, which says after how long and how many attempts, or a
        ``fatal`` one at once. Some requests may have been carried out by then.
        """
        outcomes: list[object] = [None] * len(requests)
        pending: Sequence[int] = range(len(requests))
        trouble = _Trouble(self._clock())
        while pending:
            left_s = self._left_s(trouble)
            done, failed, error = self._attempt(pending, requests, outcomes, send, left_s)
            pending = pending[done + failed :] if not failed else self._again(pending, outcomes, done + failed)
            if error is None:
                trouble = _Trouble(self._clock())
                continue
            if done:
                trouble = _Trouble(self._moved_at)
            if isinstance(error, TransportError) and error.fatal:
                raise error
            trouble.add(error)
            left_s = self._left_s(trouble)
            if left_s <= _SHORTEST_ATTEMPT_S:
                raise trouble.error(self._clock(), f"{self._what} to {self._key.settings.url}")
            self.resent += failed
            self._sleep(trouble.pause_s(left_s))
        return outcomes

    def _left_s(self, trouble: _Trouble) -> float:
        return trouble.since + self._retry_timeout_s - self._clock()

    def _attempt(
        self, pending: Sequence[int], requests: Sequence[Any], outcomes: list[object], send: Send, left_s: float
    ) -> tuple[int, int, StateStoreError | None]:
        """Send what is pending. How many have an outcome, how many lost their connection, and the last such error."""
        settings = self._key.settings
        # No time at all is for one attempt, which takes what it takes.
        limit_s = max(round(left_s, 2), 0.0) or settings.connect_timeout + settings.request_timeout
        until = self._clock() + limit_s
        try:
            with self._pool.borrow(self._key, limit_s) as loan:
                timeout_s = min(settings.request_timeout, max(until - self._clock(), _SHORTEST_ATTEMPT_S))
                results = self._results(loan.client, map(requests.__getitem__, pending), send, timeout_s)
                for position, result in zip(pending, results, strict=False):
                    outcomes[position] = result
                lost = [result for result in results if isinstance(result, _CONNECTION_ERRORS)]
                if lost:
                    loan.spoil()
        except _CONNECTION_ERRORS as connecting:
            return 0, 0, connecting
        return len(results) - len(lost), len(lost), lost[-1] if lost else None

    def _results(
        self, client: StateStoreClient, requests: Iterator[Any], send: Send, timeout_s: float
    ) -> Sequence[object]:
        """The results of as many requests as the client could take without trouble; at least of one."""
        try:
            return send(client, self._while_healthy(client, requests), timeout_s)
        except BatchError as error:
            return error.results

    def _while_healthy(self, client: StateStoreClient, requests: Iterator[Any]) -> Iterator[Any]:
        stats = client.stats
        timeouts = stats.timeouts
        for request in requests:
            self._moved_at = self._clock()
            yield request
            if stats.timeouts != timeouts or client.state is not ConnectionState.CONNECTED:
                return

    def _again(self, pending: Sequence[int], outcomes: list[object], sent: int) -> list[int]:
        lost = [i for i in pending[:sent] if isinstance(outcomes[i], _CONNECTION_ERRORS)]
        return [*lost, *pending[sent:]]


class _Trouble:
    """The attempts since something last got through."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._attempts = 0
        self._reason: StateStoreError | None = None
        self._applied = False

    def add(self, error: StateStoreError) -> None:
        """An attempt failed. A time-out says less than what came before it: the last one ends because time is up."""
        self._attempts += 1
        self._applied = self._applied or error.may_have_been_applied
        if self._reason is None or not isinstance(error, RequestTimeoutError):
            self._reason = error

    def pause_s(self, left_s: float) -> float:
        """How long to wait before the next attempt: doubled each time, and never so long that none is left."""
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self._attempts - 1, 10), _LONGEST_PAUSE_S)
        return min(pause_s * (0.5 + random.random() / 2), left_s / 2)  # noqa: S311 - jitter

    def error(self, now: float, what: str) -> TransportError:
        """The reason, with what was tried and for how long."""
        assert self._reason is not None  # noqa: S101 - something was added
        counted = "1 attempt" if self._attempts == 1 else f"{self._attempts} attempts"
        text = f"gave up after {now - self.since:.1f} s and {counted} to send {what}: {self._reason}"
        given_up = copy.copy(self._reason) if isinstance(self._reason, TransportError) else ConnectionLostError()
        given_up.args = (text,)
        given_up.may_have_been_applied = self._applied
        return given_up
