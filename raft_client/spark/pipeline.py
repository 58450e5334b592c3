"""What the log says of a pipeline, and what that means for a batch. Pure.

The rules are those of ``docs/decisions/spark-into-the-log.md``.

::

    nothing --BEGIN b--> open b --COMMIT b--> committed b --BEGIN b+1--> open b+1 ...
                          |  ^
                          +--+ BEGIN b that replaces the seconds that count, when those have expired

Invariant: who folds the same markers in the order of the log has the same state. The first BEGIN of a batch counts, and
of those that replace it the first one; a marker that does not fit changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import attrs
import msgpack

from raft_client.errors import PipelineError, ProtocolError
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, LogEntry
from raft_client.wire.request_id import RequestId

# -- markers -----------------------------------------------------------------------------------------------------------
# ::
#
#     ["zmqraft-spark", 1, "begin",  pipeline, query, batch, seconds, seconds of the attempt that it replaces or nil]
#     ["zmqraft-spark", 1, "commit", pipeline, query, batch, seconds, index of the last source entry or nil]
#
# in MessagePack, the number being the version. It is an array whose first item is not ``"kv"``, so readers of key/value
# entries skip it. The request id of a marker is derived from what it says: repeated, it is appended once.
#
# Source: docs/decisions/spark-into-the-log.md; the convention for entries of several formats in one log is that of
# :mod:`raft_client.codecs`.


_TAG: Final = "zmqraft-spark"
_VERSION: Final = 1
#: An array of eight, and the tag: what every marker of this version begins with, and those of later ones, too.
MARKER_PREFIX: Final = b"\x98\xad" + _TAG.encode()


@attrs.frozen
class Begin:
    """From here on, rows of this batch are in the log, with ids of these ``seconds`` (since 1970).

    ``replaces`` has the seconds of an attempt of the same batch whose ids expired.
    """

    pipeline: str
    query: str
    batch: int
    seconds: int
    replaces: int | None = None

    @property
    def request_id(self) -> RequestId:
        """Derived from all of it."""
        return _id_of("begin", self, self.replaces)

    def encode(self) -> bytes:
        """The data of the entry."""
        return _encode("begin", self, self.replaces)


@attrs.frozen
class Commit:
    """All rows of this batch are in the log. ``source_index`` is the largest one of its rows, if they have one."""

    pipeline: str
    query: str
    batch: int
    seconds: int
    source_index: int | None = None

    @property
    def request_id(self) -> RequestId:
        """Derived from all of it, but for the index: a batch is committed once."""
        return _id_of("commit", self, None)

    def encode(self) -> bytes:
        """The data of the entry."""
        return _encode("commit", self, self.source_index)


Marker: TypeAlias = Begin | Commit


def is_marker(entry: LogEntry) -> bool:
    """Whether it is a marker of any pipeline."""
    return entry.frame.startswith(MARKER_PREFIX, ENTRY_HEADER_BYTES)


def marker_in(entry: LogEntry, pipeline: str) -> Marker | None:
    """The marker of this pipeline that the entry is. Raises ProtocolError for one that this version cannot read."""
    if not is_marker(entry):
        return None
    try:
        _, version, kind, name, *rest = msgpack.unpackb(entry.data)
        if version == _VERSION:
            if name != pipeline:
                return None
            query, batch, seconds, extra = rest
            return _build(kind, str(name), str(query), int(batch), int(seconds), extra)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise ProtocolError(f"the entry {entry.index} begins like a marker and is none: {error}") from None
    raise ProtocolError(f"the marker in entry {entry.index} is of a later version of this package: {version!r}")


def _build(kind: str, pipeline: str, query: str, batch: int, seconds: int, extra: Any) -> Marker:
    classes: dict[str, type[Begin | Commit]] = {"begin": Begin, "commit": Commit}
    return classes[kind](pipeline, query, batch, seconds, None if extra is None else int(extra))


def _encode(kind: str, marker: Marker, extra: int | None) -> bytes:
    fields = [_TAG, _VERSION, kind, marker.pipeline, marker.query, marker.batch, marker.seconds, extra]
    packed: bytes = msgpack.packb(fields)
    return packed


def _id_of(kind: str, marker: Marker, extra: int | None) -> RequestId:
    name = msgpack.packb([_TAG, kind, marker.pipeline, marker.query, marker.batch, extra])
    return RequestId.derive(name, 0, seconds=marker.seconds)


# -- the state of a pipeline -------------------------------------------------------------------------------------------


_NEW_NAME: Final = "begin a new pipeline: choose another pipelineId"


@attrs.frozen
class Attempt:
    """A batch that began and was not committed: which ids its rows have."""

    batch: int
    seconds: int
    #: Of the first BEGIN of the batch: its rows come after it. 0 when the log was trimmed beyond that.
    index: int
    #: Seconds of ids that have expired: no row can come under them any more, but some may be there.
    earlier: tuple[int, ...] = ()


@attrs.frozen
class PipelineState:
    """Of one pipeline, up to the entry at ``upto``. ``since`` is the first entry that the log still has."""

    pipeline: str
    upto: int = 0
    since: int = 1
    query: str | None = None
    committed: int | None = None
    source_index: int | None = None
    attempt: Attempt | None = None

    def fold(self, markers: Iterable[tuple[int, Marker]], upto: int) -> PipelineState:
        """The state after these markers, with their indexes in the log."""
        state = self
        for index, marker in markers:
            state = state.committed_by(marker) if isinstance(marker, Commit) else state.begun_by(index, marker)
        return attrs.evolve(state, upto=upto)

    def committed_by(self, commit: Commit) -> PipelineState:
        """After a COMMIT."""
        # Only those who folded its BEGIN append a COMMIT, and not after its seconds: it needs nothing before it.
        return attrs.evolve(
            self, query=commit.query, committed=commit.batch, source_index=commit.source_index, attempt=None
        )

    def begun_by(self, index: int, begin: Begin) -> PipelineState:
        """After a BEGIN, whether it counts or not."""
        now = self.attempt
        if self.query not in (None, begin.query):
            return self
        if now is None:
            return self._begin_first(index, begin)
        if begin.batch != now.batch or begin.replaces != now.seconds:
            return self
        return attrs.evolve(self, attempt=Attempt(now.batch, begin.seconds, now.index, (*now.earlier, now.seconds)))

    def _begin_first(self, index: int, begin: Begin) -> PipelineState:
        if self.committed is not None and (begin.replaces is not None or begin.batch != self.committed + 1):
            return self
        attempt = Attempt(begin.batch, begin.seconds, index)
        if begin.replaces is not None:  # the log was trimmed in the middle of a batch
            attempt = Attempt(begin.batch, begin.seconds, 0, (begin.replaces,))
        return attrs.evolve(self, query=begin.query, attempt=attempt)

    def wants(self, query: str, batch: int, first_batch: int = 0) -> bool:
        """Whether the rows of the batch have to be appended; not if that was done. Raises PipelineError."""
        if self.query is None:
            if batch != first_batch:
                raise self._unknown(batch)
            return True
        if self.query != query:
            raise self._other_query()
        if batch == self.committed:
            return False
        expected = self.attempt.batch if self.attempt else (self.committed or 0) + 1
        if batch != expected:
            raise PipelineError(
                f"pipeline {self.pipeline!r} comes to the batch {expected} next, and the checkpoint to {batch}: the "
                f"checkpoint was changed, or put back to an older state. Restore it, or {self._anew()}"
            )
        return True

    def _unknown(self, batch: int) -> PipelineError:
        trimmed = f"; the log begins at {self.since}, and may have been trimmed beyond them" if self.since > 1 else ""
        return PipelineError(
            f"the log knows no pipeline {self.pipeline!r}, and the checkpoint comes to batch {batch}{trimmed}. "
            "Check pipelineId and seeds. If all earlier batches are known to be in the log, or were written elsewhere, "
            f"set firstBatch={batch}"
        )

    def _other_query(self) -> PipelineError:
        return PipelineError(
            f"pipeline {self.pipeline!r} belongs to the query {self.query}, and this is another one: the checkpoint "
            f"was lost, or is not that of the pipeline. Restore it, or {self._anew()}"
        )

    def _anew(self) -> str:
        """What to do when the checkpoint is gone for good."""
        where = "" if self.source_index is None else f", with startingIndex={self.source_index + 1} at the source"
        doubled = (
            f". The batch {self.attempt.batch} was begun and not committed: rows of it may be in the log already, "
            f"after the entry {self.attempt.index}, and would come twice"
            if self.attempt
            else ""
        )
        return f"{_NEW_NAME}{where}{doubled}"
