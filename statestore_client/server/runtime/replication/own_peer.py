"""The peer of the log that runs in the process of a server, in a thread of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from raft_client import (
    AsyncRaftClient,
    Peer,
    RaftError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageInUseError,
    StorageVersionError,
)
from raft_client.server import BroadcastStateMachine, EmbeddedPeer
from statestore_client.clocks import monotonic
from statestore_client.errors import (
    DataDamagedError,
    DataDirectoryError,
    DataFormatError,
    DataInUseError,
    ReplicatedLogError,
    SettingsError,
    StateStoreError,
)
from statestore_client.server.runtime.storage.files import DATABASE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client import LogInfo, RaftSettings
    from statestore_client.server.runtime.replication.settings import PeerSettings

# -- log peers ---------------------------------------------------------------------------------------------------------
#
# What each peer of the replicated log says of itself, for people that look.
#
# A peer that runs alone (``zmqraft serve``) or in another server answers as one in this process does. Nobody is asked
# while nobody looks.
#
# Source: ØMQ Raft protocol, RequestLogInfo RPC.


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


# -- own peer ----------------------------------------------------------------------------------------------------------


#: In the data directory.
_FOLDER: Final = "log"
_KEYS: Final = "keys"
_ERRORS: Final = {
    StorageDamagedError: DataDamagedError,
    StorageInUseError: DataInUseError,
    StorageVersionError: DataFormatError,
}


class OwnPeer:
    """Belongs to the event loop of the server. ``failed`` is called there if the peer ends by itself."""

    def __init__(self, settings: PeerSettings, cluster: str, failed: Callable[[Exception], None]) -> None:
        self._settings = settings
        self._cluster = cluster
        self._failed = failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Future[EmbeddedPeer] | None = None
        self._is_over = False
        self._peer = EmbeddedPeer(
            settings.id,
            dict(settings.members),
            settings.data / _FOLDER,
            cluster=cluster,
            machine=BroadcastStateMachine,
            host=settings.host,
            publisher_port=settings.publisher_port,
            trim_forgets_ids=True,  # an entry that comes twice has no effect: see cluster.fence
            curve_keys=None if settings.keys is None else settings.data / _KEYS,
            settings=dict(settings.changes),
            on_failure=self._on_failure,
        )

    @property
    def figures(self) -> bytes:
        """Those of the peer, for Prometheus."""
        return self._peer.figures

    async def start(self) -> None:
        """Take part in the log. Raises SettingsError if a port cannot be had, DataDirectoryError for the directory."""
        if (self._settings.data / DATABASE_NAME).exists():
            raise DataDirectoryError(
                f"{self._settings.data} has the data of a server without a cluster: give another one"
            )
        self._loop = asyncio.get_running_loop()
        self._starting = self._loop.run_in_executor(None, self._begin)  # it waits for the disk
        try:
            await asyncio.shield(self._starting)
        except StorageError as error:
            raise _translated(error) from error
        except RaftError as error:
            raise SettingsError(f"this server's peer of the log: {error}") from error

    def _begin(self) -> EmbeddedPeer:
        settings = self._settings
        if settings.keys is not None:
            settings.keys.write(settings.data / _KEYS, settings.id, self._cluster, dict(settings.members))
        return self._peer.start()

    async def stop(self) -> None:
        """Let another peer lead, and end. Safe to call twice, and while it starts."""
        self._is_over = True
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
            await asyncio.to_thread(self._peer.stop)

    def _on_failure(self, error: BaseException) -> None:
        """In the peer's thread."""
        if self._loop is not None and not self._is_over:
            self._loop.call_soon_threadsafe(self._failed, _translated(error))


def _translated(error: BaseException) -> StateStoreError:
    text = f"this server's peer of the log cannot go on: {error}"
    if isinstance(error, StorageFullError):
        text += "; make room on the disk of its --data, by removing other files, and start it again: the others go on"
    if isinstance(error, StorageError):
        return _ERRORS.get(type(error), DataDirectoryError)(text)
    return ReplicatedLogError(text)
