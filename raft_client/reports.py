"""What the log says of a client's connection: one line for each change, and no second one before the next."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from raft_client.core.requests import ConnectionState, StateChanged
from raft_client.errors import RaftError
from raft_client.wire.configuration import Peer

#: Called with each new state and, when it is suspended, the reason.
StateListener: TypeAlias = Callable[[ConnectionState, RaftError | None], object]
#: Called with each new leader.
LeaderListener: TypeAlias = Callable[[Peer], object]

logger: Final = logging.getLogger("raft_client")


def log_change(seeds: Sequence[str], change: StateChanged) -> None:
    """A lost leader is a warning with the reason, once; the next leader is an INFO."""
    level, text = logging.DEBUG, str(change.state)
    if change.leader is not None:
        level, text = logging.INFO, f"the leader is {change.leader.id} at {change.leader.url}"
    elif change.state is ConnectionState.SUSPENDED:
        level, text = logging.WARNING, f"suspended: {change.error}"
    logger.log(level, "raft client of %s: %s", ",".join(seeds), on_one_line(text))


def on_one_line(text: str) -> str:
    """For the log: names of leaders, and what errors quote, come from peers, and may hold line breaks."""
    return text if text.isprintable() else repr(text)[1:-1]


def calls_of(
    change: StateChanged, on_state: StateListener | None, on_leader: LeaderListener | None
) -> list[tuple[str, Callable[[], object | Awaitable[object]]]]:
    """Which listeners to call, by their names, in this order."""
    calls: list[tuple[str, Callable[[], object | Awaitable[object]]]] = []
    leader = change.leader
    if on_state is not None:
        calls.append(("on_state", lambda: on_state(change.state, change.error)))
    if on_leader is not None and leader is not None:
        calls.append(("on_leader", lambda: on_leader(leader)))
    return calls


def warn_unclosed(thing: object, what: str) -> None:
    """Say, as Python does of files and sockets, that something was dropped and not closed. For finalizers.

    Under tracemalloc the warning has the place where it was made.
    """
    warnings.warn(f"unclosed {what}", ResourceWarning, stacklevel=2, source=thing)
