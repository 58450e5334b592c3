"""A broker with the state store inside, a journal, a disk that is a dictionary, and crashes."""

from __future__ import annotations

import random
import threading
from typing import Any

from broker_driver import Client
from durable_driver import BOOT, DAY, DurableWorld

from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.broker import Broker, BrokerLimits
from statestore_client.server.journal import Journal
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import KEEP_ALL, Persistence, StateStore
from statestore_client.wire.commands import Command
from statestore_client.wire.dialect import Dialect
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.topics import COMMAND_TOPIC

__all__ = ["ServedWorld", "answers_of"]


class ServedWorld(DurableWorld):
    """A world whose broker answers requests. ``dialect`` and ``persistence`` are those of the next life, too."""

    def __init__(
        self,
        *,
        dialect: Dialect = Dialect.SERVICE,
        persistence: Persistence = KEEP_ALL,
        answers: ResponseCacheLimits | None = None,
        **limits: Any,
    ):
        super().__init__(**limits)
        self.dialect, self.persistence = dialect, persistence
        self.answers = answers or ResponseCacheLimits()
        self.correlations = 0
        self.start()

    def start(self) -> None:
        """Empty machines with a new journal."""
        self.journal = Journal(BOOT)
        self.service, self.broker = self.machines(self.journal)

    def machines(self, journal: Journal) -> tuple[StateStoreService, Broker]:
        """Empty ones."""
        clock = HybridLogicalClock("StateStore", guard=threading.Lock())
        keeps_all = self.persistence.keeps_all
        store = StateStore(clock=clock, dialect=self.dialect, journal=journal, persistence=self.persistence)
        service = StateStoreService(
            store, dialect=self.dialect, journal=journal, keeps_all=keeps_all, cache_limits=self.answers
        )
        limits = BrokerLimits(**{"keep_alive_s": 0, "flapping_hold_s": 0, **self.limits})
        return service, Broker(random=random.Random(7), application=service, limits=limits, journal=journal)

    def crash(self, away_s: float = 0.0, *, boot: int = BOOT) -> None:
        self.monotonic += away_s
        self.journal = Journal(boot)
        self.journal.resume(self.storage, self.now)
        self.service, self.broker = self.machines(self.journal)
        self.service.restore(self.storage, self.journal.timeline)
        self.broker.restore(self.storage, self.now)

    def member(self, client_id: str, *, expiry_s: int = DAY, **connect: Any) -> Client:
        """A client that listens for its answers."""
        client = self.client(client_id, session_expiry=expiry_s, **connect)
        client.subscribe(answers_of(client_id), qos=1)
        return client

    def request(
        self,
        client: Client,
        client_id: str,
        command: Command,
        *,
        correlation: bytes | None = None,
        token: str = "",
        stamp: HlcTimestamp | None = None,
    ) -> None:
        """Send one, under new correlation data unless it is given, and of now unless it is from earlier."""
        self.correlations += 1
        stamp = stamp or HlcTimestamp(self.now.wall_ms, 0, client_id)
        properties = PublishProperties(
            response_topic=answers_of(client_id),
            correlation_data=correlation or self.correlations.to_bytes(16),
            user_properties=(("__ts", str(stamp)), *([("__ft", token)] if token else [])),
        )
        payload = command.encode()
        client.send(Publish(COMMAND_TOPIC, payload, 1, packet_id=client.next_id(), properties=properties))


def answers_of(client_id: str) -> str:
    return f"clients/{client_id}/r"
