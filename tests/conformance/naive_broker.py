"""A second broker, as simple as it can be: the oracle of ``test_mqtt_programs.py``.

It knows nothing of bytes, sockets, time and speed: every question is answered by looking at everything. What it hands
out to a client is a list of :class:`Told` in the order in which they have to come.
"""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["Copy", "Naive", "Told"]


@attrs.define(eq=False)
class Copy:
    """A message for one client. ``state``: waiting, sent, released; ``counts``: in this connection's window."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    ids: list[int]
    state: str = "waiting"
    counts: bool = False
    dup: bool = False
    packet_id: int = 0  # what the broker under test gave it


@attrs.frozen
class Told:
    """One packet that a client has to get. ``copy``: of PUBLISH and PUBREL."""

    kind: str
    packet_id: int = 0
    codes: tuple[int, ...] = ()
    flags: int = 0
    copy: Copy | None = None


@attrs.define(eq=False)
class Kept:
    """A retained message."""

    payload: bytes
    qos: int
    publisher: str


@attrs.define(eq=False)
class Walk:
    """Retained messages that a client is still to get, after the topic ``last``."""

    qos: int
    no_local: bool
    ids: list[int]
    last: str = ""


@attrs.define(eq=False)
class Holder:
    """A session, and its connection if ``is_here``."""

    name: str
    stays: bool = False
    version: int = 5
    window: int = 0
    is_here: bool = False
    subscriptions: dict[str, tuple[int, bool, bool, list[int]]] = attrs.Factory(dict)
    copies: list[Copy] = attrs.Factory(list)  # waiting and in flight, in the order of their publication
    released: list[Copy] = attrs.Factory(list)  # in the order of their PUBRECs
    resend: list[Copy] = attrs.Factory(list)
    walks: dict[str, Walk] = attrs.Factory(dict)
    received: set[int] = attrs.Factory(set)  # QoS 2 identifiers of the client that it did not release
    will: tuple[str, bytes, int, bool] | None = None

    @property
    def has_window(self) -> bool:
        return sum(copy.counts for copy in self.copies + self.released) < self.window


def matches(name: str, topic: str) -> bool:
    """Level by level."""
    if topic.startswith("$") and name[:1] in ("+", "#"):
        return False
    wanted, levels = name.split("/"), topic.split("/")
    for place, want in enumerate(wanted):
        if want == "#":
            return True
        if place >= len(levels) or want not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


class Naive:
    """``told`` collects what each client gets; :meth:`take` empties it."""

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self.retained: dict[str, Kept] = {}
        self.told: dict[str, list[Told]] = {}

    def take(self, name: str) -> list[Told]:
        return self.told.pop(name, [])

    def _tell(self, name: str, kind: str, **options: Any) -> None:
        self.told.setdefault(name, []).append(Told(kind, **options))

    # -- coming and going ---------------------------------------------------------------------------------------------

    def connect(self, name: str, version: int, window: int, will: Any, *, clean: bool, stays: bool) -> None:
        """The caller has ended an earlier connection with :meth:`leave`."""
        holder = self.holders.get(name)
        if clean and holder is not None:
            del self.holders[name]
            holder = None
        self._tell(name, "CONNACK", codes=(0,), flags=int(holder is not None))
        if holder is None:
            holder = self.holders[name] = Holder(name)
        holder.version, holder.window, holder.will, holder.stays, holder.is_here = version, window, will, stays, True
        for copy in holder.released:
            self._tell(name, "PUBREL", copy=copy)
        holder.resend = [copy for copy in holder.copies if copy.state == "sent"]
        self._pump(holder)

    def leave(self, name: str, *, with_will: bool) -> None:
        holder = self.holders[name]
        holder.is_here = False
        holder.walks = {of: walk for of, walk in holder.walks.items() if walk.qos}
        for copy in holder.copies + holder.released:
            copy.counts = False
        if not holder.stays:
            del self.holders[name]
        if holder.will is not None and with_will:
            self._spread(name, *holder.will)
        holder.will = None

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, name: str, packet_id: int, wishes: list[tuple[str, int]], ids: list[int]) -> None:
        holder = self.holders[name]
        for of, options in wishes:
            qos, no_local, as_published, handling = options & 3, bool(options & 4), bool(options & 8), options >> 4
            is_new = of not in holder.subscriptions
            holder.subscriptions[of] = (qos, no_local, as_published, ids)
            if handling == 0 or (handling == 1 and is_new):
                holder.walks.pop(of, None)
                holder.walks[of] = Walk(qos, no_local, ids)
        self._tell(name, "SUBACK", packet_id=packet_id, codes=tuple(options & 3 for _, options in wishes))
        self._pump(holder)

    def unsubscribe(self, name: str, packet_id: int, names: list[str]) -> None:
        holder = self.holders[name]
        codes = tuple(0x11 if holder.subscriptions.pop(of, None) is None else 0 for of in names)
        for of in names:
            holder.walks.pop(of, None)
        self._tell(name, "UNSUBACK", packet_id=packet_id, codes=codes if holder.version == 5 else ())

    # -- messages from clients ----------------------------------------------------------------------------------------

    def publish(self, name: str, packet_id: int, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        holder = self.holders[name]
        if qos == 2 and packet_id in holder.received:
            self._tell(name, "PUBREC", packet_id=packet_id, codes=(0,))
            return
        nobody = holder.version == 5 and not self._is_wanted(topic)
        if qos == 1:
            self._tell(name, "PUBACK", packet_id=packet_id, codes=(0x10 if nobody else 0,))
        elif qos == 2:
            holder.received.add(packet_id)
            self._tell(name, "PUBREC", packet_id=packet_id, codes=(0,))
        self._spread(name, topic, payload, qos, retain)

    def release(self, name: str, packet_id: int) -> None:
        holder = self.holders[name]
        is_known = packet_id in holder.received
        holder.received.discard(packet_id)
        code = 0 if is_known or holder.version != 5 else 0x92
        self._tell(name, "PUBCOMP", packet_id=packet_id, codes=(code,))

    def _is_wanted(self, topic: str) -> bool:
        """Whether a subscription matches; also one that wants no messages of its own client."""
        return any(matches(of, topic) for holder in self.holders.values() for of in holder.subscriptions)

    def _readers(self, publisher: str, topic: str) -> list[tuple[Holder, list[tuple[int, bool, bool, list[int]]]]]:
        found = []
        for holder in self.holders.values():
            grants = [
                grant
                for of, grant in holder.subscriptions.items()
                if matches(of, topic) and not (grant[1] and holder.name == publisher)
            ]
            if grants:
                found.append((holder, grants))
        return found

    def _spread(self, publisher: str, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = Kept(payload, qos, publisher)
        elif retain:
            self.retained.pop(topic, None)
        for holder, grants in self._readers(publisher, topic):
            highest = min(qos, max(grant[0] for grant in grants))
            ids = sorted(number for grant in grants for number in grant[3])
            copy = Copy(topic, payload, highest, retain and any(grant[2] for grant in grants), ids)
            if highest:
                holder.copies.append(copy)
                self._pump(holder)
            elif holder.is_here:
                self._tell(holder.name, "PUBLISH", copy=copy)

    # -- messages to clients ------------------------------------------------------------------------------------------

    def outstanding(self, name: str) -> list[Copy]:
        """What the client has seen on this connection and not finished, PUBRELs included."""
        holder = self.holders[name]
        return [copy for copy in holder.copies if copy.counts] + holder.released

    def acknowledge(self, name: str, copy: Copy, *, refuse: bool) -> None:
        """The next step of the client: PUBACK, PUBREC or PUBCOMP."""
        holder = self.holders[name]
        if copy.state == "released":
            holder.released.remove(copy)
        elif copy.qos == 1 or refuse:
            holder.copies.remove(copy)
        else:
            holder.copies.remove(copy)
            holder.released.append(copy)
            copy.state = "released"
            self._tell(name, "PUBREL", copy=copy)
            return
        copy.counts = False
        self._pump(holder)

    def _pump(self, holder: Holder) -> None:
        """First what an earlier connection saw, then retained messages, then new ones."""
        while holder.is_here and holder.has_window:
            if holder.resend:
                copy = holder.resend.pop(0)
                copy.dup = True
                self._send(holder, copy)
            elif holder.walks:
                self._step(holder)
            else:
                waiting = next((copy for copy in holder.copies if copy.state == "waiting"), None)
                if waiting is None:
                    return
                waiting.state = "sent"
                self._send(holder, waiting)

    def _send(self, holder: Holder, copy: Copy) -> None:
        copy.counts = copy.qos > 0
        self._tell(holder.name, "PUBLISH", copy=copy)

    def _step(self, holder: Holder) -> None:
        """One retained message of the first walk, or its end."""
        of, walk = next(iter(holder.walks.items()))
        left = sorted(key for key in (topic.replace("/", "\0") for topic in self.retained) if key > walk.last)
        key = next((key for key in left if matches(of, key.replace("\0", "/"))), None)
        if key is None:
            del holder.walks[of]
            return
        walk.last = key
        kept = self.retained[key.replace("\0", "/")]
        if walk.no_local and kept.publisher == holder.name:
            return
        copy = Copy(key.replace("\0", "/"), kept.payload, min(kept.qos, walk.qos), True, sorted(walk.ids), "sent")
        if copy.qos:
            # Behind what is in flight, before what waits.
            place = sum(other.state == "sent" for other in holder.copies)
            holder.copies.insert(place, copy)
        self._send(holder, copy)
