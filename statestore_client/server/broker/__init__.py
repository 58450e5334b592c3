"""The pure MQTT broker: sessions, delivery, topic tree, retained messages, wills. No socket, no clock, no thread."""

from __future__ import annotations

from statestore_client.server.broker.admission import Admitted, Credentials, Gatekeeper, Permissions, Refusal, Verdict
from statestore_client.server.broker.application import Application, Deliver, Deny, Drop, Effect, Kick, Route, Series
from statestore_client.server.broker.broker import Broker
from statestore_client.server.broker.limits import WHEN_FULL, BrokerLimits
from statestore_client.server.broker.reports import BrokerEvents, Counters
from statestore_client.server.broker.session import Connection, Ending, SessionView, Verification

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
