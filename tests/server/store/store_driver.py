"""Drives a state store with a clock that the test moves."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from statestore_client.errors import ServerError
from statestore_client.server.journal import Journal
from statestore_client.server.store import Change, Outcome, RequestContext, StateStore, StoreLimits
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Scan, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.replies import ErrorReply

WALL = 1_696_374_425_000  # October 3, 11:07:05PM GMT, the document's example

NX, NEX = Condition.NX, Condition.NEX


class Driver:
    """A store, a moment, and the commands as methods. Requests carry the present time unless told otherwise."""

    def __init__(
        self, *, limits: StoreLimits | None = None, dialect: Dialect = Dialect.SERVICE, journal: Journal | None = None
    ) -> None:
        self.clock = HybridLogicalClock("StateStore", guard=nullcontext())
        self.store = StateStore(clock=self.clock, limits=limits or StoreLimits(), dialect=dialect, journal=journal)
        self.monotonic = 100.0
        self.wall_ms = WALL

    @property
    def now(self) -> Instant:
        return Instant(self.monotonic, self.wall_ms)

    def advance(self, seconds: float) -> None:
        """Let time pass; nothing ticks by itself."""
        self.monotonic += seconds
        self.wall_ms += int(seconds * 1000)

    def stamp(self, offset_ms: int = 0, counter: int = 0, node_id: str = "CLIENT") -> HlcTimestamp:
        return HlcTimestamp(self.wall_ms + offset_ms, counter, node_id)

    def apply(
        self,
        command: Command,
        *,
        client: str = "alice",
        ts: HlcTimestamp | None = None,
        ft: HlcTimestamp | None = None,
        user: str | None = None,
    ) -> Outcome:
        return self.store.apply(command, RequestContext(client, ts, ft, self.now, user))

    def set(self, key: bytes, value: bytes, condition: Condition | None = None, **options: Any) -> Outcome:
        expiry_ms, expected = options.pop("expiry_ms", None), options.pop("expected", None)
        options.setdefault("ts", self.stamp())
        return self.apply(Set(key, value, condition, expiry_ms, expected), **options)

    def get(self, key: bytes, **options: Any) -> Outcome:
        return self.apply(Get(key), **options)

    def delete(self, key: bytes, **options: Any) -> Outcome:
        return self.apply(Del(key), **options)

    def vdel(self, key: bytes, value: bytes, **options: Any) -> Outcome:
        return self.apply(VDel(key, value), **options)

    def notify(self, key: bytes, **options: Any) -> Outcome:
        return self.apply(KeyNotify(key, stop=options.pop("stop", False)), **options)

    def scan(self, pattern: bytes, token: bytes | None = None) -> Outcome:
        return self.apply(Scan(pattern, token))

    def tick(self) -> tuple[Change, ...]:
        return self.store.tick(self.now)

    def state(self) -> tuple[object, ...]:
        """Everything that a refused command must leave as it was."""
        keyspace, observers = self.store._keyspace, self.store._observers
        entries = {
            key: (entry.value, entry.version, entry.fence, entry.expires_at, entry.user)
            for key, entry in keyspace._entries.items()
        }
        observed = {key: tuple(clients) for key, clients in observers.by_key.items()}
        index = tuple(keyspace.keys_from(b"", inclusive=True))
        return entries, observed, index, self.store.usage, self.store.next_deadline(), self.clock.last


def refusal(outcome: Outcome) -> type[ServerError]:
    """The class of the error that a command was refused with."""
    assert isinstance(outcome.reply, ErrorReply), outcome
    assert outcome.version is None
    return type(outcome.reply.error)
