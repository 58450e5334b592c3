"""A site of the KvStore in an event loop: its sockets, its clock, and what people are told of it.

:class:`~statestore_client.server.kvstore.site.Site` decides everything. Here messages are carried, one turn after the
other: what has come is taken in, what is due is done, what it says goes out. A turn takes messages for a moment only,
large work is done in pieces, and while the loop serves others, too, they have most of its time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.checks import check_flag, check_kind, check_number, check_seconds, check_text, check_tuple
from statestore_client.server.kvstore.admission import DEFAULT_LIMITS, AreaLimits
from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.events import (
    AreaFull,
    HelloRefused,
    MalformedMessage,
    NameInUse,
    PeerChanged,
    PeerWanted,
    Synced,
)
from statestore_client.server.kvstore.flood import FloodRate
from statestore_client.server.kvstore.own_key import KeyContested, KeyLost
from statestore_client.server.kvstore.own_keys import DEFAULT_KEY_TTL_MS, LEAST_KEY_TTL_MS
from statestore_client.server.kvstore.site import Site, SiteSettings
from statestore_client.server.runtime.security.site_keys import SiteKeys
from statestore_client.server.runtime.transport.site_sockets import Came, SiteSockets
from statestore_client.wire.kvstore.messages import Failure, FailureReason, SetResult
from statestore_client.wire.kvstore.value import MAX_ORIGINATOR_BYTES, MAX_TTL_MS, RESERVED, NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from statestore_client.server.kvstore.events import SiteEvent
    from statestore_client.server.kvstore.own_key import OwnEvent

__all__ = ["DEFAULT_AREA", "SiteEndpoints", "SitePeering"]

logger: Final = logging.getLogger("statestore_client.server")

#: After this time in seconds a turn takes no more messages. One of them takes about a millisecond at most.
_TURN_S: Final = 0.00025
#: While the loop serves others, too, they have a multiple of its time after a turn, and at most this time in seconds.
_REST: Final = 3.0
_MOST_REST_S: Final = 0.01
#: They count as there until this time after they were served, in seconds.
_OTHERS_S: Final = 0.05

#: Addresses that a site dials; each of them is tried for ever.
_MAX_DIALLED: Final = 256
#: What a hello carries, and a summary has numbers of, is far from filling a message.
_MAX_AREAS: Final = 64

DEFAULT_AREA: Final = "default"
_INCARNATION_BITS: Final = 64
#: Refusals that are remembered, so each is told once; after an hour they are told again.
_MOST_REFUSALS: Final = 1_000
_REFUSALS_S: Final = 3_600.0


@attrs.frozen(kw_only=True)
class SiteEndpoints:
    """A site as its operator knows it. Raises InvalidArgumentError.

    ``listen`` is where other sites and clients of the KvStore come in, ``peers`` are the sites that this one dials:
    ``tcp://host:port`` or ``ipc://path``. A connection makes peers of both sides, whoever dialled. Sites exchange the
    ``areas`` that both of them have. The first area carries what is exported and imported.

    ``curve_keys`` is a directory of keys: ``NAME.key_secret`` of this site, ``NAME.key`` of others, and
    ``clients/*.key``. Everything is encrypted then, nobody comes in whose key is not there, and ``NAME=`` stands before
    the address of each peer.
    """

    name: str
    listen: str | None = None
    peers: tuple[str, ...] = ()
    areas: tuple[str, ...] = (DEFAULT_AREA,)
    #: Keys of the state store that begin with one of these cross to other sites, and are read-only there.
    exports: tuple[str, ...] = ()
    #: Whether what other sites export is in the state store, as ``sites/NAME/KEY``.
    imports: bool = False
    curve_keys: Path | None = None
    #: The time to live of keys that this site keeps alive, if nothing else is said: so long they last elsewhere after
    #: the site has died or was cut off.
    key_ttl_s: float = DEFAULT_KEY_TTL_MS / 1000
    #: Updates that leave each area in a second, each of any number of keys. More of them wait, and are merged.
    flood_rate: int | None = None
    #: What each area holds at most: keys, and bytes of keys, originators and values. What has no room is refused.
    max_keys: int = DEFAULT_LIMITS.max_keys
    max_bytes: int = DEFAULT_LIMITS.max_bytes

    def __attrs_post_init__(self) -> None:
        check_tuple("peers", self.peers)
        check_tuple("areas", self.areas)
        check_seconds("key_ttl_s", self.key_ttl_s, LEAST_KEY_TTL_MS / 1000, MAX_TTL_MS / 1000)
        if self.flood_rate is not None:
            check_number("flood_rate", self.flood_rate, 1)
        check_number("max_keys", self.max_keys, 1)
        check_number("max_bytes", self.max_bytes, 1)
        if self.curve_keys is not None:
            check_kind("curve_keys", self.curve_keys, Path)
        for url in (self.listen or "", *self.peers):
            check_text("an address of a site", url)
        for what, names in (("a site", (self.name,)), ("an area", self.areas)):
            for name in names:
                check_text(f"the name of {what}", name)
                if not 0 < len(name.encode(errors="replace")) <= MAX_ORIGINATOR_BYTES or not name.isprintable():
                    raise InvalidArgumentError(
                        f"the name of {what} has 1 to {MAX_ORIGINATOR_BYTES} bytes, and no control characters, "
                        f"not {name!r}"
                    )
        if not 0 < len(self.areas) <= _MAX_AREAS or len(set(self.areas)) < len(self.areas):
            raise InvalidArgumentError(f"a site has at least one area, at most {_MAX_AREAS}, and each of them once")
        if len(self.peers) > _MAX_DIALLED:
            raise InvalidArgumentError(f"a site dials at most {_MAX_DIALLED} addresses, not {len(self.peers)}")
        if self.listen is None and not self.peers:
            raise InvalidArgumentError(
                f"the site {self.name!r} neither listens nor dials other sites; it needs one of both"
            )
        self._check_bridge()

    def _check_bridge(self) -> None:
        check_tuple("exports", self.exports)
        check_flag("imports", self.imports)
        for prefix in self.exports:
            check_text("a prefix of exported keys", prefix)
            if not prefix or prefix.startswith(RESERVED) or prefix.encode(errors="replace").decode() != prefix:
                raise InvalidArgumentError(
                    f"a prefix of exported keys is text of at least one character, and does not begin with "
                    f"{RESERVED!r}, as what has come from a site does not leave for another one; not {prefix!r}"
                )
        if self.has_bridge and "/" in self.name:
            raise InvalidArgumentError(
                f"keys of this site are {RESERVED}NAME/KEY at other sites, so its name has no '/', not {self.name!r}"
            )

    @property
    def has_bridge(self) -> bool:
        """Whether keys of the state store cross, in either direction."""
        return bool(self.exports) or self.imports


class SitePeering:
    """One site and its connections. ``areas`` are empty at first; what is set in them later goes out after
    :meth:`changed`. ``on_event`` is told what happens, after it was logged. ``served`` counts what the loop does for
    others.
    """

    def __init__(
        self,
        settings: SiteSettings,
        areas: Iterable[Area],
        random: Random,
        on_event: Callable[[SiteEvent | OwnEvent], object] = lambda _event: None,
        keys: SiteKeys | None = None,
        served: Callable[[], int] = lambda: 0,
    ) -> None:
        self._areas = tuple(areas)
        self.site: Site = Site(settings, self._areas, random, time.monotonic())
        #: Where it listens; None if it only dials.
        self.url: str | None = None
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._sockets = SiteSockets(settings.name, self._watch, self._loop.remove_reader, random, keys)
        self._timer: asyncio.TimerHandle | None = None
        self._served = served
        self._served_before = served()
        self._others_until = 0.0
        self._is_tick_put_off = False
        self._rests_until = 0.0
        #: Hellos that were refused, by this site or another one; two sites with one name among them.
        self.refused: int = 0
        self._refusals: dict[tuple[object, int], str] = {}
        self._refusals_since = time.monotonic()
        self._is_closed = False

    @classmethod
    def of(
        cls, endpoints: SiteEndpoints, random: Random, started_ms: int, served: Callable[[], int] = lambda: 0
    ) -> SitePeering:
        """A new incarnation of the site, which listens and dials as told; ``started_ms``: the wall clock. Raises
        SettingsError for an address or a key.
        """
        keys = None if endpoints.curve_keys is None else SiteKeys(endpoints.curve_keys, endpoints.name)
        rate = None if endpoints.flood_rate is None else FloodRate(endpoints.flood_rate, endpoints.flood_rate)
        settings = SiteSettings(endpoints.name, random.getrandbits(_INCARNATION_BITS), rate)
        ttl_ms = round(1000 * endpoints.key_ttl_s)
        limits = AreaLimits(endpoints.max_keys, endpoints.max_bytes)
        areas = [
            Area(name, endpoints.name, limits=limits, key_ttl_ms=ttl_ms, started_ms=started_ms)
            for name in endpoints.areas
        ]
        peering = cls(settings, areas, random, keys=keys, served=served)
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
        self.site.members.dial(url, time.monotonic())
        self.changed()

    def remove_peer(self, peer: str) -> bool:
        """Hang up at an address that is dialled: both sites forget each other, if that was their only connection.
        Or forget a site, by its name, that has dialled this one and is gone for good.

        False if there is nothing of the kind. Raises InvalidArgumentError for a site that would come back.
        """
        if peer in self._sockets.dialled:
            self.site.members.hang_up(peer, time.monotonic())
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

    def _watch(self, descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._wake)

    def _wake(self) -> None:
        if time.monotonic() >= self._rests_until:
            self._turn()
        elif self._sockets.is_readable():  # having looked, the descriptor does not tell again
            self._arm(0.0)

    def _arm(self, at: float) -> None:
        """The next turn is then, or when the others had their time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(max(at, self._rests_until), self._turn)

    def _turn(self) -> None:
        if self._is_closed:
            return
        now = time.monotonic()
        for what in self._sockets.receive():
            if isinstance(what, Came):
                self.site.receive(what.link, what.data, now, what.user)
                if time.monotonic() >= now + _TURN_S:
                    break
            else:  # what was said on the former connection does not count, and hello is due on the new one
                self.site.members.redial(what.link, now)
        self._sockets.settle(now)
        # After a long message that is the next turn's; every other turn does it, whatever comes.
        self._is_tick_put_off = time.monotonic() >= now + _TURN_S and not self._is_tick_put_off
        if not self._is_tick_put_off:
            self.site.tick(time.monotonic())
        self._carry()
        ended = time.monotonic()
        self._rest(now, ended)
        is_busy = self._sockets.is_readable() or self.site.output
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
                self.site.members.lost(link, time.monotonic())

    def _carry(self) -> None:
        self._send()
        events, self.site.events = self.site.events, []
        for event in events:
            if isinstance(event, PeerWanted):
                self._change_peer(event)
            self._report(event)
            self._on_event(event)
        for area in self._areas:
            own, area.own.events = area.own.events, []
            for each in own:
                self._report_own(area.name, each)
                self._on_event(each)

    def _change_peer(self, wanted: PeerWanted) -> None:
        """A client asks for it."""
        answer: SetResult | Failure = SetResult(wanted.id, {})
        try:
            if not wanted.is_wanted:
                if not self.remove_peer(wanted.url):
                    answer = SetResult(wanted.id, {wanted.url: NoMergeReason.NO_NEED_TO_UPDATE})
            elif len(self._sockets.dialled) < _MAX_DIALLED:
                self.add_peer(wanted.url)
            else:
                raise SettingsError(f"this site dials {_MAX_DIALLED} addresses, and no more")
        except (SettingsError, InvalidArgumentError) as error:
            answer = Failure(wanted.id, FailureReason.BAD_REQUEST, str(error))
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

    def _is_news(self, who: object, reason: int, text: str) -> bool:
        """Whether a refusal is told. A stranger that comes with ever new names cannot fill the log."""
        now = time.monotonic()
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
                    logger.warning("site %s: no peering with %s at %s: %s", name, peer or "the site", link, text)
            case NameInUse(name=peer):
                logger.warning("site %s: two living sites are named %r; rename one of them", name, peer)
            case AreaFull(area=area, holds=holds, limits=limits):
                logger.warning(
                    "site %s: area %r has no room for what others send: it has %d keys and %d bytes, and takes %d and "
                    "%d; raise the limits, or have less said",
                    name, area, holds.keys, holds.bytes, limits.max_keys, limits.max_bytes,
                )  # fmt: skip
            case MalformedMessage(link=link, error=error):
                logger.debug("site %s: %s sent what is not of this protocol: %s", name, link, error)
            case PeerWanted(link=link, url=url, is_wanted=is_wanted):
                logger.info("site %s: a client has it %s %s", name, "dial" if is_wanted else "hang up", url)
            case Synced():
                logger.info("site %s: synced with every peer that was known at the start, or tried to", name)
