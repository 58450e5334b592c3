"""The blocking client: any number of threads may share one."""

from raft_client.sync.client import RaftClient
from raft_client.sync.entries import Entries
from raft_client.sync.subscriber import Subscriber
from raft_client.sync.watch import Watch

__all__ = ["Entries", "RaftClient", "Subscriber", "Watch"]
