"""Admission of clients, and their rights: what the broker asks its *gatekeeper*, and the values that are the answers.

The broker itself knows no password, no token and no rule. It takes the credentials out of CONNECT or AUTH, asks, and
acts upon the verdict. A verdict that takes time (a password hash, a call to another service) is None at first; then the
runtime finds it out, without the event loop waiting, and brings it with :meth:`Broker.verified`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

from statestore_client.mqtt.packets import MQTT_5_0, ReasonCode
from statestore_client.server.broker.topic_tree import FilterTree, has_wildcard, share_of

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import ConnackProperties, Publish, Subscribe, Subscription, Will
    from statestore_client.server.broker.limits import BrokerLimits


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


# -- capabilities ------------------------------------------------------------------------------------------------------
#
# What a server need not offer, and what becomes of clients that ask for it all the same (MQTT 5.0, 3.2.2.3).
#
# MQTT 5.0 clients have read CONNACK: asking is a mistake of theirs, and ends the connection. 3.1.1 clients could not
# know, and hear of it where their version has a word for it (SUBACK 0x80).


_QOS: Final = Refusal(ReasonCode.QOS_NOT_SUPPORTED, "this QoS is not supported")
_RETAIN: Final = Refusal(ReasonCode.RETAIN_NOT_SUPPORTED, "retained messages are not supported")
_WILDCARDS: Final = Refusal(ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "wildcards are not supported")
_SHARES: Final = Refusal(ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared subscriptions are not supported")
_IDS: Final = Refusal(ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "subscription identifiers are not supported")


@attrs.define(eq=False)
class Capabilities:
    """Judges by the limits. Nothing here is asked for a message as long as everything is offered, and the rest is quick
    then.
    """

    _limits: BrokerLimits
    _refused: FilterTree[bool] = attrs.Factory(FilterTree)
    _has_all: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limits = self._limits
        self._has_all = (
            self.has_all_messages
            and limits.wildcards_available
            and limits.shared_subscriptions_available
            and limits.subscription_ids_available
            and not limits.refused_filters
        )
        for topic_filter in dict.fromkeys(self._limits.refused_filters):
            self._refused.insert(topic_filter, True)

    @property
    def has_all_messages(self) -> bool:
        """Whether clients may publish with any QoS, retained or not."""
        return self._limits.maximum_qos == 2 and self._limits.retain_available

    def refuse_message(self, message: Publish | Will) -> Refusal | None:
        """MQTT-3.2.2-11, -12, -13, -14."""
        if message.qos > self._limits.maximum_qos:
            return _QOS
        return _RETAIN if message.retain and not self._limits.retain_available else None

    def refuse_subscribe(self, packet: Subscribe, version: int) -> Refusal | None:
        """Why the connection of a SUBSCRIBE ends (MQTT 5.0, 3.2.2.3.11 to 13)."""
        if self._has_all or version != MQTT_5_0:
            return None
        if packet.properties.subscription_id is not None and not self._limits.subscription_ids_available:
            return _IDS
        return next(filter(None, map(self._missing, packet.subscriptions)), None)

    def refuse_filter(self, subscription: Subscription) -> int | None:
        """The reason code of SUBACK for a filter that this server refuses, or that needs what it has not."""
        if subscription.topic_filter == self._limits.unsubscribable:
            return ReasonCode.UNSPECIFIED_ERROR
        if self._has_all:
            return None
        missing = self._missing(subscription)
        if missing is not None:
            return missing.reason_code
        is_refused = bool(self._refused) and bool(self._refused.match(share_of(subscription.topic_filter)[1]))
        return ReasonCode.NOT_AUTHORIZED if is_refused else None

    def _missing(self, subscription: Subscription) -> Refusal | None:
        limits = self._limits
        share, topic_filter = share_of(subscription.topic_filter)
        if share and not limits.shared_subscriptions_available:
            return _SHARES
        return _WILDCARDS if not limits.wildcards_available and has_wildcard(topic_filter) else None

    def announce(self, properties: ConnackProperties) -> ConnackProperties:
        """CONNACK says what is missing; what it does not mention is there."""
        if self._has_all:
            return properties
        limits = self._limits
        return attrs.evolve(
            properties,
            maximum_qos=limits.maximum_qos if limits.maximum_qos < 2 else None,
            retain_available=None if limits.retain_available else 0,
            wildcard_subscription_available=None if limits.wildcards_available else 0,
            subscription_ids_available=None if limits.subscription_ids_available else 0,
            shared_subscription_available=None if limits.shared_subscriptions_available else 0,
        )
