"""What comes to the ROUTER of a peer: a request that can be read and is for this cluster, or something to drop."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from raft_client.errors import ProtocolError
from raft_client.server.node.ready import Request
from raft_client.wire.peer_messages import decode_request

if TYPE_CHECKING:
    from collections.abc import Callable

#: A route, a request id, a type and the cluster ident.
_LEAST_FRAMES: Final = 4


class RequestDoor:
    """``drop`` is told why a message is not let in."""

    def __init__(self, ident: bytes, drop: Callable[[str], None]) -> None:
        #: How many requests came, by the name of their type.
        self.requests: Counter[str] = Counter()
        self._ident = ident
        self._drop = drop

    def let_in(self, frames: list[bytes]) -> Request | None:
        """The request; None if there is none in these frames, or it is of another cluster."""
        if len(frames) < _LEAST_FRAMES:
            self._drop("too few frames")
            return None
        try:
            message = decode_request(frames[1], frames[2:])
        except ProtocolError:
            self._drop("malformed")
            return None
        if message.ident != self._ident:
            self._drop("another cluster")
            return None
        self.requests[type(message).__name__] += 1
        return Request(frames[0], frames[1], message)
