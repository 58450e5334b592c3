"""The requests to other peers whose replies are still understood."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from raft_client.wire.peer_messages import PeerReply, decode_peer_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of each peer. There is one at a time, and late replies of earlier ones.
REMEMBERED: Final = 64


class AskedRequests:
    """A reply does not say what it answers: its request id does, for those who remember the request."""

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: dict[str, OrderedDict[bytes, bytes]] = {}

    def ask(self, peer_id: str, request_id: bytes, message_type: bytes) -> None:
        """It is sent now."""
        types = self._types.setdefault(peer_id, OrderedDict())
        types[request_id] = message_type
        if len(types) > REMEMBERED:
            types.popitem(last=False)

    def decode(self, peer_id: str, request_id: bytes, frames: Sequence[bytes]) -> PeerReply | None:
        """A reply; None if nothing was asked with this id. Raises ProtocolError."""
        types = self._types.get(peer_id)
        message_type = None if types is None else types.get(request_id)
        return None if message_type is None else decode_peer_reply(message_type, frames)

    def forget(self, peer_id: str) -> None:
        """The connection begins anew: replies to what was asked before mean nothing."""
        self._types.pop(peer_id, None)
