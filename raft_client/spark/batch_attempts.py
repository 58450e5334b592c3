"""Before the first row of a batch: find out what the log says of its pipeline, and let the log say that it begins.

Each task does this by itself. All of one batch come to the same seconds, because the log is the judge: see
:mod:`raft_client.spark.pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import PipelineError
from raft_client.spark.markers import Begin, Commit, Marker, marker_in
from raft_client.spark.pipeline import Attempt, PipelineState
from raft_client.spark.row_ids import tail_of
from raft_client.wire.log_entry import LogEntry

if TYPE_CHECKING:
    from raft_client.sync.client import RaftClient

#: The last marker of a pipeline that runs is near the end of the log. Each further look back is four times as long.
_FIRST_LOOK: Final = 64


def find_state(client: RaftClient, pipeline: str) -> PipelineState:
    """What the log says of a pipeline, from the last COMMIT on. Reads backwards; all of the log if there is none."""
    info = client.log_info()
    oldest, end, look = info.first_index - 1, info.last_applied, _FIRST_LOOK
    found: list[tuple[int, Marker]] = []
    while end > oldest and not any(isinstance(marker, Commit) for _, marker in found):
        start = max(oldest, end - look)
        found = [*_markers(client, pipeline, start, end), *found]
        end, look = start, look * 4
    return PipelineState(pipeline, since=info.first_index).fold(found, info.last_applied)


def begin_batch(client: RaftClient, state: PipelineState, query: str, batch: int, now_s: int) -> PipelineState:
    """The state after the BEGIN of the batch, whoever wrote it: its ``attempt`` has the seconds that count.

    The caller looks whether the batch fits, before and after: others may have come further meanwhile.
    """
    if state.attempt is not None:
        return state
    return _append(client, state, Begin(state.pipeline, query, batch, now_s))


def begin_again(client: RaftClient, state: PipelineState, now_s: int) -> PipelineState:
    """As :func:`begin_batch`, when the cluster has refused an id of the seconds that counted.

    From that refusal on, no row can come under those seconds, so what is there before this BEGIN is all of them.
    """
    if state.query is None or state.attempt is None:
        return state
    again = Begin(state.pipeline, state.query, state.attempt.batch, now_s, state.attempt.seconds)
    return _append(client, state, again)


def appended_before(client: RaftClient, state: PipelineState, attempt: Attempt) -> frozenset[bytes]:
    """The rows, by their tails, that the log has under seconds of the batch that have expired.

    Raises PipelineError when the log was trimmed meanwhile.
    """
    if not attempt.earlier:
        return frozenset()
    if attempt.index < state.since:
        raise PipelineError(
            f"the batch {attempt.batch} of pipeline {state.pipeline!r} is older than the log: nobody can tell which "
            "rows it has appended. Begin a new pipeline: choose another pipelineId"
        )
    earlier = {seconds.to_bytes(4, "big") for seconds in attempt.earlier}
    entries = _entries(client, attempt.index, state.upto)
    return frozenset(tail_of(entry.frame[:12]) for entry in entries if entry.frame[:4] in earlier)


def _append(client: RaftClient, state: PipelineState, begin: Begin) -> PipelineState:
    """The state up to this BEGIN, or that of old if it was there before."""
    index = client.append(begin.encode(), begin.request_id)
    if index <= state.upto:
        return state
    return state.fold(_markers(client, state.pipeline, state.upto, index), index)


def _markers(client: RaftClient, pipeline: str, after: int, until: int) -> list[tuple[int, Marker]]:
    found = ((entry.index, marker_in(entry, pipeline)) for entry in _entries(client, after, until))
    return [(index, marker) for index, marker in found if marker is not None]


def _entries(client: RaftClient, after: int, until: int) -> Iterator[LogEntry]:
    """All entries of a range. Raises HistoryOutrunError when it was compacted meanwhile."""
    while after < until:
        with client.entries(after, until - after, snapshot=SnapshotPolicy.REFUSE) as stream:
            for entry in stream:
                if isinstance(entry, LogEntry):
                    after = entry.index
                    yield entry
