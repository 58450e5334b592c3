"""Which entry of a segment has which request id, while the segment is in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.wire.request_id import ZERO_REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Collection

_NONE = ZERO_REQUEST_ID.raw


class RequestTable:
    """Ids of entries in the order of their indexes; those at the end may be taken back.

    Invariant: ``get`` finds the newest entry with an id. An id twice is rare: the older entries of it stand aside.
    """

    __slots__ = ("_newest", "_older")

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._older: list[tuple[bytes, int]] = []

    def add(self, raw: bytes, index: int) -> None:
        """An entry that no client asked for has no id."""
        if raw == _NONE:
            return
        before = self._newest.get(raw)
        if before is not None:
            self._older.append((raw, before))
        self._newest[raw] = index

    def get(self, raw: bytes, last: int) -> int | None:
        """The newest entry with this id that is not behind ``last``."""
        index = self._newest.get(raw)
        if index is None or index <= last:
            return index
        return max((older for other, older in self._older if other == raw and older <= last), default=None)

    def truncate(self, last: int) -> None:
        """Forget the entries behind ``last``."""
        for raw in [raw for raw, index in self._newest.items() if index > last]:
            del self._newest[raw]
        kept = [(raw, index) for raw, index in self._older if index <= last]
        self._older.clear()
        for raw, index in kept:
            newest = self._newest.get(raw)
            if newest is None:
                self._newest[raw] = index
            else:
                self._older.append((raw, min(newest, index)))
                self._newest[raw] = max(newest, index)

    @property
    def ids(self) -> Collection[bytes]:
        """Each once."""
        return self._newest.keys()

    def items(self) -> list[tuple[bytes, int]]:
        """All of them, an id as often as it was added."""
        return [*self._newest.items(), *self._older]
