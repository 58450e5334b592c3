"""One server with the real broker, store, journal, gate and lives; without sockets, over the simulated log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import attrs
from machines_loop import SimulatedLoop, SimulatedTransport
from replicas_host import CHUNK, Host, LogUser

from statestore_client.server.cluster.entries import Life
from statestore_client.server.cluster.interface import Role
from statestore_client.server.journal import Journal
from statestore_client.server.runtime.broker_driver import BrokerDriver
from statestore_client.server.runtime.clock import ElapsedClock
from statestore_client.server.runtime.replication.log_link import LogReader
from statestore_client.server.runtime.replication.replica import LogReplica
from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
from statestore_client.server.runtime.replication.settings import ReplicaSettings
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.storage.standby import Standby
from statestore_client.server.runtime.transport.connection import ServerConnection
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore_client.server.cluster.interface import Append
    from statestore_client.server.journal import Timeline


class _Clock(ElapsedClock):
    """Of a process, with its timers."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def __call__(self) -> Instant:
        now = self._host.now
        return Instant(now.monotonic + self.ahead_s, now.wall_ms)


class _Link:
    """What a life needs of the log."""

    def __init__(self, host: MachineHost) -> None:
        self._host = host
        self._lives = host.lives

    @property
    def is_heard(self) -> bool:
        """What its leader broadcasts."""
        return self._host.log.has_leader and not self._host.link.is_tail_cut

    def open(self, reader: LogReader, after: int) -> None:
        self._host.follow(after)

    def append(self, append: Append) -> None:
        self._host.link.append(self._lives, append.ticket, append.data)

    def trim(self, index: int) -> None:
        """People do that here."""

    async def close(self) -> None:
        """Nothing is kept."""


class _Replica(LogReplica):
    """The real one, which remembers why it spoke last."""

    #: The log had confirmed what was said: late perhaps, as on a slow network.
    is_confirmed = False

    def holds_lease(self, since: int) -> bool:
        self.is_confirmed = self._member.fence.seq > since
        return super().holds_lease(since)


class _Lives(ReplicatedServer):
    """The real ones, but for what reaches other processes."""

    def __init__(self, host: MachineHost, server: Server) -> None:
        super().__init__(ReplicaSettings(log=("tcp://127.0.0.1:1",), id=host.name), server)
        self._host = host
        self.clock = _Clock(host)
        self._elapsed = _Clock(host)

    def begin(self, driver: BrokerDriver) -> None:
        """As ``open`` does, without sockets."""
        self._driver = driver
        self.router.bind(driver)
        self._url = self._host.name
        self._look()
        self._begin_life()

    def _begin_life(self) -> None:
        host = self._host
        host.lives += 1
        link: Any = _Link(host)
        self._journal = Journal()
        service, broker = self._owner.build_state(self._journal)
        self._standby = Standby(self._journal, service, broker, self._elapsed())
        self._rows = self._standby.rows
        self._machines = service, broker
        life = Life(host.name, host.world.random.getrandbits(64))
        self._replica = _Replica(life, host.name, self, self._elapsed, link, host.base)
        self._replica.open()

    def _listen_to(self, url: str | None) -> None:
        self._host.owner = url

    def promoted(self, epoch: int, timeline: Timeline) -> None:
        super().promoted(epoch, timeline)
        self._host.audit.promoted(self._host.name, epoch)

    @property
    def replica(self) -> LogReplica | None:
        return self._replica

    @property
    def pulse(self) -> int | None:
        return self._may_pulse()

    def snapshot(self) -> None:
        self._wants_snapshot = True
        self._begin_snapshot()

    def rows(self) -> Mapping[tuple[object, object], bytes]:
        """All that it holds, when nothing is on its way."""
        found = {}
        for batch in self._rows.in_turn() if self._rows is not None else ():
            for changes in batch.changes:
                found.update({(changes.stream, subject): data for subject, data in changes.puts})
        return found


