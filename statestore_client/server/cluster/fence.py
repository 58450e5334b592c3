"""Which entries of the log are valid: a pure function of the log before them.

Each server folds the same entries in the same order, and comes to the same result, whatever it knows beside that. No
clock is asked: the age of a snapshot is told in log time, which is in the entries.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Self

import attrs
import msgpack

from statestore_client.server.cluster.entries import (
    FORMAT,
    UNFINISHED,
    BatchPiece,
    Challenge,
    Claim,
    HandOver,
    Life,
    LogEntry,
    NewerLogError,
    NewFormat,
    Part,
    Renewal,
    Snapshot,
    UnreadableLogError,
    lease,
    moment,
    number,
    server_id,
    text,
    unpack,
)

#: A snapshot that was begun so long before, in log time, keeps no other one back: its writer may be gone.
_SNAPSHOT_MS: Final = 60_000


class Verdict(Enum):
    """What becomes of an entry."""

    VALID = "valid"
    NOTED = "noted"  # a challenge: it changes nothing
    OUTDATED = "outdated"  # of an epoch that is over, or not of its owner
    REPEATED = "repeated"  # a copy of a valid one
    GAP = "gap"  # one before it is missing: appended again, after that, it is valid
    LOST = "lost"  # a claim or a snapshot, when another entry came first


@attrs.frozen
class SnapshotInLog:
    """A snapshot that is being written. ``at`` is where it begins in the log, ``index`` what it holds."""

    at: int
    index: int
    life: Life
    begun_ms: int
    parts: int = 0


@attrs.define
class Fence:
    """The fold. An epoch without an owner is vacant; so is epoch 0, that of the empty log."""

    index: int = 0
    epoch: int = 0
    owner: Life | None = None
    seq: int = 0
    #: Of the last claim: where the owner is reached, and how long a lease may last. Of the records: how they are
    #: written.
    url: str = ""
    format: int = UNFINISHED
    lease_ms: int = 0
    #: The server that a vacant epoch was handed over to.
    next_id: str = ""
    #: Invariant: never goes back.
    log_ms: int = 0
    #: The newest complete snapshot: where it begins in the log, and what it holds.
    base: int = 0
    base_index: int = 0
    writing: SnapshotInLog | None = None

    def receive(self, index: int, entry: LogEntry) -> Verdict:
        """The next entry. Raises NewerLogError for a format that this program does not know."""
        self.index = index
        body = entry.body
        if isinstance(body, Claim):
            return self._claim(entry, body)
        if isinstance(body, Challenge):
            return Verdict.NOTED
        if isinstance(body, Snapshot):
            return self._snapshot(index, entry, body)
        if isinstance(body, Part):
            return self._part(entry, body)
        return self._owned(entry, body)

    def _claim(self, entry: LogEntry, claim: Claim) -> Verdict:
        if entry.epoch != self.epoch + 1:
            return Verdict.OUTDATED
        if not (self.owner is None or claim.is_forced or entry.seq == self.seq) or claim.format < self.format:
            return Verdict.LOST
        _format(claim.format)
        self.epoch, self.seq, self.owner, self.next_id = entry.epoch, 0, entry.life, ""
        self.url, self.format = claim.url, claim.format
        # An owner that was forced out may still have a lease: others wait for the longer one.
        self.lease_ms = max(claim.lease_ms, self.lease_ms * claim.is_forced)
        self.log_ms = max(self.log_ms, entry.log_ms)
        return Verdict.VALID

    def _owned(self, entry: LogEntry, body: BatchPiece | Renewal | HandOver | NewFormat) -> Verdict:
        if entry.epoch != self.epoch or entry.life != self.owner:
            return Verdict.OUTDATED
        if entry.seq != self.seq + 1:
            return Verdict.GAP if entry.seq > self.seq else Verdict.REPEATED
        self.seq = entry.seq
        self.log_ms = max(self.log_ms, entry.log_ms)
        if isinstance(body, HandOver):
            self.owner, self.next_id = None, body.next_id
        elif isinstance(body, NewFormat):
            self.format = max(self.format, _format(body.format))
        return Verdict.VALID

    def _snapshot(self, index: int, entry: LogEntry, snapshot: Snapshot) -> Verdict:
        if not self.base_index < snapshot.index < index:
            return Verdict.OUTDATED
        if self.is_snapshot_under_way:
            return Verdict.LOST
        self.writing = SnapshotInLog(index, snapshot.index, entry.life, self.log_ms)
        return Verdict.VALID

    def _part(self, entry: LogEntry, part: Part) -> Verdict:
        writing = self.writing
        if writing is None or (writing.index, writing.life) != (part.index, entry.life):
            return Verdict.OUTDATED
        if entry.seq != writing.parts:
            return Verdict.GAP if entry.seq > writing.parts else Verdict.REPEATED
        if part.is_end:
            self.base, self.base_index, self.writing = writing.at, writing.index, None
        else:
            self.writing = attrs.evolve(writing, parts=writing.parts + 1)
        return Verdict.VALID

    @property
    def is_unfinished(self) -> bool:
        """Whether a part of a data directory is in the log, and the rest is not: nothing to go on from."""
        return self.epoch > 0 and self.format == UNFINISHED

    @property
    def is_snapshot_under_way(self) -> bool:
        """Whether another snapshot has to wait."""
        return self.writing is not None and self.log_ms < self.writing.begun_ms + _SNAPSHOT_MS

    # -- in a snapshot -------------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """For :attr:`Snapshot.fence`."""
        packed: bytes = msgpack.packb(attrs.astuple(self))
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Raises UnreadableLogError, or NewerLogError for rows whose format this program does not know."""
        try:
            index, epoch, owner, seq, url, format_, lease_ms, next_id, log_ms, base, base_index, writing = unpack(data)
            return cls(
                number(index), number(epoch), None if owner is None else _life(*owner), number(seq),
                text(url), _format(format_), lease(lease_ms), server_id(next_id), moment(log_ms), number(base),
                number(base_index), None if writing is None else _snapshot_in_log(*writing),
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise UnreadableLogError(f"the fence of a snapshot: {error}") from error


def _format(value: object) -> int:
    wanted: int = number(value)
    if wanted > FORMAT:
        raise NewerLogError(f"records of format {wanted}; this program knows formats up to {FORMAT}: upgrade it")
    return wanted


def _life(name: object, incarnation: object) -> Life:
    return Life(server_id(name), number(incarnation))


def _snapshot_in_log(at: object, index: object, life: Any, begun_ms: object, parts: object) -> SnapshotInLog:
    return SnapshotInLog(number(at), number(index), _life(*life), moment(begun_ms), number(parts))
