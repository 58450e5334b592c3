"""A data directory whose server is not running, for people: which sessions and retained messages are in it.

Nothing of it comes to life: no will goes out, nothing expires. What is removed here is removed with all that belongs to
it, in one transaction.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore_client.server.broker.limits import NEVER_EXPIRES
from statestore_client.server.broker.records import DeliveryRecord, GrantRecord, MessageRecord, SessionRecord
from statestore_client.server.broker.retained import sort_key
from statestore_client.server.broker.topic_tree import FilterTree
from statestore_client.server.journal import Changes, Stream, Timeline, TimeRecord, WriteBatch, load
from statestore_client.server.runtime.storage.directory import refusals
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
from statestore_client.wire.administration import RetainedInfo, SessionInfo

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from statestore_client.server.journal import Subject

__all__ = ["DataDirectory"]


class DataDirectory:
    """Opens and locks the directory for the time of a ``with``. Raises DataInUseError while a server has it."""

    is_running = False

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path = Path(directory)
        self.where: str = f"in {directory}"
        self._storage = DiskStorage(directory, create=False)
        try:
            with refusals(self._path):
                # Deadlines become moments that can be shown: as the server would have kept them had it gone on.
                self._timeline = Timeline.shown(self._storage)
                last = TimeRecord.last(self._storage)
            self._stopped_at = None if last is None else last.wall_ms / 1000
        except BaseException:
            self._storage.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._storage.close()

    def sessions(self) -> list[SessionInfo]:
        """In the order of their client identifiers."""
        grants: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for subject, fields in self._load(Stream.SUBSCRIPTIONS):
            number, _, topic_filter = subject.partition(" ")
            grants[int(number)].append((topic_filter, GrantRecord.read(fields).grant.qos))
        deliveries = [DeliveryRecord.read(fields, self._timeline) for _, fields in self._load(Stream.DELIVERIES)]
        queued = Counter(record.session for record in deliveries if not record.packet_id)
        in_flight = Counter(record.session for record in deliveries if record.packet_id)
        in_flight.update(session for _, (session, _) in self._load(Stream.RELEASES))
        unreleased = Counter(subject >> 16 for subject, _ in self._load(Stream.INBOUND))
        found = []
        for client_id, fields in self._load(Stream.SESSIONS):
            record = SessionRecord.read(fields, self._timeline)
            number = record.number
            counts = (queued[number], in_flight[number], unreleased[number])
            found.append(_session(client_id, record, self._stopped_at, tuple(sorted(grants[number])), counts))
        return sorted(found, key=lambda session: session.client_id)

    def session(self, client_id: str) -> SessionInfo | None:
        """One of them."""
        return next((session for session in self.sessions() if session.client_id == client_id), None)

    def prune_sessions(self, away_s: float | None) -> list[str]:
        """Remove those that are over, or whose clients have been away for this long; which."""
        now = time.time()
        found = [session.client_id for session in self.sessions() if session.is_dispensable(now, away_s)]
        self.remove_sessions(found)
        return found

    def remove_sessions(self, client_ids: Iterable[str], *, force: bool = False) -> tuple[list[str], list[str]]:
        """Remove those that are there, with all that they hold; which were not, and which are connected: none. Their
        wills are not sent.
        """
        del force
        wanted = dict.fromkeys(client_ids)
        numbers = {
            SessionRecord.read(fields, self._timeline).number: client_id
            for client_id, fields in self._load(Stream.SESSIONS)
            if client_id in wanted
        }
        removals: dict[Stream, list[Subject]] = {Stream.SESSIONS: list(numbers.values())}
        for stream in (Stream.SUBSCRIPTIONS, Stream.WALKS):
            removals[stream] = [s for s, _ in self._load(stream) if int(s.partition(" ")[0]) in numbers]
        removals[Stream.INBOUND] = [s for s, _ in self._load(Stream.INBOUND) if s >> 16 in numbers]
        for stream in (Stream.DELIVERIES, Stream.RELEASES):
            removals[stream] = [s for s, fields in self._load(stream) if fields[0] in numbers]
        removals[Stream.MESSAGES] = self._messages_of(set(removals[Stream.DELIVERIES]))
        self._remove(removals)
        there = set(numbers.values())
        return [client_id for client_id in wanted if client_id not in there], []

    def _messages_of(self, deliveries: set[Subject]) -> list[Subject]:
        """The messages that nobody else is to get."""
        own: set[Subject] = set()
        others: set[Subject] = {fields[0] for _, fields in self._load(Stream.COPIES)}
        for number, fields in self._load(Stream.DELIVERIES):
            message = DeliveryRecord.read(fields, self._timeline).message
            if isinstance(message, int):  # otherwise it is inside the delivery
                (own if number in deliveries else others).add(message)
        return list(own - others)

    def retained(self, topic_filter: str | None, *, payloads: bool = False) -> list[RetainedInfo]:
        """Those that the filter matches, None for all, in the order in which a server has them."""
        del payloads  # they are read anyway
        tree: FilterTree[bool] = FilterTree()
        if topic_filter is not None:
            tree.insert(topic_filter, True)
        read = (MessageRecord.read(fields, self._timeline).message for _, fields in self._load(Stream.RETAINED))
        messages = [message for message in read if topic_filter is None or tree.match(message.topic)]
        return [
            RetainedInfo(each.topic, each.qos, each.publisher, each.expires_at, len(each.payload), each.payload)
            for each in sorted(messages, key=lambda message: sort_key(message.topic))
        ]

    def remove_retained(self, topics: Iterable[str]) -> int:
        """Remove those that are there; how many there were."""
        wanted = set(topics)
        found: list[Subject] = [topic for topic, _ in self._load(Stream.RETAINED) if topic in wanted]
        self._remove({Stream.RETAINED: found})
        return len(found)

    def _load(self, stream: Stream) -> list[tuple[Any, Any]]:
        with refusals(self._path):
            return list(load(self._storage, stream))

    def _remove(self, removals: dict[Stream, list[Subject]]) -> None:
        changes = tuple(Changes(stream, (), tuple(subjects)) for stream, subjects in removals.items() if subjects)
        if changes:
            self._storage.write(WriteBatch(changes))


def _session(
    client_id: str,
    record: SessionRecord,
    stopped_at: float | None,
    subscriptions: tuple[tuple[str, int], ...],
    counts: tuple[int, int, int],
) -> SessionInfo:
    queued, in_flight, unreleased = counts
    return SessionInfo(
        client_id,
        record.user,
        None if record.expiry_s == NEVER_EXPIRES else record.expiry_s,
        record.left_at is None,
        stopped_at if record.left_at is None else record.left_at,
        None if record.will is None else record.will.topic,
        subscriptions,
        queued,
        in_flight,
        unreleased,
    )
