"""Who observes what, for how long: a host does not see its observers' connections end.

A registration ends with STOP, or when the broker says that nobody subscribes to its notifications (PUBACK 0x10). A
broker that never says so is found out with a message to a topic without subscribers; there, registrations end when
they were not renewed for some time. A KEYNOTIFY renews.

Invariant: a registration ends by a PUBACK only if the notification was sent after it was renewed last: an observer
that has left and come back subscribes before it observes again.
Invariant: a STOP that comes again does not end what its client has asked for later, by its own clock.
Invariant: they are in the order in which they were renewed, the oldest first.
Invariant: a registration is written down before its KEYNOTIFY is answered, and gone before its STOP is: the next life
of the host, or the next host, has the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

import attrs
from msgpack import packb, unpackb

from statestore_client.errors import TimestampError
from statestore_client.server.journal import DamagedRecordError, Stream, load
from statestore_client.wire.hlc import HlcTimestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore_client.server.journal import Journal, StoredRecords, Timeline

#: Client identifier and key.
Observation: TypeAlias = tuple[str, bytes]

#: Seconds after which a registration ends that was not renewed, where the broker does not tell.
REGISTRATION_S: Final = 3600.0


class Observers(Protocol):
    """Those of the store."""

    def of(self, key: bytes) -> Iterable[str]: ...

    def has(self, client_id: str, key: bytes) -> bool: ...

    def add(self, client_id: str, key: bytes) -> None: ...

    def remove(self, client_id: str, key: bytes) -> bool: ...


@attrs.frozen
class _Registration:
    """Who observes is told of changes from the one with the number ``since`` on. On disk, times are log time."""

    moment: int
    renewed_at: float
    stamp: HlcTimestamp | None  # of the request
    since: int

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        stamp = None if self.stamp is None else str(self.stamp)
        return (timeline.log_ms(self.renewed_at), stamp, self.since)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        renewed_ms, stamp, since = fields
        renewed_at = timeline.monotonic(renewed_ms) or 0.0
        return cls(0, renewed_at, None if stamp is None else HlcTimestamp.parse(stamp), since)


class Registrations:
    """Beside the store's observers, which it ends."""

    def __init__(
        self, observers: Observers, lifetime_s: float = REGISTRATION_S, journal: Journal | None = None
    ) -> None:
        """``lifetime_s`` is how long one lasts that is not renewed, where the broker does not tell."""
        self._observers = observers
        self._lifetime_s = lifetime_s
        self._stream = None if journal is None else journal[Stream.OBSERVATIONS]
        self._moments = 0
        self._renewed: dict[Observation, _Registration] = {}
        #: Whether the broker says so when a message has no subscriber. None: not known yet, and nothing ends by time.
        self.tells: bool | None = None
        #: How many have ended, and not by their clients.
        self.ended: int = 0

    def __len__(self) -> int:
        return len(self._renewed)

    def moment(self) -> int:
        """The next one: of a notification that is sent, or of a renewal."""
        self._moments += 1
        return self._moments

    def is_outdated(self, observation: Observation, stamp: HlcTimestamp | None) -> bool:
        """Whether a STOP with this timestamp was sent before the client has asked to observe."""
        known = self._renewed.get(observation)
        return known is not None and known.stamp is not None and stamp is not None and stamp < known.stamp

    def asked(self, observation: Observation, stamp: HlcTimestamp | None, now: float, since: int) -> None:
        """A KEYNOTIFY was carried out: the client observes the key from now on, or not any longer. ``since`` is the
        number of the next change.
        """
        known = self._renewed.pop(observation, None)
        if self._observers.has(*observation):
            if known is not None:
                since = known.since
                if known.stamp is not None and stamp is not None:
                    stamp = max(stamp, known.stamp)
            self._renewed[observation] = made = _Registration(self.moment(), now, stamp, since)
            if self._stream is not None:
                self._stream.put(packb(observation), made)
        elif known is not None and self._stream is not None:
            self._stream.remove(packb(observation))

    def unheard(self, observation: Observation, sent: int) -> None:
        """The notification that was sent at this moment had no subscriber."""
        known = self._renewed.get(observation)
        if known is not None and known.moment < sent:
            self._end(observation)

    def has(self, observation: Observation) -> bool:
        return observation in self._renewed

    def told_of(self, key: bytes, number: int) -> list[str]:
        """Who is to be told of the change with this number."""
        return [client_id for client_id in self._observers.of(key) if self._renewed[client_id, key].since <= number]

    def restore(self, storage: StoredRecords, timeline: Timeline) -> int:
        """Go on with those of an earlier life. Returns the greatest ``since`` of them. Raises DamagedRecordError."""
        found = []
        try:
            for subject, fields in load(storage, Stream.OBSERVATIONS):
                client_id, key = unpackb(subject)
                found.append(((client_id, key), _Registration.read(fields, timeline)))
        except (TypeError, ValueError, TimestampError) as error:
            raise DamagedRecordError(f"records of observations: {error!r}") from error
        for observation, read in sorted(found, key=lambda each: each[1].renewed_at):
            self._observers.add(*observation)
            self._renewed[observation] = attrs.evolve(read, moment=self.moment())
        return max((read.since for _, read in found), default=0)

    def tick(self, now: float) -> None:
        """End those that were not renewed for too long."""
        for observation in [*self._outdated(now)]:
            self._end(observation)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do."""
        if self.tells is not False or not self._renewed:
            return None
        return next(iter(self._renewed.values())).renewed_at + self._lifetime_s

    def _outdated(self, now: float) -> Iterator[Observation]:
        if self.tells is not False:
            return
        for observation, known in self._renewed.items():
            if now - known.renewed_at < self._lifetime_s:
                return
            yield observation

    def _end(self, observation: Observation) -> None:
        del self._renewed[observation]
        self._observers.remove(*observation)
        if self._stream is not None:
            self._stream.remove_lazily(packb(observation))
        self.ended += 1
