"""Entries for logs that a test makes by hand."""

from __future__ import annotations

from memory_log import MemoryLog

from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import HardState
from raft_client.wire.log_entry import LogEntry

__all__ = ["entry", "fill"]


def entry(index: int, term: int, data: bytes = b"x") -> LogEntry:
    """Of a client."""
    return LogEntry.of(data, term=term, index=index)


def fill(log: MemoryLog, *terms: int) -> None:
    """A log whose entries have these terms, as a figure of the paper draws it."""
    log.do(Persist(HardState(max(terms, default=0)), entries=tuple(entry(i, term) for i, term in enumerate(terms, 1))))
