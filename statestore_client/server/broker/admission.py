"""Admission of clients, and their rights: what the broker asks its *gatekeeper*, and the values that are the answers.

The broker itself knows no password, no token and no rule. It takes the credentials out of CONNECT or AUTH, asks, and
acts upon the verdict. A verdict that takes time (a password hash, a call to another service) is None at first; then the
runtime finds it out, without the event loop waiting, and brings it with :meth:`Broker.verified`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Connect, Packet
    from statestore_client.server.broker.connection import Connection

__all__ = ["Admitted", "Credentials", "Gatekeeper", "Permissions", "Refusal", "Verdict", "Verification"]


@attrs.frozen
class Credentials:
    """What a peer showed. ``client_id`` is empty when the broker is to assign one. The repr shows no secret.

    ``certificate`` is the name in the certificate that TLS has verified; empty if that has no name, None without one.
    ``method`` and ``data`` are those of enhanced authentication (MQTT 5.0, 4.12).
    """

    client_id: str
    certificate: str | None = None
    username: str | None = None
    password: bytes | None = attrs.field(default=None, repr=False)
    method: str | None = None
    data: bytes | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Admitted:
    """Welcome. ``user`` is whom the credentials prove, None for nobody in particular."""

    user: str | None = None


@attrs.frozen
class Refusal:
    """Go away. ``reason`` goes to the peer and into the log: it must not tell what exactly was wrong."""

    reason_code: int
    reason: str


Verdict: TypeAlias = Admitted | Refusal


class Permissions(Protocol):
    """What one client may do. Equal permissions allow the same. Called for every message: must be quick."""

    @property
    def refusal(self) -> Refusal | None:
        """Why this client may not connect at all, with this client identifier for example."""

    def may_publish(self, topic: str) -> bool:
        """Whether it may publish there. Requests to the application are the application's to judge."""

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether it may see everything that matches; the filter may be a shared one (``$share/...``)."""


class Gatekeeper(Protocol):
    """Decides. Pure and quick: called in the middle of everything."""

    def authenticate(self, credentials: Credentials) -> Verdict | None:
        """The verdict, or None if it takes time: it will then be brought."""

    def permissions(self, user: str | None, client_id: str) -> Permissions | None:
        """What a client may do, None for everything."""

    @property
    def rules(self) -> object:
        """Where the permissions come from: another object when they are others."""


@attrs.define(eq=False)
class Verification:
    """A verdict that is being waited for.

    ``packet`` is the CONNECT, None when a client that is in shows another token. ``held`` is what came behind the
    CONNECT meanwhile: clients need not wait for CONNACK (MQTT 5.0, 3.1.4).
    """

    connection: Connection
    credentials: Credentials
    packet: Connect | None
    held: list[Packet] = attrs.Factory(list)

    @property
    def is_current(self) -> bool:
        """Whether anybody still wants to know."""
        return self.connection.verification is self and self.connection.ending is None
