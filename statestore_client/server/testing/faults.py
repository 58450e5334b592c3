"""Faults on purpose: what is to go wrong, at which packet, and how often. Where it does is in :mod:`.fault_injector`.

A fault waits for a packet: of one kind (``"PUBLISH"``), from one side, perhaps of one client or about one topic. It
strikes when such a packet comes by: before the server sees it, or instead of being sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypedDict

import attrs

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
from statestore_client.server.checks import check_kind, check_number, check_seconds
from statestore_client.server.testing.recording import topic_matcher
from statestore_client.thread_locks import Mutex

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from statestore_client.mqtt.packets import Packet

Side: TypeAlias = Literal["client", "server"]

#: The sender of a packet that both could send: the one in the exchanges that tests are mostly about.
_SENDERS: Final[dict[str, Side]] = {
    "CONNECT": "client",
    "CONNACK": "server",
    "PUBLISH": "client",
    "PUBACK": "server",
    "PUBREC": "server",
    "PUBREL": "client",
    "PUBCOMP": "server",
    "SUBSCRIBE": "client",
    "SUBACK": "server",
    "UNSUBSCRIBE": "client",
    "UNSUBACK": "server",
    "PINGREQ": "client",
    "PINGRESP": "server",
    "DISCONNECT": "client",
    "AUTH": "client",
}
#: Of reason codes: those below it say that all is well.
_FIRST_REFUSAL: Final = 0x80

_FROM_BOTH: Final = frozenset({"PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "DISCONNECT", "AUTH"})


@attrs.frozen
class Drop:
    """The link breaks; with a reason code, after a DISCONNECT. The packet is lost. ``after_s`` later, if that is set:
    what comes meanwhile is served.
    """

    reason_code: int | None = None
    after_s: float = 0.0


@attrs.frozen
class Withhold:
    """The packet is lost, and nothing else."""


@attrs.frozen
class Delay:
    """The packet waits, and what its side sends behind it."""

    seconds: float


@attrs.frozen
class Duplicate:
    """The packet comes twice, a message with DUP set the second time."""


@attrs.frozen
class Refuse:
    """The packet is answered with a reason code, and goes no further. ``after_s`` later, if that is set."""

    reason_code: int
    after_s: float = 0.0


@attrs.frozen
class Cut:
    """The link breaks after this many bytes: of the packet, or of all that the side has sent."""

    after_bytes: int


Action: TypeAlias = Drop | Withhold | Delay | Duplicate | Refuse | Cut


class FaultOptions(TypedDict, total=False):
    """Which packets a fault strikes.

    ``by`` is the side that sends the packet, where both do (PUBLISH and its acknowledgements, DISCONNECT, AUTH): by
    default a PUBLISH is the client's and its acknowledgement the server's. ``topic`` is a filter: a message, the
    message that is acknowledged, or one of the filters of a SUBSCRIBE must match. The first ``skip`` packets are
    spared, and ``times`` are struck, None for all.
    """

    by: Literal["client", "server"]
    client_id: str
    topic: str
    skip: int
    times: int | None


@attrs.define(eq=False)
class Fault:
    """One fault, until it has struck as often as it should. ``hits`` counts."""

    action: Action
    packet: str | None  # None: any bytes
    by: Side
    client_id: str | None = None
    matches: Callable[[str], bool] | None = attrs.field(default=None, repr=False)
    skip: int = 0
    times: int | None = 1
    hits: int = 0

    @property
    def is_over(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def cancel(self) -> None:
        """Strike no more."""
        self.times = self.hits

    def applies_to(self, packet: str | None, by: Side, client_id: str | None, topics: Iterable[str]) -> bool:
        """Whether this is a packet for it; then it counts."""
        if (packet, by) != (self.packet, self.by) or self.is_over:
            return False
        if self.client_id is not None and client_id != self.client_id:
            return False
        if self.matches is not None and not any(map(self.matches, topics)):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True


class Faults:
    """The faults of one server. Those that were set first strike first, one for each packet. Any thread may call this.

    Each method returns the :class:`Fault`: ``fault.hits`` tells how often it struck, ``fault.cancel()`` ends it. Raises
    InvalidArgumentError for a packet that there is not, a reason code that the answer cannot carry or that refuses
    nothing, and options that are none: such a fault would never strike, and its test would prove nothing.
    """

    def __init__(self) -> None:
        self._faults: tuple[Fault, ...] = ()
        self._guard = Mutex()  # of replacing the tuple; it is read without

    def drop(self, packet: str, *, reason_code: int | None = None, **which: Unpack[FaultOptions]) -> Fault:
        """Break the link when this packet comes by, which is lost: a packet of the client is not served, one of the
        server not sent. With a ``reason_code`` the server says DISCONNECT before (MQTT 5.0).
        """
        if reason_code is not None:
            check_number("reason_code", reason_code, 0, 0xFF)
            encode(Disconnect(reason_code))
        _check_packet(packet)
        return self._add(Drop(reason_code), packet, which)

    def withhold(self, packet: str, **which: Unpack[FaultOptions]) -> Fault:
        """Lose this packet, and nothing else: ``withhold("PUBACK")`` for a server that never acknowledges."""
        _check_packet(packet)
        return self._add(Withhold(), packet, which)

    def delay(self, packet: str, seconds: float, **which: Unpack[FaultOptions]) -> Fault:
        """Hold this packet back, and all that the same side sends on this connection behind it. The time is that of the
        server's clock, which can be advanced.
        """
        check_seconds("a delay", seconds)
        _check_packet(packet)
        return self._add(Delay(seconds), packet, which)

    def duplicate(self, packet: str, **which: Unpack[FaultOptions]) -> Fault:
        """Let this packet come twice; a message has DUP set the second time."""
        _check_packet(packet)
        return self._add(Duplicate(), packet, which)

    def refuse(self, packet: str, reason_code: int, **which: Unpack[FaultOptions]) -> Fault:
        """Answer CONNECT, PUBLISH, SUBSCRIBE or UNSUBSCRIBE with a reason code; the broker does not see it. Where the
        version has no answer that could say so, the link breaks: a PUBLISH with QoS 0 gets a DISCONNECT, and in 3.1.1
        nothing.
        """
        answer = _ANSWERS.get(packet)
        if answer is None:
            raise InvalidArgumentError(f"{packet} has no answer that could refuse it; {', '.join(_ANSWERS)} have")
        check_number("reason_code", reason_code, 0, 0xFF)
        if reason_code < _FIRST_REFUSAL:
            raise InvalidArgumentError(f"reason code {reason_code:#04x} refuses nothing; refusals begin at 0x80")
        encode(answer(reason_code))
        return self._add(Refuse(reason_code), packet, which)

    def cut(self, after_bytes: int, packet: str | None = None, **which: Unpack[FaultOptions]) -> Fault:
        """Break the link after this many bytes of this packet; without one, of all that its side has sent on a
        connection, by default the server.
        """
        check_number("after_bytes", after_bytes, 0)
        if packet is not None:
            _check_packet(packet)
        return self._add(Cut(after_bytes), packet, which)

    def clear(self) -> None:
        """End all faults."""
        with self._guard:
            for fault in self._faults:
                fault.cancel()
            self._faults = ()

    def _add(self, action: Action, packet: str | None, which: FaultOptions) -> Fault:
        _check_options(which)
        usual = "server" if packet is None else _SENDERS[packet]
        by = which.get("by", usual)
        if by != usual and packet is not None and packet not in _FROM_BOTH:
            raise InvalidArgumentError(f"a {by} sends no {packet}")
        topic = which.get("topic")
        fault = Fault(
            action,
            packet,
            by,
            which.get("client_id"),
            None if topic is None else topic_matcher(topic),
            which.get("skip", 0),
            which.get("times", 1),
        )
        with self._guard:
            self._faults = (*(each for each in self._faults if not each.is_over), fault)
        return fault

    # -- for the connections, in the thread of the server --------------------------------------------------------------

    def find(self, packet: str, by: Side, client_id: str | None, topics: Iterable[str]) -> Action | None:
        """What happens to a packet."""
        faults = self._faults
        return next((fault.action for fault in faults if fault.applies_to(packet, by, client_id, topics)), None)

    def find_cut(self, by: Side, client_id: str | None, total: int) -> int | None:
        """After how many bytes the link breaks, if it is to break before it has carried ``total``."""
        for fault in self._faults:
            action = fault.action
            is_due = isinstance(action, Cut) and action.after_bytes < total
            if is_due and isinstance(action, Cut) and fault.applies_to(None, by, client_id, ()):
                return action.after_bytes
        return None


#: The answer that refuses a packet, with a reason code.
_ANSWERS: Final[dict[str, Callable[[int], Packet]]] = {
    "CONNECT": lambda code: Connack(False, code),
    "PUBLISH": lambda code: Puback(1, code),
    "SUBSCRIBE": lambda code: Suback(1, (code,)),
    "UNSUBSCRIBE": lambda code: Unsuback(1, (code,)),
}


def _check_packet(packet: str) -> None:
    if packet not in _SENDERS:
        raise InvalidArgumentError(f"{packet!r} is not a packet of MQTT; there are {', '.join(_SENDERS)}")


def _check_options(which: FaultOptions) -> None:
    known = FaultOptions.__annotations__
    for name in which:
        if name not in known:
            raise InvalidArgumentError(f"unknown option {name}; known: {', '.join(known)}")
    if (by := which.get("by", "server")) not in ("client", "server"):
        raise InvalidArgumentError(f"by must be 'client' or 'server', not {by!r}")
    check_kind("client_id", which.get("client_id"), str, wanted="a text")
    check_number("skip", which.get("skip", 0), 0)
    if (times := which.get("times", 1)) is not None:  # for always
        check_number("times", times, 1)


# -- what a client asks for --------------------------------------------------------------------------------------------
#
# Faults that a client asks for itself, with user properties of its packets.
#
# The first seven names are those of the faultable broker in the tests of the official SDKs (state-store-facts.md), so
# that programs and tests made for it find them here; the others are for what else :class:`Faults` can do. CONNECT,
# PUBLISH, SUBSCRIBE and UNSUBSCRIBE may carry:
#
# =========================  ===========================================================================================
# ``fault:disconnect``       a reason code: DISCONNECT with it, and the link ends. The packet is lost
# ``fault:rejectconnect``    a reason code: the answer to CONNECT
# ``fault:rejectpublish``    a reason code: the answer to PUBLISH
# ``fault:rejectsubscribe``  a reason code: the answer to SUBSCRIBE, for every filter
# ``fault:rejectunsubscribe``  a reason code: the answer to UNSUBSCRIBE, for every filter
# ``fault:delay``            seconds until that happens; alone, the packet waits that long, and all that come behind it
# ``fault:requestid``        the same packet with the same text again is served: a retry is to succeed
# ``fault:drop``             1: the link breaks without a word. The packet is lost
# ``fault:duplicate``        1: the packet comes twice
# ``fault:withholdanswer``   1: the packet is served, and its answer (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK) is lost
# ``fault:delayanswer``      seconds by which its answer is late, and all that comes behind it
# ``fault:cutanswer``        the link breaks after this many bytes of its answer
# =========================  ===========================================================================================
#
# Reason codes are decimal numbers, or hexadecimal with ``0x``. What makes no sense is ignored.


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
