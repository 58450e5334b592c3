"""The state store after a crash: keys, versions, fencing tokens, what is left of expiries, and answers given before."""

from __future__ import annotations

import threading

import pytest
from durable_driver import MemoryStorage

from statestore_client.errors import FencingTokenTooOldError
from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.broker import Route
from statestore_client.server.journal import Batch, Changes, DamagedRecordError, Journal, Stream, Subject, seal
from statestore_client.server.runtime.service import StateStoreService
from statestore_client.server.store import Outcome, Request, StateStore
from statestore_client.wire.commands import Command, Condition, Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.replies import MISSING, OK, Found, Refused
from statestore_client.wire.topics import COMMAND_TOPIC

_WALL_MS = 1_700_000_000_000


class _Life:
    """A store with its service, and a clock whose monotonic origin differs from life to life."""

    def __init__(self, storage: MemoryStorage, *, wall_ms: int = _WALL_MS, origin: float = 50.0) -> None:
        self.storage, self.journal = storage, Journal()
        self.wall_ms, self._origin = wall_ms, origin - wall_ms / 1000
        clock = HybridLogicalClock("StateStore", guard=threading.Lock())
        self.store = StateStore(clock=clock, journal=self.journal)
        self.service = StateStoreService(self.store, journal=self.journal)
        self.service.restore(storage, self.now)

    @property
    def now(self) -> Instant:
        return Instant(self._origin + self.wall_ms / 1000, self.wall_ms)

    def apply(self, command: Command, token: HlcTimestamp | None = None) -> Outcome:
        stamp = HlcTimestamp(self.wall_ms, 0, "client")
        outcome = self.store.apply(command, Request("client", stamp, token, self.now))
        self.commit()
        return outcome

    def ask(self, command: Command, correlation: bytes, timestamp: str) -> Publish:
        """A request as a client sends it; the response."""
        properties = PublishProperties(
            response_topic="clients/client/r", correlation_data=correlation, user_properties=(("__ts", timestamp),)
        )
        request = Publish(COMMAND_TOPIC, command.encode(), 1, packet_id=1, properties=properties)
        (effect,) = self.service.handle("client", request, self.now)
        self.commit()
        assert isinstance(effect, Route)
        return effect.message

    def commit(self) -> None:
        if self.journal:
            self.storage.append(self.journal.cut(self.now), lambda _error: None)

    def next(self, after_s: float = 0.0) -> _Life:
        """Killed, and started again after a while (before, if the wall clock was set back)."""
        return _Life(self.storage, wall_ms=self.wall_ms + round(after_s * 1000), origin=3.0)


@pytest.fixture
def life() -> _Life:
    return _Life(MemoryStorage())


def test_keys_and_versions_survive(life: _Life) -> None:
    """Replaced values and deletions, too."""
    life.apply(Set(b"a", b"old"))
    version = life.apply(Set(b"a", b"\0new")).version
    life.apply(Set(b"b", b"b"))
    life.apply(Del(b"b"))
    life = life.next()
    found = life.apply(Get(b"a"))
    assert (found.reply, found.version) == (Found(b"\0new"), version)
    assert life.apply(Get(b"b")).reply is MISSING
    assert life.storage.count() == {"keys": 1, "clock": 1}


def test_fences_survive(life: _Life) -> None:
    """An older token is refused after the restart as before."""
    new, old = HlcTimestamp(_WALL_MS, 7, "b"), HlcTimestamp(_WALL_MS, 6, "a")
    life.apply(Set(b"k", b"1"), new)
    life = life.next()
    refused = life.apply(Set(b"k", b"2"), old).reply
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, FencingTokenTooOldError)
    assert life.apply(Set(b"k", b"3"), new).reply is OK


def test_expiry_goes_on(life: _Life) -> None:
    """What is left of it is back; a key whose time came while the server was away is gone before anybody sees it."""
    life.apply(Set(b"short", b"", expiry_ms=10_000))
    life.apply(Set(b"long", b"", expiry_ms=60_000))
    life = life.next(after_s=40)
    assert life.apply(Get(b"short")).reply is MISSING
    deadline = life.store.next_deadline()
    assert deadline == pytest.approx(life.now.monotonic + 20)
    life.wall_ms += 20_000
    life.store.tick(life.now)
    life.commit()
    assert life.storage.count() == {"clock": 1}


def test_versions_never_go_back(life: _Life) -> None:
    """Not even when the wall clock does, and not behind that of a deletion."""
    life.apply(Set(b"k", b""))
    deleted = life.apply(Del(b"k")).version
    life = life.next(after_s=-30)
    written = life.apply(Set(b"k", b"")).version
    assert deleted is not None
    assert written is not None
    assert written > deleted


def test_a_request_that_comes_again_after_the_restart(life: _Life) -> None:
    """It gets the answer that was given, and is not carried out twice; another one is."""
    command, stamp = Set(b"lock", b"me", Condition.NX), f"{_WALL_MS}:0:client"
    first = life.ask(command, b"c1", stamp)
    life = life.next(after_s=100)
    again = life.ask(command, b"c1", stamp)
    assert (first.payload, again.payload) == (b"+OK\r\n", b"+OK\r\n")
    assert again.properties.user_properties == first.properties.user_properties
    assert life.ask(Set(b"lock", b"you", Condition.NX), b"c1", stamp).payload == b":-1\r\n"
    life = life.next(after_s=400)
    assert life.ask(command, b"c1", stamp).payload == b":-1\r\n"


@pytest.mark.parametrize(
    ("stream", "subject", "fields"),
    [
        (Stream.KEYS, b"k", (b"v",)),
        (Stream.KEYS, b"k", (b"v", (1, 2), None, None)),
        (Stream.CLOCK, b"", (1,)),
        (Stream.RESPONSES, b"\xc1", (1, b"", None, 1)),
        (Stream.RESPONSES, b"\x92\xa1c\xc4\x01d", (1, b"")),
    ],
)
def test_damaged_records(life: _Life, stream: Stream, subject: Subject, fields: tuple[object, ...]) -> None:
    """Are one kind of error."""
    life.storage.append(Batch((Changes(stream, ((subject, seal(fields)),), ()),)), lambda _error: None)
    with pytest.raises(DamagedRecordError):
        life.next()
