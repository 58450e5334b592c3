"""Recipes over the locks and watches of the state store: a counter, a semaphore, the members of a group.

Each is a few lines over what every client has, and says what it does not protect. ``docs/reference/recipes.md``.
"""

from statestore_client.recipes.aio.counter import AsyncCounter
from statestore_client.recipes.aio.members import AsyncMembers, AsyncMembersWatch
from statestore_client.recipes.aio.semaphore import AsyncSemaphore
from statestore_client.recipes.roster import Roster
from statestore_client.recipes.sync.counter import Counter
from statestore_client.recipes.sync.members import Members, MembersWatch
from statestore_client.recipes.sync.semaphore import Semaphore

__all__ = [
    "AsyncCounter",
    "AsyncMembers",
    "AsyncMembersWatch",
    "AsyncSemaphore",
    "Counter",
    "Members",
    "MembersWatch",
    "Roster",
    "Semaphore",
]
