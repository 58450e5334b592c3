"""Sync one area with each peer on its own, and flood what was taken to the peers that it has not come through.

There is one :class:`Replica` for each area (the ``KvStoreDb`` of Open/R), with one :class:`SitePeer` for each peer.

A peer is INITIALIZED when a sync that this side began has brought all that is newer there. Updates go to peers in that
state; while a sync runs they go with its last part. What changes while a peer is IDLE is found by its next sync.

Source: facts §3.3 to §3.5, §4.1, §4.2; ``docs/decisions/sites.md``.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.kvstore.area_store import slices
from statestore_client.server.kvstore.floods import FloodLimiter
from statestore_client.server.kvstore.peers import (
    AreaFull,
    PeerChanged,
    PeerEvent,
    PeerState,
    PeerStatus,
    SiteEvent,
    SyncBackoff,
    SyncSlots,
    SyncWaits,
)
from statestore_client.server.kvstore.sync import Phase, RangeSums, SyncSession, answer_comparison, answer_sync
from statestore_client.wire.kvstore.messages import (
    Capability,
    CompareRanges,
    Failure,
    FailureReason,
    Finalize,
    Flood,
    RangeSumsReply,
    Reply,
    SetResult,
    Sync,
    SyncReply,
    path_fits,
)
from statestore_client.wire.kvstore.value import NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from random import Random

    from statestore_client.server.kvstore.area import Area
    from statestore_client.server.kvstore.area_store import MergeResult
    from statestore_client.server.kvstore.floods import FloodRate, Path
    from statestore_client.wire.kvstore.messages import Message
    from statestore_client.wire.kvstore.value import Value

# -- keys without room -------------------------------------------------------------------------------------------------
#
# Keys that an area had no room for: their refreshes begin no sync.
#
# A key that was refused is not stored, so each refresh of it looks like something that was missed.


#: So long, in seconds, an area counts as full, and nothing is made of refreshes, after something had no room.
FULL_S: Final = 300.0
#: Keys that are remembered. If there are more, nothing is made of any refresh of what is not there.
_MOST: Final = 4_096


class RejectedKeys:
    """Of one area. Moments are monotonic seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._full_until = float("-inf")

    def is_full(self, now: float) -> bool:
        """Whether something had no room, within the last FULL_S."""
        return now < self._full_until

    def add(self, keys: Iterable[str], now: float) -> bool:
        """These were refused. Returns whether the area has become full."""
        has_become = not self.is_full(now)
        if has_become or len(self._until) >= _MOST:
            self._until = {key: until for key, until in self._until.items() if now < until}
        self._full_until = now + FULL_S
        self._until.update(dict.fromkeys(islice(keys, _MOST - len(self._until)), self._full_until))
        return has_become

    def explain(self, reasons: Mapping[str, NoMergeReason], now: float) -> bool:
        """Whether all refreshes that did not fit are of keys that had no room."""
        if not self.is_full(now):
            return False
        return len(self._until) >= _MOST or all(
            now < self._until.get(key, now)
            for key, reason in reasons.items()
            if reason is NoMergeReason.INCONSISTENCY_DETECTED
        )


# -- replica -----------------------------------------------------------------------------------------------------------


#: A peer that is asked, and answers nothing within this time, has failed.
REQUEST_TIMEOUT_S: Final = 2.5
#: Stores are compared again after this time, whatever happens. Up to a tenth less, so that sites do not do it at once.
CHECK_S: Final = 60.0
#: Syncs with one peer begin this far apart at least: a store that is always inconsistent costs no more.
_APART_S: Final = 1.0
#: A sync that lasts longer counts in the limit no more: it waits for a slow peer most of the time.
_SLOT_S: Final = 30.0


class PeerTransport(Protocol):
    """How messages leave a site."""

    def send(self, peer: str, message: Message) -> None:
        """On a connection of the peer; into the void if it has none."""

    def flood(self, peer: str, area: str, path: Path, entries: Mapping[str, Value]) -> None:
        """The same for a flood, which gets its number there."""

    def emit(self, event: SiteEvent) -> None:
        """Something that the program may want to know."""

    def next_id(self) -> int:
        """A request id that was never used."""


