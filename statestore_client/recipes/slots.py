"""Which slot of a semaphore a contender tries next, and for how long. Pure.

Each slot is a lock. A contender goes once around all of them, in a random order, so that contenders who begin together
do not all meet at the same one. Then it waits at one of them, chosen by chance, as a contender for that lock does: it
hears at once when that slot becomes free. After :data:`WAIT_S` it goes around again, for another slot may be free.

Invariant: a slot that becomes free, and stays so, is taken within :data:`WAIT_S` and one round, if anybody waits.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.core.results import within
from statestore_client.errors import InvalidArgumentError, LockNotAcquiredError, NoStateStoreError, TransportError

if TYPE_CHECKING:
    from random import Random

#: So long, in seconds, a contender waits at one slot before it looks at the others again.
WAIT_S: Final = 1.0
#: Each slot costs a request in a round.
MOST_PERMITS: Final = 1_000


@attrs.frozen
class Attempt:
    """Acquire the lock of this slot, within so many seconds; 0 tries once."""

    slot: int
    seconds: float


#: When an attempt has ended, and how it failed.
Failed: TypeAlias = tuple[float, LockNotAcquiredError | TransportError]


def check_permits(permits: int) -> int:
    """How many may hold a semaphore at a time. Raises InvalidArgumentError."""
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= MOST_PERMITS:
        raise InvalidArgumentError(f"permits must be from 1 to {MOST_PERMITS}, not {permits!r}", argument="permits")
    return permits


def search(
    name: str, permits: int, *, now: float, timeout: float | None, random: Random
) -> Generator[Attempt, Failed, None]:
    """The attempts of one contender, until one is a success. Raises what is to be raised when ``timeout`` is over:
    :class:`LockNotAcquiredError`, or the :class:`TransportError` of the last attempt, which found no answer.
    """
    deadline = math.inf if timeout is None else now + timeout
    while True:
        for slot in random.sample(range(permits), permits):
            now, error = yield Attempt(slot, 0.0)
            if isinstance(error, TransportError):
                break  # the others would find no answer, too: the next attempt waits through the outage
        if now < deadline and not isinstance(error, NoStateStoreError):
            now, error = yield Attempt(random.randrange(permits), min(WAIT_S, deadline - now))
        if now >= deadline or isinstance(error, NoStateStoreError):
            if isinstance(error, TransportError):
                raise error
            raise LockNotAcquiredError(f"no permit of {name} was free {within(timeout or 0.0)}")
