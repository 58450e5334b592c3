"""The pure MQTT broker: sessions, delivery, topic tree, retained messages, wills. No socket, no clock, no thread."""

from __future__ import annotations

from statestore_client.server.broker.admission import (
    Admitted,
    Credentials,
    Gatekeeper,
    Permissions,
    Refusal,
    Verdict,
    Verification,
)
from statestore_client.server.broker.application import Application, Deliver, Deny, Drop, Effect, Kick, Route, Series
from statestore_client.server.broker.broker import Broker
from statestore_client.server.broker.connection import Connection, Ending
from statestore_client.server.broker.counters import Counters
from statestore_client.server.broker.events import BrokerEvents
from statestore_client.server.broker.limits import WHEN_FULL, BrokerLimits
from statestore_client.server.broker.session.view import SessionView

__all__ = [
    "WHEN_FULL",
    "Admitted",
    "Application",
    "Broker",
    "BrokerEvents",
    "BrokerLimits",
    "Connection",
    "Counters",
    "Credentials",
    "Deliver",
    "Deny",
    "Drop",
    "Effect",
    "Ending",
    "Gatekeeper",
    "Kick",
    "Permissions",
    "Refusal",
    "Route",
    "Series",
    "SessionView",
    "Verdict",
    "Verification",
]
