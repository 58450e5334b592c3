"""Markers: the entries with which a pipeline says in the log which of its batches began, and which ended. Pure.

::

    ["zmqraft-spark", 1, "begin",  pipeline, query, batch, seconds, seconds of the attempt that it replaces or nil]
    ["zmqraft-spark", 1, "commit", pipeline, query, batch, seconds, index of the last source entry or nil]

in MessagePack, the number being the version. It is an array whose first item is not ``"kv"``, so readers of key/value
entries skip it. The request id of a marker is derived from what it says: repeated, it is appended once.

Source: decision 65; the convention for entries of several formats in one log is that of :mod:`raft_client.codecs`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import attrs
import msgpack

from raft_client.errors import ProtocolError
from raft_client.wire.log_entry import ENTRY_HEADER_BYTES, LogEntry
from raft_client.wire.request_id import RequestId

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
