"""Sockets, clock and wiring of the embedded reference server. :class:`EmbeddedServer` is what programs start."""

from __future__ import annotations

from statestore_client.server.runtime.acl import AccessRules
from statestore_client.server.runtime.embedded import EmbeddedServer
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.tls import ServerTls

__all__ = ["AccessRules", "EmbeddedServer", "Server", "ServerTls"]
