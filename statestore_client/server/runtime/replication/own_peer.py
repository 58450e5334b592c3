"""The peer of the log that runs in the process of a server, in a thread of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raft_client import RaftError, StorageDamagedError, StorageError, StorageInUseError, StorageVersionError
from raft_client.server import BroadcastStateMachine, EmbeddedPeer
from statestore_client.errors import (
    DataDamagedError,
    DataDirectoryError,
    DataFormatError,
    DataInUseError,
    ReplicatedLogError,
    SettingsError,
    StateStoreError,
)
from statestore_client.server.runtime.storage.contents import DATABASE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.runtime.replication.settings import PeerSettings

__all__ = ["OwnPeer"]

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
    if isinstance(error, StorageError):
        return _ERRORS.get(type(error), DataDirectoryError)(text)
    return ReplicatedLogError(text)
