"""TLS alerts that reach the peer.

asyncio closes the socket of a failed handshake without sending what TLS has to say about it, so that a client with an
expired certificate sees no more than the end of the connection, and tries again for ever. Here the alert is written to
the socket before asyncio hears of the failure.
"""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

__all__ = ["AlertingContext", "alerting", "handshake_of"]

#: The transport whose handshake begins. asyncio makes the TLS object in a callback, which inherits the context.
handshake_of: ContextVar[asyncio.Transport] = ContextVar("handshake_of")


class _AlertingObject(ssl.SSLObject):
    """Says why its handshake failed."""

    outgoing: ssl.MemoryBIO
    transport: asyncio.Transport | None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.transport is not None and (alert := self.outgoing.read()):
                self.transport.write(alert)
            raise


class AlertingContext(ssl.SSLContext):
    """A context for servers whose handshakes run under :data:`handshake_of`. Elsewhere it is as any other."""

    sslobject_class: type[ssl.SSLObject] = _AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        if isinstance(made, _AlertingObject):
            made.outgoing, made.transport = outgoing, handshake_of.get(None)
        return made


def alerting(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, whose handshakes send alerts from now on. One that has its own way to make TLS objects, of
    another library, stays as it is.
    """
    if type(context) is ssl.SSLContext and context.sslobject_class is ssl.SSLObject:
        context.__class__ = AlertingContext
    return context
