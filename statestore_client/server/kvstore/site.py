"""A site: what it says on its connections, and which area each message belongs to. Pure.

The shell that runs it tells what happens (:meth:`Members.dial`, :meth:`Site.receive`, :meth:`Members.lost`,
:meth:`Site.tick`), then takes :attr:`Site.output` and :attr:`Site.events`. Messages of one connection must be sent in
the order that they have there. ``now`` is in monotonic seconds.

Source: ``docs/decisions/sites.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.errors import InvalidArgumentError, RemoteProtocolError
from statestore_client.server.kvstore.members import Members, SiteLink, SiteSettings
from statestore_client.server.kvstore.peers import (
    LinkId,
    MalformedMessage,
    NameInUse,
    PeerRequested,
    PeerState,
    SiteEvent,
    Synced,
    SyncSlots,
)
from statestore_client.server.kvstore.replica import Replica
from statestore_client.server.kvstore.requests import ClientRequest, HeldRequests, answer_client
from statestore_client.wire.kvstore.codec import decode, encode, knows, request_in
from statestore_client.wire.kvstore.messages import (
    ChangePeer,
    CompareRanges,
    Failure,
    FailureReason,
    Finalize,
    Flood,
    Follow,
    Found,
    GetLostKeys,
    GetPeers,
    GetSummary,
    Heartbeat,
    Hello,
    HelloWanted,
    Leave,
    Message,
    RangeSumsReply,
    Refusal,
    Reply,
    SetResult,
    Summary,
    Sync,
    SyncReply,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from statestore_client.server.kvstore.area import Area
    from statestore_client.server.kvstore.floods import Path
    from statestore_client.wire.kvstore.value import Value


class Site:
    """Connections, and a replica for each area. ``areas`` are empty; the replicas hear of each change."""

    def __init__(self, settings: SiteSettings, areas: Iterable[Area], random: Random, now: float) -> None:
        self.settings = settings
        self.output: list[tuple[LinkId, bytes]] = []
        self.events: list[SiteEvent] = []
        self._random = random
        self._last_id = random.getrandbits(32)
        self._begun_at = now
        #: The initial syncs are over: :meth:`_has_begun`.
        self.is_synced: bool = False
        self.late_replies: int = 0
        self.sync_slots: SyncSlots = SyncSlots()
        self.replicas: dict[str, Replica] = {
            area.name: Replica(area, settings.name, self, random, settings.flood_rate, self.sync_slots, settings.waits)
            for area in areas
        }
        self.members: Members = Members(settings, self.replicas, self.answer, self.emit, random, now)
        self._links = self.members.links
        self.held: HeldRequests = HeldRequests(settings.incarnation, self.replicas, self._links, self.answer)

    # -- what replicas need --------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A request id that was never used."""
        self._last_id += 1
        return self._last_id

    def emit(self, event: SiteEvent) -> None:
        """For the program."""
        self.events.append(event)

    def send(self, peer: str, message: Message) -> None:
        """To a peer, if it is connected."""
        link = self._links.of(peer)
        if link is not None:
            self.answer(link.id, message)

    def flood(self, peer: str, area: str, path: Path, entries: Mapping[str, Value]) -> None:
        """The same with the next number of the connection."""
        link = self._links.of(peer)
        if link is not None:
            link.sent += 1
            self.answer(link.id, Flood(link.sent, area, path, entries))

    def answer(self, link_id: LinkId, message: Message) -> None:
        """A message on one connection: the reply to a request that waited, or that the shell has carried out, say."""
        try:
            data = encode(message)
        except InvalidArgumentError as error:  # whatever was asked for: one that asks must not stop a site
            if not isinstance(message, Reply):
                raise
            data = encode(Failure(message.id, FailureReason.BAD_REQUEST, f"the reply would be {error}"))
        self.output.append((link_id, data))

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(self, link_id: LinkId, data: bytes, now: float, user: str | None = None) -> None:
        """One frame. Whatever it is: nothing is raised, and nothing of it is kept that is not asked for. Requests of
        clients need no hello; the shell says who may connect. ``user`` is the site whose key the sender has, empty for
        a client's key, and None where there are no keys: sites speak in no name but that of their key.
        """
        try:
            message = decode(data)
        except RemoteProtocolError as error:
            self.emit(MalformedMessage(link_id, str(error)))
            request = request_in(data)
            if request is not None:
                code, request_id = request
                reason = FailureReason.BAD_REQUEST if knows(code) else FailureReason.UNKNOWN_REQUEST
                self.answer(link_id, Failure(request_id, reason, str(error)[:200]))
            return
        link = self._links.get(link_id)
        if link is not None:
            self.members.end_if_dead(link, now)
            link = self._links.get(link_id)
        if isinstance(message, Hello):
            self.members.receive_hello(link_id, message, now, user)
            return
        if self._receive_of_client(link_id, message, now):
            return
        if isinstance(message, HelloWanted | Refusal):
            if link is not None and link.is_dialled:
                self.members.refused(link, message, now)
            return
        if link is None or link.name is None:
            if link is None:
                self.answer(link_id, HelloWanted())
            return
        if user is not None and user != link.name:  # a route that has a new owner
            self.emit(MalformedMessage(link_id, f"it speaks for {link.name!r}, and has another key"))
            return
        link.heard_at, link.has_spoken = now, True
        if self._links.has_rival(link.name):
            self.emit(NameInUse(link.name))
        try:
            self._receive(link, link.name, message, now)
        except RemoteProtocolError as error:
            self.emit(MalformedMessage(link_id, str(error)))

    def _receive_of_client(self, link_id: LinkId, message: Message, now: float) -> bool:
        """Whether it is something that clients ask for."""
        match message:
            case Follow() | GetPeers() | GetLostKeys():
                self.held.take(link_id, message, now)
            case GetSummary():
                self.answer(link_id, summary_of(message.id, self, now))
            case ChangePeer():
                self.emit(PeerRequested(link_id, message.id, message.url, message.is_wanted))
            case _ if isinstance(message, ClientRequest):
                reply = answer_client(self.replicas.get(message.area), self.settings.name, message, now)
                self.answer(link_id, reply)
            case _:
                return False
        return True

    def _receive(self, link: SiteLink, name: str, message: Message, now: float) -> None:
        if isinstance(message, Leave):
            self.members.left(link, now)
        elif isinstance(message, Heartbeat):
            if self.members.receive_heartbeat(link, message, now):
                self._missed(name, now)
        elif isinstance(message, Flood):
            self._receive_flood(link, name, message, now)
        elif isinstance(message, CompareRanges | Sync | Finalize):
            replica = self.replicas.get(message.area)
            if replica is None or name not in replica.peers:
                text = f"this site does not share an area {message.area[:80]!r} with you"
                self.answer(link.id, Failure(message.id, FailureReason.UNKNOWN_AREA, text))
            else:
                self.answer(link.id, replica.receive_request(name, message, now))
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
        self.members.tick(now)
        for replica in self.replicas.values():
            replica.tick(now)
        self.held.tick(now)
        if not self.is_synced and self._has_begun(now):
            self.is_synced = True
            self.emit(Synced(self._in_sync()))

    def _has_begun(self, now: float) -> bool:
        """Every peer that is known was synced with, or has failed once; and one of them at least was synced with, or
        the time for that is over.
        """
        if not self._in_sync() and now - self._begun_at < self.settings.sync_timeout_s:
            return False
        if any(link.is_dialled and link.name is None and not link.has_failed for link in self._links):
            return False
        return all(replica.is_ready for replica in self.replicas.values())

    def _in_sync(self) -> tuple[str, ...]:
        """Peers whose keys are all here, of one area at least."""
        peers = (peer for replica in self.replicas.values() for peer in replica.peers.values())
        return tuple(sorted({peer.name for peer in peers if peer.status.state is PeerState.INITIALIZED}))

    def next_deadline(self, now: float) -> float:
        """When to call :meth:`tick`; at the latest at the next heartbeat."""
        return min(self._deadlines(now))

    def _deadlines(self, now: float) -> Iterable[float]:
        yield from self.members.deadlines()
        held_at = self.held.next_deadline(now)
        if held_at is not None:
            yield held_at
        for replica in self.replicas.values():
            at = replica.next_deadline(now)
            if at is not None:
                yield at


