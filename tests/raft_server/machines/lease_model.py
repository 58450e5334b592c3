"""Peers with leases, in a cluster that loses leaders, messages and time; owners, some of whom die; and what must hold.

The log is a list: who leads appends to its end, and what is committed stays. A new leader has all that is committed,
and as much of the rest as its former leader sent it. A peer that was deposed may not know it yet. Clocks differ by
3 percent, and a peer may stand still. What the machines do is compared with a second, naive implementation.

``PYTHONPATH=tests/raft_server/machines python -m lease_model SEED`` prints what is wrong with a schedule.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from typing import Any

import attrs

from raft_client.codecs import Change, ChangeKind, KeyValueCodec, Transaction
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.leases import LeaseClock
from raft_client.server.machines.state_machine import Applied
from raft_client.wire.leases import EndLease, GrantLease, HeldLease, KeepLease, LeasedKey, LeaseOperation
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import RequestId

#: What an owner leaves of its time for clocks that differ; see raft_client.core.leases.
HELD_SHARE = 0.9
KEYS = [b"a", b"b", b"c", b"d"]
Operation = Transaction | LeaseOperation
#: How long a schedule goes on when nothing goes wrong any more: at least, and until all is right.
_CALM_S, _COMES_RIGHT_S = 4.0, 20.0


class ViolationError(Exception):
    """Something that must never be."""


# -- a second implementation -------------------------------------------------------------------------------------------


class NaiveLeases:
    """Keys with their leases, as the documentation says it."""

    def __init__(self) -> None:
        self.keys: dict[bytes, tuple[bytes, bytes | None]] = {}
        self.leases: dict[bytes, tuple[int, int]] = {}  # ttl, and the index of the last word

    def apply(self, index: int, operation: Operation) -> bytes | None:
        """The lease that ends with this entry."""
        match operation:
            case GrantLease(lease, ttl_ms):
                self.leases[lease] = (ttl_ms, index)
            case KeepLease(lease):
                if lease in self.leases:
                    self.leases[lease] = (self.leases[lease][0], index)
            case EndLease(lease, seen):
                if lease in self.leases and (seen is None or seen >= self.leases[lease][1]):
                    del self.leases[lease]
                    self.keys = {key: each for key, each in self.keys.items() if each[1] != lease}
                    return lease
            case Transaction(changes=changes, lease=lease):
                if lease is None or lease in self.leases:
                    for change in changes:
                        self.keys.pop(change.key, None)
                        if change.value is not None:
                            self.keys[change.key] = (change.value, lease)
        return None

    def state(self) -> tuple[Any, ...]:
        """To be compared."""
        return dict(self.keys), dict(self.leases)


def state_of(machine: KeyValueStateMachine) -> tuple[Any, ...]:
    """The same of a machine, by its snapshot."""
    values: dict[bytes, bytes] = {}
    leases: dict[bytes, tuple[int, int]] = {}
    of_key: dict[bytes, bytes] = {}
    for each in KeyValueCodec().decode_whole_snapshot(machine.snapshot()):
        match each:
            case HeldLease(lease, ttl_ms, kept_at):
                leases[lease] = (ttl_ms, kept_at)
            case LeasedKey(lease, key):
                of_key[key] = lease
            case (key, value):
                values[key] = value
    return {key: (value, of_key.get(key)) for key, value in values.items()}, leases


# -- those who take part -----------------------------------------------------------------------------------------------


@attrs.frozen
class Message:
    """An entry that an owner, or somebody else, wants."""

    request_id: bytes
    operation: Operation
    owner: Owner | None = None
    sent_at: float = 0.0


@attrs.define(eq=False)
class Owner:
    """Has one lease. ``holds_until`` is when it must doubt it; 0 before it has one, and when it is over."""

    lease: bytes
    ttl_s: float
    rate: float
    holds_until: float = 0.0
    is_granted: bool = False
    is_dead: bool = False
    #: What it asks for, and has not heard of yet; and when it asks again, or next.
    pending: Message | None = None
    due_at: float = 0.0


@attrs.define(eq=False)
class Replica:
    """A peer: its machine, its clock, and what it believes."""

    rate: float
    offset: float
    machine: KeyValueStateMachine = attrs.field(factory=KeyValueStateMachine)
    clock: LeaseClock = attrs.field(init=False)
    #: What watches of this peer were told, put together.
    told: dict[bytes, bytes] = attrs.field(factory=dict)
    inbox: deque[Message] = attrs.field(factory=deque)
    stands_until: float = 0.0
    #: When a former leader learns that it leads no longer.
    deposed_at: float | None = None

    def __attrs_post_init__(self) -> None:
        self.clock = LeaseClock(self.machine.leases)
        self.machine.tell_changes(self._hear)

    def _hear(self, applied: Applied) -> None:
        for change in applied.changes:
            self.told.pop(change.key, None)
            if change.value is not None:
                self.told[change.key] = change.value

    def now(self, at: float) -> float:
        """What its clock shows."""
        return self.offset + at * self.rate


# -- a schedule --------------------------------------------------------------------------------------------------------


class Schedule:
    """One run. ``seen`` counts what it came to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.at = 0.0
        self.seen: Counter[str] = Counter()
        self.log: list[tuple[bytes, Operation]] = []  # committed
        self.tail: list[tuple[bytes, Operation]] = []  # what the leader has beyond that
        self.oracle = NaiveLeases()
        self.states = [self.oracle.state()]  # by index
        self.ended: set[bytes] = set()
        self.numbers = 0
        self.replicas = [self._replica() for _ in range(3)]
        self.owners: list[Owner] = []
        self.acknowledged: list[tuple[float, Message, int]] = []  # when the owner hears of which entry
        self.waiting: dict[bytes, Message] = {}
        self.leader = 0
        self.replicas[0].clock.lead(self.replicas[0].now(0.0))

    def run(self) -> Counter[str]:
        """To the end. Raises ViolationError."""
        troubles_end = self.random.uniform(6.0, 14.0)
        while self.at < troubles_end:
            self._trouble()
            self._step()
        self._heal()
        healed_at = self.at
        while self.at < healed_at + _CALM_S or (self._what_is_wrong() and self.at < healed_at + _COMES_RIGHT_S):
            self._step()
        if wrong := self._what_is_wrong():
            raise ViolationError(f"in the end {wrong}")
        self.seen["held to the end"] += len(self.oracle.leases)
        return self.seen

    def _replica(self) -> Replica:
        return Replica(self.random.uniform(0.97, 1.03), self.random.uniform(0.0, 1000.0))

    def _id(self) -> bytes:
        self.numbers += 1
        return RequestId.derive("lease model", self.numbers, seconds=1).raw

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        match self.random.randrange(40):
            case 0:
                self._elect()
            case 1:
                replica = self.random.choice(self.replicas)
                replica.stands_until = self.at + self.random.uniform(0.5, 5.0)
            case 2:
                self._restart()
            case 3 | 4 if len(self.owners) < 4:
                lease = self._id()
                self.owners.append(
                    Owner(lease, self.random.choice([1.0, 1.5, 3.0]), self.random.uniform(0.97, 1.03), due_at=self.at)
                )
            case 5 if self.owners:
                self.random.choice(self.owners).is_dead = True
            case 6 if self.owners:
                self._send(Message(self._id(), EndLease(self.random.choice(self.owners).lease)))
                self.seen["revoked"] += 1
            case 7 | 8 | 9 | 10:
                self._change_a_key()

    def _change_a_key(self) -> None:
        lease = self.random.choice([None, *(owner.lease for owner in self.owners)])
        key = self.random.choice(KEYS)
        if self.random.random() < 0.2:
            change = Change(ChangeKind.DELETE, key)
        else:
            change = Change(ChangeKind.SET, key, b"%d" % self.numbers)
        self._send(Message(self._id(), Transaction((), (change,), (), lease)))

    def _elect(self, *, leader: int | None = None) -> None:
        """Another one leads; the former one may not know for a while."""
        former = self.replicas[self.leader]
        former.deposed_at = self.at + self.random.choice([0.0, 0.2, 3.0])
        if leader is None:
            leader = self.random.choice([number for number in range(3) if number != self.leader])
        self.leader = leader
        self.tail = self.tail[: self.random.randrange(len(self.tail) + 1)]  # the rest was not sent to it
        self.waiting.clear()
        new = self.replicas[leader]
        new.stands_until = 0.0
        new.deposed_at = None
        new.clock.follow()
        new.clock.lead(new.now(self.at))
        self.seen["elections"] += 1

    def _restart(self) -> None:
        number = self.random.randrange(3)
        if number == self.leader:
            self._elect()
        replica = self.replicas[number] = self._replica()
        source = self.random.choice(self.replicas)
        if self.random.random() < 0.6 and source is not replica:
            index = source.machine.last_applied
            list(replica.machine.restore(index, source.machine.snapshot()))
            replica.clock.restored(replica.machine.leases, replica.now(self.at))
            replica.told = {key: value for key, (value, _) in state_of(replica.machine)[0].items()}
            self.seen["snapshots"] += 1

    def _heal(self) -> None:
        for replica in self.replicas:
            replica.stands_until = 0.0
            if replica.deposed_at is not None:
                replica.deposed_at = self.at

    # -- what goes right -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.at += self.random.uniform(0.02, 0.25)
        for owner in self.owners:
            self._owner_turn(owner)
        for number, replica in enumerate(self.replicas):
            if replica.stands_until <= self.at:
                self._replica_turn(number, replica)
        due = [each for each in self.acknowledged if each[0] <= self.at]
        self.acknowledged = [each for each in self.acknowledged if each[0] > self.at]
        for _, message, index in due:
            self._hear_of(message, index)

    def _send(self, message: Message) -> None:
        if self.random.random() < 0.9:
            self.replicas[self.leader].inbox.append(message)

    def _owner_turn(self, owner: Owner) -> None:
        if owner.is_dead or owner.due_at > self.at or (owner.is_granted and not owner.holds_until):
            return
        if owner.is_granted and self.at >= owner.holds_until:
            owner.holds_until, owner.pending = 0.0, None  # it has to give up
            self.seen["doubted"] += 1
            return
        if owner.pending is None:
            new = not owner.is_granted
            operation = GrantLease(owner.lease, round(owner.ttl_s * 1000)) if new else KeepLease(owner.lease)
            owner.pending = Message(owner.lease if new else self._id(), operation, owner, self.at)
        self._send(owner.pending)
        owner.due_at = self.at + 0.2

    def _hear_of(self, message: Message, index: int) -> None:
        """An owner is told what became of its entry."""
        owner = message.owner
        if owner is None or message is not owner.pending:
            return
        owner.pending = None
        if owner.lease not in self.states[index][1] or (owner.is_granted and not owner.holds_until):
            owner.holds_until = 0.0
            owner.is_granted = True
            return
        owner.is_granted = True
        owner.holds_until = message.sent_at + HELD_SHARE * owner.ttl_s / owner.rate
        owner.due_at = self.at + owner.ttl_s / 3
        self.seen["kept"] += 1

    def _replica_turn(self, number: int, replica: Replica) -> None:
        now = replica.now(self.at)
        if replica.deposed_at is not None and replica.deposed_at <= self.at:
            replica.deposed_at = None
            replica.clock.follow()
        leads = number == self.leader
        for _ in range(min(len(replica.inbox), 2)):  # more of them have to wait
            message = replica.inbox.popleft()
            if leads:
                self._append(message)
        deadline = replica.clock.next_deadline()
        if deadline is not None and deadline <= now:
            for end in replica.clock.due(now):
                if leads:
                    self.tail.append((self._id(), end))
                else:
                    self.seen["ends of former leaders"] += 1
        if leads and self.random.random() < 0.6:
            self._commit(self.random.randrange(len(self.tail) + 1))
        self._apply(replica, now)

    def _append(self, message: Message) -> None:
        self.waiting[message.request_id] = message
        if not any(message.request_id == request_id for request_id, _ in self.tail):
            index = next((n for n, each in enumerate(self.log, 1) if each[0] == message.request_id), None)
            if index is None:
                self.tail.append((message.request_id, message.operation))
            else:
                self._acknowledge(message.request_id, index)

    def _acknowledge(self, request_id: bytes, index: int) -> None:
        message = self.waiting.pop(request_id, None)
        if message is not None and self.random.random() < 0.9:
            self.acknowledged.append((self.at + self.random.uniform(0.0, 0.3), message, index))

    def _commit(self, count: int) -> None:
        for request_id, operation in self.tail[:count]:
            self.log.append((request_id, operation))
            index = len(self.log)
            if isinstance(operation, GrantLease) and operation.lease in self.ended:
                raise ViolationError("the model has granted a lease twice")
            ends = self.oracle.apply(index, operation)
            self.states.append(self.oracle.state())
            if ends is not None:
                self._check_end(ends, operation)
            elif isinstance(operation, EndLease):
                self.seen["ends without effect"] += 1
        del self.tail[:count]

    def _check_end(self, lease: bytes, operation: Operation) -> None:
        self.ended.add(lease)
        owner = next(owner for owner in self.owners if owner.lease == lease)
        if isinstance(operation, EndLease) and operation.seen is None:
            owner.holds_until = 0.0
            return
        self.seen["ended"] += 1
        if not owner.is_dead and self.at < owner.holds_until:
            raise ViolationError(f"at {self.at} a lease ended that is held until {owner.holds_until}")

    def _apply(self, replica: Replica, now: float) -> None:
        first = replica.machine.last_applied
        last = self.random.randint(first, len(self.log))
        entries = [_entry(index, *self.log[index - 1]) for index in range(first + 1, last + 1)]
        if not entries:
            return
        replica.machine.apply(entries)
        replica.clock.applied(now)
        expected = self.states[last]
        if state_of(replica.machine) != expected:
            raise ViolationError(f"entry {last}: a peer has {state_of(replica.machine)} in place of {expected}")
        if replica.told != {key: value for key, (value, _) in expected[0].items()}:
            raise ViolationError(f"entry {last}: watches of a peer were told {replica.told} in place of {expected[0]}")
        if replica is self.replicas[self.leader]:
            for index in range(first + 1, last + 1):
                self._acknowledge(self.log[index - 1][0], index)

    def _what_is_wrong(self) -> str:
        """What must not be when all have had time; empty if nothing is."""
        keys, leases = self.oracle.state()
        for owner in self.owners:
            if (owner.lease in leases) is not (owner.holds_until > 0.0 and not owner.is_dead):
                return f"the lease of {owner} is {leases.get(owner.lease)}"
        orphans = [key for key, (_, lease) in keys.items() if lease is not None and lease not in leases]
        return f"there are keys without their lease: {orphans}" if orphans else ""


def _entry(index: int, request_id: bytes, operation: Operation) -> LogEntry:
    if isinstance(operation, Transaction):
        data = KeyValueCodec.encode(operation.changes, lease=operation.lease)
    else:
        data = KeyValueCodec.encode_lease(operation)
    return LogEntry.of(data, term=1, request_id=RequestId(request_id), index=index)


if __name__ == "__main__":
    print(Schedule(int(sys.argv[1])).run())  # noqa: T201 - a program for people
