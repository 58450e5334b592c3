"""The bridge in an event loop: it works in turns with the clients, and what it imports is told to those that observe.

:class:`~statestore_client.server.bridge.Bridge` decides everything.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from statestore_client.clocks import monotonic
from statestore_client.server.bridge import RESERVED_BYTES, Bridge, BridgeOptions, NotExported
from statestore_client.server.runtime.clock import Alarm
from statestore_client.server.runtime.fairness import TURN_S

if TYPE_CHECKING:
    from statestore_client.server.bridge import BridgeEvent
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.runtime.settings import SiteEndpoints
    from statestore_client.server.runtime.sites import SitePeering
    from statestore_client.server.service.service import StateStoreService
    from statestore_client.server.store import SiteStore

__all__ = ["SiteBridge"]

logger: Final = logging.getLogger("statestore_client.server")

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
        ends = monotonic() + TURN_S
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
            "site %s: %r of another site does not fit: the quota of %s is used up",
            self._site,
            event.name[:200],
            "the state store" if event.is_store_full else "keys of other sites",
        )
