"""Sites that a test speaks with message by message, and two of them on one connection."""

from __future__ import annotations

from random import Random
from typing import TypeVar

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.area_store import DEFAULT_LIMITS, AreaLimits
from statestore_client.server.kvstore.floods import FloodRate
from statestore_client.server.kvstore.members import SiteSettings
from statestore_client.server.kvstore.own_keys import DEFAULT_KEY_TTL_MS
from statestore_client.server.kvstore.peers import PeerState
from statestore_client.server.kvstore.replica import Replica, SitePeer
from statestore_client.server.kvstore.site import Site
from statestore_client.wire.kvstore.codec import decode, encode
from statestore_client.wire.kvstore.messages import Failure, Hello, Message, RangeSumsReply
from statestore_client.wire.kvstore.value import Value

AREA = "plant"
M = TypeVar("M")


class OneSite:
    """A site and its clock."""

    def __init__(
        self,
        name: str = "bonn",
        incarnation: int = 1,
        *,
        areas: tuple[str, ...] = (AREA,),
        rate: FloodRate | None = None,
        capabilities: tuple[str, ...] = ("ranges",),
        sync_timeout_s: float = 0.0,
        limits: AreaLimits = DEFAULT_LIMITS,
        key_ttl_ms: int = DEFAULT_KEY_TTL_MS,
    ) -> None:
        self.now = 100.0
        self.areas = {area: Area(area, name, limits=limits, key_ttl_ms=key_ttl_ms) for area in areas}
        settings = SiteSettings(name, incarnation, rate, capabilities, sync_timeout_s)
        self.site = Site(settings, self.areas.values(), Random(1), self.now)

    @property
    def replica(self) -> Replica:
        """Of the one area."""
        return self.site.replicas[AREA]

    def peer(self, name: str = "rome") -> SitePeer:
        """What it knows of a peer."""
        return self.replica.peers[name]

    def state(self, name: str = "rome") -> PeerState:
        """Of a peer."""
        return self.peer(name).status.state

    def hear(self, link: object, message: Message | bytes) -> list[Message]:
        """Something arrives; what is sent then."""
        self.site.receive(link, message if isinstance(message, bytes) else encode(message), self.now)
        self.site.tick(self.now)
        return self.said(link)

    def wait(self, seconds: float, link: object = "in") -> list[Message]:
        """Let time pass; what is sent then."""
        self.now += seconds
        self.site.tick(self.now)
        return self.said(link)

    def said(self, link: object) -> list[Message]:
        """What was sent on a connection since the last look."""
        output, self.site.output = self.site.output, []
        return [decode(data) for to, data in output if to == link]

    def hear_hello(
        self, name: str = "rome", incarnation: int = 7, link: object = "in", **more: object
    ) -> list[Message]:
        """Another site dials and says hello."""
        fields = {"areas": (AREA,), "capabilities": ("ranges",)} | more
        return self.hear(link, Hello(1, name, incarnation, **fields))  # type: ignore[arg-type]  # of a hello

    def sync_with(self, name: str = "rome", *, link: object = "in") -> None:
        """Another site dials, and has the same."""
        self.hear_hello(name, 7, link)
        self.hear(link, RangeSumsReply(self.site._last_id, True, ()))

    def set(self, key: str, value: bytes = b"x", version: int = 1) -> None:
        """Its program sets a key."""
        self.areas[AREA].set({key: Value(version, self.site.settings.name, value)}, self.now)
        self.site.tick(self.now)

    def told(self, kind: type[M]) -> list[M]:
        """Events of a kind since the last look."""
        events, self.site.events = self.site.events, []
        return [event for event in events if isinstance(event, kind)]


def failed(reply: Message) -> int | None:
    """Why, if the reply says that something failed."""
    return reply.reason if isinstance(reply, Failure) else None


class Pair:
    """Bonn dials Rome; messages arrive at once."""

    def __init__(self, bonn: OneSite, rome: OneSite) -> None:
        self.bonn, self.rome = bonn, rome
        self.carried: list[Message] = []
        bonn.site.members.dial("out", bonn.now)
        self.settle()

    def settle(self, seconds: float = 0.0) -> None:
        """Until nobody has anything to say."""
        self.bonn.now += seconds
        self.rome.now += seconds
        for one in (self.bonn, self.rome):
            one.site.tick(one.now)
        while self.bonn.site.output or self.rome.site.output:
            for one, other, link in ((self.bonn, self.rome, "in"), (self.rome, self.bonn, "out")):
                output, one.site.output = one.site.output, []
                for _, data in output:
                    self.carried.append(decode(data))
                    other.site.receive(link, data, other.now)
                other.site.tick(other.now)
