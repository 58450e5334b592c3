"""Whether there is a state store behind the broker: what follows from *no matching subscribers* (0x10) in a PUBACK.

A request that nobody was subscribed to is lost. Three situations look alike:

* the broker has no state store;
* the store is a client of the broker, and is away for a moment: it is restarted, or the next host takes over;
* the store lives inside the broker, needs no subscription, and answers all the same.

So the oldest lost request is published again until somebody takes it, with pauses that grow; all others wait behind it,
new ones, too. That keeps their order, and costs the broker no more than one message at a time.

    0x10 --pause--> again --0x10--> a longer pause --> … --taken, or any answer--> all that waits leaves in order

* A store that has never answered this client is taken for absent :data:`ABSENT_AFTER_S` after the first 0x10: nothing
  says that there is one. One that has answered gets as long as each request has.
* An answer to a request whose every PUBACK said 0x10 comes from a store inside the broker. On that connection 0x10 says
  nothing from then on.

Source: MQTT 5.0, 3.4.2.1. A broker may leave 0x10 out; then a request ends with its time-out as before.
"""

from __future__ import annotations

import math
from typing import Final

NO_MATCHING_SUBSCRIBERS: Final = 0x10

#: Seconds. A store inside a broker has answered long before; a host that is just starting has one more chance.
ABSENT_AFTER_S: Final = 1.0
#: Seconds before the first repetition, longer than the answer of a store inside the broker takes, and the longest
#: pause, which a change of hosts may last longer for the client.
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 0.5


class Absence:
    """See the module. Times are monotonic seconds."""

    __slots__ = (
        "_pause",
        "_repeat_at",
        "_since",
        "deadline",
        "has_answered",
        "is_meaningless",
        "is_on",
        "wants_answers",
    )

    def __init__(self) -> None:
        self._since = 0.0  # the first 0x10 of this absence
        self._pause = 0.0
        self._repeat_at = math.inf  # infinity while the repetition is under way
        #: Whether a store has ever answered this client.
        self.has_answered: bool = False
        #: Whether a request was lost, and nothing has come since that shows a store.
        self.is_on: bool = False
        #: Whether 0x10 says nothing on this connection: the store is inside the broker.
        self.is_meaningless: bool = False
        #: When the request table has something to do; infinity while it has not.
        self.deadline: float = math.inf
        #: Whether the next answer says something new.
        self.wants_answers: bool = True

    def begin_anew(self) -> None:
        """The client is opened again, perhaps beside another store."""
        self.has_answered = False
        self.connected()

    def connected(self) -> None:
        """On another connection 0x10 may say something else."""
        self.is_meaningless = False
        self.end()

    def lost(self, now: float, *, again: bool) -> None:
        """A request is lost; ``again``: it is the one that was repeated."""
        if not self.is_on:
            self.is_on = self.wants_answers = True
            self._since, self._pause = now, _FIRST_PAUSE_S
        elif again:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        else:
            return
        self._plan(now + self._pause)

    def is_time_to_repeat(self, now: float) -> bool:
        """Whether the oldest lost request is to be published again now."""
        return now >= self._repeat_at

    @property
    def is_repeating(self) -> bool:
        """Whether it was, and has no PUBACK yet."""
        return self.is_on and self._repeat_at == math.inf

    def repeat(self, now: float, *, later: bool) -> None:
        """It is published again now, and its PUBACK says how to go on; or ``later``, after another pause."""
        self._plan(now + self._pause if later else math.inf)

    def is_declared(self, now: float) -> bool:
        """Whether the store is taken for absent."""
        return self.is_on and not self.has_answered and now >= self._since + ABSENT_AFTER_S

    def end(self) -> None:
        """Somebody takes requests, or none is left that was lost."""
        self.is_on, self.deadline, self._repeat_at = False, math.inf, math.inf
        self.wants_answers = not self.has_answered

    def _plan(self, repeat_at: float) -> None:
        self._repeat_at = repeat_at
        self.deadline = repeat_at if self.has_answered else min(repeat_at, self._since + ABSENT_AFTER_S)
