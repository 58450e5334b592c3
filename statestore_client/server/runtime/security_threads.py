"""Verdicts that take time, in threads: a password hash on purpose, a token verifier because it asks somebody else.

Daemon threads, not an executor: a verifier that never returns must not keep the process from ending. It keeps its
place, however, so that there are never more threads than places.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker import Refusal
from statestore_client.server.runtime.events import LOGGER

if TYPE_CHECKING:
    import asyncio

    from statestore_client.server.broker import Credentials, Verdict, Verification

__all__ = ["VerifierThreads"]

#: Verifications at the same time: as many passwords take 64 MiB, and a few processors.
_PLACES: Final = 4

_NOBODY_KNOWS: Final = Refusal(ReasonCode.SERVER_UNAVAILABLE, "the credentials could not be verified")


class VerifierThreads:
    """Belongs to one event loop, in which ``done`` is called. Verifications that nobody waits for are skipped."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        verify: Callable[[Credentials], Verdict],
        done: Callable[[Verification, Verdict], None],
    ) -> None:
        self._loop = loop
        self._verify = verify
        self._done = done
        self._waiting: deque[Verification] = deque()
        self._running = 0

    def start(self, verification: Verification) -> None:
        """Begin, or wait for a place."""
        self._waiting.append(verification)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._running < _PLACES:
            verification = self._waiting.popleft()
            if not verification.is_current:
                continue
            thread = threading.Thread(target=self._run, args=(verification,), name="statestore-verify", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads for now; the others wait for their place
                LOGGER.exception("no thread for a verifier")
                self._done(verification, _NOBODY_KNOWS)
            else:
                self._running += 1

    def _run(self, verification: Verification) -> None:
        try:
            verdict = self._verify(verification.credentials)
        except Exception:  # noqa: BLE001 - the user's code
            LOGGER.exception("the verifier failed")
            verdict = _NOBODY_KNOWS
        with suppress(RuntimeError):  # the loop is closed: nobody is left who waits
            self._loop.call_soon_threadsafe(self._finish, verification, verdict)

    def _finish(self, verification: Verification, verdict: Verdict) -> None:
        self._running -= 1
        self._done(verification, verdict)
        self._fill()
