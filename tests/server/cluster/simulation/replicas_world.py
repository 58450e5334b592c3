"""Time that is a number, the log, and what the network does to those that use it.

The log is a list that a majority keeps. Appends have request ids: a repetition finds the entry of the first one, unless
the log has forgotten the id. Between a server and the log messages are delayed, lost, doubled and turned around; while
there is no leader nothing is appended.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import attrs

from statestore_client.server.cluster.entries import BatchPiece, decode

if TYPE_CHECKING:
    from replicas_host import LogUser

    from statestore_client.server.cluster.entries import LogEntry

#: A client of the log asks again after these seconds, and gives up after some tries.
_RETRY_S = 0.3
_TRIES = 6
#: A reader that missed a broadcast, and gets no other one, asks after these seconds.
_SILENCE_S = 0.7


class World:
    """Time, chance, and a digest of all that happened."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.violations: list[str] = []
        self.digest = 0
        self._turns = count()
        self._due: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []

    def after(self, seconds: float, do: Callable[..., None], *arguments: object) -> None:
        """Do it then."""
        heapq.heappush(self._due, (self.now + max(seconds, 0.0), next(self._turns), do, arguments))

    def run_until(self, end: float) -> None:
        """All that happens until then, or until something that must hold does not."""
        while self._due and self._due[0][0] <= end and not self.violations:
            self.now, _, do, arguments = heapq.heappop(self._due)
            do(*arguments)
        self.now = end

    def complain(self, text: str) -> None:
        """Something that must hold does not."""
        self.violations.append(f"at {self.now:.3f}: {text}")

    def note(self, data: bytes) -> None:
        """Into the digest."""
        self.digest = crc32(data + b"%.6f" % self.now, self.digest)


class SimulatedLog:
    """What a majority of the peers has."""

    def __init__(self, world: World, audit: Any) -> None:
        self.world = world
        self.audit = audit
        self.entries: list[bytes] = []  # index 1 is the first
        self.decoded: list[LogEntry] = []
        self.made_at: dict[bytes, float] = {}  # when they were first handed to a client of the log
        self.first = 1  # what is before was trimmed
        self.base = 0  # in the marker
        self.has_leader = True
        self.is_full = False
        self.forgets_ids = False
        self.processes: list[Any] = []
        self._ids: dict[tuple[str, int], int] = {}
        self._held: list[tuple[tuple[str, int], bytes]] = []

    def append(self, request_id: tuple[str, int], data: bytes) -> int | None:
        """The index; None if there is no leader, or no room: what the leader has then may be committed later."""
        if not self.has_leader:
            return None
        if self.is_full:
            if self.world.random.random() < 0.5:
                self._held.append((request_id, data))
            return None
        index = self._ids.get(request_id)
        if index is None or (self.forgets_ids and self.world.random.random() < 0.3):
            entry = decode(data)
            self.entries.append(data)
            self.decoded.append(entry)
            index = self._ids[request_id] = len(self.entries)
            self.world.note(data)
            self.audit.appended(index, entry)
            for process in self.processes:
                process.link.notify()
        return index

    def trim(self, base: int, index: int) -> None:
        """A marker that names the base replaces what is up to here. Readers that are not there yet start over."""
        self.base, self.first = base, index + 1

    def lose_leader(self, seconds: float) -> None:
        """For a while."""
        self.has_leader = False
        self.world.after(seconds, self._elect)

    def _elect(self) -> None:
        self.has_leader = True

    def fill_up(self, seconds: float) -> None:
        """The disks of too many peers are full. What the leader has meanwhile is committed when there is room."""
        self.is_full = True
        self.world.after(seconds, self.make_room)

    def make_room(self) -> None:
        """Now."""
        self.is_full = False
        held, self._held = self._held, []
        for request_id, data in held:
            self.append(request_id, data)


@attrs.define(eq=False)
class LogClient:
    """A server's link to the log. What it appends may be doubled and turned around; what it reads is in order."""

    world: World
    log: SimulatedLog
    process: LogUser
    longest_delay: float = 0.003
    #: In addition: what the peers' disks take, the same each time.
    sync_s: float = 0.0
    loss: float = 0.0
    doubles: float = 0.0
    is_append_cut: bool = False
    is_tail_cut: bool = False
    tail_delay: float = 0.002
    #: How many broadcasts are lost.
    deafness: float = 0.0
    #: The next batches take this much longer.
    holds_batches_s: float = 0.0
    _requests: count[int] = attrs.field(factory=count)
    #: The last index that has arrived.
    visible: int = 0
    _arrival: float = 0.0

    def append(self, life: int, ticket: int, data: bytes) -> None:
        """Until it is in the log, or given up."""
        request_id = (self.process.name, next(self._requests))
        self.log.made_at.setdefault(data, self.world.now)
        if self.holds_batches_s and isinstance(decode(data).body, BatchPiece):
            self.world.after(self.holds_batches_s, self._try, life, ticket, data, request_id, [], _TRIES)
            return
        self._try(life, ticket, data, request_id, [], _TRIES)

    def _try(
        self, life: int, ticket: int, data: bytes, request_id: tuple[str, int], answers: list[int], tries: int
    ) -> None:
        if answers or life != self.process.lives or not self.process.is_alive:
            return
        if not tries:
            self.process.run(self.process.append_failed, life, ticket)
            return
        random = self.world.random
        for _ in range(2 if random.random() < self.doubles else 1):
            if not self.is_append_cut and random.random() >= self.loss:
                delay = 0.0005 + self.sync_s + random.random() * self.longest_delay
                self.world.after(delay, self._arrive, life, ticket, data, request_id, answers)
        self.world.after(_RETRY_S, self._try, life, ticket, data, request_id, answers, tries - 1)

    def _arrive(self, life: int, ticket: int, data: bytes, request_id: tuple[str, int], answers: list[int]) -> None:
        index = self.log.append(request_id, data)
        if index is not None and not self.is_append_cut and self.world.random.random() >= self.loss:
            answers.append(index)
            delay = 0.0005 + self.world.random.random() * self.longest_delay
            self.world.after(delay, self._answered, life, ticket, index, data)

    def _answered(self, life: int, ticket: int, index: int, data: bytes) -> None:
        self.process.run(self.process.append_answered, life, ticket, index, data)

    def notify(self) -> None:
        """There is something to read. It arrives after what came before."""
        delay = 0.0005 + self.world.random.random() * self.tail_delay
        if self.deafness and self.world.random.random() < self.deafness:
            self.world.after(_SILENCE_S + delay, self._arrive_at_reader, len(self.log.entries))
            return
        self._arrival = max(self._arrival, self.world.now + delay)
        self.world.after(self._arrival - self.world.now, self._arrive_at_reader, len(self.log.entries))

    def _arrive_at_reader(self, index: int) -> None:
        if not self.is_tail_cut:
            self.visible = max(self.visible, index)
            self.process.run(self.process.read)
