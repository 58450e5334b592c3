"""One full sync between two stores with their sums, over bytes, with what it costs."""

from __future__ import annotations

from itertools import count

import attrs

from statestore_client.server.kvstore.area_store import AreaStore
from statestore_client.server.kvstore.sync import Phase, RangeSums, SyncSession, answer_comparison, answer_sync
from statestore_client.wire.kvstore.codec import decode, encode
from statestore_client.wire.kvstore.messages import (
    CompareRanges,
    Finalize,
    Message,
    RangeSumsReply,
    SetResult,
    Sync,
    SyncReply,
)
from statestore_client.wire.kvstore.value import Value


class SummedStore(AreaStore):
    """With the test's eyes on it."""

    def __init__(self) -> None:
        self.sums = RangeSums()
        super().__init__("0", on_change=self.sums.change)

    @property
    def entries(self) -> dict[str, Value]:
        """All that is stored."""
        return {key: entry for key in self if (entry := self.get(key)) is not None}


@attrs.define
class Cost:
    """What a sync took. Bytes of values are counted apart."""

    round_trips: int = 0
    message_bytes: int = 0
    value_bytes: int = 0
    largest: int = 0
    messages: list[Message] = attrs.field(factory=list)

    def carry(self, message: Message) -> Message:
        """Over the wire."""
        data = encode(message)
        values = 0
        if isinstance(message, SyncReply | Finalize):
            values = sum(len(entry.value or b"") for entry in message.entries.values())
        self.value_bytes += values
        self.message_bytes += len(data) - values
        self.largest = max(self.largest, len(data))
        self.messages.append(message)
        return decode(data)


def store_of(entries: dict[str, tuple[bytes, int]], originator: str) -> SummedStore:
    """Key -> value and version."""
    store = SummedStore()
    store.merge({key: Value(version, originator, value) for key, (value, version) in entries.items()}, None, 0.0)
    return store


def answer(store: SummedStore, request: Message, sender: str) -> Message:
    """What a site with this store answers."""
    if isinstance(request, CompareRanges):
        return answer_comparison(store.sums, request)
    if isinstance(request, Sync):
        return answer_sync(store, store.sums, request, 0.0)
    assert isinstance(request, Finalize)
    return SetResult(request.id, dict(store.merge(request.entries, sender, 0.0).reasons))


def _requests(session: SyncSession) -> list[Message]:
    """All that can be asked before there is an answer."""
    found: list[Message] = []
    while (request := session.next_request(0.0)) is not None:
        found.append(request)
    return found


def full_sync(first: SummedStore, second: SummedStore, *, with_ranges: bool = True, names: str = "ab") -> Cost:
    """The first one begins."""
    cost = Cost()
    ids = count(1)
    session = SyncSession("0", first, first.sums, lambda: next(ids), 2.5, with_ranges=with_ranges)
    while requests := _requests(session):
        cost.round_trips += 1
        replies = [cost.carry(answer(second, cost.carry(request), names[0])) for request in requests]
        for reply in replies:
            assert isinstance(reply, RangeSumsReply | SyncReply | SetResult)
            if isinstance(reply, SyncReply):
                first.merge(reply.entries, names[1], 0.0)
            session.receive(reply, 0.0)
    assert session.phase is Phase.DONE
    return cost
