"""A store with its service, a journal, a disk that is a dictionary, and the lives of a server."""

from __future__ import annotations

import secrets
import threading

from support.durable_broker import BOOT, MemoryStorage

from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.bridge import RESERVED_BYTES
from statestore_client.server.broker import Route
from statestore_client.server.journal import Journal
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import KEEP_ALL, Outcome, Persistence, RequestContext, SiteStore, StateStore
from statestore_client.wire.commands import Command, Get
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC
from statestore_client.wire.replies import ErrorReply, Found, Reply

__all__ = ["ASKED", "WALL_MS", "Life", "living", "refusal", "value"]

WALL_MS = 1_700_000_000_000
ASKED = Persistence.of("asked")


class Life:
    """A store with its service, on a machine with a monotonic clock and a wall clock."""

    def __init__(
        self,
        storage: MemoryStorage,
        *,
        wall_ms: int = WALL_MS,
        monotonic: float = 50.0,
        boot: int | None = BOOT,
        persistence: Persistence = KEEP_ALL,
        is_site: bool = False,
    ) -> None:
        self.storage, self.journal, self.persistence = storage, Journal(boot), persistence
        self.wall_ms, self.monotonic, self.boot = wall_ms, monotonic, boot
        clock = HybridLogicalClock("StateStore", guard=threading.Lock())
        kind = SiteStore if is_site else StateStore
        self.store = kind(clock=clock, journal=self.journal, persistence=persistence)
        self.service = StateStoreService(
            self.store,
            token_key=secrets.token_bytes(TOKEN_KEY_BYTES),
            journal=self.journal,
            keeps_all=persistence.keeps_all,
            read_only=RESERVED_BYTES if is_site else None,
        )
        self.journal.resume(storage, self.now)
        self.service.restore(storage, self.journal.timeline)

    @property
    def now(self) -> Instant:
        return Instant(self.monotonic, self.wall_ms)

    def advance(self, seconds: float) -> None:
        """Time passes on both clocks."""
        self.monotonic += seconds
        self.wall_ms += round(seconds * 1000)

    def apply(self, command: Command, token: HlcTimestamp | None = None, user: str | None = None) -> Outcome:
        """One whose answer was sent."""
        outcome = self.begin(command, token, user)
        self.commit()
        return outcome

    def begin(self, command: Command, token: HlcTimestamp | None = None, user: str | None = None) -> Outcome:
        """One whose answer is not sent before what it needs is on the disk, which may never be."""
        stamp = HlcTimestamp(self.wall_ms, 0, "client")
        return self.store.apply(command, RequestContext("client", stamp, token, self.now, user))

    def ask(self, command: Command, correlation: bytes, timestamp: str, *more: tuple[str, str]) -> Publish:
        """A request as a client sends it; the response."""
        message = self.send(command, correlation, timestamp, *more).message
        self.commit()
        return message

    def send(self, command: Command, correlation: bytes, timestamp: str, *more: tuple[str, str]) -> Route:
        """The same before the disk has done anything."""
        properties = PublishProperties(
            response_topic="clients/client/r",
            correlation_data=correlation,
            user_properties=(("__ts", timestamp), *more),
        )
        request = Publish(COMMAND_TOPIC, command.encode(), 1, packet_id=1, properties=properties)
        (effect,) = self.service.handle("client", request, self.now)
        assert isinstance(effect, Route)
        return effect

    def commit(self) -> None:
        if self.journal:
            self.storage.append(self.journal.cut(self.now), lambda _error: None)

    def next(self, after_s: float = 0.0, *, step_s: float = 0.0, persistence: Persistence | None = None) -> Life:
        """Killed, and started again after a while, in which the wall clock was set by ``step_s``."""
        return Life(
            self.storage,
            wall_ms=self.wall_ms + round((after_s + step_s) * 1000),
            monotonic=self.monotonic + after_s,
            boot=self.boot,
            persistence=persistence or self.persistence,
        )

    def reboot(self, after_s: float = 0.0, *, step_s: float = 0.0, boot: int | None = BOOT + 1) -> Life:
        """The machine was restarted: its monotonic clock began anew."""
        wall_ms = self.wall_ms + round((after_s + step_s) * 1000)
        return Life(self.storage, wall_ms=wall_ms, monotonic=3.0, boot=boot, persistence=self.persistence)


def living(persistence: Persistence = ASKED) -> Life:
    return Life(MemoryStorage(), persistence=persistence)


def value(life: Life, key: bytes) -> bytes | None:
    reply = life.apply(Get(key)).reply
    return reply.value if isinstance(reply, Found) else None


def refusal(reply: Reply) -> type[Exception] | None:
    return type(reply.error) if isinstance(reply, ErrorReply) else None
