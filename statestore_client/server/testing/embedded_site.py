"""The site of an embedded server, as its program sees it: whether it has synced, and which of its keys it has lost.

Any thread may call these, as those of :class:`~statestore_client.server.testing.controls.Controls`. A server of a log
has a site while it is the active one; another time it is another site of the same name, that begins anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from statestore_client.errors import ClosedError
from statestore_client.server.checks import LONGEST_S, check_seconds
from statestore_client.wire.kvstore.messages import LostKey

if TYPE_CHECKING:
    from statestore_client.server.kvstore.peers import Synced
    from statestore_client.server.runtime.sites import SitePeering
    from statestore_client.server.testing.controls import ControlledServer


class EmbeddedSite:
    """Made by :attr:`EmbeddedServer.site`, for the site that runs at that time."""

    def __init__(self, server: ControlledServer, peering: SitePeering) -> None:
        self._server = server
        self._peering = peering

    def __repr__(self) -> str:
        return f"<EmbeddedSite {self.name!r}, {'synced' if self.is_synced else 'not synced yet'}>"

    @property
    def name(self) -> str:
        """What the other sites call it."""
        return self._peering.site.settings.name

    @property
    def is_synced(self) -> bool:
        """Whether the syncs of its start are over: it has what the others had, or none could be reached in time."""
        return self._peering.synced.done() and self._peering.synced.result() is not None

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait for :attr:`is_synced`; False if that takes longer than ``timeout`` seconds.

        Raises ClosedError if the server is stopped before, and RuntimeError in the thread of the server's own event
        loop: await :meth:`wait_synced_async` there.
        """
        _check(timeout)
        if self._server.is_here and not self._peering.synced.done():
            raise RuntimeError("waiting here would stop the server: await wait_synced_async()")
        try:
            return _is_over(self._peering.synced.result(timeout))
        except TimeoutError:
            return False

    async def wait_synced_async(self, timeout: float | None = None) -> bool:
        """:meth:`wait_synced`, in any event loop."""
        _check(timeout)
        synced = asyncio.wrap_future(self._peering.synced)
        # One that stops waiting must not cancel what others wait for, as wait_for() would.
        done, _ = await asyncio.wait({synced}, timeout=timeout)
        return bool(done) and _is_over(synced.result())

    def lost_keys(self) -> list[LostKey]:
        """Keys that were ``set`` here and that another site has overridden since, the last one at the end; without
        those that were said anew, cleared or erased. The last 4,096 of each area are remembered.
        """
        return self._server.call(self._lost_keys)

    def _lost_keys(self) -> list[LostKey]:
        return [
            LostKey(area, loss.key, loss.originator, loss.version)
            for area, replica in self._peering.site.replicas.items()
            for loss in replica.contents.own.lost
        ]


def _check(timeout: float | None) -> None:
    if timeout is not None:
        check_seconds("timeout", timeout, -LONGEST_S)


def _is_over(synced: Synced | None) -> bool:
    if synced is None:
        raise ClosedError("the site was stopped before it had synced")
    return True
