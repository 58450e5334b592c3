"""What happened in the broker that the runtime is to log, or to find out: kept until it takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import ReasonCode

if TYPE_CHECKING:
    from statestore_client.server.broker.admission import Verification
    from statestore_client.server.broker.counters import Counters
    from statestore_client.server.broker.quotas.dropped_messages import DroppedMessages, QueueOverflow
    from statestore_client.server.broker.session.session import Session

__all__ = ["DENIALS", "Denial", "Reports"]

#: What of refusals whoever runs the server wants to know: who may not, and who has enough.
DENIALS: Final = frozenset((ReasonCode.NOT_AUTHORIZED, ReasonCode.QUOTA_EXCEEDED))

#: Denials kept for the log, of one call into the broker. The others are counted.
_MOST: Final = 64


@attrs.define(eq=False)
class Denial:
    """Something that a client asked for and did not get, with the reason code: it may not (0x87), there was no room
    for it (0x97), or there was nowhere to answer (0x83). For the log. ``peer`` is None while the client is away; so
    many ``more`` came behind this one, and there was no room for them here.
    """

    peer: str | None
    client_id: str
    user: str | None
    reason_code: int
    action: str
    what: str
    more: int = 0


@attrs.define(eq=False)
class Reports:
    """Take what there is after each call into the broker."""

    _counters: Counters
    _dropped_messages: DroppedMessages
    _denials: list[Denial] = attrs.Factory(list)
    _faults: list[Exception] = attrs.Factory(list)
    _verifications: list[Verification] = attrs.Factory(list)

    @property
    def has_any(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._denials or self._faults or self._verifications or self._dropped_messages.overflows)

    def note_denial(self, session: Session, reason_code: int, action: str, what: str) -> None:
        """A client did not get something."""
        if len(self._denials) < _MOST:
            peer = None if session.connection is None else session.connection.peer
            self._denials.append(Denial(peer, session.client_id, session.user, reason_code, action, what))
        else:
            self._denials[-1].more += 1

    def note_fault(self, error: Exception) -> None:
        """The application failed."""
        self._counters.application_errors += 1
        self._faults.append(error)

    def note_verification(self, verification: Verification) -> None:
        """The gatekeeper cannot decide at once."""
        self._verifications.append(verification)

    def take_denials(self) -> list[Denial]:
        """What clients did not get since the last call: they may not have it, or there was no room."""
        denials, self._denials = self._denials, []
        return denials

    def take_overflows(self) -> list[QueueOverflow]:
        """Sessions that lose messages because their queue is full, each one now and then."""
        dropped = self._dropped_messages
        overflows, dropped.overflows = dropped.overflows, []
        return overflows

    def take_faults(self) -> list[Exception]:
        """Exceptions that escaped the application."""
        faults, self._faults = self._faults, []
        return faults

    def take_verifications(self) -> list[Verification]:
        """Credentials to be verified elsewhere, each once. :meth:`Broker.verified` takes the verdict."""
        verifications, self._verifications = self._verifications, []
        return verifications
