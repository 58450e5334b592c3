"""One server: the real member of the cluster, a machine, doors for clients, and a process that can be stopped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import attrs
from replicas_clients import Connection, Staged
from replicas_host import CHUNK, LogUser
from replicas_machine import NEWEST, Machine, Request, applied, know

from statestore_client.server.cluster.entries import Life, NewerLogError, Snapshot
from statestore_client.server.cluster.interface import (
    BatchReplicated,
    BatchWritten,
    ClusterSettings,
    Deposed,
    OwnerChanged,
    Promoted,
    Role,
    RowsRestored,
    SnapshotRestored,
)
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.journal import Stream, Timeline, WriteBatch

#: A client that was connected when its server went away has this time to return before its will is sent.
GRACE_S = 1.5
_UPGRADE_S = 1.0


@attrs.define(eq=False)
class Process(LogUser):
    """A server of the log."""

    settings: Callable[[Life], ClusterSettings]
    #: The newest format of records that its program knows.
    knows: int
    #: Nobody is told that connections to it are gone.
    is_host_lost: bool = False
    hand_over_to: str | None = None
    machine: Machine = attrs.field(factory=Machine)
    staged: deque[Staged] = attrs.field(factory=deque)
    connections: list[Connection] = attrs.field(factory=list)
    wills_due: dict[str, float] = attrs.field(factory=dict)
    member: ClusterMember = attrs.field(init=False)
    timeline: Timeline = attrs.field(init=False)
    _cut: int = 0
    _written: int = 0
    _flying: set[tuple[Stream, str]] = attrs.field(factory=set)
    _owner: tuple[int, str] | None = None
    _listens_to: tuple[str, int] | None = None  # a server, and its start

    @property
    def is_well(self) -> bool:
        """Nothing is wrong with it, or with its links."""
        link = self.link
        is_fast = max(link.tail_delay, link.longest_delay, link.sync_s) < 0.01 and not link.loss
        return self.is_alive and not self.is_paused and self.world.now > self.ill_until + 0.1 and is_fast

    # -- the process ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """With nothing. Connections to the one before are reset, if anybody still has some."""
        for connection in self.connections:
            connection.close()
        self.connections.clear()
        self.is_alive, self.is_host_lost = True, False
        self.is_paused = self.is_stopped = False
        self.starts += 1
        self._backlog.clear()
        self._pulse_epoch = None
        self.begin_life()
        self._pulse(self.starts)

    def kill(self, *, with_host: bool = False) -> None:
        """Nothing is left."""
        self.is_alive = False
        self.lives += 1
        self.is_host_lost = with_host
        self._backlog.clear()
        for connection in self.connections:
            if not with_host:
                connection.close()

    def _upgrade(self) -> None:
        """It ends, because of what its program does not know. People start the next release instead."""
        self.kill()
        self.knows = NEWEST
        self.is_ill_for(_UPGRADE_S)
        self.world.after(_UPGRADE_S, lambda: self.is_alive or self.start())

    def begin_life(self) -> None:
        """An empty machine, and the log from the newest snapshot on."""
        try:
            self._begin_life()
        except NewerLogError:
            self._upgrade()

    def _begin_life(self) -> None:
        know(self.knows)
        self.lives += 1
        self.audit.begins(self.name)
        self.machine = Machine()
        self.staged.clear()
        self.wills_due.clear()
        self._cut = self._written = 0
        self._flying = set()
        self._timer = None
        self._owner = self._listens_to = None
        self.hand_over_to = None
        life = Life(self.name, self.world.random.getrandbits(64))
        base = self.base
        self._end = len(self.log.entries)
        self.member = ClusterMember(self.settings(life), self.now, base)
        self._position = base[1].body.index if base is not None and isinstance(base[1].body, Snapshot) else 0
        self.link.notify()
        self._follow()

    def _follow(self) -> None:
        if self._position >= self._end:
            self.member.catch_up()
        if self._position < self.link.visible:
            self.world.after(0.0005, self.run, self.read)

    # -- the log -------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """What is new in the log, some entries at a time."""
        if self._position + 1 < self.log.first:
            self.begin_life()  # trimmed
            return
        lives = self.lives
        entries = self.log.entries
        first = self._position + 1
        know(self.knows)
        for index in range(first, min(self.link.visible, self._position + CHUNK) + 1):
            self._position = index
            try:
                self.member.receive(index, entries[index - 1], self.now)
            except NewerLogError:
                self._upgrade()
                return
        self.audit.folded(self, first)
        self._events()
        if lives == self.lives:
            self._follow()

    def append_failed(self, life: int, ticket: int) -> None:
        """The client of the log has given up."""
        if life == self.lives:
            self.member.failed(ticket, self.now)

    def _events(self) -> None:
        events, member = self.member.events, self.member
        if not events:
            return
        is_restored = False
        for event in list(events):
            if isinstance(event, BatchReplicated | RowsRestored):
                applied(self.machine.rows, event.batch)
            elif isinstance(event, BatchWritten):
                self._written += 1
                self._flying.clear()
            elif isinstance(event, OwnerChanged):
                self._owner = None if event.owner is None else (event.epoch, event.owner.id)
                self._listens_to = None
                self.cut_splices()
            elif isinstance(event, SnapshotRestored):
                is_restored = True
            elif isinstance(event, Promoted):
                self._promoted(event)
            elif isinstance(event, Deposed):
                self.deposed()
                return
        if member is self.member:
            events.clear()
        if is_restored:
            self.audit.restored(self)

    def _promoted(self, event: Promoted) -> None:
        self.timeline = event.timeline
        end = self.now.monotonic + GRACE_S
        self.wills_due = {name: end for stream, name in self.machine.rows if stream is Stream.WILLS}
        self.audit.promoted(self, event.epoch)

    def deposed(self) -> None:
        """Say nothing more, cut all clients, throw everything away."""
        for connection in self.connections:
            connection.close()
        self.begin_life()

    # -- doors ---------------------------------------------------------------------------------------------------------

    def accept(self, connection: Connection) -> None:
        """A client has connected."""
        self.connections = [each for each in self.connections if each.is_open]
        self._splice(connection)

    def _splice(self, connection: Connection) -> None:
        if self.member.role is Role.ACTIVE:
            target = self
        elif self._owner is None or self._owner[1] == self.name:
            return
        else:
            target = self.others[self._owner[1]]
            if not target.is_alive or target.name in self.unreachable:
                return
            target.connections.append(connection)
        connection.target = target
        self.world.after(0.001, target.run, target.serve, connection, connection.client.request)

    def cut_splices(self) -> None:
        """There is another owner: whatever was passed on is cut."""
        for connection in self.connections:
            if connection.door is self and connection.target is not None:
                connection.close()

    def serve(self, connection: Connection, request: Request) -> None:
        """A request of a client."""
        if not connection.is_open:
            return
        if self.member.role is not Role.ACTIVE or self.hand_over_to is not None:
            connection.close()
            return
        machine, now = self.machine, self.now
        self.expire()
        if machine.get(Stream.WILLS, request.client) is None:
            machine.put(Stream.WILLS, request.client, [])
        self.wills_due.pop(request.client, None)
        answer = machine.execute(request, self.log_ms, now.wall_ms)
        self.audit.done(self, request, answer)
        after_batch = self._cut + 1 if machine.changed else self._cut
        self.staged.append(Staged(after_batch, connection, request, answer, self.world.now, self.member.sent))

    @property
    def log_ms(self) -> float:
        """Log time."""
        return self.now.monotonic * 1000 + self.timeline.ahead_ms

    # -- each turn -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do what is due, and hand on what is to be appended."""
        self.member.tick(self.now)
        self._events()
        if self.member.role is Role.ACTIVE:
            self._act()
        if self.member.output:
            output = list(self.member.output)
            self.member.output.clear()
            for append in output:
                self.link.append(self.lives, append.ticket, append.data)
        self.audit.check_speakers(self)
        self.set_timer(self._next_deadline())

    def _act(self) -> None:
        machine, member, now = self.machine, self.member, self.now
        self.expire()
        for name in [name for name, due_at in self.wills_due.items() if due_at <= now.monotonic]:
            del self.wills_due[name]
            machine.remove(Stream.WILLS, name)
            machine.put(Stream.RETAINED, f"{name} {machine.next_version(now.wall_ms)}", [])
        if machine.changed and member.may_write:
            self._flying = set(machine.changed)
            member.write(machine.cut(), now)
            self._cut += 1
        while self.staged and self.staged[0].after_batch <= self._written:
            if not member.holds_lease(now, self.staged[0].since):
                member.renew_lease(now, self.staged[0].since)
                break
            self._say(self.staged.popleft())
        if self.hand_over_to is not None and not self.staged and not machine.changed:
            member.hand_over(self.hand_over_to, now)

    def raise_format(self) -> None:
        """People ask for it."""
        self.member.raise_format(NEWEST, self.now)

    def expire(self) -> None:
        """The owner removes what is over."""
        self.machine.expire(self.log_ms, self.now.wall_ms)

    def _say(self, staged: Staged) -> None:
        if staged.connection.is_open:
            self.audit.said(self, staged)
            client = staged.connection.client
            self.world.after(0.001, client.receive, staged.connection, staged.answer)

    def look(self) -> None:
        self._pulse_epoch = self.member.fence.epoch if self.member.may_pulse(self.now) else None
        self._looked_at = self.world.now
        if self._pulse_epoch is None and self._owner is not None and self._owner[1] not in self.unreachable:
            owner = self.others.get(self._owner[1])
            if owner is not None and not owner.is_alive and not owner.is_host_lost:
                self.member.suspect(self.now)
        self._listen()
        for connection in self.connections:
            if connection.is_open and connection.door is self and connection.target is None:
                self._splice(connection)

    def _listen(self) -> None:
        """To the owner, when it has read the log to its end; a connection that is cut is made anew."""
        owner = None if self._owner is None or self._owner[1] == self.name else self.others[self._owner[1]]
        if owner is None or not owner.is_alive or owner.name in self.unreachable or self._position < self._end:
            self._listens_to = None
        elif self._listens_to != (owner.name, owner.starts):
            self._listens_to = owner.name, owner.starts
            self.world.after(0.001, owner.run, owner.listener_came, self)

    def listener_came(self, listener: Process) -> None:
        """Another one listens to the signs of life."""
        self.member.listener_came(self.now)
        self.audit.listens(listener, self)

    def hear(self, epoch: int) -> None:
        """A pulse."""
        self.member.hear(epoch, self.now)

    def _next_deadline(self) -> float:
        at = self.member.next_deadline(self.now)
        if self.member.role is Role.ACTIVE:
            at = min(at, (self.machine.first_end() - self.timeline.ahead_ms) / 1000)
        return at

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """If there is nothing that is not in the log yet."""
        if not self.machine.changed:
            self.member.begin_snapshot(self._rows(self.machine), self.now)

    def _rows(self, machine: Machine) -> Iterator[WriteBatch]:
        """Never a row that has changed and is not valid yet: those come last."""
        left = list(machine.rows)
        while left:
            uncertain = machine.changed.keys() | self._flying
            some = [subject for subject in left if subject not in uncertain][:6]
            left = [subject for subject in left if subject not in some]
            yield machine.some_rows(some)
