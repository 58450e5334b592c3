"""Verdicts that take time, in threads: a password hash on purpose, a token verifier because it asks somebody else.

Daemon threads, not an executor: a verifier that never returns must not keep the process from ending. It keeps its
place, however, so that there are never more threads than places.

Addresses take turns, so that whoever guesses from one of them holds up nobody at another; and an address with too many
failed attempts is refused for a while, without any work.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker import Refusal
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.runtime.fairness import Throttle

if TYPE_CHECKING:
    import asyncio

    from statestore_client.server.broker import Credentials, PendingAuth, Verdict
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.runtime.observability.logs import RefusalLog

__all__ = ["VerifierThreads"]

#: Verifications at the same time: as many passwords take 64 MiB, and a few processors.
_MOST_THREADS: Final = 4

#: Refused in one go; then others are served.
_REFUSED_AT_ONCE: Final = 16

#: Those that nobody waits for any more are looked for when so many wait: clients come and go faster than they are
#: verified.
_LEAST_SWEEP: Final = 256

_NOBODY_KNOWS: Final = Refusal(ReasonCode.SERVER_UNAVAILABLE, "the credentials could not be verified")
_TOO_MANY: Final = Refusal(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many failed attempts from this address")


class VerifierThreads:
    """Belongs to one event loop, in which ``done`` is called. Verifications that nobody waits for are skipped.

    Invariant: no queue is empty, and ``_count`` is the sum of their lengths.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        verify: Callable[[Credentials], Verdict],
        done: Callable[[PendingAuth, Verdict], None],
        *,
        clock: Clock,
        throttle: Throttle,
        refusals: RefusalLog,
    ) -> None:
        self._loop = loop
        self._verify = verify
        self._done = done
        self._clock = clock
        self._throttle = throttle
        self._refusals = refusals
        self._waiting: dict[str, deque[PendingAuth]] = {}  # by address; whose turn it is in front
        self._count = 0
        self._sweep_at = _LEAST_SWEEP
        self._running = 0
        self._is_scheduled = False

    def __len__(self) -> int:
        """How many wait for a place."""
        return self._count

    def start(self, verification: PendingAuth) -> None:
        """Begin, or wait for a place."""
        self._waiting.setdefault(_address(verification), deque()).append(verification)
        self._count += 1
        if self._count >= self._sweep_at:
            self._sweep()
        if not self._is_scheduled:
            self._fill()

    def _sweep(self) -> None:
        """Forget those that nobody waits for. As many as there are clients that wait stay."""
        current = {
            address: deque(verification for verification in queue if verification.is_current)
            for address, queue in self._waiting.items()
        }
        self._waiting = {address: queue for address, queue in current.items() if queue}
        self._count = sum(map(len, self._waiting.values()))
        self._sweep_at = max(_LEAST_SWEEP, 2 * self._count)

    def _fill(self) -> None:
        self._is_scheduled = False
        for _ in range(_REFUSED_AT_ONCE):
            if not self._waiting or self._running >= _MOST_THREADS:
                return
            verification = self._next()
            if not verification.is_current:
                continue
            if self._throttle.is_used_up(_address(verification), self._clock().monotonic):
                self._done(verification, _TOO_MANY)
            else:
                self._begin(verification)
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._fill)

    def _next(self) -> PendingAuth:
        """Of the address whose turn it is. Its next one comes behind the other addresses."""
        address = next(iter(self._waiting))
        queue = self._waiting.pop(address)
        verification = queue.popleft()
        self._count -= 1
        if queue:
            self._waiting[address] = queue
        return verification

    def _begin(self, verification: PendingAuth) -> None:
        thread = threading.Thread(target=self._run, args=(verification,), name="statestore-verify", daemon=True)
        self._running += 1
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads for now; the others wait for their place
            self._running -= 1
            self._fail("no thread for a verifier", verification, error)
            self._done(verification, _NOBODY_KNOWS)

    def _run(self, verification: PendingAuth) -> None:
        verdict: Verdict | Exception
        try:
            verdict = self._verify(verification.credentials)
        except Exception as error:  # noqa: BLE001 - the user's code
            verdict = error
        with suppress(RuntimeError):  # the loop is closed: nobody is left who waits
            self._loop.call_soon_threadsafe(self._finish, verification, verdict)

    def _fail(self, what: str, verification: PendingAuth, error: Exception) -> None:
        """A client that shows tokens in a loop on which the verifier fails must not fill the disk."""
        self._refusals.line(what, verification.connection.peer, level=logging.ERROR, error=error)

    def _finish(self, verification: PendingAuth, verdict: Verdict | Exception) -> None:
        self._running -= 1
        if isinstance(verdict, Exception):
            self._fail("the verifier failed", verification, verdict)
            verdict = _NOBODY_KNOWS
        elif isinstance(verdict, Refusal):
            self._throttle.used(_address(verification), self._clock().monotonic)
        self._done(verification, verdict)
        if not self._is_scheduled:
            self._fill()


def _address(verification: PendingAuth) -> str:
    """All Unix sockets together are one."""
    return network_of(verification.connection.peer) or ""