@attrs.define(eq=False)
class MachineHost(LogUser):
    """A server of the log, with all that one has but its sockets."""

    owner: str | None = None
    _server: _Lives = attrs.field(init=False)
    _driver: BrokerDriver = attrs.field(init=False)
    _loop: SimulatedLoop = attrs.field(init=False)
    _transports: dict[SimulatedTransport, Callable[[], None]] = attrs.field(factory=dict)
    _is_caught_up: bool = False

    # -- the process ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """With nothing."""
        self.is_alive, self.is_paused, self.is_stopped = True, False, False
        self._backlog.clear()
        self.starts += 1
        self._loop = loop = SimulatedLoop(self)
        self._pulse_epoch = self.owner = None
        # Chance of its own: what a server draws moves nothing else in the schedule.
        server = Server(random=Random(f"{self.world.seed} {self.name} {self.starts}"))
        self._server = _Lives(self, server)
        simulated: Any = loop
        self._driver = BrokerDriver(
            server.build_state(None)[1], self._server.clock, simulated, call_at=self._server.clock.call_at
        )
        self.run(self._server.begin, self._driver)
        self._pulse(self.starts)

    def kill(self) -> None:
        """Nothing is left."""
        self.is_alive = False
        self.lives += 1
        self._loop.is_over = True
        self._backlog.clear()
        for transport, ended in self._transports.items():
            transport.forget()
            self.world.after(0.001, ended)
        self._transports.clear()

    def run(self, what: Callable[..., object], *arguments: object) -> None:
        """In its event loop."""
        if self.is_paused or not self.is_alive:
            super().run(what, *arguments)
            return
        running: Any = self._loop
        asyncio._set_running_loop(running)
        try:
            super().run(what, *arguments)
        finally:
            asyncio._set_running_loop(None)

    def suspend(self, seconds: float) -> None:
        """With its machine."""
        self._loop.slept_s += seconds
        self.pause(seconds)

    def mix(self, backlog: list[tuple[Callable[..., object], tuple[object, ...]]]) -> None:
        """What comes on one connection stays in order."""

    @property
    def is_active(self) -> bool:
        """Or so it thinks."""
        return self.is_alive and self._server.role is Role.ACTIVE

    # -- the log -------------------------------------------------------------------------------------------------------

    def follow(self, after: int) -> None:
        """From there on."""
        self._position, self._end = after, len(self.log.entries)
        self._is_caught_up = False
        self.world.after(0.0005, self.run, self.read)

    def read(self) -> None:
        """What is new in the log, some entries at a time."""
        replica, lives, first = self._server.replica, self.lives, self._position + 1
        if replica is None:
            return
        if first < self.log.first:
            replica.log_trimmed()
            return
        last = min(self.link.visible, self._position + CHUNK)
        if last >= first:
            self._position = last
            replica.read([(index, self.log.entries[index - 1]) for index in range(first, last + 1)])
        if lives == self.lives and not self._is_caught_up and self._position >= self._end:
            self._is_caught_up = True
            replica.caught_up()
        if lives == self.lives and self._position < self.link.visible:
            self.world.after(0.0005, self.run, self.read)

    def append_failed(self, life: int, ticket: int) -> None:
        """The client of the log has given up."""
        if life == self.lives and self._server.replica is not None:
            self._server.replica.append_failed(ticket)

    # -- signs of life -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        self._pulse_epoch, self._looked_at = self._server.pulse, self.world.now
        replica = self._server.replica
        if self._pulse_epoch is None and self.owner is not None and replica is not None:
            owner = self.others[self.owner]
            if not owner.is_alive and owner.name not in self.unreachable:
                replica.suspect()

    def hear(self, epoch: int) -> None:
        """A pulse."""
        if self._server.replica is not None:
            self._server.replica.hear(epoch)

    # -- clients -------------------------------------------------------------------------------------------------------

    def accept(self, deliver: Callable[[bytes], None], ended: Callable[[], None]) -> SimulatedTransport:
        """A client connects to a server that takes itself for the active one."""
        transport = SimulatedTransport(self, deliver, ended, self._speaks)
        self._transports[transport] = ended
        self.run(self._accepted, transport)
        return transport

    def _speaks(self) -> None:
        if self.is_active:
            replica: Any = self._server.replica
            self.audit.speaks(self.name, self._server.epoch, is_confirmed=replica.is_confirmed)

    def _accepted(self, transport: SimulatedTransport) -> None:
        if self._server.role is Role.ACTIVE:
            transport.open(ServerConnection(self._driver))
        else:
            transport.close()

    # -- by people -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Write one."""
        self._server.snapshot()

    def hand_over(self, next_id: str) -> None:
        """Wait for nothing: what is not said yet is never said."""
        replica = self._server.replica
        if replica is not None and replica._member.hand_over(next_id, self.now):
            replica._turn()

    def rows(self) -> Mapping[tuple[object, object], bytes]:
        """All that it holds, when nothing is on its way."""
        return self._server.rows()
