"""What each peer of the replicated log says of itself, for people that look.

A peer that runs alone (``zmqraft serve``) or in another server answers as one in this process does. Nobody is asked
while nobody looks.

Source: ØMQ Raft protocol, RequestLogInfo RPC.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from raft_client import AsyncRaftClient, Peer, RaftError

if TYPE_CHECKING:
    from raft_client import LogInfo, RaftSettings

from statestore_client.clocks import monotonic

__all__ = ["LogPeer", "LogPeers"]

#: A peer that is up answers at once.
_TIMEOUT_S: Final = 1.0
#: So long an answer is good enough, however many look.
_FRESH_S: Final = 2.0


@attrs.frozen
class LogPeer:
    """``info`` is None if it did not answer."""

    id: str
    url: str
    info: LogInfo | None


class LogPeers:
    """Of one log. Belongs to the event loop."""

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self._client: AsyncRaftClient | None = None
        self._known: list[LogPeer] | None = None
        self._looked_at = -_FRESH_S
        self._looking: asyncio.Task[None] | None = None

    def known(self) -> list[LogPeer] | None:
        """At the last look; None before the first one has ended. Looks again if that was some time ago."""
        is_looking = self._looking is not None and not self._looking.done()
        if not is_looking and monotonic() >= self._looked_at + _FRESH_S:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._known

    async def close(self) -> None:
        """Ask nobody any more. Safe to call twice."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _look(self) -> None:
        client = self._client = self._client or AsyncRaftClient(self._settings)
        members = await self._members(client)
        infos = await asyncio.gather(*(_ask(client, each.url) for each in members))
        self._known = [LogPeer(each.id, each.url, info) for each, info in zip(members, infos, strict=True)]
        self._looked_at = monotonic()

    async def _members(self, client: AsyncRaftClient) -> list[Peer]:
        """As the leader names them; without one as any peer did; before that, those this server was told of."""
        with suppress(RaftError):
            await client.open(_TIMEOUT_S)
        return [Peer(*each) for each in client.peers.items()] or [Peer("?", url) for url in self._settings.seeds]


async def _ask(client: AsyncRaftClient, url: str) -> LogInfo | None:
    try:
        return await client.log_info(url, timeout=_TIMEOUT_S)
    except RaftError:
        return None
