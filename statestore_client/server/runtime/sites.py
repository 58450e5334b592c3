"""A site of the KvStore in an event loop: its sockets, its clock, its bridge, and what the log says of it.

:class:`~statestore_client.server.kvstore.site.Site` decides everything. Here messages are carried, one turn after the
other: what has come is taken in, what is due is done, what it says goes out. A turn takes messages for a moment only,
large work is done in pieces, and while the loop serves others, too, they have most of its time.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from statestore_client.clocks import monotonic
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.bridge import RESERVED_BYTES, Bridge, BridgeOptions, NotExported
from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.area_store import AreaLimits
from statestore_client.server.kvstore.floods import FloodRate
from statestore_client.server.kvstore.members import SiteSettings
from statestore_client.server.kvstore.own_keys import KeyContested, KeyLost, OwnNameInUse
from statestore_client.server.kvstore.peers import (
    AreaFull,
    HelloRefused,
    MalformedMessage,
    NameInUse,
    PeerChanged,
    PeerRequested,
    Synced,
    SyncWaits,
)
from statestore_client.server.kvstore.site import Site
from statestore_client.server.runtime.clock import Alarm
from statestore_client.server.runtime.fairness import SLICE_S
from statestore_client.server.runtime.security.site_keys import SiteKeys
from statestore_client.server.runtime.settings import MAX_DIALLED
from statestore_client.server.runtime.transport.site_sockets import Came, SiteSockets
from statestore_client.wire.kvstore.messages import Failure, FailureReason, LostKey, RefusalReason, SetResult
from statestore_client.wire.kvstore.value import NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from statestore_client.server.bridge import BridgeEvent
    from statestore_client.server.kvstore.own_keys import OwnEvent
    from statestore_client.server.kvstore.peers import SiteEvent
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.runtime.settings import SiteEndpoints
    from statestore_client.server.service.service import StateStoreService
    from statestore_client.server.store import SiteStore

logger: Final = logging.getLogger("statestore_client.server")

#: After this time in seconds a turn takes no more messages. One of them takes about a millisecond at most.
_TURN_S: Final = 0.00025
#: While the loop serves others, too, they have a multiple of its time after a turn, and at most this time in seconds.
_REST: Final = 3.0
_MOST_REST_S: Final = 0.01
#: They count as there until this time after they were served, in seconds.
_OTHERS_S: Final = 0.05

#: Characters of what a client has a site dial or forget, and of what it is told then.
_LONGEST_PEER: Final = 1_024
_LONGEST_TEXT: Final = 2_048

_INCARNATION_BITS: Final = 64
#: Refusals that are remembered, so each is told once; after an hour they are told again.
_MOST_REFUSALS: Final = 1_000
_REFUSALS_S: Final = 3_600.0


class SitePeering:
    """One site and its connections. ``areas`` are empty at first; what is set in them later goes out after
    :meth:`changed`. ``on_event`` is told what happens, after it was logged, and ``on_lost`` of keys that were set here
    and overridden. ``served`` counts what the loop does for others.
    """

    def __init__(
        self,
        settings: SiteSettings,
        areas: Iterable[Area],
        random: Random,
        on_event: Callable[[SiteEvent | OwnEvent], object] = lambda _event: None,
        keys: SiteKeys | None = None,
        served: Callable[[], int] = lambda: 0,
        on_lost: Callable[[LostKey], object] = lambda _loss: None,
    ) -> None:
        self._areas = tuple(areas)
        self.site: Site = Site(settings, self._areas, random, monotonic())
        #: Where it listens; None if it only dials.
        self.url: str | None = None
        #: Done when the initial syncs are over: with what the site has found out, or None if it was closed before.
        self.synced: Future[Synced | None] = Future()
        self._on_event = on_event
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._sockets = SiteSockets(settings.name, self._watch, self._loop.remove_reader, random, keys)
        self._timer: asyncio.TimerHandle | None = None
        self._served = served
        self._served_before = served()
        self._others_until = 0.0
        self._is_tick_put_off = False
        self._rests_until = 0.0
        #: Hellos that were refused, by this site or another one, and times that two sites with one name were seen.
        self.refused: int = 0
        self._gone: set[bytes] = set()
        self._refusals: dict[tuple[object, int], str] = {}
        self._refusals_since = monotonic()
        self._is_closed = False

    @classmethod
    def of(
        cls,
        endpoints: SiteEndpoints,
        random: Random,
        started_ms: int,
        served: Callable[[], int] = lambda: 0,
        *,
        on_event: Callable[[SiteEvent | OwnEvent], object] = lambda _event: None,
        on_lost: Callable[[LostKey], object] = lambda _loss: None,
    ) -> SitePeering:
        """A new incarnation of the site, which listens and dials as told; ``started_ms``: the wall clock. Raises
        SettingsError for an address or a key.
        """
        keys = None if endpoints.curve_keys is None else SiteKeys(endpoints.curve_keys, endpoints.name)
        per_s = endpoints.flood_rate
        rate = None if per_s is None else FloodRate(per_s, endpoints.flood_burst or per_s)
        incarnation = random.getrandbits(_INCARNATION_BITS)
        settings = SiteSettings(
            endpoints.name,
            incarnation,
            rate,
            sync_timeout_s=endpoints.waits_s,
            waits=SyncWaits(endpoints.sync_backoff_s, endpoints.sync_max_backoff_s),
        )
        ttl_ms = round(1000 * endpoints.key_ttl_s)
        limits = AreaLimits(endpoints.max_keys, endpoints.max_bytes)
        areas = [
            Area(name, endpoints.name, limits=limits, key_ttl_ms=ttl_ms, started_ms=started_ms)
            for name in endpoints.areas
        ]
        peering = cls(settings, areas, random, on_event, keys, served, on_lost)
        try:
            if endpoints.listen is not None:
                peering.listen(endpoints.listen)
            for url in endpoints.peers:
                peering.add_peer(url)
        except BaseException:
            peering.close()
            raise
        return peering

    @property
    def dropped(self) -> int:
        """Messages that were not carried: malformed frames, or a connection that takes no more."""
        return self._sockets.dropped

    @property
    def refused_handshakes(self) -> int:
        """Connections that ended before the first message: no key, or not the right one, at either end."""
        return self._sockets.refused

    def listen(self, url: str) -> str:
        """Let other sites dial this one; the address, with the port that a ``*`` has become. Raises SettingsError."""
        self.url = self._sockets.bind(url)
        self.changed()
        return self.url

    def add_peer(self, url: str) -> None:
        """Dial a site, and keep the connection up. Raises SettingsError."""
        self._sockets.dial(url)
        self.site.members.dial(url, monotonic())
        self.changed()

    def remove_peer(self, peer: str) -> bool:
        """Hang up at an address that is dialled: both sites forget each other, if that was their only connection.
        Or forget a site, by its name, that has dialled this one and is gone for good.

        False if there is nothing of the kind. Raises InvalidArgumentError for a site that would come back.
        """
        if peer in self._sockets.dialled:
            self.site.members.hang_up(peer, monotonic())
            self._send()
            self._sockets.hang_up(peer)
        elif not self.site.members.forget(peer):
            return False
        self.changed()
        return True

    def changed(self) -> None:
        """Something was done to the site or its areas: a turn follows."""
        if not self._is_closed:
            self._arm(0.0)

    def close(self) -> None:
        """Close all connections, at once."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._sockets.close()
        if not self.synced.done():
            self.synced.set_result(None)

    @property
    def why_not_ready(self) -> str:
        """In words, what is missing here that other sites may have; nothing once the initial syncs are over."""
        if self.synced.done():
            return ""
        return f"site {self.site.settings.name} has not synced with another site yet"

    def _watch(self, descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._wake)

    def _wake(self) -> None:
        if monotonic() >= self._rests_until:
            self._turn()
        elif self._sockets.is_readable():  # having looked, the descriptor does not tell again
            self._arm(0.0)

    def _arm(self, at: float) -> None:
        """The next turn is then, or when the others had their time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, max(at, self._rests_until) - monotonic()), self._turn)

    def _turn(self) -> None:
        if self._is_closed:
            return
        now = monotonic()
        for what in self._sockets.receive():
            # A process may be stopped at any moment: each message is judged by the time after it was taken.
            came = monotonic()
            if isinstance(what, Came):
                self.site.receive(what.link, what.data, came, what.user)
                if monotonic() >= now + _TURN_S:
                    break
            else:  # what was said on the former connection does not count, and hello is due on the new one
                self.site.members.redial(what.link, came)
        self._forget_gone(now)
        self._sockets.settle(now)
        # After a long message that is the next turn's; every other turn does it, whatever comes.
        self._is_tick_put_off = monotonic() >= now + _TURN_S and not self._is_tick_put_off
        if not self._is_tick_put_off:
            self.site.tick(monotonic())
        self._carry()
        ended = monotonic()
        self._rest(now, ended)
        is_busy = self._sockets.is_readable() or self.site.output or self._gone
        self._arm(ended if is_busy or self._is_tick_put_off else self.site.next_deadline(ended))

    def _rest(self, began: float, ended: float) -> None:
        """After a turn: the others first, if there are any."""
        served = self._served()
        if served != self._served_before:
            self._served_before = served
            self._others_until = ended + _OTHERS_S
        if ended < self._others_until:
            self._rests_until = ended + min(_MOST_REST_S, _REST * (ended - began))

    def _send(self) -> None:
        output, self.site.output = self.site.output, []
        for link, data in output:
            # A connection that another site has opened, and that is gone, is not heard of in another way.
            if not self._sockets.send(link, data) and isinstance(link, bytes):
                self._gone.add(link)

    def _forget_gone(self, now: float) -> None:
        """When all that has come through them is read: the last of it may be that the site leaves."""
        if self._gone and not self._sockets.is_readable():
            for link in self._gone:
                self.site.members.lost(link, now)
            self._gone.clear()

    def _carry(self) -> None:
        self._send()
        events, self.site.events = self.site.events, []
        for event in events:
            if isinstance(event, PeerRequested):
                self._change_peer(event)
            self._report(event)
            self._on_event(event)
        for area in self._areas:
            own, area.own.events = area.own.events, []
            for each in own:
                self._report_own(area.name, each)
                self._on_event(each)
                if isinstance(each, KeyLost):
                    self._on_lost(LostKey(area.name, each.key, each.originator, each.version))

    def _change_peer(self, wanted: PeerRequested) -> None:
        """A client asks for it."""
        answer: SetResult | Failure = SetResult(wanted.id, {})
        try:
            if len(wanted.url) > _LONGEST_PEER:
                raise SettingsError(f"addresses and names of sites have at most {_LONGEST_PEER} characters")
            if not wanted.is_wanted:
                if not self.remove_peer(wanted.url):
                    answer = SetResult(wanted.id, {wanted.url: NoMergeReason.NO_NEED_TO_UPDATE})
            elif len(self._sockets.dialled) < MAX_DIALLED:
                self.add_peer(wanted.url)
            else:
                raise SettingsError(f"this site dials {MAX_DIALLED} addresses, and no more")
        except (SettingsError, InvalidArgumentError) as error:
            answer = Failure(wanted.id, FailureReason.BAD_REQUEST, str(error)[:_LONGEST_TEXT])
        self.site.answer(wanted.link, answer)

    def _report_own(self, area: str, event: OwnEvent) -> None:
        name = self.site.settings.name
        match event:
            case KeyContested(key=key, originator=rival):
                logger.warning(
                    "site %s: %s keeps %r in area %r alive, too; one of the two must stop", name, rival, key, area
                )
            case KeyLost(key=key, originator=rival, version=version):
                logger.info("site %s: %s has set %r in area %r to version %d", name, rival, key, area, version)
            case OwnNameInUse(key=key):
                self.refused += 1
                if self._is_news(name, RefusalReason.OWN_NAME, "two of them live"):
                    logger.warning(
                        "site %s: another living site is named %r, too, and keeps %r in area %r alive; rename one of "
                        "them", name, name, key, area,
                    )  # fmt: skip

    def _is_news(self, who: object, reason: int, text: str) -> bool:
        """Whether a refusal is told. A stranger that comes with ever new names cannot fill the log."""
        now = monotonic()
        if now - self._refusals_since >= _REFUSALS_S:
            self._refusals.clear()
            self._refusals_since = now
        is_full = len(self._refusals) >= _MOST_REFUSALS and (who, reason) not in self._refusals
        if is_full or self._refusals.get((who, reason)) == text:
            return False
        self._refusals[who, reason] = text
        return True

    def _report(self, event: SiteEvent) -> None:
        name = self.site.settings.name
        self.refused += isinstance(event, HelloRefused | NameInUse)
        match event:
            case PeerChanged(area=area, peer=peer, before=before, after=after):
                self._refusals.clear()
                logger.info("site %s: %s in area %r: %s -> %s", name, peer, area, before, after)
            case HelloRefused(link=link, name=peer, reason=reason, text=text):
                if self._is_news(link if isinstance(link, str) else peer, reason, text):
                    where = f"at {link}" if isinstance(link, str) else "that has dialled this one"
                    logger.warning("site %s: no peering with %s %s: %s", name, peer or "the site", where, text)
            case NameInUse(name=peer):
                if self._is_news(peer, RefusalReason.NAME_IN_USE, "two of them live"):
                    logger.warning("site %s: two living sites are named %r; rename one of them", name, peer)
            case AreaFull(area=area, holds=holds, limits=limits):
                logger.warning(
                    "site %s: area %r has no room for what others send: it has %d keys and %d bytes, and takes %d and "
                    "%d; raise them (--site-max-keys, --site-max-bytes), or write fewer keys",
                    name, area, holds.keys, holds.bytes, limits.max_keys, limits.max_bytes,
                )  # fmt: skip
            case MalformedMessage(link=link, error=error):
                logger.debug("site %s: %s sent what is not of this protocol: %s", name, link, error)
            case PeerRequested(link=link, url=url, is_wanted=is_wanted):
                logger.info("site %s: a client has it %s %s", name, "dial" if is_wanted else "hang up", url)
            case Synced(peers=peers):
                if peers or not self.site.settings.sync_timeout_s:
                    logger.info("site %s: the syncs of its start are over, with %s", name, ", ".join(peers) or "nobody")
                else:
                    logger.warning(
                        "site %s: no other site could be reached within %g s; it goes on with what it has", name,
                        self.site.settings.sync_timeout_s,
                    )  # fmt: skip
                self.synced.set_result(event)


# -- the bridge -------------------------------------------------------------------------------------------------------
#
# The bridge in an event loop: it works in turns with the clients, and what it imports is told to those that observe.
#
# :class:`~statestore_client.server.bridge.Bridge` decides everything.


#: What had no room is tried again so often.
_TRY_AGAIN_S: Final = 10.0

_WHY: Final = {
    "name": "its name is not UTF-8, or too long for the KvStore",
    "value": "its value is too large for the KvStore",
    "room": "the KvStore is full",
    "version": "the KvStore has no version left for it",
}


class SiteBridge:
    """One bridge, while the server runs. ``store`` is what ``service`` serves."""

    def __init__(
        self,
        store: SiteStore,
        service: StateStoreService,
        driver: BrokerDriver,
        peering: SitePeering,
        endpoints: SiteEndpoints,
        clock: Clock,
    ) -> None:
        self._service = service
        self._driver = driver
        self._peering = peering
        self._clock = clock
        self._site = endpoints.name
        self._is_closed = False
        area = peering.site.replicas[endpoints.areas[0]].contents
        self._warn_of_leftovers(next(iter(store.keys_from(RESERVED_BYTES, inclusive=True)), b""))
        options = BridgeOptions(tuple(prefix.encode() for prefix in endpoints.exports), endpoints.imports)
        self.bridge: Bridge = Bridge(store, area, endpoints.name, options, self._begin)
        self._retry = Alarm(asyncio.get_running_loop().call_at, self.bridge.try_again)

    def _warn_of_leftovers(self, first: bytes) -> None:
        if first.startswith(RESERVED_BYTES):
            logger.warning(
                "site %s: %r and perhaps others were set by clients before this server had a bridge; they stay, and "
                "cannot be changed while it has one",
                self._site,
                first[:200],
            )

    def close(self) -> None:
        """Hear nothing more."""
        self._is_closed = True
        self.bridge.close()
        self._retry.cancel()

    def _begin(self) -> None:
        self._driver.turns.add(self._work)

    def _work(self) -> bool:
        """Go on for a turn."""
        if self._is_closed or self._driver.is_closing:
            return False
        ends = monotonic() + SLICE_S
        bridge, broker, now = self.bridge, self._driver.broker, self._clock()
        has_told = False
        while bridge.has_work and monotonic() < ends and not broker.is_busy:
            changes = bridge.step(now, monotonic())
            if changes:
                has_told = True
                broker.perform(self._service.announce(changes), now)
        if has_told:
            self._driver.flush()
        self._peering.changed()
        for event in bridge.take_events():
            self._report(event)
        if bridge.has_refused:
            self._retry.set(asyncio.get_running_loop().time() + _TRY_AGAIN_S)
        return bridge.has_work

    def _report(self, event: BridgeEvent) -> None:
        if isinstance(event, NotExported):
            logger.warning(
                "site %s: %r does not cross to other sites: %s. Others for the same reason are only counted",
                self._site,
                event.key[:200],
                _WHY[event.reason],
            )
            return
        logger.warning(
            "site %s: %r of another site is not stored: the quota of %s is used up",
            self._site,
            event.name[:200],
            "the state store" if event.is_store_full else "keys of other sites",
        )
