"""A held lock in a simulated process: what ``sync.leases`` and ``aio.leases`` make of the steps of ``core.leases``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sim_steps import Runner

from statestore_client.core.edits import Claims
from statestore_client.core.leases import LeaseState, keep_renewed, watch_expiry
from statestore_client.core.locks import Grant, LockTerms
from statestore_client.errors import LeaseLostError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

if TYPE_CHECKING:
    from sim_audit import Audit
    from sim_process import Process


class HeldLease:
    """One period of holding; implements :class:`~statestore_client.core.leases.LeaseView`."""

    def __init__(self, process: Process, audit: Audit, terms: LockTerms, grant: Grant) -> None:
        self.holder = terms.holder
        self.fencing_token: HlcTimestamp = grant.fencing_token
        self.store_id = grant.store_id
        self.claims = Claims(terms.key)
        self._state = LeaseState(grant.valid_until, threading.Event(), renew=True)
        self.incarnation = audit.granted_by(grant.fencing_token)  # of the server
        self._process = process
        self._audit = audit
        process.lease = self
        now = process.local
        self._keeper = Runner(
            process, keep_renewed(terms, grant, now=now, renewed=self._renewed, lost=self._lose), self._keeper_ended
        )
        self._clock = Runner(process, watch_expiry(lambda: self.valid_until, now=now, why="time", lost=self._lose))
        audit.check_beliefs()

    @property
    def valid_until(self) -> float:
        return self._state.valid_until

    @property
    def is_lost(self) -> bool:
        return self._state.ended.is_set()

    @property
    def is_believed(self) -> bool:
        return not self.is_lost and not self._process.is_dead and self._process.local < self.valid_until

    @property
    def remaining(self) -> float:
        left = self._state.remaining(self._process.local)
        if left <= 0:
            self._state.end(LeaseLostError(self._state.ending))
        return max(0.0, left)

    def check(self) -> None:
        if not self.remaining:
            raise LeaseLostError("lost")

    def end(self) -> bool:
        """Released, or lost and given up. Returns whether a renewal is still on its way, as a thread's may be."""
        self._state.release()
        self._keeper.stop()
        return not self._keeper.has_ended

    def _renewed(self, valid_until: float) -> None:
        self._state.renewed(valid_until)
        self._audit.check_beliefs()

    def _lose(self, error: LeaseLostError) -> None:
        if self._state.lose(error) is not None:
            self._process.world.note(self._process.name, "lost its lease:", error)

    def _keeper_ended(self, _result: object, error: StateStoreError | None) -> None:
        if error is not None:
            self._lose(LeaseLostError(str(error)))
