"""A site: what it says on its connections, and which area each message belongs to. Pure.

The shell that runs it tells what happens (:meth:`Site.dial`, :meth:`Site.receive`, :meth:`Site.lost`,
:meth:`Site.tick`), then takes :attr:`Site.output` and :attr:`Site.events`. Messages of one connection must be sent in
the order that they have there. ``now`` is in monotonic seconds.

Source: ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import InvalidArgumentError, RemoteProtocolError
from statestore_client.server.kvstore.client_answers import ClientRequest, answer_client
from statestore_client.server.kvstore.events import (
    HelloRefused,
    MalformedMessage,
    NameInUse,
    PeerWanted,
    SiteEvent,
    Synced,
)
from statestore_client.server.kvstore.held_requests import HeldRequests
from statestore_client.server.kvstore.links import DOWN_S, HEARTBEAT_S, MAX_LINKS, LinkId, Links, SiteLink
from statestore_client.server.kvstore.replica import REQUEST_TIMEOUT_S, Replica
from statestore_client.server.kvstore.site_summary import summary_of
from statestore_client.wire.kvstore.client_messages import ChangePeer, Follow, GetPeers, GetSummary
from statestore_client.wire.kvstore.codec import decode, encode, knows, request_in
from statestore_client.wire.kvstore.messages import (
    PROTOCOL_VERSION,
    Capability,
    CompareRanges,
    Failure,
    FailureReason,
    Finalize,
    Flood,
    Found,
    Heartbeat,
    Hello,
    HelloWanted,
    Message,
    RangeSumsReply,
    Refusal,
    SetResult,
    Sync,
    SyncReply,
)
from statestore_client.wire.kvstore.value import MAX_ORIGINATOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from statestore_client.server.kvstore.area import Area
    from statestore_client.server.kvstore.flood import FloodRate, Path
    from statestore_client.wire.kvstore.value import Value

__all__ = ["Site", "SiteSettings"]

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
    #: So long the end of the initial syncs is not told while no peer is known.
    sync_timeout_s: float = 0.0


class Site:
    """Connections, and a replica for each area. ``areas`` are empty; the replicas hear of each change."""

    def __init__(self, settings: SiteSettings, areas: Iterable[Area], random: Random, now: float) -> None:
        self.settings = settings
        self.output: list[tuple[LinkId, bytes]] = []
        self.events: list[SiteEvent] = []
        self._random = random
        self._last_id = random.getrandbits(32)
        self._heartbeat_at = now
        self._known: dict[str, int] = {}  # incarnation of each name that was ever a peer
        self._begun_at = now
        self._is_synced = False
        self.late_replies: int = 0
        self.replicas: dict[str, Replica] = {
            area.name: Replica(area, settings.name, self, random, settings.flood_rate) for area in areas
        }
        self._links = Links(settings.name, tuple(self.replicas))
        self.held: HeldRequests = HeldRequests(settings.incarnation, self.replicas, self._links, self.answer)

    # -- what replicas need --------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A request id that was never used."""
        self._last_id += 1
        return self._last_id

    def tell(self, event: SiteEvent) -> None:
        """For the program."""
        self.events.append(event)

    def send(self, peer: str, message: Message) -> None:
        """To a peer, if it is connected."""
        link = self._links.of(peer)
        if link is not None:
            self._send(link.id, message)

    def flood(self, peer: str, area: str, path: Path, entries: Mapping[str, Value]) -> None:
        """The same with the next number of the connection."""
        link = self._links.of(peer)
        if link is not None:
            link.sent += 1
            self._send(link.id, Flood(link.sent, area, path, entries))

    def answer(self, link_id: LinkId, message: Message) -> None:
        """The reply to a request that waited, or that the shell has carried out."""
        self._send(link_id, message)

    def _send(self, link_id: LinkId, message: Message) -> None:
        self.output.append((link_id, encode(message)))

    # -- connections ---------------------------------------------------------------------------------------------------

    def dial(self, link_id: LinkId, now: float) -> None:
        """The shell opens this connection, and keeps it open."""
        self._links.dial(link_id, now)
        self.tick(now)

    def lost(self, link_id: LinkId, now: float) -> None:
        """The connection is gone: closed, or not to be dialled any more."""
        link = self._links.drop(link_id)
        if link is not None and link.name is not None:
            self._leaves(link.name, now)

    def remove_peer(self, name: str) -> None:
        """The peer is not wanted any more; the shell closes the connections that it has dialled. One that dials this
        site comes back.
        """
        self._known.pop(name, None)
        for link in self._links:
            if link.name == name:
                self._links.drop(link.id)
        for replica in self.replicas.values():
            if name in replica.peers:
                replica.remove(name)

    def _leaves(self, name: str, now: float) -> None:
        """A connection of the peer has died. With another one it goes on, but what was under way may be lost."""
        other = self._links.of(name)
        for replica in self.replicas.values():
            if name in replica.peers:
                if other is None:
                    replica.disconnect(name, now)
                else:
                    replica.missed(name, now)

    def _hello(self, *, is_reply: bool) -> Hello:
        settings = self.settings
        return Hello(
            PROTOCOL_VERSION, settings.name, settings.incarnation, tuple(self.replicas), settings.capabilities, is_reply
        )

    def _receive_hello(self, link_id: LinkId, hello: Hello, now: float, user: str | None) -> None:
        link = self._links.get(link_id)
        if hello.is_reply and (link is None or not link.is_dialled):
            return  # the answer to a hello of a connection that is gone
        refusal = self._links.objection(link_id, hello, user)
        if refusal is not None:
            self.tell(HelloRefused(link_id, hello.name, refusal.reason, refusal.text))
            if link is not None:
                link.has_failed = True
                link.hello_later(now, self._random)
            if not hello.is_reply:
                self._send(link_id, refusal)
            return
        if link is None:
            link = self._links.accept(link_id, now)
        elif link.name is not None:
            name = link.name
            link.forget(now)
            self._leaves(name, now)
        self._links.forget_rival(hello.name)
        is_second = self._links.of(hello.name) is not None
        self._links.take_hello(link, hello, now)
        if not hello.is_reply:
            self._send(link_id, self._hello(is_reply=True))
        if not is_second:
            self._arrives(link, hello.name, now)

    def _arrives(self, link: SiteLink, name: str, now: float) -> None:
        if len(self._known) >= MAX_LINKS and name not in self._known:
            # Names that come and go must not be kept for ever: of those that are gone the one that came first.
            gone = next((each for each in self._known if self._links.of(each) is None), None)
            if gone is not None:
                self.remove_peer(gone)
        is_new = self._known.get(name) != link.incarnation
        self._known[name] = link.incarnation
        for area in link.areas:
            if area in self.replicas:
                self.replicas[area].connect(name, link.capabilities, now, is_new=is_new)

    def _forget(self, link: SiteLink, now: float) -> None:
        """The connection has died, or begins anew."""
        name = link.name
        link.forget(now)
        if not link.is_dialled:
            self._links.drop(link.id)
        if name is not None:
            self._leaves(name, now)

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(self, link_id: LinkId, data: bytes, now: float, user: str | None = None) -> None:
        """One frame. Whatever it is: nothing is raised, and nothing of it is kept that is not asked for. Requests of
        clients need no hello; the shell says who may connect. ``user`` is the site whose key the sender has, empty for
        a client's key, and None where there are no keys: sites speak in no name but that of their key.
        """
        try:
            message = decode(data)
        except RemoteProtocolError as error:
            self.tell(MalformedMessage(link_id, str(error)))
            request = request_in(data)
            if request is not None:
                code, request_id = request
                reason = FailureReason.BAD_REQUEST if knows(code) else FailureReason.UNKNOWN_REQUEST
                self._send(link_id, Failure(request_id, reason, str(error)[:200]))
            return
        if isinstance(message, Hello):
            self._receive_hello(link_id, message, now, user)
            return
        link = self._links.get(link_id)
        if self._receive_of_client(link_id, message, now):
            return
        if isinstance(message, HelloWanted | Refusal):
            if link is not None and link.is_dialled:
                self._refused(link, message, now)
            return
        if link is None or link.name is None:
            if link is None:
                self._send(link_id, HelloWanted())
            return
        if user is not None and user != link.name:  # a route that has a new owner
            self.tell(MalformedMessage(link_id, f"it speaks for {link.name!r}, and has another key"))
            return
        link.heard_at = now
        if self._links.has_rival(link.name):
            self.tell(NameInUse(link.name))
        try:
            self._receive(link, link.name, message, now)
        except RemoteProtocolError as error:
            self.tell(MalformedMessage(link_id, str(error)))

    def _receive_of_client(self, link_id: LinkId, message: Message, now: float) -> bool:
        """Whether it is something that clients ask for."""
        match message:
            case Follow() | GetPeers():
                self.held.take(link_id, message, now)
            case GetSummary():
                self._send(link_id, summary_of(message.id, self.settings, self.replicas))
            case ChangePeer():
                self.tell(PeerWanted(link_id, message.id, message.url, message.is_wanted))
            case _ if isinstance(message, ClientRequest):
                reply = answer_client(self.replicas.get(message.area), self.settings.name, message, now)
                self._send(link_id, reply)
            case _:
                return False
        return True

    def _refused(self, link: SiteLink, message: HelloWanted | Refusal, now: float) -> None:
        if link.name is not None:
            self._forget(link, now)
        if isinstance(message, Refusal):
            link.has_failed = True
            self.tell(HelloRefused(link.id, "", message.reason, message.text))
            link.hello_later(now, self._random)

    def _receive(self, link: SiteLink, name: str, message: Message, now: float) -> None:
        if isinstance(message, Heartbeat):
            if message.incarnation != link.incarnation:
                self._forget(link, now)
            elif message.floods > link.received:
                link.received = message.floods
                self._missed(name, now)
        elif isinstance(message, Flood):
            self._receive_flood(link, name, message, now)
        elif isinstance(message, CompareRanges | Sync | Finalize):
            replica = self.replicas.get(message.area)
            if replica is None or name not in replica.peers:
                text = f"this site does not share an area {message.area!r} with you"
                self._send(link.id, Failure(message.id, FailureReason.UNKNOWN_AREA, text))
            else:
                self._send(link.id, replica.receive_request(name, message, now))
        elif isinstance(message, RangeSumsReply | SyncReply | SetResult | Failure | Found):
            for replica in self.replicas.values():
                if replica.expects(name, message.id):
                    replica.receive_reply(name, message, now)
                    return
            self.late_replies += 1

    def _receive_flood(self, link: SiteLink, name: str, flood: Flood, now: float) -> None:
        if flood.number > link.received + 1:
            self._missed(name, now)
        link.received = max(link.received, flood.number)
        if not flood.path or flood.path[-1] != name:
            raise RemoteProtocolError(f"a flood of {name!r} whose path does not end there")
        replica = self.replicas.get(flood.area)
        if replica is not None and name in replica.peers:
            replica.receive_flood(name, flood, now)

    def _missed(self, name: str, now: float) -> None:
        for replica in self.replicas.values():
            if name in replica.peers:
                replica.missed(name, now)

    # -- the clock -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due."""
        for link in self._links:
            if link.name is not None and now - link.heard_at >= DOWN_S:
                self._forget(link, now)
            if link.is_dialled and link.name is None and link.hello_at <= now:
                link.has_failed = link.has_failed or now - link.heard_at >= REQUEST_TIMEOUT_S
                link.hellos += 1
                link.hello_later(now, self._random)
                self._send(link.id, self._hello(is_reply=False))
        if self._heartbeat_at <= now:
            self._heartbeat_at = now + HEARTBEAT_S
            for link in self._links:
                if link.name is not None:
                    self._send(link.id, Heartbeat(self.settings.incarnation, link.sent))
        for replica in self.replicas.values():
            replica.tick(now)
        self.held.tick(now)
        if not self._is_synced and self._is_ready(now):
            self._is_synced = True
            self.tell(Synced())

    def _is_ready(self, now: float) -> bool:
        links = tuple(self._links)
        if not links and now - self._begun_at < self.settings.sync_timeout_s:
            return False
        if any(link.is_dialled and link.name is None and not link.has_failed for link in links):
            return False
        return all(replica.is_ready for replica in self.replicas.values())

    def next_deadline(self, now: float) -> float:
        """When to call :meth:`tick`; at the latest at the next heartbeat."""
        return min(self._deadlines(now))

    def _deadlines(self, now: float) -> Iterable[float]:
        yield self._heartbeat_at
        held_at = self.held.next_deadline(now)
        if held_at is not None:
            yield held_at
        for link in self._links:
            if link.name is not None:
                yield link.heard_at + DOWN_S
            elif link.is_dialled:
                yield link.hello_at
        for replica in self.replicas.values():
            at = replica.next_deadline(now)
            if at is not None:
                yield at
