"""The blocking client: any number of threads may share one."""

from raft_client.sync.client import RaftClient
from raft_client.sync.key_values import KeyRange, KeyValues
from raft_client.sync.lease import KeyLease
from raft_client.sync.mirror import KeyMirror, MirrorChanges
from raft_client.sync.readers import Entries, Subscriber
from raft_client.sync.watch import Watch

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
