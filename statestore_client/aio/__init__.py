"""The asyncio client: any number of tasks of one event loop may share one."""

from statestore_client.aio.client import AsyncStateStoreClient as StateStoreClient
from statestore_client.aio.leases import AsyncLease as Lease
from statestore_client.aio.locks import AsyncLock as Lock
from statestore_client.aio.watch import AsyncWatch as Watch

__all__ = ["Lease", "Lock", "StateStoreClient", "Watch"]
