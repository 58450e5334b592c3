"""Places in the log that a reader stores and comes back to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import InvalidArgumentError
from raft_client.wire.frames import MAX_UINT

if TYPE_CHECKING:
    from raft_client.wire.log_entry import LogEntry
    from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["Position", "position_after"]

_TEXT: Final = re.compile(r"(\d{1,16})(?:@(\d{1,16}))?", re.ASCII)


def _check_number(_position: object, attribute: attrs.Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_UINT:
        raise InvalidArgumentError(
            f"the {attribute.name} of a position is an integer from 0 to 2^53 - 1, not {value!r}"
        )


@attrs.frozen(order=True)
class Position:
    """Everything up to the entry at ``index`` is done with; give it back as ``after`` to go on after it.

    ``term`` is that of the entry at ``index``. One log has one term at one index for ever, so a reader that comes back
    to another log, or to a cluster that lost its disks, gets :class:`~raft_client.TermMismatchError` instead of entries
    that do not follow what it has. A term of 0 is not known, and nothing is checked.

    ``str(position)`` is ``"INDEX@TERM"``, or ``"INDEX"`` without a term; :meth:`parse` reads both. Positions of one log
    are ordered. (Raft, "Log Matching Property")
    """

    index: int = attrs.field(validator=_check_number)
    term: int = attrs.field(default=0, validator=_check_number)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``str(position)``. Raises InvalidArgumentError."""
        found = _TEXT.fullmatch(text) if type(text) is str else None
        if found is None:
            raise InvalidArgumentError(f"a position is INDEX or INDEX@TERM, as 41@3, not {text!r}")
        return cls(int(found[1]), int(found[2] or 0))

    @classmethod
    def of(cls, after: Position | int) -> Position:
        """What was given as ``after``: a position, or the index alone. Raises InvalidArgumentError."""
        if isinstance(after, Position):
            return after
        if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after <= MAX_UINT:
            raise InvalidArgumentError(
                f"after is an index from 0 to 2^53 - 1 or a Position (of a text: Position.parse()), not {after!r}"
            )
        return cls(after)

    def __str__(self) -> str:
        return f"{self.index}@{self.term}" if self.term else str(self.index)


def position_after(batch: Sequence[LogEntry] | SnapshotChunk, before: Position) -> Position:
    """Where a reader is that was at ``before`` and took ``batch``. Within a snapshot, it is where it was."""
    if isinstance(batch, Sequence):
        return batch[-1].position if batch else before
    return Position(batch.index, batch.term) if batch.is_last else before
