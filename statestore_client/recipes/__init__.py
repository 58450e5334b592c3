"""Recipes over locks and watches of the state store: a counter, a semaphore, a group, work that is shared, a barrier.

Each is a few lines over what every client has, and says what it does not protect. ``docs/reference/recipes.md``.
"""

from statestore_client.recipes.aio.barrier import AsyncBarrier
from statestore_client.recipes.aio.counter import AsyncCounter
from statestore_client.recipes.aio.members import AsyncMembers, AsyncMembersWatch
from statestore_client.recipes.aio.partitioner import AsyncPartitioner
from statestore_client.recipes.aio.semaphore import AsyncSemaphore
from statestore_client.recipes.roster import Roster
from statestore_client.recipes.sync.barrier import Barrier
from statestore_client.recipes.sync.counter import Counter
from statestore_client.recipes.sync.members import Members, MembersWatch
from statestore_client.recipes.sync.partitioner import Partitioner
from statestore_client.recipes.sync.semaphore import Semaphore

__all__ = [
    "AsyncBarrier",
    "AsyncCounter",
    "AsyncMembers",
    "AsyncMembersWatch",
    "AsyncPartitioner",
    "AsyncSemaphore",
    "Barrier",
    "Counter",
    "Members",
    "MembersWatch",
    "Partitioner",
    "Roster",
    "Semaphore",
]
