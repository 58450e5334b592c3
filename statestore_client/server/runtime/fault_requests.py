"""Faults that a client asks for itself, with user properties of its packets.

The names are those of the faultable broker in the tests of the official SDKs (state-store-facts.md), so that programs
and tests made for it find them here. CONNECT, PUBLISH, SUBSCRIBE and UNSUBSCRIBE may carry:

=========================  ===========================================================================================
``fault:disconnect``       a reason code: DISCONNECT with it, and the link ends. The packet is lost
``fault:rejectconnect``    a reason code: the answer to CONNECT
``fault:rejectpublish``    a reason code: the answer to PUBLISH
``fault:rejectsubscribe``  a reason code: the answer to SUBSCRIBE, for every filter
``fault:rejectunsubscribe``  a reason code: the answer to UNSUBSCRIBE, for every filter
``fault:delay``            seconds until that happens; alone, the packet waits so long, and all that come behind it
``fault:requestid``        the same packet with the same text again is served: a retry is to succeed
=========================  ===========================================================================================

Reason codes are decimal numbers, or hexadecimal with ``0x``. What makes no sense is ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode,
)
from statestore_client.server.runtime.faults import Delay, Drop, Refuse

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.runtime.faults import Action

__all__ = ["FaultRequests"]

#: Request identifiers that are remembered.
_MOST_IDS: Final = 10_000

#: The longest delay, in seconds.
_LONGEST_S: Final = 86_400.0


class FaultRequests:
    """Reads the wishes of clients. One for a server: a retry comes on another connection."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def clear(self) -> None:
        """Forget which requests there were."""
        self._known.clear()

    def find(self, packet: Packet) -> Action | None:
        """What the packet asks for."""
        if not isinstance(packet, (Connect, Publish, Subscribe, Unsubscribe)) or not packet.properties.user_properties:
            return None
        wishes = dict(reversed(packet.properties.user_properties))  # of a repeated name the first one counts
        action = _wanted(packet, wishes)
        request_id = wishes.get("fault:requestid")
        if action is None or request_id is None:
            return action
        return action if self._is_new((type(packet).__name__, request_id)) else None

    def _is_new(self, request: tuple[str, str]) -> bool:
        if request in self._known:
            return False
        self._known[request] = None
        if len(self._known) > _MOST_IDS:
            self._known.popitem(last=False)
        return True


def _wanted(packet: Connect | Publish | Subscribe | Unsubscribe, wishes: dict[str, str]) -> Action | None:
    delay_s = _seconds(wishes.get("fault:delay"))
    code = _number(wishes.get("fault:disconnect"))
    if code is not None and _can_say(Disconnect(code)):
        return Drop(code, delay_s)
    code = _number(wishes.get(f"fault:reject{type(packet).__name__.lower()}"))
    if code is not None and _can_say(_refusal(packet, code)):
        return Refuse(code, delay_s)
    return Delay(delay_s) if delay_s else None


def _refusal(packet: Connect | Publish | Subscribe | Unsubscribe, code: int) -> Packet:
    if isinstance(packet, Connect):
        return Connack(False, code)
    if isinstance(packet, Publish):
        return Puback(1, code)
    return Suback(1, (code,)) if isinstance(packet, Subscribe) else Unsuback(1, (code,))


def _can_say(packet: Packet) -> bool:
    try:
        encode(packet)
    except InvalidArgumentError:
        return False
    return True


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text or 0)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds <= _LONGEST_S else 0.0
