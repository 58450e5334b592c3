"""What a peer finds on its disk: the node reads it here, and changes it only through :class:`.ready.Persist`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from raft_client.wire.configuration import ConfigChange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raft_client.wire.log_entry import LogEntry


@attrs.frozen
class HardState:
    """What must be durable before a vote or a reply of its term leaves. ``voted_for`` is empty before a vote."""

    term: int = 0
    voted_for: str = ""


@attrs.frozen
class Configuration:
    """The members of the cluster as the entry at ``index`` says; 0 for the list that the peer was started with."""

    index: int
    change: ConfigChange


@attrs.frozen
class SnapshotMeta:
    """A snapshot replaces all entries up to ``index``, whose term was ``term``. ``size`` is in bytes.

    ``configuration`` is the newest one at or before ``index``. There is no frame for it on the wire (facts §1.4): a
    snapshot that came from another peer has that of the receiver, which may be outdated. ``members_known`` is false
    then, and has to be stored: until a CONFIG entry follows, such a peer does not stand for election.
    """

    index: int
    term: int
    size: int
    configuration: Configuration
    members_known: bool = True


class StoredLog(Protocol):
    """The durable part of a log. Nothing here waits, nothing here changes it. Damage raises ``StorageError``."""

    @property
    def hard_state(self) -> HardState:
        """As it was persisted last."""
        ...

    @property
    def configurations(self) -> Sequence[Configuration]:
        """Oldest first: that of the snapshot (or of the start, index 0), and those of the CONFIG entries in the log."""
        ...

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The newest snapshot."""
        ...

    @property
    def first_index(self) -> int:
        """Of the oldest entry that is kept; ``last_index + 1`` if there is none. A new log begins at 1."""
        ...

    @property
    def last_index(self) -> int:
        """Of the newest entry; that of the snapshot if no entry follows it; 0 if there is nothing at all."""
        ...

    def term_at(self, index: int) -> int | None:
        """The term of the entry at ``index``, or of the snapshot that ends there; 0 for index 0; None if unknown."""
        ...

    def entries(self, after: int, last: int, max_bytes: int) -> list[LogEntry]:
        """The entries after the index ``after`` up to ``last``, :func:`as_many_as_fit` into ``max_bytes``."""
        ...

    def read_snapshot(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes of the snapshot; fewer at its end."""
        ...

    def index_of_request(self, request_id: bytes) -> int | None:
        """The newest entry with this request id, as far back as the log remembers ids."""
        ...

    @property
    def prune_index(self) -> int:
        """The index before the first entry whose request id is remembered; ``last_index`` if none is."""
        ...


def as_many_as_fit(entries: Iterable[LogEntry], max_bytes: int) -> list[LogEntry]:
    """The first of them that have at most ``max_bytes``, and at least one if there is one."""
    found: list[LogEntry] = []
    for entry in entries:
        max_bytes -= len(entry.frame)
        if max_bytes < 0 and found:
            break
        found.append(entry)
    return found
