"""The pure MQTT broker: sessions, delivery, topic tree, retained messages, wills. No socket, no clock, no thread."""

from __future__ import annotations

from statestore_client.server.broker.application import Application, Deliver, Effect, Kick, Route
from statestore_client.server.broker.broker import Broker
from statestore_client.server.broker.connection import Connection, Ending
from statestore_client.server.broker.counters import Counters
from statestore_client.server.broker.limits import BrokerLimits

__all__ = [
    "Application",
    "Broker",
    "BrokerLimits",
    "Connection",
    "Counters",
    "Deliver",
    "Effect",
    "Ending",
    "Kick",
    "Route",
]
