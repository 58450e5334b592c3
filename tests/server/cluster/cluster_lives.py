"""Lives of servers on one log that takes what it is given, when the test says so."""

from __future__ import annotations

from typing import TypeVar

from statestore_client.server.cluster.entries import Life, LogEntry, decode
from statestore_client.server.cluster.interface import Append, ClusterSettings
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.journal import Changes, Stream, WriteBatch
from statestore_client.wire.instant import Instant

_Event = TypeVar("_Event")


def puts(**records: bytes) -> WriteBatch:
    """A batch of keys."""
    return WriteBatch((Changes(Stream.KEYS, tuple((key.encode(), data) for key, data in records.items()), ()),))


class ReplicatedServer:
    """All have one clock. ``log`` holds what was appended; entries are told at once, unless a test holds them back."""

    def __init__(self, *ids: str, now: float = 1000.0) -> None:
        self.now = now
        self.wall_ms = 1_700_000_000_000
        self.log: list[bytes] = []
        self.lives: dict[str, ClusterMember] = {}
        for number, server_id in enumerate(ids, start=1):
            self.begin(server_id, number)

    def __getitem__(self, server_id: str) -> ClusterMember:
        return self.lives[server_id]

    @property
    def instant(self) -> Instant:
        return Instant(self.now, self.wall_ms)

    def begin(
        self, server_id: str, incarnation: int, base: tuple[int, LogEntry] | None = None, **settings: float
    ) -> None:
        """A new life, which reads the log."""
        life = Life(server_id, incarnation)
        member = ClusterMember(ClusterSettings(life, f"tcp://{server_id}", **settings), self.instant, base)
        self.lives[server_id] = member
        for index, data in enumerate(self.log, start=1):
            member.receive(index, data, self.instant)
        member.catch_up()

    def take(self, server_id: str) -> list[Append]:
        """What it wants to append."""
        output = self[server_id].output
        taken = list(output)
        output.clear()
        return taken

    def sent(self, server_id: str) -> list[LogEntry]:
        """The same, read and thrown away."""
        return [decode(append.data) for append in self.take(server_id)]

    def put(self, *appends: Append) -> None:
        """Into the log; each life hears of it."""
        for append in appends:
            self.log.append(append.data)
            for member in self.lives.values():
                member.receive(len(self.log), append.data, self.instant)

    def settle(self) -> None:
        """Append all that anyone wants, until there is no more."""
        while any(member.output for member in self.lives.values()):
            for server_id in self.lives:
                self.put(*self.take(server_id))

    def go_on(self, seconds: float) -> None:
        """Time passes, in steps of a hundredth of a second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.01, end)
            for member in self.lives.values():
                member.tick(self.instant)
            self.settle()

    def found(self, server_id: str) -> ClusterMember:
        """It becomes the first owner."""
        self[server_id].tick(self.instant)
        self.settle()
        return self[server_id]

    def events(self, server_id: str, kind: type[_Event]) -> list[_Event]:
        """Those of one kind; all are forgotten."""
        events = self[server_id].events
        found = [event for event in events if isinstance(event, kind)]
        events.clear()
        return found
