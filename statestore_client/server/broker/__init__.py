"""The pure MQTT broker: sessions, delivery, topic tree, retained messages, wills. No socket, no clock, no thread."""

from __future__ import annotations

from statestore_client.server.broker.admission import Admitted, Credentials, Gatekeeper, Permissions, Refusal, Verdict
from statestore_client.server.broker.application import (
    Application,
    Deliver,
    DisconnectClient,
    Drop,
    Effect,
    InOrder,
    ReportClock,
    ReportDenial,
    Route,
)
from statestore_client.server.broker.broker import Broker
from statestore_client.server.broker.limits import WHEN_FULL, BrokerLimits
from statestore_client.server.broker.reports import BrokerEvents, Counters
from statestore_client.server.broker.session import CloseReason, Connection, PendingAuth, SessionView

__all__ = [
    "WHEN_FULL",
    "Admitted",
    "Application",
    "Broker",
    "BrokerEvents",
    "BrokerLimits",
    "CloseReason",
    "Connection",
    "Counters",
    "Credentials",
    "Deliver",
    "DisconnectClient",
    "Drop",
    "Effect",
    "Gatekeeper",
    "InOrder",
    "PendingAuth",
    "Permissions",
    "Refusal",
    "ReportClock",
    "ReportDenial",
    "Route",
    "SessionView",
    "Verdict",
]
