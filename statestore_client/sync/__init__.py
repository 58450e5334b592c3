"""The blocking client: any number of threads may share one."""

from statestore_client.sync.client import StateStoreClient
from statestore_client.sync.leases import Lease
from statestore_client.sync.locks import Lock
from statestore_client.sync.watch import Watch

__all__ = ["Lease", "Lock", "StateStoreClient", "Watch"]
