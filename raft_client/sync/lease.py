# Generated from raft_client/aio/lease.py by tools/twins.py. Edit that, and run "make twins".
"""A lease of keys that is kept alive, and says when it is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Protocol, Self

from raft_client.clocks import boot_s, monotonic
from raft_client.core import arguments
from raft_client.core.leases import OwnLease
from raft_client.errors import (
    BusyError,
    ClientClosedError,
    ForkedClientError,
    InvalidArgumentError,
    LeaseEndedError,
    PickleRefusedError,
    RaftError,
    TransportError,
)
from raft_client.sync.primitives import ReadySignal, Whole, Worker, call_back
from raft_client.wire.request_id import RequestId

logger: logging.Logger = logging.getLogger("raft_client")

#: What repeating cannot mend.
_FINAL = (LeaseEndedError, ClientClosedError, ForkedClientError, BusyError, InvalidArgumentError)
#: Whether it is lost is looked at so often at least: a machine that slept wakes up late for what it waited for.
_LOOK_S = 1.0


class LeaseCalls(Protocol):
    """What a lease needs of ``client.kv``."""

    def grant_lease(self, lease: RequestId, ttl: float, *, seconds: float | None) -> None:
        """Begin it."""
        ...

    def keep_lease(self, lease: RequestId, *, seconds: float | None) -> None:
        """Let it go on."""
        ...

    def end_lease(self, lease: RequestId, *, timeout: float | None) -> object:
        """End it."""
        ...


class KeyLease:
    """A lease of keys, made by ``kv.lease()``: what is put with it is there as long as its owner lives.

    Use it as a context manager, and give it to ``put``, ``compare_and_set`` and ``transaction``. A worker of its own
    keeps it alive. When that fails for nine tenths of its ttl, the lease is lost: ``lost`` says why, ``on_lost`` is
    called, and what it is given to raises :class:`LeaseEndedError`. Its keys are there as long as it is not lost, and
    are deleted in one entry soon after: whoever watches or mirrors them is told. A lease that is lost does not come
    back; begin another one, and put the keys again.

    A new leader gives each lease all of its ttl again. So a lease survives the loss of leaders, if there is
    another one within its ttl; and the keys of a dead owner stay a little longer then.
    """

    def __init__(
        self,
        calls: LeaseCalls,
        lease: RequestId,
        ttl: float,
        *,
        timeout: float | None,
        on_lost: Callable[[LeaseEndedError], object] | None,
    ) -> None:
        self._calls = calls
        self._timeout = timeout
        self._on_lost = on_lost
        self._own = OwnLease(ttl)
        #: Its name, which other processes may give to ``put`` and ``end_lease``, too.
        self.id: RequestId = lease
        #: How many seconds it lasts without a word from its owner.
        self.ttl: float = ttl
        self._whole = Whole()
        self._worker: Worker | None = None
        self._wake = ReadySignal()
        self._waiting: list[ReadySignal] = []
        self._ends = False

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> LeaseEndedError | None:
        """Why its owner cannot count on it any more; None as long as it can."""
        return self._own.look(boot_s())

    def check(self) -> None:
        """Raise :class:`LeaseEndedError` if it is lost or was ended, BusyError if it did not begin."""
        if (why := self.lost) is not None:
            raise LeaseEndedError(why.message)
        if self._own.valid_until is None:
            raise BusyError("the lease was not entered, and so it did not begin")

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until it is lost, or was ended; False if it is not after ``timeout`` seconds.

        None waits for ever, and 0 only looks.
        """
        seconds = arguments.check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        signal = ReadySignal()
        with self._whole:
            self._waiting.append(signal)
        try:
            while self.lost is None:
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0.0:
                    return False
                signal.wait(_LOOK_S if left is None else min(left, _LOOK_S))
            return True
        finally:
            with self._whole:
                self._waiting.remove(signal)

    # -- the beginning and the end -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin it. Entering does it, too. Nothing happens if it began.

        Raises :class:`LeasesUnsupportedError` if a member of the cluster knows no leases, and :class:`LeaseLimitError`
        if there are too many. After another error, call it again: it begins once, and LeaseEndedError says that it was
        over before its owner knew that it had begun.
        """
        if self._ends:
            raise LeaseEndedError("the lease was ended")
        if self._own.valid_until is None:
            sent_at = self._own.ask(boot_s())
            self._calls.grant_lease(self.id, self.ttl, seconds=self._timeout)
            while not self._own.begin(sent_at, boot_s()):  # it took so long that nothing of it is left
                sent_at = boot_s()
                self._calls.keep_lease(self.id, seconds=self._timeout)
            self._worker = Worker(self._keep, f"raft lease {self.id}")
            self._worker.start()
        return self

    def end(self) -> None:
        """End it, and delete its keys. Ending twice, or after it was lost, is harmless.

        When the cluster cannot be reached it ends by itself, after its ttl: the error is raised, and it is not kept
        alive any more.
        """
        if self._ends:
            return
        self._ends = True
        began, why = self._own.valid_until is not None, self.lost
        self._own.end(LeaseEndedError("the lease was ended"))
        self._notify()
        if began and why is None:
            with suppress(LeaseEndedError):  # by others
                self._calls.end_lease(self.id, timeout=self._timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.end()
        except (TransportError, ClientClosedError) as why:
            logger.warning("the lease %s could not be ended, and ends after %s s: %s", self.id, self.ttl, why)

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a lease cannot be pickled: send its id, and put with that")

    def __repr__(self) -> str:
        state = "lost" if self.lost is not None else "not begun" if self._own.valid_until is None else "held"
        return f"<{type(self).__name__} {self.id}, {self.ttl:g} s, {state}>"

    # -- inside --------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """The worker: until it is over."""
        own = self._own
        while own.look(boot_s()) is None:
            now = boot_s()
            assert own.valid_until is not None  # noqa: S101 - it was granted
            if now < own.due_at:
                self._wake.wait(min(own.due_at - now, _LOOK_S))
                continue
            try:
                self._calls.keep_lease(self.id, seconds=max(0.001, own.valid_until - now))
            except _FINAL as error:
                is_over = isinstance(error, LeaseEndedError)
                what = "was ended, or was over before its owner was heard" if is_over else f"is not kept alive: {error}"
                own.end(LeaseEndedError(f"the lease {what}"))
            except RaftError:
                own.not_kept(boot_s())  # and again, as long as it may be alive
            else:
                own.kept(now)
        self._notify()
        self._tell(own.ended)

    def _notify(self) -> None:
        self._wake.notify()
        with self._whole:
            for signal in self._waiting:
                signal.notify()

    def _tell(self, why: LeaseEndedError | None) -> None:
        if self._ends or why is None:
            return
        logger.warning("the lease %s is lost: %s", self.id, why)
        if self._on_lost is not None:
            try:
                call_back(self._on_lost, why)
            except Exception:
                logger.exception("the callback of the lease %s failed", self.id)
