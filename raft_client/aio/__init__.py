"""The asyncio client: any number of tasks of one event loop may share one."""

from raft_client.aio.client import AsyncRaftClient as RaftClient
from raft_client.aio.key_values import AsyncKeyRange as KeyRange
from raft_client.aio.key_values import AsyncKeyValues as KeyValues
from raft_client.aio.lease import AsyncKeyLease as KeyLease
from raft_client.aio.mirror import AsyncKeyMirror as KeyMirror
from raft_client.aio.mirror import AsyncMirrorChanges as MirrorChanges
from raft_client.aio.readers import AsyncEntries as Entries
from raft_client.aio.readers import AsyncSubscriber as Subscriber
from raft_client.aio.watch import AsyncWatch as Watch

__all__ = [
    "Entries",
    "KeyLease",
    "KeyMirror",
    "KeyRange",
    "KeyValues",
    "MirrorChanges",
    "RaftClient",
    "Subscriber",
    "Watch",
]
