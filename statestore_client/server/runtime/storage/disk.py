"""Opens a data directory for a server, fills the machines from it, and closes it."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from statestore_client.server.journal import Journal
from statestore_client.server.runtime.clock import monotonic_origin
from statestore_client.server.runtime.observability.event_log import LOGGER
from statestore_client.server.runtime.storage.directory import refusals
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
from statestore_client.server.runtime.storage.group_commit import GroupCommit

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable, Iterator

    from statestore_client.server.broker import Broker
    from statestore_client.server.runtime.clock import Clock
    from statestore_client.server.service.service import StateStoreService

__all__ = ["Disk"]


class Disk:
    """A data directory of one server, for one life of it."""

    def __init__(self, directory: str | os.PathLike[str], clock: Clock, failed: Callable[[Exception], None]) -> None:
        """Nothing is touched before :meth:`open`."""
        self.journal: Journal = Journal(monotonic_origin())
        self._directory = directory
        self._clock = clock
        self._failed = failed
        self._storage: DiskStorage | None = None
        self._is_loaded = False
        self._group_commit: GroupCommit | None = None

    def open(self, broker: Broker, service: StateStoreService, loop: asyncio.AbstractEventLoop) -> GroupCommit:
        """Read everything. Raises DataDirectoryError and its kinds."""
        self._storage = storage = DiskStorage(self._directory)
        try:
            now = self._clock()
            with refusals(Path(self._directory)), _without_collections():
                self.journal.resume(storage, now)
                service.restore(storage, self.journal.timeline)
                broker.restore(storage, now)
        except BaseException:
            self.close()
            raise
        self._is_loaded = True
        self._group_commit = GroupCommit(self.journal, storage, self._clock, loop, self._failed)
        return self._group_commit

    def close(self) -> None:
        """Write what is left, and let go of the directory. Safe to call twice."""
        storage, self._storage = self._storage, None
        if storage is None:
            return
        if self._group_commit is not None:
            self._group_commit.close()
        if self._is_loaded:
            storage.append(self.journal.cut(self._clock()), _log_failure)
        storage.close()


def _log_failure(error: Exception | None) -> None:
    if error is not None:
        LOGGER.error("the last changes were not written: %s", error)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Hundreds of thousands of new objects, none of them garbage: nothing to look for, nor when collections go on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else they would thaw what somebody else froze
            gc.freeze()
            gc.unfreeze()  # both together: what is new counts as old
        if was_enabled:
            gc.enable()
