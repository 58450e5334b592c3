"""The embedded reference server: an MQTT broker with the state store inside.

``from statestore_client.server import EmbeddedServer`` is all that most programs need. The rooms below it:
``broker``, ``store``, ``service``, ``access``, ``kvstore``, ``bridge`` and ``journal`` are pure, ``runtime`` has the
sockets, ``testing`` the embedded server with what tests do with it.
"""

from __future__ import annotations

from statestore_client.curve_keys import KeyPair
from statestore_client.mqtt.packets import PublishProperties
from statestore_client.server.broker import BrokerLimits, Counters, SessionView
from statestore_client.server.runtime.replication.settings import ClusterKeys, LogKeys, PeerSettings, ReplicaSettings
from statestore_client.server.runtime.security.files import AccessRules
from statestore_client.server.runtime.settings import SiteEndpoints
from statestore_client.server.runtime.transport.tls import ServerTls
from statestore_client.server.store import StoreLimits
from statestore_client.server.store.keyspace import ScanLimits
from statestore_client.server.testing.controls import ServerClock
from statestore_client.server.testing.embedded_server import AccessOptions, EmbeddedServer, EmbeddedSite
from statestore_client.server.testing.faults import Fault, FaultOptions, Faults
from statestore_client.server.testing.recording import (
    ClientConnected,
    ClientDisconnected,
    ClientSubscribed,
    ClientUnsubscribed,
    Hooks,
    PublishedMessage,
    SiteSynced,
)
from statestore_client.wire.protocol import Dialect

__all__ = [
    "AccessOptions",
    "AccessRules",
    "BrokerLimits",
    "ClientConnected",
    "ClientDisconnected",
    "ClientSubscribed",
    "ClientUnsubscribed",
    "ClusterKeys",
    "Counters",
    "Dialect",
    "EmbeddedServer",
    "EmbeddedSite",
    "Fault",
    "FaultOptions",
    "Faults",
    "Hooks",
    "KeyPair",
    "LogKeys",
    "PeerSettings",
    "PublishProperties",
    "PublishedMessage",
    "ReplicaSettings",
    "ScanLimits",
    "ServerClock",
    "ServerTls",
    "SessionView",
    "SiteEndpoints",
    "SiteSynced",
    "StoreLimits",
]
