"""Sites with real sockets, in the event loop of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

from support.ports import reserved_port

from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.site import SiteSettings
from statestore_client.server.runtime.sites import SitePeering
from statestore_client.wire.kvstore.value import Value

__all__ = ["Node", "nodes"]

_seeds = Random(1)


class Node:
    """One site of a test, which can die and come back at its address."""

    def __init__(self, name: str, areas: tuple[str, ...] = ("a",)) -> None:
        self.name = name
        self.url = f"tcp://127.0.0.1:{reserved_port()}"
        self._areas = areas
        self._peers: list[Node] = []
        self.start()

    def start(self) -> None:
        """With empty areas, as a process that was started."""
        self.areas = {area: Area(area, self.name) for area in self._areas}
        settings = SiteSettings(self.name, _seeds.getrandbits(64))
        self.peering = SitePeering(settings, self.areas.values(), Random(_seeds.random()))
        self.peering.listen(self.url)
        for peer in self._peers:
            self.peering.add_peer(peer.url)

    def dial(self, peer: Node) -> None:
        """Know its address."""
        self._peers.append(peer)
        self.peering.add_peer(peer.url)

    def set(self, key: str, value: bytes, version: int = 1, area: str = "a") -> None:
        """As a client of this site."""
        now = asyncio.get_running_loop().time()
        self.areas[area].set({key: Value(version, self.name, value)}, now)
        self.peering.changed()

    def value(self, key: str, area: str = "a") -> bytes | None:
        """What is stored."""
        entry = self.areas[area].get(key)
        return None if entry is None else entry.value

    def keys(self, area: str = "a") -> set[str]:
        """All of them."""
        return set(self.areas[area].store)


@contextlib.asynccontextmanager
async def nodes(*names: str, areas: tuple[str, ...] = ("a",)) -> AsyncIterator[list[Node]]:
    """Sites that do not know each other yet."""
    made = [Node(name, areas) for name in names]
    try:
        yield made
    finally:
        for node in made:
            node.peering.close()
