"""The store of an area with the sums that a site keeps of it."""

from __future__ import annotations

from statestore_client.server.kvstore.range_sums import RangeSums
from statestore_client.server.kvstore.store import AreaStore
from statestore_client.wire.kvstore.value import Value

__all__ = ["SummedStore"]


class SummedStore(AreaStore):
    """With the test's eyes on it."""

    def __init__(self) -> None:
        self.sums = RangeSums()
        super().__init__("0", on_change=self.sums.change)

    @property
    def entries(self) -> dict[str, Value]:
        """All that is stored."""
        return {key: entry for key in self if (entry := self.get(key)) is not None}
