"""What must hold, checked against the log itself, which this folds as it grows, and against a second, naive fold.

The naive one decides about validity without the code under test. For mutants of that code it is off: what they do must
be seen by what clients are told.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs
import msgpack
from replicas_machine import NEWEST, Answer, Request, Rows, applied, know
from replicas_snapshot_audit import SnapshotAudit

from statestore_client.server.cluster.entries import (
    BatchPiece,
    Challenge,
    Claim,
    HandOver,
    Life,
    LogEntry,
    NewFormat,
    Part,
    Renewal,
    Snapshot,
    unpack_batch,
)
from statestore_client.server.cluster.fence import Fence, Verdict
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from replicas_clients import Connection, Staged
    from replicas_process import Process
    from replicas_world import SimulatedLog, World

#: An entry comes back, and arrives at all readers. One may have been on its way for that long when it was asked for.
_QUIET_S = 0.1


@attrs.define(eq=False)
class NaiveFold:
    """All valid entries of the current epoch, counted from the whole list each time one is asked about."""

    epoch: int = 0
    owner: Life | None = None
    valid: list[LogEntry] = attrs.field(factory=list)
    format: int = 0

    def is_valid(self, entry: LogEntry) -> bool:
        """The table of the entries, word by word; without snapshots."""
        body = entry.body
        if isinstance(body, Claim):
            has_seen_all = entry.seq == len(self.valid)
            may_claim = has_seen_all or body.is_forced or self.owner is None
            if entry.epoch - self.epoch == 1 and may_claim and body.format >= self.format:
                self.epoch, self.owner, self.valid, self.format = entry.epoch, entry.life, [], body.format
                return True
        elif (entry.epoch, entry.life, entry.seq) == (self.epoch, self.owner, len(self.valid) + 1):
            self.valid.append(entry)
            if isinstance(body, HandOver):
                self.owner = None
            elif isinstance(body, NewFormat):
                self.format = max(self.format, body.format)
            return True
        return False


class Outages:
    """How far log time falls behind when another server becomes active: keys live longer by that. In true time.

    The next owner goes on from the last entry of the former one, or from what it has observed of that, whichever is
    later. It observes an entry as late as it arrives, and goes by the one that was fastest. If it has begun since the
    last one, and could not listen to the owner either, it has observed nothing.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._made: dict[int, float] = {}  # of the entries of owners that count, by index
        self._claims: dict[int, bool] = {}  # whether they were forced
        self._delays: dict[str, float] = {}  # of the fastest entry of the epoch, by reader
        self._delays_before: dict[str, float] = {}
        self._lost: list[tuple[float, float]] = []  # when, and how much

    def claimed(self, index: int, made_at: float, *, is_forced: bool) -> None:
        """A valid claim is in the log."""
        self._made[index] = made_at
        self._claims[index] = is_forced

    def owner_wrote(self, index: int, made_at: float) -> None:
        """A valid entry of the owner."""
        self._made[index] = made_at

    def begins(self, name: str) -> None:
        """A life that has observed nothing."""
        self._delays.pop(name, None)

    def read(self, name: str, first: int, last: int) -> None:
        """These entries have arrived at a server."""
        for index in range(first, last + 1):
            if index in self._made:
                delay = self._world.now - self._made[index]
                if index in self._claims:
                    self._delays_before[name] = self._delays.get(name, float("inf"))
                    self._delays[name] = delay
                else:
                    self._delays[name] = min(self._delays.get(name, delay), delay)

    def has_observed(self, name: str) -> bool:
        """Whether this server knows the time of the present owner as well as a quiet network lets it."""
        return self._delays.get(name, float("inf")) < _QUIET_S

    def promoted(self, name: str, claim: int) -> None:
        """A server is the owner, by the claim at this index."""
        last = max((index for index in self._made if index < claim), default=None)
        if last is not None:
            lost = self._world.now - self._made[last]
            # What arrived after a claim was made does not count for that; only one that is forced may be valid then.
            self._lost.append(
                (self._world.now, lost if self._claims[claim] else min(lost, self._delays_before.get(name, lost)))
            )

    def within(self, begun: float, ended: float) -> float:
        """What was lost between two moments."""
        return sum(lost for at, lost in self._lost if begun < at < ended)


