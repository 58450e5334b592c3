"""Who observes what, for how long: a host does not see its observers' connections end.

A registration ends with STOP, or when the broker says that nobody subscribes to its notifications (PUBACK 0x10). A
broker that never says so is found out with a message to a topic without subscribers; there, registrations end when
they were not renewed for some time. A KEYNOTIFY renews.

Invariant: a registration ends by a PUBACK only if the notification was sent after it was renewed last: an observer
that has left and come back subscribes before it observes again.
Invariant: a STOP that comes again does not end what its client has asked for later, by its own clock.
Invariant: they are in the order in which they were renewed, the oldest first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.wire.hlc import HlcTimestamp

#: Client identifier and key.
Observation: TypeAlias = tuple[str, bytes]

#: Seconds after which a registration ends that was not renewed, where the broker does not tell.
REGISTRATION_S: Final = 3600.0


class Observers(Protocol):
    """Those of the store."""

    def has(self, client_id: str, key: bytes) -> bool: ...

    def remove(self, client_id: str, key: bytes) -> bool: ...


@attrs.frozen
class _Registration:
    moment: int
    renewed_at: float
    stamp: HlcTimestamp | None  # of the request


@attrs.define(eq=False)
class Registrations:
    """Beside the store's observers, which it ends."""

    _observers: Observers
    _lifetime_s: float = REGISTRATION_S
    #: Whether the broker says so when a message has no subscriber. None: not known yet, and nothing ends by time.
    tells: bool | None = attrs.field(default=None, init=False)
    #: How many have ended, and not by their clients.
    ended: int = attrs.field(default=0, init=False)
    _moments: int = attrs.field(default=0, init=False)
    _renewed: dict[Observation, _Registration] = attrs.field(factory=dict, init=False)

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

    def asked(self, observation: Observation, stamp: HlcTimestamp | None, now: float) -> None:
        """A KEYNOTIFY was carried out: the client observes the key from now on, or not any longer."""
        known = self._renewed.pop(observation, None)
        if self._observers.has(*observation):
            if known is not None and known.stamp is not None and stamp is not None:
                stamp = max(stamp, known.stamp)
            self._renewed[observation] = _Registration(self.moment(), now, stamp)

    def unheard(self, observation: Observation, sent: int) -> None:
        """The notification that was sent at this moment had no subscriber."""
        known = self._renewed.get(observation)
        if known is not None and known.moment < sent:
            self._end(observation)

    def has(self, observation: Observation) -> bool:
        return observation in self._renewed

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
        self.ended += 1
