"""The peers of a site: connections begin with hellos, live by heartbeats, and end.

A peer is known from its first hello on, also while it is lost: an operator wants to see it. It is forgotten when one of
the two sides hangs up for good (:class:`~statestore_client.wire.kvstore.messages.Leave`), or when it is told so.

Source: ``docs/decisions/sites.md``; facts §6.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.peers import DEFAULT_WAITS, HelloRefused, LinkId, SyncWaits
from statestore_client.server.kvstore.replica import REQUEST_TIMEOUT_S
from statestore_client.wire.kvstore.messages import (
    PROTOCOL_VERSION,
    Capability,
    Heartbeat,
    Hello,
    HelloWanted,
    Leave,
    Message,
    Refusal,
    RefusalReason,
)
from statestore_client.wire.kvstore.value import MAX_ORIGINATOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from statestore_client.server.kvstore.floods import FloodRate
    from statestore_client.server.kvstore.peers import SiteEvent
    from statestore_client.server.kvstore.replica import Replica

# -- links -------------------------------------------------------------------------------------------------------------
#
# The connections of a site: which of them have said hello, whose they are, which of them live.
#
# A connection that this site dials sends a hello, again until it is answered: three times after a second, then ever
# more rarely, so that a site that is refused or not heard costs less than one that is a peer. On a connection that
# another site dials nothing is remembered before a good hello has come. One that was silent for 3 s is dead: a dialled
# one says hello again, the other kind is forgotten. Floods are numbered on each connection.
#
# A site that stood still for so long, as its machine was suspended, finds messages that are as old. Times to live count
# from when a message comes, so an old one would bring back keys that have ended. Invariant: nothing is taken from a
# connection that is dead by now, whether :meth:`Members.tick` has noticed it or not; a new hello and a sync follow.
#
# Source: ``docs/decisions/sites.md``; facts §6.7.


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


# -- members -----------------------------------------------------------------------------------------------------------


_ALL_CAPABILITIES: Final = tuple(Capability)


def _check_name(_settings: object, _attribute: object, name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_ORIGINATOR_BYTES:
        raise InvalidArgumentError(f"the name of a site has 1 to {MAX_ORIGINATOR_BYTES} bytes")


@attrs.frozen
class SiteSettings:
    """The identity of a site, and limits. ``incarnation`` is a random number of 64 bits, another one at each start."""

    name: str = attrs.field(validator=_check_name)
    incarnation: int
    flood_rate: FloodRate | None = None
    capabilities: tuple[str, ...] = _ALL_CAPABILITIES
    #: So long the end of the initial syncs is not told while no peer was synced with.
    sync_timeout_s: float = 0.0
    waits: SyncWaits = DEFAULT_WAITS


class Members:
    """``replicas`` are told who comes and goes. ``send`` takes a connection and a message, ``emit`` an event."""

    def __init__(
        self,
        settings: SiteSettings,
        replicas: Mapping[str, Replica],
        send: Callable[[LinkId, Message], None],
        emit: Callable[[SiteEvent], None],
        random: Random,
        now: float,
    ) -> None:
        self.links: Links = Links(settings.name, tuple(replicas))
        self._settings = settings
        self._replicas = replicas
        self._send = send
        self._emit = emit
        self._random = random
        self._heartbeat_at = now
        self._known: dict[str, int] = {}  # incarnation of each name that was ever a peer

    def dial(self, link_id: LinkId, now: float) -> None:
        """The shell opens this connection, and keeps it open. One that it has open already goes on."""
        if self.links.get(link_id) is not None:
            return
        self.links.dial(link_id, now)
        self.tick(now)

    def lost(self, link_id: LinkId, now: float) -> None:
        """The connection is gone."""
        link = self.links.drop(link_id)
        if link is not None and link.name is not None:
            self._leaves(link.name, link.heard_at, now)

    def redial(self, link_id: LinkId, now: float) -> None:
        """A dialled connection has begun anew, or ended: what was said on it does not count any more."""
        link = self.links.get(link_id)
        self.lost(link_id, now)
        self.links.dial(link_id, now, None if link is None else link.last_name)
        self.tick(now)

    def hang_up(self, link_id: LinkId, now: float) -> None:
        """A dialled connection is not wanted any more. What is in ``output`` then has to be sent before it is closed:
        where this was the last one between the two sites, they forget each other.
        """
        link = self.links.get(link_id)
        if link is not None:
            self._send(link_id, Leave())  # also if only the other side knows of the peering yet
            self._parts(link, now)

    def _parts(self, link: SiteLink, now: float) -> None:
        """One of the two sites has hung up for good. The peer stays if it has another connection, or is dialled."""
        self.links.drop(link.id)
        name = link.last_name
        if name is None:
            return
        if not self.links.lead_to(name):
            self.remove_peer(name)
        elif link.name is not None:
            self._leaves(name, link.heard_at, now)

    def forget(self, name: str) -> bool:
        """A site that is gone for good is not listed any more. False if there is no such peer.

        Raises InvalidArgumentError for one that is connected, or that this site dials: it would come back.
        """
        dialled = [str(link.id) for link in self.links if link.is_dialled and link.last_name == name]
        if dialled:
            raise InvalidArgumentError(f"this site dials {name!r}: remove {' and '.join(dialled)}")
        if self.links.of(name) is not None:
            raise InvalidArgumentError(f"site {name!r} has dialled this one, and is connected: remove this site there")
        is_there = any(name in replica.peers for replica in self._replicas.values())
        self.remove_peer(name)
        return is_there

    def remove_peer(self, name: str) -> None:
        """Forget the peer. One that dials this site comes back."""
        self.links.forget_rival(name)
        self._known.pop(name, None)
        for link in self.links:
            if link.name == name:
                self.links.drop(link.id)
        for replica in self._replicas.values():
            if name in replica.peers:
                replica.remove(name)

    def _leaves(self, name: str, heard_at: float, now: float) -> None:
        """A connection of the peer has died. With another one it goes on, but what was under way may be lost."""
        other = self.links.of(name)
        for replica in self._replicas.values():
            if name in replica.peers:
                if other is None:
                    replica.disconnect(name, now, heard_at)
                else:
                    replica.missed(name, now)

    def _hello(self, *, is_reply: bool) -> Hello:
        settings = self._settings
        return Hello(
            PROTOCOL_VERSION,
            settings.name,
            settings.incarnation,
            tuple(self._replicas),
            settings.capabilities,
            is_reply,
        )

    def receive_hello(self, link_id: LinkId, hello: Hello, now: float, user: str | None) -> None:
        """A site has dialled this one, or has answered. ``user``: see :meth:`Site.receive`."""
        link = self.links.get(link_id)
        if hello.is_reply and (link is None or not link.is_dialled):
            return  # the answer to a hello of a connection that is gone
        if hello.is_reply and link is not None and link.said_hello_at + DOWN_S <= now:
            link.hello_at = now  # this answer may be as old as what it answers, and what was said after it, too
            return
        refusal = self.links.objection(link_id, hello, user)
        if refusal is not None:
            # Whether two living sites have the name shows when the other one is heard again.
            if refusal.reason is not RefusalReason.NAME_IN_USE:
                self._emit(HelloRefused(link_id, hello.name, refusal.reason, refusal.text))
            if link is not None:
                link.has_failed = True
                link.hello_later(now, self._random)
            if not hello.is_reply:
                self._send(link_id, refusal)
            return
        if link is not None and link.repeats(hello):
            link.heard_at = now
            if not hello.is_reply:
                self._send(link_id, self._hello(is_reply=True))
            return
        if link is None:
            link = self.links.accept(link_id, now)
        elif link.name is not None:
            name = link.name
            link.forget(now)
            self._leaves(name, link.heard_at, now)
        self.links.forget_rival(hello.name)
        is_second = self.links.of(hello.name) is not None
        self.links.take_hello(link, hello, now)
        if not hello.is_reply:
            self._send(link_id, self._hello(is_reply=True))
        if not is_second:
            self._arrives(link, hello.name, now)

    def _arrives(self, link: SiteLink, name: str, now: float) -> None:
        if len(self._known) >= MAX_LINKS and name not in self._known:
            # Names that come and go must not be kept for ever: of those that are gone the one that came first.
            gone = next((each for each in self._known if self.links.of(each) is None), None)
            if gone is not None:
                self.remove_peer(gone)
        is_new = self._known.get(name) != link.incarnation
        self._known[name] = link.incarnation
        for area in link.areas:
            if area in self._replicas:
                self._replicas[area].connect(name, link.capabilities, now, is_new=is_new)

    def _forget(self, link: SiteLink, now: float) -> None:
        """The connection has died, or begins anew."""
        name = link.name
        link.forget(now)
        if not link.is_dialled:
            self.links.drop(link.id)
        if name is not None:
            self._leaves(name, link.heard_at, now)

    def end_if_dead(self, link: SiteLink, now: float) -> None:
        """A connection that was silent for too long ends, also if something has come now: that may be as old."""
        if link.is_dead(now):
            self._forget(link, now)

    def refused(self, link: SiteLink, message: HelloWanted | Refusal, now: float) -> None:
        """The other side does not know this one, or does not want it."""
        if link.name is not None:
            self._forget(link, now)
        if isinstance(message, Refusal):
            # So long the own former incarnation may be the one that has the name.
            may_pass = message.reason == RefusalReason.NAME_IN_USE and link.hellos <= QUICK_HELLOS
            if not may_pass:
                link.has_failed = True
                self._emit(HelloRefused(link.id, "", message.reason, message.text))
            link.hello_later(now, self._random)

    def left(self, link: SiteLink, now: float) -> None:
        """The other side has hung up for good. Nobody but the one that dials can."""
        if not link.is_dialled:
            self._parts(link, now)

    def receive_heartbeat(self, link: SiteLink, heartbeat: Heartbeat, now: float) -> bool:
        """Whether floods of the peer were lost on the way."""
        if heartbeat.incarnation != link.incarnation:
            self._forget(link, now)
            return False
        has_missed = heartbeat.floods > link.received
        link.received = max(link.received, heartbeat.floods)
        return has_missed

    # -- the clock -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Say hello in time, and that this site lives; connections that were silent for too long are dead."""
        for link in self.links:
            self.end_if_dead(link, now)
            if link.is_dialled and link.name is None and link.hello_at <= now:
                link.has_failed = link.has_failed or now - link.heard_at >= REQUEST_TIMEOUT_S
                link.hellos += 1
                link.said_hello_at = now
                link.hello_later(now, self._random)
                self._send(link.id, self._hello(is_reply=False))
        if self._heartbeat_at <= now:
            self._heartbeat_at = now + HEARTBEAT_S
            for link in self.links:
                if link.name is not None:
                    self._send(link.id, Heartbeat(self._settings.incarnation, link.sent))

    def deadlines(self) -> Iterable[float]:
        """When to call :meth:`tick`."""
        yield self._heartbeat_at
        for link in self.links:
            if link.name is not None:
                yield link.heard_at + DOWN_S
            elif link.is_dialled:
                yield link.hello_at
