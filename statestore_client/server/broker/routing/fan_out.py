"""One message on its way to many: everything that takes long is done in slices, and a crash in between loses no copy.

What is acknowledged to its publisher has to reach all who were subscribed at that moment. So the copies are planned
first, slice by slice, in memory. Then, in one step, the message is accepted: it is retained, acknowledged, and what is
still to be copied is written down, one record for each slice. Then the slices are delivered; the record of a slice goes
in the same step in which its copies are written down themselves. A server that comes back after a crash either knows
nothing of the message, and its publisher sends it again, or goes on with the slices that are left: each subscriber
with QoS 2 gets it once.

Where nothing is written down and nobody can be refused, there is nothing to plan: the message is accepted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.broker.persistence.records import CopiesRecord
from statestore_client.server.broker.routing.blocks import BLOCK
from statestore_client.server.broker.routing.copies import MergedCopies, copies, copy
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.persistence.persister import BrokerPersistence
    from statestore_client.server.broker.routing.copies import Target
    from statestore_client.server.broker.routing.router import Router
    from statestore_client.server.broker.routing.subscriptions import Subscribers
    from statestore_client.wire.instant import Instant

__all__ = ["Acceptance", "FanOut", "are_many"]

#: Less of large messages: each copy may be encoded.
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_FEWEST: Final = 8


def are_many(matches: Sequence[Subscribers]) -> bool:
    """Whether these are too many for one turn."""
    if len(matches) == 1:
        only = matches[0]
        return len(only.direct.blocks) > 1 or len(only.shared.blocks) > 1
    count = len(matches)
    for subscribers in matches:
        if count > BLOCK:
            break
        count += len(subscribers.direct) + len(subscribers.shared)
    return count > BLOCK


@attrs.frozen
class Acceptance:
    """What to do when the copies are planned. ``accept`` says whether to go on. ``refuse``: somebody has no room, and
    the publisher is to hear of it; None if nobody can be refused.
    """

    accept: Callable[[Instant], bool]
    refuse: Callable[[Instant], None] | None = None


class FanOut:
    """A job: call it until it returns False. Subscribers are those of the moment in which it was made."""

    __slots__ = (
        "_acceptance",
        "_at_once",
        "_blocks",
        "_message",
        "_now",
        "_persistence",
        "_router",
        "_shares",
        "_steps",
    )

    def __init__(
        self,
        router: Router,
        persistence: BrokerPersistence | None,
        message: Message,
        matches: Sequence[Subscribers],
        acceptance: Acceptance,
    ) -> None:
        self._router = router
        self._persistence = persistence
        self._message = message
        self._acceptance = acceptance
        self._at_once = max(_FEWEST, min(BLOCK, _BYTES_AT_ONCE // message.size))
        self._blocks = [tuple(subscribers.direct.blocks) for subscribers in matches if subscribers.direct.blocks]
        self._shares = [block for subscribers in matches for block in subscribers.shared.blocks]
        self._now: Instant
        self._steps = self._work()

    def __call__(self, now: Instant) -> bool:
        self._now = now
        return next(self._steps, False)

    def _work(self) -> Iterator[bool]:
        """Yields True after each slice."""
        router, acceptance = self._router, self._acceptance
        is_promised = acceptance.refuse is not None
        slices = self._plan()
        records: list[CopiesRecord | None] = []
        if self._persistence is not None or (is_promised and router.overflow.is_strict):
            planned: list[list[Target]] = []
            for targets in slices:
                if acceptance.refuse is not None and not router.admits(targets, self._message, self._now):
                    acceptance.refuse(self._now)
                    return
                planned.append(targets)
                records.append(None if self._persistence is None else _record(targets))
                yield True
            slices = iter(planned)
        if not acceptance.accept(self._now):
            return
        done = self._written(records)
        for targets in slices:
            some = [target for target in targets if not target[0].is_over]
            router.deliver(some, self._message, self._now, is_promised=is_promised)
            next(done, None)
            yield True

    def _written(self, records: Sequence[CopiesRecord | None]) -> Iterator[None]:
        """Write down what is to be copied; each next() says that one slice has been. The first one was done already."""
        persistence, message = self._persistence, self._message
        if persistence is None:
            return iter(())
        stream = persistence.journal[Stream.COPIES]
        numbers = [
            None if record is None else stream.add(CopiesRecord(persistence.hold(message), record.groups))
            for record in records
        ]

        def one_done() -> Iterator[None]:
            for number in numbers:
                if number is not None:
                    stream.remove_lazily(number)
                    persistence.release(message)
                yield

        return one_done()

    # -- who gets it --------------------------------------------------------------------------------------------------

    def _plan(self) -> Iterator[list[Target]]:
        """The copies, some at a time; an empty list for work that gave none yet."""
        if len(self._blocks) == 1:
            for block in self._blocks[0]:
                yield from self._cut(copies(block, self._message))
        elif self._blocks:
            yield from self._merged()
        has_room = partial(self._router.overflow.has_room_in_queue, message=self._message)
        for shares in self._shares:
            picked = [(group, group.pick(has_room)) for _, group in shares]
            targets = [
                copy(session, group.grants[session], self._message) for group, session in picked if session is not None
            ]
            yield from self._cut(targets)

    def _merged(self) -> Iterator[list[Target]]:
        """Overlapping filters: one copy for each client."""
        merged = MergedCopies()
        work = 0
        for blocks in self._blocks:
            for block in blocks:
                merged.add(copies(block, self._message))
                work += len(block)
                if work >= BLOCK:
                    work = 0
                    yield []
        targets: list[Target] = []
        for target in merged.targets():
            targets.append(target)
            if len(targets) == self._at_once:
                yield targets
                targets = []
        yield targets

    def _cut(self, targets: list[Target]) -> Iterator[list[Target]]:
        at_once = self._at_once
        for start in range(0, len(targets), at_once):
            yield targets[start : start + at_once]


def _record(targets: Sequence[Target]) -> CopiesRecord | None:
    """Of the copies for sessions that are written down, None if there are none. Its message comes later."""
    groups: dict[tuple[int, bool, tuple[int, ...]], list[int]] = {}
    for session, qos, retain, ids in targets:
        if qos and session.persister is not None:
            groups.setdefault((qos, retain, ids), []).append(session.persister.number)
    if not groups:
        return None
    return CopiesRecord(0, tuple((*how, tuple(numbers)) for how, numbers in groups.items()))
