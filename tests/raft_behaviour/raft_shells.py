"""One test body for both shells of the raft client; see :mod:`support.shells`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.shells import Blocking

import raft_client
from raft_client.sync import Entries, KeyLease, KeyMirror, KeyRange, KeyValues, MirrorChanges, Subscriber, Watch

__all__ = ["RaftShell"]


class RaftShell:
    """Makes clients of one kind. ``client(...)`` takes what the clients take, and the result is used with ``await``."""

    def __init__(self, name: str, executor: ThreadPoolExecutor) -> None:
        self.name = name
        self._executor = executor

    @property
    def is_aio(self) -> bool:
        return self.name == "aio"

    def client(self, settings: Any, **options: Any) -> Any:
        if self.is_aio:
            return raft_client.AsyncRaftClient(settings, **options)
        return _Blocking(raft_client.RaftClient(settings, **options), self._executor)


class _Blocking(Blocking):
    plain = frozenset({"changes", "check", "expect", "entries", "lease", "mirror", "range", "subscribe", "watch"})
    made = (Entries, KeyLease, KeyMirror, KeyRange, KeyValues, MirrorChanges, Subscriber, Watch)
