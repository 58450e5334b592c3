"""Three peers of this package as processes, and between them a proxy for each link and direction."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from support.proxy import Proxy
from support.raft_peers import Peers

__all__ = ["LinkedPeers"]

_PEER = Path(__file__).with_name("faulty_peer.py")


class LinkedPeers(Peers):
    """Each peer reaches the others through proxies, and clients reach all of them. Use with ``async with``.

    A peer's own configuration has its proxies as the others' URLs, so a client that follows a leader may come through
    one, too.
    """

    def __init__(self, directory: Path, *, defect: str = "") -> None:
        super().__init__(directory)
        self._environment = {**os.environ, "RAFT_DEFECT": defect}
        self._links: dict[tuple[str, str], Proxy] = {}
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as closing:
            for source in self.urls:
                for target, url in self.urls.items():
                    if source != target:
                        proxy = Proxy(int(url.rpartition(":")[2]))
                        self._links[source, target] = await closing.enter_async_context(proxy)
            closing.callback(self._end_all)
            await asyncio.gather(*map(self.begin, self.urls))
            self._closing = closing.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    def _end_all(self) -> None:
        for name in list(self.running):
            self.end(name, signal.SIGKILL)

    # -- peers ---------------------------------------------------------------------------------------------------------

    def command(self, name: str, *more: str) -> list[str]:
        members = [f"--peer={peer}={self._url(name, peer)}" for peer in self.urls]
        return [
            sys.executable,
            str(_PEER),
            "serve",
            "--id",
            name,
            *members,
            "--data",
            str(self.directory / name),
            *more,
        ]

    def _url(self, source: str, target: str) -> str:
        if source == target:
            return self.urls[target]
        return f"tcp://127.0.0.1:{self._links[source, target].url.rpartition(':')[2]}"

    def _stall(self, name: str) -> Path:
        return self.directory / f"{name}.stall"

    def start(self, name: str, *more: str) -> None:
        """Returns when it listens."""
        environment = {**self._environment, "RAFT_STALL": str(self._stall(name))}
        command = self.command(name, *more)
        process = self.running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {self.urls[name]}\n".encode()

    async def begin(self, name: str) -> None:
        """Start it; links and clients go on meanwhile."""
        await asyncio.to_thread(self.start, name)

    # -- faults --------------------------------------------------------------------------------------------------------

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self.running[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self.running[name].send_signal(signal.SIGCONT)

    def stall_disk(self, name: str) -> None:
        """Its disk does nothing from now on."""
        self._stall(name).touch()

    def free_disk(self, name: str) -> None:
        """It goes on."""
        self._stall(name).unlink(missing_ok=True)

    def cut(self, links: Collection[tuple[str, str]]) -> None:
        """What these peers (source, target) ask each other, and the answers, stays on the way."""
        for link in links:
            self._links[link].hold("up", "down")

    def heal(self, *, lose: bool) -> None:
        """All links work again. What stayed on the way is lost, or arrives now."""
        for proxy in self._links.values():
            if lose:
                proxy.cut()
            proxy.flow("up", "down")

    @property
    def links(self) -> list[tuple[str, str]]:
        """Of each peer to each other one."""
        return list(self._links)
