"""Clients: one request at a time, through any door, repeated until it is answered; and their connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from replicas_machine import Answer, Request

if TYPE_CHECKING:
    from replicas_audit import Audit
    from replicas_process import Process
    from replicas_world import World

#: When a client takes a silent connection for dead.
_TIMEOUT_S = 4.0
#: How often one that rests looks whether it is to go on.
_LOOK_S = 0.2
_TTLS_MS = (None, None, 300, 1500)


@attrs.define(eq=False)
class Connection:
    """From a client to a door, which passes it on to the owner: ``target``, None while nobody is known."""

    client: Client
    door: Process
    target: Process | None = None
    is_open: bool = True

    def open(self) -> None:
        """It arrives at the door, if that is still there."""
        if self.door.is_alive:
            self.door.connections.append(self)  # the system has accepted it, also if the process stands still
            self.door.run(self.door.accept, self)
        else:
            self.close()

    def close(self) -> None:
        """The client hears of it."""
        if self.is_open:
            self.is_open = False
            self.client.world.after(0.001, self.client.lost, self)


@attrs.define(eq=False)
class Staged:
    """An answer that waits for a batch."""

    after_batch: int
    connection: Connection
    request: Request
    answer: Answer
    done_at: float
    since: int  # what its server had sent by then


@attrs.define(eq=False)
class Client:
    """``invoked_at``: when its request began, and the greatest version that anyone was told before."""

    world: World
    audit: Audit
    name: str
    processes: list[Process]
    think_s: float
    reads: float
    keys: int
    request: Request = attrs.field(init=False)
    invoked_at: tuple[float, int] = (0.0, 0)
    connection: Connection | None = None
    answered_at: float = 0.0
    is_active: bool = True
    rests_until: float = 0.0
    _number: int = 0

    def act(self) -> None:
        """The next request."""
        if not self.is_active:
            return
        if self.world.now < self.rests_until:
            self.world.after(_LOOK_S, self.act)
            return
        random = self.world.random
        self._number += 1
        verb = "get" if random.random() < self.reads else random.choice(["set", "set", "delete"])
        ttl_ms = random.choice(_TTLS_MS) if verb == "set" else None
        value = random.randbytes(random.choice([3, 3, 200]))
        key = f"key{random.randrange(self.keys)}"
        self.request = Request(f"{self.name}-{self._number}", self.name, verb, key, value, ttl_ms)
        self.invoked_at = (self.world.now, self.audit.greatest_version)
        if self.connection is not None and self.connection.is_open and self.connection.target is not None:
            target = self.connection.target
            self.world.after(0.001, target.run, target.serve, self.connection, self.request)
            self.world.after(1.0, self._wait, self.connection, self.request.id, 1.0)
        else:
            self._connect()

    @property
    def waits_since(self) -> float:
        """Infinity if it does not wait."""
        return self.invoked_at[0] if self.answered_at < self.invoked_at[0] else float("inf")

    def _connect(self) -> None:
        door = self.world.random.choice(self.processes)
        if not door.is_alive:
            self.world.after(0.02, self._connect)
            return
        self.connection = Connection(self, door)
        self.world.after(0.001, self.connection.open)
        self.world.after(1.0, self._wait, self.connection, self.request.id, 1.0)

    def _wait(self, connection: Connection, request_id: str, seconds: float) -> None:
        if self.request.id == request_id and connection.is_open and self.answered_at < self.invoked_at[0]:
            self.audit.hung(connection)
            if seconds < _TIMEOUT_S:
                self.world.after(seconds, self._wait, connection, request_id, 2 * seconds)
            else:
                connection.close()

    def lost(self, connection: Connection) -> None:
        """The connection is closed: try another door."""
        if connection is self.connection:
            self.connection = None
            if self.answered_at < self.invoked_at[0]:
                self.world.after(self.world.random.uniform(0.005, 0.1), self._connect)

    def receive(self, connection: Connection, answer: Answer) -> None:
        """The answer. A request that was asked twice is answered twice; the client goes on once."""
        is_waiting = self.answered_at < self.invoked_at[0]
        if is_waiting and connection is self.connection and answer.request_id == self.request.id:
            self.answered_at = self.world.now
            self.world.after(self.world.random.expovariate(1 / self.think_s), self.act)
