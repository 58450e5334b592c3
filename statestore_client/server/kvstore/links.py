"""The connections of a site: which of them have said hello, whose they are, which of them live.

A connection that this site dials sends a hello, again until it is answered: three times after a second, then ever more
rarely, so that a site that is refused or not heard costs less than one that is a peer. On a connection that another
site dials nothing is remembered before a good hello has come. One that was silent for 3 s is dead: a dialled one says
hello again, the other kind is forgotten. Floods are numbered on each connection.

A site that stood still for so long, as its machine was suspended, finds messages that are as old. Times to live count
from when a message comes, so an old one would bring back keys that have ended. Invariant: nothing is taken from a
connection that is dead by now, whether :meth:`Members.tick` has noticed it or not; a new hello and a sync follow.

Source: ``docs/decisions/0045-the-wire-between-sites.md``; facts §6.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.wire.kvstore.messages import PROTOCOL_VERSION, Hello, Refusal, RefusalReason

if TYPE_CHECKING:
    from random import Random

__all__ = ["DOWN_S", "HEARTBEAT_S", "MAX_LINKS", "QUICK_HELLOS", "LinkId", "Links", "SiteLink"]

#: The address that was dialled, or the route of a connection that another site has opened.
LinkId: TypeAlias = str | bytes

HEARTBEAT_S: Final = 1.0
#: Silence after which a connection, and an incarnation that has no other one, is taken for dead.
DOWN_S: Final = 3.0
#: Hellos that are followed by another one after a second. A site that was started again may be refused so long, until
#: its former incarnation is taken for dead.
QUICK_HELLOS: Final = 3
_LONGEST_HELLO_WAIT_S: Final = 8.0
_HELLO_JITTER: Final = 0.2
#: Connections that others may open. A site has some dozen peers.
MAX_LINKS: Final = 1024


@attrs.define(eq=False)
class SiteLink:
    """One connection. It has a ``name`` once the other side's hello was taken."""

    id: LinkId
    is_dialled: bool
    heard_at: float
    name: str | None = None
    #: Whose it was when it lived the last time.
    last_name: str | None = None
    incarnation: int = 0
    areas: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    #: Numbers of the last floods in both directions.
    sent: int = 0
    received: int = 0
    hello_at: float = 0.0
    said_hello_at: float = float("-inf")
    #: Hellos that were said since somebody answered one.
    hellos: int = 0
    #: A hello of it was not answered in time, or was refused.
    has_failed: bool = False
    #: Something else has come since the hello was taken: the other side has the answer to it.
    has_spoken: bool = False

    def repeats(self, hello: Hello) -> bool:
        """Whether a hello says again what was taken, and begins nothing anew.

        A dialled connection says hello until it has an answer, as the line may be slow, and once more when the shell
        finds that the connection stands. So several answers come, and on the other side several hellos come before
        anything else: nothing that was said in between is lost, as a connection keeps the order.
        """
        is_same = (self.name, self.incarnation) == (hello.name, hello.incarnation)
        return is_same and (hello.is_reply or not self.has_spoken)

    def is_dead(self, now: float) -> bool:
        """Whether a peer was silent on it for too long."""
        return self.name is not None and self.heard_at + DOWN_S <= now

    def forget(self, now: float) -> None:
        """What was said on this connection does not count any more."""
        self.name = None
        self.hello_at = max(now, self.said_hello_at + HEARTBEAT_S)  # whatever the other side says, and however often
        self.hellos = 0

    def hello_later(self, now: float, random: Random) -> None:
        """Say hello again some time after the last one, which was refused or not answered. Sites that lost the same
        peer together come back at different times.
        """
        slow = self.hellos - QUICK_HELLOS
        wait = HEARTBEAT_S
        if slow > 0:
            wait = min(HEARTBEAT_S * 2 ** min(slow, 16), _LONGEST_HELLO_WAIT_S) * (
                1.0 - _HELLO_JITTER * random.random()
            )
        self.hello_at = now + wait


class Links:
    """All connections of a site."""

    def __init__(self, name: str, areas: tuple[str, ...]) -> None:
        self._name = name
        self._areas = areas
        self._links: dict[LinkId, SiteLink] = {}
        #: Incarnations that were refused because another one of the name lives, until that one is heard again.
        self._rivals: dict[str, int] = {}

    def __iter__(self) -> Iterator[SiteLink]:
        return iter(tuple(self._links.values()))

    def get(self, link_id: LinkId) -> SiteLink | None:
        """None if nothing is remembered of it."""
        return self._links.get(link_id)

    def dial(self, link_id: LinkId, now: float, last_name: str | None = None) -> None:
        """The shell opens this connection."""
        self._links[link_id] = SiteLink(link_id, True, now, last_name=last_name, hello_at=now)

    def accept(self, link_id: LinkId, now: float) -> SiteLink:
        """Another site has opened this one, and its hello is good."""
        link = self._links[link_id] = SiteLink(link_id, False, now)
        return link

    def drop(self, link_id: LinkId) -> SiteLink | None:
        """The connection is not there any more."""
        return self._links.pop(link_id, None)

    def take_hello(self, link: SiteLink, hello: Hello, now: float) -> None:
        """The other side's hello is taken: everything begins, and the peer is spoken to on this connection."""
        link.name = link.last_name = hello.name
        link.incarnation = hello.incarnation
        link.areas, link.capabilities = hello.areas, hello.capabilities
        link.sent = link.received = link.hellos = 0
        link.has_spoken = False
        link.heard_at = now
        self._links[link.id] = self._links.pop(link.id)

    def of(self, name: str) -> SiteLink | None:
        """The connection on which a peer is spoken to: the last that said hello. An older one may be dead already."""
        return next((link for link in reversed(self._links.values()) if link.name == name), None)

    def lead_to(self, name: str) -> bool:
        """Whether a peer has a connection, or is dialled where it was reached before."""
        return any(link.last_name == name for link in self._links.values())

    def objection(self, link_id: LinkId, hello: Hello, user: str | None = None) -> Refusal | None:
        """Why a hello cannot be taken. ``user`` is the site whose key was proved, see :meth:`Site.receive`."""
        if user is not None and hello.name != user:
            return Refusal(RefusalReason.ANOTHER_KEY, f"the key of this connection is not that of {hello.name!r}")
        if hello.name == self._name:
            return Refusal(RefusalReason.OWN_NAME, f"{hello.name!r} is the name of the site that you have reached")
        if hello.version < PROTOCOL_VERSION:
            return Refusal(RefusalReason.VERSION, f"version {hello.version} of the protocol is too old")
        if not set(hello.areas) & set(self._areas):
            return Refusal(RefusalReason.NO_COMMON_AREA, f"this site has the areas {', '.join(self._areas)}")
        living = [link for link in self._links.values() if link.name == hello.name and link.id != link_id]
        if any(link.incarnation != hello.incarnation for link in living):
            if len(self._rivals) >= MAX_LINKS:
                self._rivals.clear()
            self._rivals[hello.name] = hello.incarnation
            return Refusal(RefusalReason.NAME_IN_USE, f"another site is named {hello.name!r}, or was until now")
        if link_id not in self._links and len(self._links) >= MAX_LINKS:
            return Refusal(RefusalReason.TOO_MANY_CONNECTIONS, f"{MAX_LINKS} connections are open")
        return None

    def has_rival(self, name: str) -> bool:
        """Whether another incarnation of a name that was just heard has said hello. It is told once."""
        return self._rivals.pop(name, None) is not None

    def forget_rival(self, name: str) -> None:
        """The name is free: what was taken for a rival was a new start."""
        self._rivals.pop(name, None)
