"""Responses that were given already, for requests that arrive twice.

QoS 1 means at least once: a client whose PUBACK got lost sends its request again after it reconnects, and executing a
SET NX or a VDEL a second time would give another answer than the first. Requests are recognised by client, correlation
data and content; whoever reuses correlation data for another request gets that one executed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from msgpack import packb, unpackb

from statestore_client.server.journal import DamagedRecordError, Stream, WallClock, load
from statestore_client.wire.values import hot_value

if TYPE_CHECKING:
    from statestore_client.server.journal import Journal, StreamStorage
    from statestore_client.wire.instant import Instant

__all__ = ["ResponseCache", "ResponseCacheLimits"]

#: Client id and correlation data.
_RequestId: TypeAlias = tuple[str, bytes]

#: Fingerprint of the request, payload, version as text, and when it was stored (monotonic seconds). A tuple, because
#: the garbage collector does not look at tens of thousands of plain tuples again and again.
_Response: TypeAlias = tuple[int, bytes, str | None, float]


@attrs.frozen
class ResponseCacheLimits:
    """Older responses make room for newer ones. Zero entries switch the cache off."""

    max_entries: int = 65_536
    max_bytes: int = 33_554_432
    max_age_s: float = 300.0  # a client that stayed away longer has given its requests up


#: What a response costs beside its payload and correlation data.
_OVERHEAD_BYTES: Final = 500


class ResponseCache:
    """Bounded in entries, bytes and age. Invariant: the dictionary is in the order in which responses were stored."""

    __slots__ = ("_limits", "_responses", "_stream", "_used_bytes")

    def __init__(self, limits: ResponseCacheLimits, journal: Journal | None = None) -> None:
        self._stream = None if journal is None else journal[Stream.RESPONSES]
        self._limits = limits
        # A plain dictionary that is emptied from its front searches for its first item through all that were removed.
        self._responses: OrderedDict[_RequestId, _Response] = OrderedDict()
        self._used_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, request: _RequestId, fingerprint: int, now: float) -> tuple[bytes, str | None] | None:
        """Payload and version of the response to exactly this request."""
        response = self._responses.get(request)
        if response is None or response[0] != fingerprint:
            return None
        _, payload, version, stored_at = response
        if now - stored_at > self._limits.max_age_s:
            return None
        return payload, version

    def put(self, request: _RequestId, fingerprint: int, payload: bytes, version: str | None, now: float) -> None:
        """Remember a response, in place of an earlier one to the same client and correlation data."""
        responses, limits = self._responses, self._limits
        if request in responses:
            self._used_bytes -= len(responses.pop(request)[1]) + len(request[0]) + len(request[1]) + _OVERHEAD_BYTES
        responses[request] = (fingerprint, payload, version, now)
        self._used_bytes += len(payload) + len(request[0]) + len(request[1]) + _OVERHEAD_BYTES
        if self._stream is not None:
            record = ResponseRecord(fingerprint, payload, version, now)
            self._stream.put(_subject(request), record, len(payload))
        while self._used_bytes > limits.max_bytes or len(responses) > limits.max_entries:
            self._remove_oldest()

    def drop_old(self, now: float) -> None:
        """Give the memory of outdated responses back."""
        horizon = now - self._limits.max_age_s
        while self._responses:
            _, _, _, stored_at = next(iter(self._responses.values()))
            if stored_at >= horizon:
                return
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        request, response = self._responses.popitem(last=False)
        self._used_bytes -= len(response[1]) + len(request[0]) + len(request[1]) + _OVERHEAD_BYTES
        if self._stream is not None:
            self._stream.remove(_subject(request))

    def restore(self, storage: StreamStorage, now: Instant) -> None:
        """Fill the empty cache with what was written down in an earlier life. Raises DamagedRecordError."""
        clock = WallClock.at(now)
        responses = self._responses
        found: list[tuple[_RequestId, _Response]] = []
        try:
            for subject, fields in load(storage, Stream.RESPONSES):
                client_id, correlation_data = unpackb(subject)
                fingerprint, payload, version, stored_ms = fields
                stored_at = clock.monotonic(stored_ms) or 0.0
                found.append(((client_id, correlation_data), (fingerprint, payload, version, stored_at)))
        except (TypeError, ValueError) as error:
            raise DamagedRecordError(f"records of responses: {error!r}") from error
        for request, response in sorted(found, key=lambda item: item[1][3]):
            responses[request] = response
            self._used_bytes += len(response[1]) + len(request[0]) + len(request[1]) + _OVERHEAD_BYTES


@hot_value
class ResponseRecord:
    """What was answered, and to what. ``stored_at`` is monotonic seconds, and a wall clock on disk."""

    fingerprint: int
    payload: bytes
    version: str | None
    stored_at: float

    def fields(self, clock: WallClock) -> tuple[object, ...]:
        return (self.fingerprint, self.payload, self.version, clock.wall_ms(self.stored_at))


def _subject(request: _RequestId) -> bytes:
    packed: bytes = packb(request)
    return packed
