"""What a peer is told at its start. Times in seconds, sizes in bytes.

Source: ØMQ Raft protocol, RPC_TIMEOUT and ELECTION_TIMEOUT_MIN; facts §3 for what the Node peers use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client.errors import InvalidArgumentError
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES
from raft_client.wire.request_id import DEFAULT_TTL_S

if TYPE_CHECKING:
    from collections.abc import Iterable

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
#: A fresh request id may be so old, or so far ahead of this machine's clock.
_CLOCKS_DIFFER_S: Final = 900.0
#: What is given in another way than by :meth:`NodeSettings.changes_in`.
_NOT_CHANGED: Final = frozenset({"peer_id", "ident", "trim_forgets_ids"})


@attrs.frozen(kw_only=True)
class NodeSettings:
    """The settings of one peer. All peers of a cluster have the same ``ident``, and times of the same magnitude.

    No value makes anything unsafe: what leases stand on is a constant (``server.node.timing.QUIET_S``), and with
    heartbeats that are rarer than that there are none. Raises InvalidArgumentError for what cannot work.
    """

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

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(NodeSettings):
            value = getattr(self, field.name)
            if value is None and field.name == "request_id_ttl_s":
                continue
            if field.name.endswith("_s"):
                self._check_number(field.name, value, int | float)
            elif isinstance(field.default, int) and not isinstance(field.default, bool):
                self._check_number(field.name, value, int)
        shortest, half = self.election_timeout_min_s, self.election_timeout_min_s / 2
        if shortest > self.election_timeout_max_s:
            raise InvalidArgumentError(
                f"election_timeout_min_s ({shortest}) is at most election_timeout_max_s ({self.election_timeout_max_s})"
            )
        for name in ("heartbeat_s", "rpc_timeout_s", "append_timeout_s"):
            if getattr(self, name) > half:
                raise InvalidArgumentError(
                    f"{name} ({getattr(self, name)}) is at most half of election_timeout_min_s ({shortest}): otherwise "
                    "followers suspect a leader that lives"
                )
        if self.request_id_ttl_s is not None and self.request_id_ttl_s <= _CLOCKS_DIFFER_S:
            raise InvalidArgumentError(
                f"request_id_ttl_s ({self.request_id_ttl_s}) is more than {_CLOCKS_DIFFER_S:.0f}, by which clocks may "
                "differ: otherwise no request id is fresh"
            )

    def _check_number(self, name: str, value: object, kind: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
            what = "a number of seconds" if kind is not int else "a whole number"
            raise InvalidArgumentError(f"{name} is {what} above 0, not {value!r}")

    @classmethod
    def changes_in(cls, texts: Iterable[str]) -> dict[str, Any]:
        """Arguments from ``NAME=VALUE`` each, as people write them; ``none`` is None. Raises InvalidArgumentError.

        What does not fit together is found when settings are made of them.
        """
        changes: dict[str, Any] = {}
        known = [field.name for field in attrs.fields(cls) if field.name not in _NOT_CHANGED]
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or name not in known:
                raise InvalidArgumentError(f"NAME=VALUE is wanted, NAME one of {', '.join(known)}; not {text!r}")
            try:
                changes[name] = None if value == "none" else int(value) if value.isdecimal() else float(value)
            except ValueError:
                raise InvalidArgumentError(f"{name} is a number, not {value!r}") from None
        return changes
