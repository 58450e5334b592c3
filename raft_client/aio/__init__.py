"""The asyncio client: any number of tasks of one event loop may share one."""

from raft_client.aio.client import AsyncRaftClient as RaftClient
from raft_client.aio.entries import Entries
from raft_client.aio.subscriber import Subscriber
from raft_client.aio.watch import Watch

__all__ = ["Entries", "RaftClient", "Subscriber", "Watch"]
