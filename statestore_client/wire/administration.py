"""Administration: what is asked of a running server about its sessions and retained messages, and what it answers.

A request is a JSON object, published with QoS 1 on :data:`CONTROL_TOPIC` with a response topic and correlation data, as
mosquitto's ``$CONTROL`` topics have it. The answer is a JSON object, too: it goes to the client that asked, and to
no other. Lists come in pages: ``next``, where it is not null, is the ``at`` of the request for the next one.

====================  ===========================================  =====================================================
``command``           more of the request                          the answer
====================  ===========================================  =====================================================
``sessions.list``     ``at``; or ``client_id``: only this one      ``sessions``, ``next``
``sessions.remove``   ``client_ids``; ``force``: connected ones,   ``removed``, ``missing``, ``connected``; ``rest``:
                      too                                          what is to be asked for again
``sessions.prune``    ``away_s`` or null; ``at``                   ``removed``, ``next``
``retained.list``     ``filter`` or null; ``payloads``; ``at``     ``messages``, ``next``
``retained.payload``  ``topic``, ``offset``                        ``message``, null if there is none; a part of its
                                                                   payload from ``offset`` on
``retained.remove``   ``topics``                                   ``removed``; ``rest``
anything else                                                      ``error`` and ``message``
====================  ===========================================  =====================================================
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, Final, Self

import attrs

from statestore_client.errors import UnexpectedReplyError

#: Where requests are published.
CONTROL_TOPIC: Final = "$CONTROL/broker/v1"

#: What all topics of the server's alone begin with.
CONTROL_PREFIX: Final = "$CONTROL/"

#: Values of ``error``.
BAD_REQUEST: Final = "bad request"
NOT_AUTHORIZED: Final = "not authorized"


def is_control_topic(topic: str) -> bool:
    """Whether it is the server's alone: nothing that is published there is routed or retained."""
    return topic.startswith(CONTROL_PREFIX)


def control_response_topic(client_id: str) -> str:
    """Where this package's clients want their answers: among the client's own topics."""
    return f"clients/{client_id}/services/{CONTROL_TOPIC}/response"


def encode_json(value: dict[str, Any]) -> bytes:
    """UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@attrs.frozen
class SessionInfo:
    """One session. Times are seconds since the Unix epoch.

    ``expiry_s`` is None for a session that never ends. ``was_connected``: its client is here, or was so when the server
    ended. ``left_at`` is None for a client that is here. In a data directory it is the end of the server, as far as
    that is known, for a client that was connected then: its session starts to expire with the next start, so that
    ``ends_at`` is None, too.
    """

    client_id: str
    user: str | None
    expiry_s: int | None
    was_connected: bool
    left_at: float | None
    will_topic: str | None
    subscriptions: tuple[tuple[str, int], ...]  # filter and QoS
    queued: int  # messages that were never sent to it
    in_flight: int  # messages that it did not acknowledge, and PUBRELs
    unreleased: int  # QoS 2 messages of its own, taken over and not released

    @property
    def ends_at(self) -> float | None:
        """None for never, or as long as that is not known."""
        return (
            None
            if self.was_connected or self.expiry_s is None or self.left_at is None
            else self.left_at + self.expiry_s
        )

    def is_over(self, now_s: float) -> bool:
        """Whether its time has come, ``now_s`` in seconds since the epoch."""
        return self.ends_at is not None and self.ends_at <= now_s

    def is_away(self, since_s: float) -> bool:
        """Whether its client left before that moment, or at it."""
        return self.left_at is not None and self.left_at <= since_s

    def is_dispensable(self, now_s: float, away_s: float | None) -> bool:
        """What pruning removes: what is over, and what was left at least ``away_s`` seconds ago."""
        return self.is_over(now_s) or (away_s is not None and self.is_away(now_s - away_s))

    def encoded(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)

    @classmethod
    def decode(cls, fields: object) -> Self:
        """Raises UnexpectedReplyError."""
        try:
            known: dict[str, Any] = {field.name: fields[field.name] for field in attrs.fields(cls)}  # type: ignore[index]  # what is not a dict is caught
            known["subscriptions"] = tuple((str(name), int(qos)) for name, qos in known["subscriptions"])
            return cls(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedReplyError(f"the answer's session cannot be read: {error!r}") from error


@attrs.frozen
class RetainedInfo:
    """One retained message. ``expires_at`` is seconds since the Unix epoch; ``payload`` is None where it was not asked
    for, or is so large that it comes in parts of its own; ``size`` is that of all of it, in bytes.
    """

    topic: str
    qos: int
    publisher: str
    expires_at: float | None
    size: int
    payload: bytes | None = attrs.field(default=None, repr=False)

    def encoded(self) -> dict[str, Any]:
        """For JSON; the payload in Base64."""
        payload = None if self.payload is None else b64encode(self.payload).decode()
        return attrs.asdict(self) | {"payload": payload}

    @classmethod
    def decode(cls, fields: object) -> Self:
        """Raises UnexpectedReplyError."""
        try:
            known: dict[str, Any] = {field.name: fields[field.name] for field in attrs.fields(cls)}  # type: ignore[index]  # what is not a dict is caught
            if known["payload"] is not None:
                known["payload"] = b64decode(known["payload"], validate=True)
            return cls(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedReplyError(f"the answer's message cannot be read: {error!r}") from error
