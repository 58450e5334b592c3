"""Faults that a client asks for itself, with user properties of its packets.

The first seven names are those of the faultable broker in the tests of the official SDKs (state-store-facts.md), so
that programs and tests made for it find them here; the others are for what else :class:`Faults` can do. CONNECT,
PUBLISH, SUBSCRIBE and UNSUBSCRIBE may carry:

=========================  ===========================================================================================
``fault:disconnect``       a reason code: DISCONNECT with it, and the link ends. The packet is lost
``fault:rejectconnect``    a reason code: the answer to CONNECT
``fault:rejectpublish``    a reason code: the answer to PUBLISH
``fault:rejectsubscribe``  a reason code: the answer to SUBSCRIBE, for every filter
``fault:rejectunsubscribe``  a reason code: the answer to UNSUBSCRIBE, for every filter
``fault:delay``            seconds until that happens; alone, the packet waits that long, and all that come behind it
``fault:requestid``        the same packet with the same text again is served: a retry is to succeed
``fault:drop``             1: the link breaks without a word. The packet is lost
``fault:duplicate``        1: the packet comes twice
``fault:withholdanswer``   1: the packet is served, and its answer (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK) is lost
``fault:delayanswer``      seconds by which its answer is late, and all that comes behind it
``fault:cutanswer``        the link breaks after this many bytes of its answer
=========================  ===========================================================================================

Reason codes are decimal numbers, or hexadecimal with ``0x``. What makes no sense is ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

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
from statestore_client.server.testing.faults import Cut, Delay, Drop, Duplicate, Refuse, Withhold

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.testing.faults import Action

__all__ = ["FaultRequests"]

#: Request identifiers that are remembered.
_MOST_IDS: Final = 10_000

#: What may carry wishes.
_Asking: TypeAlias = Connect | Publish | Subscribe | Unsubscribe

#: The longest delay, in seconds.
_LONGEST_S: Final = 86_400.0


class FaultRequests:
    """Reads the wishes of clients. One for a server: a retry comes on another connection."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def clear(self) -> None:
        """Forget which requests there were."""
        self._known.clear()

    def find(self, packet: Packet) -> tuple[Action | None, Action | None]:
        """What the packet asks for itself, and for its answer."""
        if not isinstance(packet, (Connect, Publish, Subscribe, Unsubscribe)) or not packet.properties.user_properties:
            return None, None
        wishes = dict(reversed(packet.properties.user_properties))  # of a repeated name the first one counts
        found = _wanted(packet, wishes), _wanted_of_answer(wishes)
        request_id = wishes.get("fault:requestid")
        if request_id is None or found == (None, None):
            return found
        return found if self._is_new((type(packet).__name__, request_id)) else (None, None)

    def _is_new(self, request: tuple[str, str]) -> bool:
        if request in self._known:
            return False
        self._known[request] = None
        if len(self._known) > _MOST_IDS:
            self._known.popitem(last=False)
        return True


def _wanted(packet: _Asking, wishes: dict[str, str]) -> Action | None:
    delay_s = _seconds(wishes.get("fault:delay"))
    if _is_set(wishes, "fault:drop"):
        return Drop(None, delay_s)
    code = _number(wishes.get("fault:disconnect"))
    if code is not None and _can_encode(Disconnect(code)):
        return Drop(code, delay_s)
    code = _number(wishes.get(f"fault:reject{type(packet).__name__.lower()}"))
    if code is not None and _can_encode(_refusal(packet, code)):
        return Refuse(code, delay_s)
    if _is_set(wishes, "fault:duplicate"):
        return Duplicate()
    return Delay(delay_s) if delay_s else None


def _wanted_of_answer(wishes: dict[str, str]) -> Action | None:
    if _is_set(wishes, "fault:withholdanswer"):
        return Withhold()
    after_bytes = _number(wishes.get("fault:cutanswer"))
    if after_bytes is not None and after_bytes >= 0:
        return Cut(after_bytes)
    delay_s = _seconds(wishes.get("fault:delayanswer"))
    return Delay(delay_s) if delay_s else None


def _is_set(wishes: dict[str, str], name: str) -> bool:
    return wishes.get(name) == "1"


def _refusal(packet: _Asking, code: int) -> Packet:
    if isinstance(packet, Connect):
        return Connack(False, code)
    if isinstance(packet, Publish):
        return Puback(1, code)
    return Suback(1, (code,)) if isinstance(packet, Subscribe) else Unsuback(1, (code,))


def _can_encode(packet: Packet) -> bool:
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
