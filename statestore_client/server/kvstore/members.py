"""The peers of a site: connections begin with hellos, live by heartbeats, and end.

A peer is known from its first hello on, also while it is lost: an operator wants to see it. It is forgotten when one of
the two sides hangs up for good (:class:`~statestore_client.wire.kvstore.messages.Leave`), or when it is told so.

Source: ``docs/decisions/0045-the-wire-between-sites.md``; facts §6.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.events import HelloRefused
from statestore_client.server.kvstore.links import (
    DOWN_S,
    HEARTBEAT_S,
    MAX_LINKS,
    QUICK_HELLOS,
    LinkId,
    Links,
    SiteLink,
)
from statestore_client.server.kvstore.replica import REQUEST_TIMEOUT_S
from statestore_client.wire.kvstore.messages import (
    PROTOCOL_VERSION,
    Heartbeat,
    Hello,
    HelloWanted,
    Leave,
    Message,
    Refusal,
    RefusalReason,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from statestore_client.server.kvstore.events import SiteEvent
    from statestore_client.server.kvstore.replica import Replica
    from statestore_client.server.kvstore.site import SiteSettings

__all__ = ["Members"]


class Members:
    """``replicas`` are told who comes and goes. ``send`` takes a connection and a message, ``tell`` an event."""

    def __init__(
        self,
        settings: SiteSettings,
        replicas: Mapping[str, Replica],
        send: Callable[[LinkId, Message], None],
        tell: Callable[[SiteEvent], None],
        random: Random,
        now: float,
    ) -> None:
        self.links: Links = Links(settings.name, tuple(replicas))
        self._settings = settings
        self._replicas = replicas
        self._send = send
        self._tell = tell
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
                self._tell(HelloRefused(link_id, hello.name, refusal.reason, refusal.text))
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
                self._tell(HelloRefused(link.id, "", message.reason, message.text))
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
