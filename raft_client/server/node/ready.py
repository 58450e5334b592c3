"""What a node wants done, and in which order.

The order is part of the contract. For each :class:`Ready`:

1. Send what is in ``send``. It may leave before anything is written: a leader's AppendEntries run beside its disk.
2. Write what is in ``persist`` and sync it. This may run in a thread; there is never a second one before
   ``advance()``. Then call ``advance()``: votes and replies to AppendEntries promise what the disk holds, so a later
   Ready has them in ``send``.
3. Hand ``restore`` and then ``apply`` to the state machine; call ``applied()``. These entries are committed, and
   durable here.

A disk that fails is told with ``fail()``. A node that was told so says nothing any more until it is made anew.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from raft_client.wire.configuration import ConfigChange, Peer
from raft_client.wire.frames import Message, hot_value
from raft_client.wire.log_entry import LogEntry, SnapshotChunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# -- what is stored ----------------------------------------------------------------------------------------------------


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
    def recent_bytes(self) -> int:
        """What the newest entries may take in memory: the node keeps them, the stored log does not."""
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

    def last_at_hand(self, after: int, max_bytes: int) -> int:
        """The index up to which :meth:`entries` after that one, and :meth:`term_at` of it, wait for no disk.

        It is ``after`` if nothing is at hand: then it is read meanwhile, and the node is asked to look again
        (:meth:`.node.RaftNode.disk_read`).
        """
        ...

    def is_snapshot_at_hand(self, offset: int, size: int) -> bool:
        """Whether :meth:`read_snapshot` waits for no disk. If it does, the same happens."""
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


# -- roles, and what goes in and out -----------------------------------------------------------------------------------


# -- roles -------------------------------------------------------------------------------------------------------------
# ::
#
#     CLIENT ──> FOLLOWER ──> CANDIDATE ──> LEADER
#       ^            ^            │            │
#       │            └────────────┴────────────┤   a higher term, or a leader
#       └──────────────────────────────────────┘   no member of the cluster any more
#                                     any ──> STOPPED   the disk failed
#
# Source: Raft (Ongaro, *Consensus: Bridging Theory and Practice*), §3.3; facts §3 for CLIENT.


class Role(Enum):
    """What a peer is at the moment."""

    CLIENT = "client"  # not in the configuration: copies the log, has no election time-out
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"
    STOPPED = "stopped"  # says nothing any more


# -- ready -------------------------------------------------------------------------------------------------------------


# -- what comes in -----------------------------------------------------------------------------------------------------


@hot_value
class Request:
    """A message at the ROUTER. ``route`` is the routing id of its sender, ``request_id`` the frame to answer with.

    The caller has seen that its ident is that of this cluster (facts §1.1).
    """

    route: bytes
    request_id: bytes
    message: Message


@hot_value
class Reply:
    """An answer at the DEALER of ``peer_id``."""

    peer_id: str
    request_id: bytes
    message: Message


Incoming: TypeAlias = Request | Reply


# -- what goes out -----------------------------------------------------------------------------------------------------


@hot_value
class Answer:
    """Through the ROUTER, to ``route``. A route that is gone drops it."""

    route: bytes
    request_id: bytes
    message: Message


@hot_value
class Ask:
    """Through the DEALER of ``peer_id``. The node repeats it; the socket must not keep it for a dead peer."""

    peer_id: str
    request_id: bytes
    message: Message


@attrs.frozen
class Connect:
    """Open a DEALER to this peer; close the one that its id had before."""

    peer: Peer


@attrs.frozen
class Reconnect:
    """Forget what the DEALER of this peer still has to send or receive: a new routing id at the other side."""

    peer_id: str


@attrs.frozen
class Disconnect:
    """Close the DEALER of this peer."""

    peer_id: str


Output: TypeAlias = Answer | Ask | Connect | Reconnect | Disconnect


@hot_value
class Persist:
    """One job for the disk, done in the order of the fields: after a crash any first part of it may be there.

    An ``install`` ends the snapshot whose last chunk has been written. If the last entry that it replaces is in the
    log, with its term, the entries after it stay; otherwise none stays.
    """

    hard_state: HardState | None = None
    chunk: SnapshotChunk | None = None
    install: SnapshotMeta | None = None
    truncate_after: int | None = None
    entries: tuple[LogEntry, ...] = ()


@attrs.frozen
class ReadGranted:
    """A read with this token may be served: the state machine has applied ``index``, which is as new as the read.

    None: ask the leader, ``leader_id`` if it is known.
    """

    token: object
    index: int | None
    leader_id: str | None = None


@hot_value
class Ready:
    """What is to be done now; see the head of this file for the order."""

    send: tuple[Output, ...] = ()
    persist: Persist | None = None
    restore: SnapshotMeta | None = None
    apply: tuple[LogEntry, ...] = ()
    reads: tuple[ReadGranted, ...] = ()
