"""What must hold, whatever happens: looked at where commands take effect and where clients draw conclusions.

1. Fencing tokens granted for a lock strictly increase, and no two hold it at once.
2. No write under an older token is applied after one under a newer token, and none without a token.
3. A client that believes to hold the lock has a lease at the server that lasts longer than its belief.
4. A client that lost the lock was told so before the next one was granted it, unless its process stands still.
5. A write is applied at most once; never, if its caller was told so; and once, if its caller was told so.
6. A counter that is read and written under the lock counts: a late write takes no number away from it.
7. In the end every watcher has seen the state of its key, and versions never went back on the way.

The audit keeps its own account of the lock: it does not ask the store who has it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING

import attrs
from sim_programs import COUNT, STATE, number_of

from statestore_client.server.store import Outcome, RequestContext
from statestore_client.wire.commands import Command, Condition, Del, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import OK, Count

if TYPE_CHECKING:
    from sim_process import Process
    from sim_server import SimulatedServer
    from sim_world import World


@attrs.define(eq=False)
class _Lock:
    """The audit's account of one lock. ``until``: on the server's monotonic clock."""

    holder: bytes | None = None
    until: float = 0.0
    token: HlcTimestamp | None = None  # of the last grant, by any server


class Audit:
    """Collects violations instead of raising them: the broker survives exceptions of the store."""

    def __init__(self, world: World, lock: bytes) -> None:
        self.violations: list[str] = []
        self.grants = self.commands = self.fenced_off = 0
        self.digest = 0
        self.times_applied: Counter[bytes] = Counter()
        self.never_applied: set[bytes] = set()  # as their callers were told
        self._world = world
        self._lock_key = lock
        self._lock = _Lock()
        self._incarnation = 0
        self._granted_by: dict[HlcTimestamp, int] = {}  # which server gave out this version of the lock
        self.counted = 0
        self._count: bytes | None = None  # the value of the counter
        self._newest: dict[bytes, HlcTimestamp] = {}  # by key: the newest token that something was written under
        self._server: SimulatedServer | None = None
        self._processes: list[Process] = []

    def watch_over(self, server: SimulatedServer, processes: list[Process]) -> None:
        self._server, self._processes = server, processes

    def violated(self, what: str) -> None:
        self._world.note("AUDIT", what)
        self.violations.append(f"{what} (at {self._world.time.now:.6f} s)")

    # -- at the server -------------------------------------------------------------------------------------------------

    def applied(self, command: Command, request: RequestContext, outcome: Outcome) -> None:
        """The store has carried out, or refused, a command."""
        server, world = self._server, self._world
        if server is None:
            return
        if server.incarnation != self._incarnation:
            self._incarnation = server.incarnation
            self._lock = _Lock(token=self._lock.token)
            self._newest.clear()
            self._count = None
        self.commands += 1
        line = f"{world.time.now} {request.client_id} {type(command)} {outcome.version}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if world.is_traced:
            world.note("store", request.client_id, command, "->", outcome.reply, outcome.version or "")
        took_effect = outcome.reply is OK or (isinstance(outcome.reply, Count) and outcome.reply.count == 1)
        if not isinstance(command, (Set, Del, VDel)):
            return
        if not took_effect:
            self.fenced_off += command.key != self._lock_key and not isinstance(outcome.reply, Count)
        elif command.key == self._lock_key:
            self._lock_changed(command, request, outcome)
        else:
            self._written(command, request)

    def _lock_changed(self, command: Command, request: RequestContext, outcome: Outcome) -> None:
        lock, now = self._lock, request.now.monotonic
        if lock.holder is not None and lock.until <= now:
            lock.holder = None
        if isinstance(command, Set):
            assert command.condition is Condition.NEX
            assert command.expiry_ms is not None
            assert outcome.version is not None
            self._granted_by[outcome.version] = self._incarnation
            if lock.holder is None:
                self._granted(command.value, outcome.version)
            elif lock.holder != command.value:
                self.violated(f"{command.value!r} was granted the lock that {lock.holder!r} holds")
            lock.holder, lock.until = command.value, now + command.expiry_ms / 1000
        elif isinstance(command, VDel) and command.value == lock.holder:
            lock.holder = None
        else:
            self.violated(f"{command} freed the lock of {lock.holder!r}")
        self.check_beliefs()

    def _granted(self, holder: bytes, token: HlcTimestamp) -> None:
        lock = self._lock
        self.grants += 1
        if lock.token is not None and not lock.token < token:
            self.violated(f"the token {token} was granted after {lock.token}")
        lock.token = token
        for process in self._processes:
            lease = process.lease
            if lease is None or lease.holder == holder or lease.incarnation != self._incarnation:
                continue
            if not (lease.is_lost or process.is_drowsy or process.is_dead):
                self.violated(f"{process.name} was not told of its loss before {holder!r} was granted the lock")

    def _written(self, command: Set | Del | VDel, request: RequestContext) -> None:
        token, newest = request.fencing_token, self._newest.get(command.key)
        if newest is not None and (token is None or token < newest):
            self.violated(f"{command} was applied under {token} after {newest}")
        if token is not None:
            self._newest[command.key] = token
        if isinstance(command, Set) and command.key == COUNT:
            self._counts(command.value)
        elif isinstance(command, Set) and not (command.key == STATE and command.condition is Condition.NEX):  # a claim
            self.times_applied[command.value] += 1
            if self.times_applied[command.value] > 1:
                self.violated(f"{command} was applied twice")
            if command.value in self.never_applied:
                self.violated(f"{command} was applied after its caller was told that it was not")

    def _counts(self, value: bytes) -> None:
        """The counter was set. A claim sets the value that is there; anything else was made from it."""
        if value == self._count:
            return
        is_first = self._count is None  # also at a server that has forgotten it: a holder may go on with what it read
        if not is_first and number_of(value) != number_of(self._count) + 1:
            self.violated(f"an update was lost: {value!r} was written over {self._count!r}")
        self.counted += 1
        self._count = value

    # -- at the clients ------------------------------------------------------------------------------------------------

    def check_beliefs(self) -> None:
        """Called whenever a lease, or a belief in one, has changed: in between, only clocks go on."""
        lock, server = self._lock, self._server
        assert server is not None
        for process in self._processes:
            lease = process.lease
            if lease is None or not lease.is_believed or lease.incarnation != self._incarnation:
                continue
            if lock.holder != lease.holder:
                self.violated(f"{process.name} believes to hold the lock of {lock.holder!r}")
            elif process.true_time(lease.valid_until) > server.true_time(lock.until):
                late = process.true_time(lease.valid_until) - server.true_time(lock.until)
                self.violated(f"{process.name} will believe to hold the lock {late * 1000:.3f} ms after its lease")

    def granted_by(self, token: HlcTimestamp) -> int:
        """Which incarnation of the server granted this: leases do not outlive a server that forgets."""
        return self._granted_by[token]

    def told(self, value: bytes, *, applied: bool) -> None:
        """A caller was told that its SET was applied, or that it was certainly not."""
        if not applied:
            self.never_applied.add(value)
        if applied != bool(self.times_applied[value]):
            self.violated(f"the caller was told that {value!r} was {'' if applied else 'not '}applied")
