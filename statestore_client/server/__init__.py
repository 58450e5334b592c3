"""The embedded reference server: an MQTT broker with the state store inside.

``from statestore_client.server import EmbeddedServer`` is all that most programs need. The rooms below it: ``broker``
and ``store`` are pure machines, ``runtime`` has the sockets.
"""

from __future__ import annotations

from statestore_client.server.broker import BrokerLimits, SessionView
from statestore_client.server.runtime import AccessRules, EmbeddedServer, ServerTls
from statestore_client.server.runtime.controls import ServerClock
from statestore_client.server.runtime.faults import Fault, Faults
from statestore_client.server.runtime.recording import PublishedMessage
from statestore_client.server.runtime.watching import (
    ClientConnected,
    ClientDisconnected,
    ClientSubscribed,
    ClientUnsubscribed,
    Hooks,
)
from statestore_client.server.store import StoreLimits
from statestore_client.wire.dialect import Dialect

__all__ = [
    "AccessRules",
    "BrokerLimits",
    "ClientConnected",
    "ClientDisconnected",
    "ClientSubscribed",
    "ClientUnsubscribed",
    "Dialect",
    "EmbeddedServer",
    "Fault",
    "Faults",
    "Hooks",
    "PublishedMessage",
    "ServerClock",
    "ServerTls",
    "SessionView",
    "StoreLimits",
]
