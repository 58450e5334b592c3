"""What a peer is told at its start. Times in seconds, sizes in bytes.

Source: ØMQ Raft protocol, RPC_TIMEOUT and ELECTION_TIMEOUT_MIN; facts §3 for what the Node peers use.
"""

from __future__ import annotations

from typing import Final

import attrs

from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES
from raft_client.wire.request_id import DEFAULT_TTL_S

__all__ = ["NodeSettings"]

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


@attrs.frozen(kw_only=True)
class NodeSettings:
    """The settings of one peer. All peers of a cluster have the same ``ident`` and times of the same magnitude."""

    peer_id: str
    #: The name of the cluster, in each message; others are ignored. It is a name, not a password.
    ident: bytes = b""
    #: A follower that hears nothing waits for a random time between these two before it asks for votes, and longer
    #: where its disk or process is slow. A leader without a sign of life of a majority for the longer one steps down.
    election_timeout_min_s: float = 0.2
    election_timeout_max_s: float = 0.3
    #: A leader that has nothing to say says so this often.
    heartbeat_s: float = 0.07
    #: An unanswered RequestVote or empty AppendEntries is sent again after this time, with the same request id.
    rpc_timeout_s: float = 0.05
    #: The same for entries and chunks of snapshots: half of the shortest election time-out, as the document allows.
    append_timeout_s: float = 0.1
    #: The longest data of one entry. Longer updates are ignored, as the Node peers do.
    max_entry_bytes: int = MAX_ENTRY_DATA_BYTES
    #: What one AppendEntries, one reply with entries and one chunk carry; at least one entry, however long it is.
    max_message_bytes: int = 64 * _KIB
    #: What the disk writes and syncs in one go; at least one entry. A leader whose disk is busy for long steps down.
    max_job_bytes: int = 4 * _MIB
    #: A leader takes no more updates while its log holds this much that is not committed.
    max_uncommitted_bytes: int = 64 * _MIB
    #: How long a request id is remembered; None is for ever.
    request_id_ttl_s: float | None = DEFAULT_TTL_S
    #: Entries that are trimmed take their request ids with them, however fresh those are: a repetition is appended
    #: again. For logs whose readers know a repeated entry, as servers of a state store do. Other logs keep the entries
    #: of ``request_id_ttl_s``, also those that nobody needs.
    trim_forgets_ids: bool = False
    #: A leader whose disk does not answer for this long steps down: it could commit nothing.
    disk_stall_s: float = 1.0
    #: Streams of entries that are served at the same time; one more takes the place of the one that was heard longest
    #: ago (REQUEST_ENTRIES_HIGH_WATERMARK).
    max_streams: int = 8000
    #: A stream without a follow-up for this long is forgotten (REQUEST_ENTRIES_TTL).
    stream_ttl_s: float = 5.0
    #: Messages of a stream that are sent before one is answered (REQUEST_ENTRIES_PIPELINES).
    stream_window: int = 5
    snapshot_window: int = 2