@attrs.define
class ReplicaCounters:
    """Since the start."""

    full_syncs: int = 0
    failed_syncs: int = 0
    looped_publications: int = 0
    received_publications: int = 0
    redundant_publications: int = 0
    flooded_publications: int = 0


@attrs.define(eq=False)
class SitePeer:
    """What is known of one peer in one area."""

    name: str
    status: PeerStatus
    has_ranges: bool
    #: The other side begins, if its name is the smaller one; this side when that is done, or at this time.
    turn_at: float
    backoff: SyncBackoff
    is_connected: bool = True
    session: SyncSession | None = None
    began_at: float = float("-inf")
    #: When the running sync asked for something the last time.
    asked_at: float = float("-inf")
    check_at: float = float("inf")
    #: Updates of it were lost since the last sync began.
    has_missed: bool = False
    has_failed: bool = False
    #: Something that the last sync has found had no room, at one of the two sides.
    had_no_room: bool = False
    #: The running sync counts in the limit.
    has_slot: bool = False


class Replica:
    """The peers of one area. ``site`` is the own name."""

    def __init__(
        self,
        area: Area,
        site: str,
        wires: PeerTransport,
        random: Random,
        rate: FloodRate | None,
        slots: SyncSlots,
        waits: SyncWaits,
    ) -> None:
        self.area: str = area.name
        self.peers: dict[str, SitePeer] = {}
        self.counters: ReplicaCounters = ReplicaCounters()
        #: How often a peer came, went, or got into another state.
        self.peer_changes: int = 0
        self._slots = slots
        self._waits = waits
        self._site = site
        self.contents = area
        self._store = area.store
        self.sums: RangeSums = RangeSums()
        area.store.on_change = self.sums.change
        self._wires = wires
        self._random = random
        self._limiter = FloodLimiter(rate)
        self._without_room = RejectedKeys()

    # -- peers ---------------------------------------------------------------------------------------------------------

    def connect(self, name: str, capabilities: Collection[str], now: float, *, is_new: bool) -> None:
        """A peer said hello. ``is_new``: it is another incarnation than before, and knows nothing."""
        turn_at = now if self._site < name else now + REQUEST_TIMEOUT_S
        has_ranges = Capability.RANGES in capabilities
        peer = self.peers.get(name)
        if peer is None:
            self.peers[name] = SitePeer(name, PeerStatus(now), has_ranges, turn_at, SyncBackoff(self._waits))
            self._emit(PeerChanged(self.area, name, None, PeerState.IDLE))
            return
        self.disconnect(name, now)
        peer.is_connected, peer.has_ranges, peer.turn_at = True, has_ranges, turn_at
        if is_new:
            peer.backoff.succeed()
            peer.began_at = float("-inf")
            peer.status.flaps = -1

    def disconnect(self, name: str, now: float, heard_at: float = float("inf")) -> None:
        """Note that no connection of the peer lives; it was heard last at ``heard_at``. A sync that was lost with the
        connection does not count as failed, so the next connection begins one without a wait.
        """
        peer = self.peers[name]
        peer.is_connected = False
        peer.backoff.excuse(heard_at)
        self._happens(peer, PeerEvent.API_ERROR, now)

    def remove(self, name: str) -> None:
        """The peer is not wanted any more."""
        peer = self.peers.pop(name)
        self._end_sync(peer)
        self._emit(PeerChanged(self.area, name, peer.status.state, None))

    def missed(self, name: str, now: float) -> None:
        """Updates of the peer were lost on the way: compare soon."""
        peer = self.peers[name]
        peer.has_missed = True
        if peer.session is None:
            peer.check_at = now

    @property
    def is_ready(self) -> bool:
        """Every peer has been synced with, or failed once."""
        return all(peer.has_failed or peer.status.state is PeerState.INITIALIZED for peer in self.peers.values())

    def is_full(self, now: float) -> bool:
        """Whether something that a peer has sent had no room, now or within the last FULL_S."""
        return self._without_room.is_full(now)

    def _happens(self, peer: SitePeer, event: PeerEvent, now: float) -> None:
        before = peer.status.state
        if event in (PeerEvent.API_ERROR, PeerEvent.INCONSISTENCY_DETECTED):
            self._end_sync(peer)
            peer.check_at = float("inf")
        if peer.status.happens(event, now):
            self._emit(PeerChanged(self.area, peer.name, before, peer.status.state))

    def _emit(self, change: PeerChanged) -> None:
        self.peer_changes += 1
        self._wires.emit(change)

    def fail(self, peer: SitePeer, now: float) -> None:
        """A request to the peer failed."""
        self.counters.failed_syncs += 1
        peer.has_failed = True
        peer.backoff.fail(now, self._random)
        self._happens(peer, PeerEvent.API_ERROR, now)

    # -- the clock -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due: what has begun here goes out, syncs begin, go on or have waited too long. One request of a
        sync is made at a time: call it again while :meth:`next_deadline` is not later.
        """
        self.contents.tick(now)
        self.publish(self.contents.take_local_changes(), (), now)
        for peer in self.peers.values():
            deadline = None if peer.session is None else peer.session.deadline
            if deadline is not None and deadline <= now:
                self.fail(peer, now)
            elif peer.has_slot and peer.began_at + _SLOT_S <= now:
                self._free_slot(peer)
        for peer in sorted(self.peers.values(), key=lambda peer: peer.status.since):
            due = self._due_at(peer)
            if due is not None and due <= now and self._slots.has_room:
                self._begin(peer, now)
        self._ask(now)
        for path, keys in self._limiter.due(now):
            stored = {key: entry for key in keys if (entry := self._store.get(key)) is not None}
            self._spread(stored, path, now)

    def _ask(self, now: float) -> None:
        """The next request of one sync: that which has waited longest for its turn."""
        ready = [peer for peer in self.peers.values() if peer.session is not None and peer.session.has_request]
        peer = min(ready, key=lambda peer: peer.asked_at, default=None)
        request = None if peer is None or peer.session is None else peer.session.next_request(now)
        if peer is not None and request is not None:
            peer.asked_at = now
            self._wires.send(peer.name, request)

    def _due_at(self, peer: SitePeer) -> float | None:
        """When a sync with the peer shall begin."""
        if not peer.is_connected or peer.session is not None:
            return None
        at = peer.check_at if peer.status.state is PeerState.INITIALIZED else max(peer.turn_at, peer.backoff.retry_at)
        return max(at, peer.began_at + _APART_S)

    def next_deadline(self, now: float) -> float | None:
        """When to call :meth:`tick`."""
        times = [self._limiter.next_deadline(now), self.contents.next_deadline()]
        for peer in self.peers.values():
            if peer.session is not None:
                times.append(now if peer.session.has_request else peer.session.deadline)
            elif self._slots.has_room:
                times.append(self._due_at(peer))
        return min((at for at in times if at is not None), default=None)

    # -- syncs that this side begins -----------------------------------------------------------------------------------

    def _begin(self, peer: SitePeer, now: float) -> None:
        self.counters.full_syncs += 1
        self._slots.running += 1
        peer.has_slot = True
        peer.began_at, peer.has_missed, peer.had_no_room = now, False, False
        peer.session = SyncSession(
            self.area, self._store, self.sums, self._wires.next_id, REQUEST_TIMEOUT_S, with_ranges=peer.has_ranges
        )
        if peer.status.state is PeerState.IDLE:
            self._happens(peer, PeerEvent.PEER_ADD, now)

    def _end_sync(self, peer: SitePeer) -> None:
        """Whether it is done or not."""
        self._free_slot(peer)
        peer.session = None

    def _free_slot(self, peer: SitePeer) -> None:
        self._slots.running -= peer.has_slot
        peer.has_slot = False

    def expects(self, name: str, reply_id: int) -> bool:
        """Whether a reply is one of the running sync. One of an older sync is not."""
        peer = self.peers.get(name)
        return peer is not None and peer.session is not None and peer.session.waits_for(reply_id)

    def receive_reply(self, name: str, reply: Reply, now: float) -> None:
        """The answer to a request of the running sync."""
        peer = self.peers[name]
        session = peer.session
        if session is None:
            return
        if not isinstance(reply, RangeSumsReply | SyncReply | SetResult):
            self.fail(peer, now)
            return
        if isinstance(reply, SyncReply):
            self._take(peer, reply.entries, (name,), now)
            if peer.session is not session:
                return
        if isinstance(reply, SetResult):
            peer.had_no_room |= NoMergeReason.NO_ROOM in reply.reasons.values()
        try:
            session.receive(reply, now)
        except RemoteProtocolError:
            self.fail(peer, now)
            raise
        if session.phase in (Phase.FINALIZING, Phase.DONE) and peer.status.state is PeerState.SYNCING:
            self._happens(peer, PeerEvent.SYNC_RESP_RCVD, now)
        if session.phase is Phase.DONE:
            self._done(peer, now)

    def _done(self, peer: SitePeer, now: float) -> None:
        self._end_sync(peer)
        peer.backoff.succeed()
        self._slots.succeed()
        peer.check_at = float("inf")
        if peer.has_missed:
            peer.check_at = now
        elif peer.has_ranges or peer.had_no_room:
            # Till then nothing that a sync finds would be taken.
            wait = FULL_S if peer.had_no_room else CHECK_S
            peer.check_at = now + wait * (1.0 - 0.1 * self._random.random())

    # -- what the other side asks and sends ----------------------------------------------------------------------------

    def receive_request(self, name: str, request: CompareRanges | Sync | Finalize, now: float) -> Reply:
        """The answer to a request of a peer's sync."""
        if isinstance(request, Sync):
            return answer_sync(self._store, self.sums, request, now)
        if isinstance(request, CompareRanges):
            try:
                reply = answer_comparison(self.sums, request)
            except ValueError as error:
                return Failure(request.id, FailureReason.BAD_REQUEST, str(error))
            if reply.is_equal:
                self._has_turn(name, now)
            return reply
        merged = self._take(self.peers[name], request.entries, (name,), now)
        if request.is_last:
            self._has_turn(name, now)
        return SetResult(request.id, {key: int(reason) for key, reason in merged.reasons.items()})

    def _has_turn(self, name: str, now: float) -> None:
        """The other side's sync is done, so this side's own one finds little."""
        peer = self.peers[name]
        peer.turn_at = min(peer.turn_at, now)

    def receive_flood(self, name: str, flood: Flood, now: float) -> None:
        """An incremental update of a peer."""
        if self._site in flood.path:
            self.counters.looped_publications += 1
            return
        self.counters.received_publications += 1
        merged = self._take(self.peers[name], flood.entries, flood.path, now)
        self.counters.redundant_publications += not merged.accepted

    def _take(self, peer: SitePeer, entries: Mapping[str, Value], path: Path, now: float) -> MergeResult:
        merged = self.contents.merge(entries, path[-1], now)
        self.publish(merged.accepted, path, now)
        without_room = [key for key, reason in merged.reasons.items() if reason is NoMergeReason.NO_ROOM]
        if without_room:
            peer.had_no_room = True
            if self._without_room.add(without_room, now):
                self._wires.emit(AreaFull(self.area, self._store.summary(), self._store.limits))
        if merged.is_inconsistent and not self._without_room.explain(merged.reasons, now):
            self._happens(peer, PeerEvent.INCONSISTENCY_DETECTED, now)
            peer.turn_at = now
        return merged

    # -- floods --------------------------------------------------------------------------------------------------------

    def publish(self, entries: Mapping[str, Value], path: Path, now: float) -> None:
        """Send on what the store has taken. ``path``: the sites that it came through, none if it began here."""
        if entries and self._limiter.admit(entries, path, now):
            self._spread(entries, path, now)

    def _spread(self, entries: Mapping[str, Value], path: Path, now: float) -> None:
        targets = self._targets(path)
        self._pend(targets, entries)
        ready = [peer for peer in targets if peer.status.state is PeerState.INITIALIZED]
        if not ready or not path_fits((*path, self._site)):
            return
        for part in slices(self._store.leaving(entries, now)):
            for peer in ready:
                self.counters.flooded_publications += 1
                self._wires.flood(peer.name, self.area, (*path, self._site), part)

    def _targets(self, path: Path) -> list[SitePeer]:
        """Split horizon: nobody gets what has come through it."""
        return [peer for peer in self.peers.values() if peer.name not in path]

    def _pend(self, targets: Iterable[SitePeer], keys: Iterable[str]) -> None:
        """Where a sync runs, the part that these are in may have been compared already."""
        for peer in targets:
            if peer.session is not None and peer.status.state is PeerState.SYNCING:
                peer.session.pend(keys)
