"""Clients of the SDK that outlive the servers of a log, and what must hold after every failover: the lock is held under
the same token, and a watch has seen every change, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from killed_server import TIMEOUT_S
from support.waiting import until

from statestore_client import AsyncStateStoreClient, WatchEvent
from statestore_client.aio.leases import AsyncLease
from statestore_client.aio.watch import AsyncWatch

__all__ = ["ClientAudit"]

_KEY = "guarded"
#: Connections that end within five seconds, as here, are failures to a client: it would pause longer each time.
_OPTIONS: dict[str, Any] = {"request_timeout": TIMEOUT_S, "max_reconnect_delay": 0.2}


class ClientAudit:
    """One client holds a lock and writes numbers under its token, another one watches them."""

    def __init__(self, holder: AsyncStateStoreClient, lease: AsyncLease) -> None:
        self._holder, self._lease = holder, lease
        self._token = lease.fencing_token
        self._written = 0
        self._seen: list[WatchEvent] = []

    @classmethod
    @asynccontextmanager
    async def running(cls, url: str) -> AsyncIterator[ClientAudit]:
        """Of all servers. Raises what befell the clients."""
        async with (
            AsyncStateStoreClient(url, **_OPTIONS) as holder,
            AsyncStateStoreClient(url, **_OPTIONS) as watcher,
            watcher.watch(_KEY, max_queued=1_000_000) as events,
            holder.lock("lock", lease=TIMEOUT_S) as lease,
            asyncio.TaskGroup() as tasks,
        ):
            audit = cls(holder, lease)
            running = tasks.create_task(audit._write()), tasks.create_task(audit._see(events))
            yield audit
            for each in running:
                each.cancel()

    async def _write(self) -> None:
        while True:
            await self._holder.set(_KEY, str(self._written + 1), fencing_token=self._token)
            self._written += 1
            await asyncio.sleep(0.01)  # its pace: the load is that of others

    async def _see(self, events: AsyncWatch) -> None:
        async for event in events:
            self._seen.append(event)

    async def check(self) -> None:
        """A new value is written and seen; nothing was lost on the way, and no version went back."""
        assert not self._lease.ended.is_set(), "the lock is lost"
        wanted = self._written + 1
        await until(lambda: bool(self._seen) and int(self._seen[-1].value or b"0") >= wanted, "what is written is seen")
        numbers = [int(event.value or b"0") for event in self._seen]
        versions = [event.version for event in self._seen if event.version is not None]
        assert numbers == sorted(set(numbers)), numbers
        assert versions == sorted(set(versions)), versions
        assert not [a for a, b in zip(self._seen, self._seen[1:], strict=False) if _gap(a, b) and not b.missed]
        del self._seen[:-1]


def _gap(before: WatchEvent, after: WatchEvent) -> bool:
    return int(after.value or b"0") != int(before.value or b"0") + 1