# -- site summary ------------------------------------------------------------------------------------------------------
#
# How a site is, in numbers: what its areas hold, who follows them, and what has happened since its start.
#
# Source: facts §6.1, §6.6.


def summary_of(request_id: int, site: Site, now: float) -> Summary:
    """The reply to a request for it."""
    return Summary(request_id, site.settings.name, site.settings.incarnation, figures_of(site, now))


def figures_of(site: Site, now: float) -> dict[str, dict[str, int]]:
    """By area."""
    return {
        area: {"synced": int(site.is_synced), **_figures_of(replica, now)} for area, replica in site.replicas.items()
    }


def _figures_of(replica: Replica, now: float) -> dict[str, int]:
    contents = replica.contents
    held = contents.store.summary()
    states = [peer.status.state for peer in replica.peers.values()]
    return {
        "keys": held.keys,
        "expiring_keys": held.expiring_keys,
        "bytes": held.bytes,
        "full": int(replica.is_full(now)),
        "own_keys": len(contents.own),
        "contested_keys": contents.own.contested,
        "lost_keys": contents.own.lost.number,
        "publications": contents.subscribers.number,
        "peers": len(states),
        **{f"peers_{state.name.lower()}": states.count(state) for state in PeerState},
        **{f"entries_{name}": count for name, count in attrs.asdict(contents.store.counters).items()},
        **attrs.asdict(replica.counters),
    }
