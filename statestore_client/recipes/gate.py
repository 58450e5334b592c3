"""How a program comes through a barrier: a key that keeps it waiting while it is there. Pure.

It watches first and looks then, so that an opening between the two is not missed. It is told of a deletion, and goes
through although the key may be there again by then. It looks again when the connection is back, and after
:data:`AGAIN_S` at the latest, since a broker may lose what a watch should be told.

Invariant: who comes through knows that the barrier was open at some moment of its wait.
Invariant: a barrier that is taken away, and stays so, is passed within :data:`AGAIN_S` and one request with an answer.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Final

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.locks import pause_before_retry
from statestore_client.core.results import Item
from statestore_client.core.steps import Answer, Invoke, StartWatch, Step, WaitForChange
from statestore_client.errors import TransportError
from statestore_client.wire.commands import Get

#: So long, in seconds, who waits relies on its watch.
AGAIN_S: Final = 5.0


def pass_through(
    key: bytes, *, now: float, timeout: float | None, request_timeout: float
) -> Generator[Step, Answer, bool]:
    """Wait until the key is not there; False if it still is after ``timeout``. Once it has begun to wait, it waits
    through outages.
    """
    deadline = math.inf if timeout is None else now + timeout
    yield StartWatch(key, request_timeout)
    answer = yield Invoke(Get(key), request_timeout)
    seen, now = answer.value, answer.finished
    look_at = now + AGAIN_S
    while seen is not None and now < deadline:
        answer = yield WaitForChange(max(0.0, min(look_at, deadline) - now))
        event, now = answer.value, answer.finished
        if event is not None and _opens(event, seen):
            return True
        if now < deadline and (now >= look_at or _is_back(event)):
            try:
                answer = yield Invoke(Get(key), min(request_timeout, deadline - now))
                seen, now = answer.value, answer.finished
            except TransportError:
                now = yield from pause_before_retry(0.0, deadline)
            look_at = now + AGAIN_S
    return seen is None


def _opens(event: WatchEvent, seen: Item) -> bool:
    """Return whether the event deleted the key that was seen. An older deletion, notified late, opens nothing."""
    is_old = event.version is not None and seen.version is not None and event.version < seen.version
    return event.kind is EventKind.DELETE and not is_old


def _is_back(event: WatchEvent | None) -> bool:
    return event is not None and event.kind is EventKind.RESUMED
