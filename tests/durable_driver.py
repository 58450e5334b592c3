"""A broker with a journal, a disk that is a dictionary, and crashes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from broker_driver import Client, World

from statestore_client.mqtt.packets import Connack, Connect, ConnectProperties, Packet, Publish
from statestore_client.server.broker import Application, Broker, BrokerLimits, Gatekeeper
from statestore_client.server.broker.persistence.output_commit import OutputCommitConnection
from statestore_client.server.journal import TIME, Done, Journal, StreamTables, WriteBatch

DAY = 86_400

#: Names the monotonic clock of a machine that is not restarted.
BOOT = 1


class MemoryStorage(StreamTables):
    """Implements StreamStorage."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[WriteBatch] = []

    def append(self, batch: WriteBatch, done: Done) -> None:
        self.batches.append(batch)
        self.absorb(batch)
        done(None)

    def close(self) -> None:
        pass

    def copy(self) -> MemoryStorage:
        """The disk as it is now."""
        other = MemoryStorage()
        other.streams = {stream: dict(records) for stream, records in self.streams.items()}
        return other

    def count(self) -> dict[str, int]:
        """Records by stream, the empty streams left out, and the time, which every batch has."""
        counts = {stream.value: len(records.keys() - {TIME}) for stream, records in self.streams.items()}
        return {name: count for name, count in counts.items() if count}


def _ignore(error: Exception | None) -> None:
    assert error is None


class DurableWorld(World):
    """A world whose broker writes into a journal. :meth:`commit` lets the disk do its work, which :meth:`work` calls
    for: so whatever a client receives was committed before.
    """

    def __init__(
        self, *, application: Application | None = None, gatekeeper: Gatekeeper | None = None, **limits: Any
    ) -> None:
        super().__init__(application=application, gatekeeper=gatekeeper, **limits)
        self.storage = MemoryStorage()
        self.limits = limits  # of the next life
        self._make = lambda journal: Broker(
            random=random.Random(7),
            application=application,
            limits=BrokerLimits(**{"keep_alive_s": 0, **self.limits}),
            gatekeeper=gatekeeper,
            journal=journal,
        )
        self.journal = Journal(BOOT)
        self.broker = self._make(self.journal)

    def work(self) -> None:
        super().work()
        self.commit()

    def back(self, client_id: str, **connect: Any) -> tuple[Client, list[Packet]]:
        """A client that resumes its session, and what came behind its CONNACK."""
        client = Client(self)
        wanted = ConnectProperties(session_expiry=connect.pop("session_expiry", DAY), **connect)
        client.send(Connect(client_id, clean_start=False, properties=wanted))
        connack, *packets = client.received()
        assert isinstance(connack, Connack)
        client.connack = connack
        return client, packets

    def commit(self) -> None:
        """What was said so far is written, and then sent."""
        connections = self._staged()
        for connection in connections:
            connection.seal()
        if self.journal:
            self.storage.append(self.journal.cut(self.now), _ignore)
        for connection in connections:
            connection.release()

    def _staged(self) -> list[OutputCommitConnection]:
        return [c for c in dict.fromkeys(self.broker.take_dirty()) if isinstance(c, OutputCommitConnection)]

    def crash(self, away_s: float = 0.0, *, boot: int = BOOT) -> None:
        """Everything that was not committed is gone; another process takes over after a while. With another ``boot``
        the machine was restarted, and nobody knows how long that took.
        """
        self.monotonic += away_s
        self.journal = Journal(boot)
        self.journal.resume(self.storage, self.now)
        self.broker = self._make(self.journal)
        self.broker.restore(self.storage, self.now)


def messages_in(packets: Sequence[Packet]) -> list[Publish]:
    """The messages among what a client received."""
    return [packet for packet in packets if isinstance(packet, Publish)]


def texts_in(packets: Sequence[Packet]) -> list[bytes]:
    """Their payloads."""
    return [packet.payload for packet in messages_in(packets)]