class Audit:
    """Knows all, and tells nobody but the test."""

    def __init__(self, world: World, *, compares: bool = True) -> None:
        self._world = world
        self._compares = compares
        self._naive = NaiveFold()
        self.fence = Fence()
        self.drift = 0.0  # greatest difference of the rates of two clocks
        self._states: list[tuple[object, ...]] = [self._state(self.fence)]
        self._pieces: list[bytes] = []
        self.rows: Rows = {}
        self._snapshots = SnapshotAudit(world)
        self._rows_of: dict[int, Rows] = {}  # when the epoch began
        self._claim_of: dict[int, int] = {}  # where
        self.processes: dict[str, Process] = {}
        self.log: SimulatedLog
        self._challenged: dict[Life, int] = {}
        self._well_when_challenged: dict[Life, bool] = {}
        self._owner_wrote = 0
        self._founded: tuple[float, float] | None = None
        self._newest_format = (0, 0)  # and its epoch
        # requests
        self._requests: dict[str, Request] = {}
        self._done_at: dict[tuple[str, int], float] = {}  # by request and version
        self._committed: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self.greatest_version = 0
        #: The versions of each key, in their order; and the place of the newest one that anyone was told, and when.
        self._keys: defaultdict[str, list[int]] = defaultdict(lambda: [0])
        self._told: defaultdict[str, list[tuple[float, int]]] = defaultdict(lambda: [(-1.0, 0)])
        self._deadlines: dict[str, float | None] = {}
        self._lasts: dict[int, tuple[float, float]] = {}  # from when to when, by version
        self._outages = Outages(world)
        # speakers
        self.spoken_epoch = 0
        self.spoken_at: dict[str, float] = {}
        self._wills_sent: dict[str, int] = {}
        self._promoted_at: dict[int, float] = {}
        self.answers = 0

    def _complain(self, text: str) -> None:
        self._world.complain(text)

    # -- the log -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _state(fence: Fence) -> tuple[object, ...]:
        return (fence.epoch, fence.owner, fence.seq, fence.log_ms, fence.base, fence.writing)

    def appended(self, index: int, entry: LogEntry) -> None:
        """An entry is in the log, for good."""
        former, before = self.fence.owner, self.fence.log_ms
        know(NEWEST)
        is_valid = self.fence.receive(index, entry) is Verdict.VALID
        self._states.append(self._state(self.fence))
        body = entry.body
        if self._compares and isinstance(body, Claim | BatchPiece | Renewal | NewFormat | HandOver):
            if self._naive.is_valid(entry) != is_valid:
                self._complain(f"entry {index} is {'' if is_valid else 'not '}valid: {entry}")
            if (self._naive.epoch, self._naive.owner) != (self.fence.epoch, self.fence.owner):
                self._complain(f"after entry {index} the owner is {self.fence.owner}, not {self._naive.owner}")
        if isinstance(body, Challenge):
            self._challenged[entry.life] = index
            owner = self.fence.owner
            process = self.processes.get(owner.id) if owner is not None else None
            is_well = process is not None and process.is_well and process.member.settings.life == owner
            self._well_when_challenged[entry.life] = is_well
        elif is_valid and isinstance(body, Claim):
            self._claimed(index, entry, body, former)
        elif is_valid and isinstance(body, Snapshot | Part):
            self._snapshots.receive(index, body)
        elif is_valid and isinstance(body, BatchPiece | Renewal | NewFormat | HandOver):
            self._owner_wrote = index
            self._outages.owner_wrote(index, self._made_at(index))
            if entry.log_ms < before:
                self._complain(f"log time goes back at entry {index}: from {before} to {entry.log_ms}")
            if isinstance(body, BatchPiece):
                self._add(index, body)
            elif isinstance(body, NewFormat):
                self._newest_format = max(self._newest_format, (body.format, entry.epoch))

    def _made_at(self, index: int) -> float:
        log = self.log
        return log.made_at[log.entries[index - 1]]

    def _claimed(self, index: int, entry: LogEntry, claim: Claim, former: Life | None) -> None:
        self._pieces.clear()
        self._rows_of[entry.epoch] = dict(self.rows)
        self._claim_of[entry.epoch] = index
        if claim.format < self._newest_format[0]:
            self._complain(f"the claim {index} is valid, though its format is an old one")
        self._outages.claimed(index, self._made_at(index), is_forced=claim.is_forced)
        if former is None or claim.is_forced:
            return
        if self._challenged.get(entry.life, 0) < self._owner_wrote:
            self._complain(f"the claim {index} is valid, though the owner has answered at {self._owner_wrote}")
        process = self.processes[former.id]
        if self._well_when_challenged.get(entry.life) and process.is_well and process.member.settings.life == former:
            self._complain(f"{former.id} is deposed by the claim {index}, though it is well")

    def _add(self, index: int, piece: BatchPiece) -> None:
        self._pieces.append(piece.data)
        if not piece.is_last:
            return
        batch = unpack_batch(b"".join(self._pieces))
        self._pieces.clear()
        puts = {(each.stream, subject): packed for each in batch.changes for subject, packed in each.puts}
        answers = [msgpack.unpackb(packed) for (stream, _), packed in puts.items() if stream is Stream.RESPONSES]
        for version, request_id in sorted((version, request_id) for request_id, version in answers):
            self._commit(request_id, version)
        for changes in batch.changes:
            for subject in changes.removals:
                if changes.stream is Stream.KEYS:
                    self._removed(str(subject))
                elif changes.stream is Stream.WILLS:
                    if (Stream.WILLS, str(subject)) not in self.rows:
                        self._complain(f"the will of {subject!r} is sent twice")
                    self._wills_sent[str(subject)] = self.fence.epoch
        applied(self.rows, batch)
        self._snapshots.changed(index, batch)

    def _commit(self, request_id: str, version: int) -> None:
        """Writes in the order in which they were carried out; in the rows is the last one of a batch."""
        if self._committed.setdefault(request_id, version) != version:
            self._complain(f"{request_id} is done twice")
            return
        request = self._requests[request_id]
        if request.verb == "set":
            self._keys[request.key].append(version)
            done_at = self._done_at[request_id, version]
            self._deadlines[request.key] = None if request.ttl_ms is None else done_at + request.ttl_ms / 1000
        else:
            self._keys[request.key].append(-version)
            self._deadlines.pop(request.key, None)

    def _removed(self, key: str) -> None:
        """By a request, or by the clock."""
        if self._keys[key][-1] <= 0:
            return
        self._keys[key].append(0)
        deadline = self._deadlines.pop(key, None)
        if deadline is None:
            self._complain(f"{key} is removed, and has no deadline")
        elif self._world.now < deadline - self._tolerance_s:
            self._complain(f"{key} has expired {deadline - self._world.now:.3f} s before its deadline")

    @property
    def _tolerance_s(self) -> float:
        return self.drift * self._world.now + 0.002 + 0.001 * self.fence.epoch

    # -- processes -----------------------------------------------------------------------------------------------------

    def begins(self, name: str) -> None:
        """A server begins a life, and knows nothing."""
        self._outages.begins(name)

    def listens(self, listener: Process, owner: Process) -> None:
        """A server listens to another one. If all is well for a moment, it knows the time of that one then."""
        if self._are_both_well(listener, owner):
            at = listener.lives, owner.lives, listener.ill_until, owner.ill_until, self.fence.epoch
            self._world.after(0.3, self._check_observed, listener, owner, at)

    def _are_both_well(self, listener: Process, owner: Process) -> bool:
        is_owner = self.fence.owner is not None and owner.member.settings.life == self.fence.owner
        return is_owner and listener.is_well and owner.is_well and owner.hand_over_to is None

    def _check_observed(self, listener: Process, owner: Process, at: tuple[float, ...]) -> None:
        now = listener.lives, owner.lives, listener.ill_until, owner.ill_until, self.fence.epoch
        if now == at and self._are_both_well(listener, owner) and not self._outages.has_observed(listener.name):
            self._complain(f"{listener.name} listens to {owner.name}, and does not know its time")

    def folded(self, process: Process, first: int) -> None:
        """A server has read some entries: its fold is that of all others."""
        fence = process.member.fence
        self._outages.read(process.name, first, fence.index)
        if self._state(fence) != self._states[fence.index]:
            self._complain(f"{process.name} folds {fence}, others {self._states[fence.index]}")

    def promoted(self, process: Process, epoch: int) -> None:
        """A server is the owner, and has all that was before; its log time is not ahead."""
        self._promoted_at[epoch] = self._world.now
        self._outages.promoted(process.name, self._claim_of[epoch])
        self.compare_rows(process, self._rows_of[epoch])
        if self._founded is None:
            self._founded = (self._world.now, process.log_ms)
        began, log_ms = self._founded
        ahead_s = (process.log_ms - log_ms) / 1000 - (self._world.now - began)
        if ahead_s > self._tolerance_s:
            self._complain(f"the log time of {process.name} is {ahead_s:.3f} s ahead")

    def restored(self, process: Process) -> None:
        """A server that has begun with a snapshot has all rows, as of what it has read."""
        self.compare_rows(process, self._snapshots.rows_at(process.member.fence.index))

    def compare_rows(self, process: Process, rows: Rows) -> None:
        """All rows, and no others."""
        mine = process.machine.rows
        if mine != rows:
            different = sorted(str(each) for each in mine.keys() | rows.keys() if mine.get(each) != rows.get(each))
            self._complain(f"{process.name} has other rows: {different[:3]}")

    def done(self, process: Process, request: Request, answer: Answer) -> None:
        """A server has carried out a request."""
        self._requests[request.id] = request
        self._done_at.setdefault((request.id, answer.version), self._world.now)
        if request.verb == "set":
            ttl_s = float("inf") if request.ttl_ms is None else request.ttl_ms / 1000
            self._lasts[answer.version] = self._world.now, self._world.now + ttl_s
        epoch = process.member.fence.epoch
        promoted_at = self._promoted_at.get(epoch, 0.0)
        has_grace = self._world.now - promoted_at < 1.4
        if has_grace and self._wills_sent.get(request.client) == epoch:
            self._complain(f"{process.name} has sent the will of {request.client}, which is back at once")

    def check_speakers(self, process: Process) -> None:
        """A server that may speak is the only one that may, said or not."""
        if process.member.holds_lease(process.now, process.member.sent):
            for other in self.processes.values():
                if other is not process and other.is_alive and other.member.holds_lease(other.now, other.member.sent):
                    self._complain(f"{process.name} and {other.name} may speak at once")

    def said(self, process: Process, staged: Staged) -> None:
        """A server tells a client."""
        request, answer, invoked_at = staged.request, staged.answer, staged.connection.client.invoked_at
        self.answers += 1
        now = self._world.now
        epoch = process.member.fence.epoch
        self._world.note(b"%d" % answer.version)
        is_confirmed = process.member.fence.seq > staged.since  # late perhaps, as on a slow network
        if epoch < self.spoken_epoch and not is_confirmed:
            self._complain(f"{process.name} speaks in epoch {epoch}, when the owner of {self.spoken_epoch} has spoken")
        newest, raised_in = self._newest_format
        if process.knows < newest and epoch >= raised_in:
            self._complain(f"{process.name} speaks, and does not know the format of the log")
        self.spoken_epoch = max(epoch, self.spoken_epoch)
        self.spoken_at[process.name] = now
        since, greatest = invoked_at
        if request.verb == "get":
            self._check_read(request.key, answer.version, since, staged.done_at)
            self._check_age(request.key, answer.version, staged.done_at)
            return
        self._told[request.key].append((now, self._place(request.key, answer.version, request.verb)))
        if self._committed.get(request.id) != answer.version:
            self._complain(f"{process.name} acknowledges {request.id}, which is not in the log")
        elif self._said.setdefault(request.id, answer.version) != answer.version:
            self._complain(f"{request.id} is answered in two ways")
        elif answer.version <= greatest:
            self._complain(f"version {answer.version} of {request.id} is not greater than {greatest}")
        self.greatest_version = max(self.greatest_version, answer.version)

    def hung(self, connection: Connection) -> None:
        """A client has waited for seconds: its door must not have known better for as long."""
        door, target = connection.door, connection.target
        if target is not None and not target.is_alive and not target.is_host_lost:
            self._complain("a client waits for a server that is gone")
        elif target is not None and door.is_alive and not door.is_paused:
            owner = door.member.fence.owner
            if owner is not None and owner.id != target.name:
                self._complain(f"a client waits for {target.name}, though {door.name} follows {owner.id}")

    def _check_read(self, key: str, version: int, since: float, done_at: float) -> None:
        """Not older than what anyone was told before the read began. That nothing is there is right, too, when what was
        there at the read has ended: an expiry has no place if the key is set again in the same batch. What was there
        may be newer than what was told, since a slow log lets that out later.
        """
        place = self._place(key, version, "get")
        told = max(place for at, place in self._told[key] if at < since)
        newest = self._lasts.get(self._keys[key][told], (0.0, float("inf")))
        for each in self._keys[key][told + 1 :]:
            if each in self._lasts and self._lasts[each][0] <= done_at:
                newest = self._lasts[each]
        _, ends = newest
        if place < told and not (version == 0 and done_at >= ends - self._tolerance_s):
            self._complain(f"a read of {key} gives version {version}, {told - place} older than what was told before")
        self._told[key].append((self._world.now, place))

    def _check_age(self, key: str, version: int, at: float) -> None:
        """A key is not there for longer than it is to be, but by the time in which nobody was active."""
        begun, ends = self._lasts.get(version, (0.0, float("inf")))
        late = at - ends - self._outages.within(begun, at)
        if late > 0.1 + self._tolerance_s:
            self._complain(f"{key} is read {late:.3f} s after its end, without outages")

    def _place(self, key: str, version: int, verb: str) -> int:
        """In the history of the key, where removals are not positive. To readers they all look alike: the newest one.
        What was replaced in its own batch has no place.
        """
        history = self._keys[key]
        wanted = -version if verb == "delete" else version
        for place in range(len(history) - 1, -1, -1):
            if history[place] == wanted or (verb == "get" and version == 0 >= history[place]):
                return place
        return -1
