"""A small server's state: keys with times to live, remembered answers, wills, and the clock of versions, all in rows.

It is to the log what the broker and the store are: requests in, answers and changed rows out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TypeAlias
from unittest.mock import patch

import attrs
import msgpack

from statestore_client.server.cluster import fence
from statestore_client.server.journal import Changes, Stream, WriteBatch

Rows: TypeAlias = dict[tuple[Stream, str], bytes]
_CLOCK = (Stream.CLOCK, "versions")
#: Formats of records that a release of the server knows: a new one, one more than that before, with which a log begins.
NEWEST = 2


def know(newest: int) -> None:
    """The program that runs now knows formats of records up to this one. Within :func:`releases`."""
    vars(fence)["FORMAT"] = newest


def releases() -> AbstractContextManager[int]:
    """While it is open, :func:`know` says which release runs. Afterwards it is the real one again."""
    return patch.object(fence, "FORMAT", NEWEST)


@attrs.frozen
class Request:
    """``id`` is the same when it is repeated. ``ttl_ms``: of a set."""

    id: str
    client: str
    verb: str
    key: str = ""
    value: bytes = b""
    ttl_ms: int | None = None


@attrs.frozen
class Answer:
    """``version`` is that of the write, or of what was read; 0 for a key that is not there."""

    request_id: str
    version: int


@lru_cache(4096)
def _deadline(packed: bytes) -> int | None:
    """Of the row of a key."""
    deadline: int | None = msgpack.unpackb(packed)[2]
    return deadline


def applied(rows: Rows, batch: WriteBatch) -> None:
    """Make the rows so."""
    for changes in batch.changes:
        for subject, data in changes.puts:
            rows[changes.stream, subject] = data  # type: ignore[index]
        for subject in changes.removals:
            rows.pop((changes.stream, subject), None)  # type: ignore[arg-type]


@attrs.define(eq=False)
class Machine:
    """``changed`` are the rows since the last cut; None for removed ones."""

    rows: Rows = attrs.field(factory=dict)
    changed: dict[tuple[Stream, str], bytes | None] = attrs.field(factory=dict)
    _first_end: float | None = None  # of all deadlines; None if that is not known

    def put(self, stream: Stream, subject: str, fields: object) -> None:
        """One row."""
        packed: bytes = msgpack.packb(fields)
        self._first_end = None
        self.rows[stream, subject] = self.changed[stream, subject] = packed

    def remove(self, stream: Stream, subject: str) -> None:
        """One row."""
        self._first_end = None
        self.rows.pop((stream, subject), None)
        self.changed[stream, subject] = None

    def get(self, stream: Stream, subject: str) -> list[object] | None:
        """Its fields."""
        packed = self.rows.get((stream, subject))
        return None if packed is None else msgpack.unpackb(packed)

    def next_version(self, wall_ms: int) -> int:
        """Greater than all before, whatever the wall clock says."""
        packed = self.rows.get(_CLOCK)
        version = max(wall_ms, msgpack.unpackb(packed)[0] + 1 if packed else 0)
        self.put(*_CLOCK, [version])
        return version

    def execute(self, request: Request, log_ms: float, wall_ms: int) -> Answer:
        """A write is done once, however often it is asked for."""
        if request.verb == "get":
            fields = self.get(Stream.KEYS, request.key)
            return Answer(request.id, 0 if fields is None else int(fields[1]))  # type: ignore[call-overload]
        remembered = self.get(Stream.RESPONSES, request.client)
        if remembered is not None and remembered[0] == request.id:
            return Answer(request.id, int(remembered[1]))  # type: ignore[call-overload]
        version = self.next_version(wall_ms)
        if request.verb == "set":
            deadline = None if request.ttl_ms is None else int(log_ms + request.ttl_ms) + 1
            self.put(Stream.KEYS, request.key, [request.value, version, deadline])
        else:
            self.remove(Stream.KEYS, request.key)
        self.put(Stream.RESPONSES, request.client, [request.id, version])
        return Answer(request.id, version)

    def expire(self, log_ms: float, wall_ms: int) -> None:
        """Remove what is over. A removal has a version, too."""
        if log_ms < self.first_end():
            return
        for key in [key for key, deadline in self.deadlines() if deadline <= log_ms]:
            self.remove(Stream.KEYS, key)
            self.next_version(wall_ms)

    def first_end(self) -> float:
        """The earliest of all deadlines, in log time."""
        if self._first_end is None:
            self._first_end = min((float(deadline) for _, deadline in self.deadlines()), default=float("inf"))
        return self._first_end

    def deadlines(self) -> Iterator[tuple[str, int]]:
        """In log time."""
        for (stream, key), packed in self.rows.items():
            if stream is Stream.KEYS:
                deadline = _deadline(packed)
                if deadline is not None:
                    yield key, deadline

    def cut(self) -> WriteBatch:
        """What changed."""
        streams: dict[Stream, tuple[list[tuple[str, bytes]], list[str]]] = {}
        for (stream, subject), packed in self.changed.items():
            puts, removals = streams.setdefault(stream, ([], []))
            if packed is None:
                removals.append(subject)
            else:
                puts.append((subject, packed))
        self.changed.clear()
        return WriteBatch(tuple(Changes(each, tuple(p), tuple(r)) for each, (p, r) in streams.items()))

    def some_rows(self, subjects: list[tuple[Stream, str]]) -> WriteBatch:
        """For a snapshot. What is not there any more is left out."""
        found = [subject for subject in subjects if subject in self.rows]
        return WriteBatch(tuple(Changes(each[0], ((each[1], self.rows[each]),), ()) for each in found))
