"""Responses that were given already, for requests that arrive twice.

QoS 1 means at least once: a client whose PUBACK got lost sends its request again after it reconnects, and executing a
SET NX or a VDEL a second time would give another answer than the first. Requests are recognised by client, correlation
data and a fingerprint of the rest (see :mod:`statestore_client.server.service.service`); another request with the same
correlation data is executed, and its response takes the place of the earlier one.

Each client has a share. Clients that were answered nothing for too long make room, and then who has the largest
share: otherwise one busy client would drive out what the others may still ask for. Shares are compared by the bit
length of their size, because then the largest is found at once. Invariant: while n clients have shares, none that uses
less than a 2n-th of what all use has to make room, unless its responses are outdated.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import attrs
from msgpack import packb, unpackb

from statestore_client.server.journal import DamagedRecordError, Stream, load, records_in
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.server.journal import Journal, Row, StoredRecords, Timeline, WriteBatch

#: Client id and correlation data.
_RequestId: TypeAlias = tuple[str, bytes]

#: Wall clock, counter and node of a version.
_Version: TypeAlias = tuple[int, int, str]

#: Fingerprint of the request, payload, version, and when it was stored (monotonic seconds). A tuple, because the
#: garbage collector does not look at tens of thousands of plain tuples again and again.
_Response: TypeAlias = tuple[int, bytes, _Version | None, float]


@attrs.frozen
class ResponseCacheLimits:
    """Older responses of whoever has most make room for newer ones. Zero entries switch the cache off."""

    max_entries: int = 65_536
    max_bytes: int = 33_554_432
    max_age_s: float = 300.0  # a client that stayed away longer has given its requests up


#: What a response costs beside its payload and correlation data, and a client that has any.
RESPONSE_OVERHEAD_BYTES: Final = 400
SHARE_OVERHEAD_BYTES: Final = 700

#: No share has 2**64 bytes.
_LEVELS: Final = 65

#: A tick forgets so many responses, which takes a millisecond or two; others wait meanwhile.
_DROPS_PER_TICK: Final = 1_000


class _Share:
    """The responses to one client, in the order in which they were stored."""

    __slots__ = ("client_id", "fresh_until", "level", "responses", "used_bytes")

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        # A plain dictionary that is emptied from its front searches for its first item through all that were removed.
        self.responses: OrderedDict[bytes, _Response] = OrderedDict()
        self.used_bytes = 0
        self.level = 0
        self.fresh_until = -inf  # up to then (monotonic seconds) none of its responses is outdated


class ResponseCache:
    """Bounded in entries, bytes and age.

    Invariant: ``_shares`` are in the order of their newest responses, and each has at least one. A share stands in
    ``_levels[share.level]``, where ``share.level`` is the bit length of its bytes; no level above ``_top`` has a share.
    Up to ``_fresh_until`` no share is outdated as a whole.
    """

    __slots__ = (
        "_count", "_fresh_until", "_is_disordered", "_levels", "_limits", "_newest", "_shares", "_stream", "_top",
        "_used_bytes",
    )  # fmt: skip

    def __init__(self, limits: ResponseCacheLimits, journal: Journal | None = None) -> None:
        self._stream = None if journal is None else journal[Stream.RESPONSES]
        self._limits = limits
        self._shares: OrderedDict[str, _Share] = OrderedDict()
        self._levels: list[OrderedDict[_Share, None]] = [OrderedDict() for _ in range(_LEVELS)]
        self._top = 0
        self._count = 0
        self._used_bytes = 0
        self._fresh_until = -inf
        self._newest = -inf  # when the newest was stored that came from a record
        self._is_disordered = False  # whether an older one came after it

    def __len__(self) -> int:
        return self._count

    def get(self, request: _RequestId, fingerprint: int, now: float) -> tuple[bytes, HlcTimestamp | None] | None:
        """Payload and version of the response to exactly this request."""
        share = self._shares.get(request[0])
        response = None if share is None else share.responses.get(request[1])
        if response is None or response[0] != fingerprint:
            return None
        _, payload, version, stored_at = response
        if now - stored_at > self._limits.max_age_s:
            return None
        return payload, None if version is None else HlcTimestamp(*version)

    def put(
        self,
        request: _RequestId,
        fingerprint: int,
        payload: bytes,
        version: HlcTimestamp | None,
        now: float,
        *,
        is_kept: bool = True,
    ) -> None:
        """Remember a response, in place of an earlier one to the same client and correlation data.

        Nobody waits for one that is not kept to be written. So it may be forgotten together with what was changed, but
        not without: it is on the disk before any later change is, which its request must not undo.
        """
        parts = None if version is None else (version.wall_ms, version.counter, version.node_id)
        share = self._add(request, (fingerprint, payload, parts, now))
        if self._stream is not None:
            record = ResponseRecord(fingerprint, payload, parts, now)
            write = self._stream.put if is_kept else self._stream.note
            write(_subject(request), record, len(payload))
        if now > share.fresh_until:
            self._trim(share, now)
        limits = self._limits
        while self._used_bytes > limits.max_bytes or self._count > limits.max_entries:
            if not self._drop_outdated(now):
                self._make_room()

    def _add(self, request: _RequestId, response: _Response) -> _Share:
        client_id, correlation_data = request
        share = self._shares.get(client_id)
        if share is None:
            share = self._new_share(client_id)
        else:
            self._shares.move_to_end(client_id)
        responses = share.responses
        if correlation_data in responses:
            cost = len(response[1]) - len(responses.pop(correlation_data)[1])
        else:
            cost = len(response[1]) + len(correlation_data) + RESPONSE_OVERHEAD_BYTES
            self._count += 1
        responses[correlation_data] = response
        share.used_bytes += cost
        self._used_bytes += cost
        if share.level != share.used_bytes.bit_length():
            self._place(share)
        return share

    def _new_share(self, client_id: str) -> _Share:
        share = self._shares[client_id] = _Share(client_id)
        share.used_bytes = SHARE_OVERHEAD_BYTES + len(client_id.encode())
        self._used_bytes += share.used_bytes
        return share

    def _place(self, share: _Share) -> None:
        """Put it where shares of its size stand; a share without bytes stands nowhere."""
        self._levels[share.level].pop(share, None)
        share.level = level = share.used_bytes.bit_length()
        if level:
            self._levels[level][share] = None
        self._top = max(self._top, level)

    def _make_room(self) -> None:
        """The largest share loses its oldest response; those that are about as large take turns."""
        while not (largest := self._levels[self._top]):
            self._top -= 1
        share = next(iter(largest))
        largest.move_to_end(share)
        self._remove_oldest(share)

    def _remove_oldest(self, share: _Share) -> None:
        correlation_data = next(iter(share.responses))
        self._remove(share, correlation_data)
        if self._stream is not None:
            self._stream.remove_lazily(_subject((share.client_id, correlation_data)))

    def _remove(self, share: _Share, correlation_data: bytes) -> None:
        response = share.responses.pop(correlation_data)
        cost = len(response[1]) + len(correlation_data) + RESPONSE_OVERHEAD_BYTES
        if not share.responses:
            del self._shares[share.client_id]
            cost = share.used_bytes
        self._count -= 1
        self._used_bytes -= cost
        share.used_bytes -= cost
        if share.level != share.used_bytes.bit_length():
            self._place(share)

    def drop_old(self, now: float) -> None:
        """Give the memory of clients back whose responses are all outdated, of some at each call."""
        for _ in range(_DROPS_PER_TICK):
            if not self._drop_outdated(now):
                return

    def _trim(self, share: _Share, now: float) -> None:
        """A client that goes on: for each response that comes, up to two that are outdated go."""
        for _ in range(2):
            oldest = next(iter(share.responses.values()))
            share.fresh_until = oldest[3] + self._limits.max_age_s
            if now <= share.fresh_until:
                return
            self._remove_oldest(share)

    def _drop_outdated(self, now: float) -> bool:
        """Drop a response to the client that has got none for longest, if all that it has are outdated."""
        if now <= self._fresh_until or not self._shares:
            return False
        share = next(iter(self._shares.values()))
        newest = next(reversed(share.responses.values()))
        self._fresh_until = newest[3] + self._limits.max_age_s
        if now <= self._fresh_until:
            return False
        self._remove_oldest(share)
        return True

    def restore(self, storage: StoredRecords, timeline: Timeline) -> None:
        """Fill the empty cache with what was written down in an earlier life. Raises DamagedRecordError."""
        self._take(load(storage, Stream.RESPONSES), timeline)

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """What another server has written: it removes what is too much or too old. Raises DamagedRecordError."""
        for changes in batch.changes:
            if changes.stream is Stream.RESPONSES:
                for subject in changes.removals:
                    self._forget(subject)
                self._take(records_in(changes), timeline)

    def _take(self, rows: Iterable[tuple[Any, Any]], timeline: Timeline) -> None:
        found: list[tuple[_RequestId, _Response]] = []
        try:
            for subject, fields in rows:
                record = ResponseRecord.read(fields, timeline)
                response = (record.fingerprint, record.payload, record.version, record.stored_at)
                found.append((_request(subject), response))
        except (TypeError, ValueError) as error:
            raise DamagedRecordError(f"records of responses: {error!r}") from error
        self._add_all(found)

    def _add_all(self, found: list[tuple[_RequestId, _Response]]) -> None:
        found.sort(key=_age)
        for request, response in found:
            self._is_disordered = self._is_disordered or response[3] < self._newest
            self._newest = max(self._newest, response[3])
            self._add(request, response)

    def _forget(self, subject: Any) -> None:
        client_id, correlation_data = _request(subject)
        share = self._shares.get(client_id)
        if share is not None and correlation_data in share.responses:
            self._remove(share, correlation_data)

    def rows(self) -> Iterator[Row]:
        """What is written of each response, as it is when the iterator comes to it. Responses may come and go in
        between: each that is there all the time comes.
        """
        for client_id in [*self._shares]:
            share = self._shares.get(client_id)
            for name in [] if share is None else [*share.responses]:
                response = None if share is None else share.responses.get(name)
                record = None if response is None else ResponseRecord(*response)
                yield Stream.RESPONSES, _subject((client_id, name)), record

    def settle(self) -> None:
        """Put responses into the order of their age, if an older one came after a newer one."""
        if self._is_disordered:
            found = [((s.client_id, name), each) for s in self._shares.values() for name, each in s.responses.items()]
            for (client_id, correlation_data), _ in found:
                self._remove(self._shares[client_id], correlation_data)
            self._is_disordered, self._newest = False, -inf
            self._add_all(found)


@hot_value
class ResponseRecord:
    """What was answered, and to what. ``stored_at`` is monotonic seconds, and log time on disk."""

    fingerprint: int
    payload: bytes
    version: _Version | None
    stored_at: float

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        return (self.fingerprint, self.payload, self.version, timeline.log_ms(self.stored_at))

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        fingerprint, payload, version, stored_ms = fields
        if isinstance(version, str):  # by version 0.1, which wrote the text that it sent
            stamp = HlcTimestamp.parse(version)
            version = (stamp.wall_ms, stamp.counter, stamp.node_id)
        elif version is not None:
            wall_ms, counter, node_id = version
            version = (wall_ms, counter, node_id)
        return cls(fingerprint, payload, version, timeline.monotonic(stored_ms) or 0.0)


def _age(item: tuple[_RequestId, _Response]) -> float:
    return item[1][3]


def _request(subject: bytes) -> _RequestId:
    """Raises DamagedRecordError."""
    try:
        client_id, correlation_data = unpackb(subject)
    except (TypeError, ValueError) as error:
        raise DamagedRecordError(f"a record of a response: {error!r}") from error
    return client_id, correlation_data


def _subject(request: _RequestId) -> bytes:
    packed: bytes = packb(request)
    return packed
