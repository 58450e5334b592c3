"""Request ids of rows: the seconds of the attempt, and eight bytes that are made of the row and the batch. Pure.

A batch is the name of the pipeline and a number. Neither the partition nor the task, the attempt or the query is in an
id, so a row has the same one however often, and by whomever, its batch is written.

=================  =====================================================================================================
``indexColumn``    the batch's start + the index: two rows of one batch never have the same
``idColumn``       hash of the batch and the value: equal as random numbers of 64 bits are, once in 37 million batches
                   of a million rows
``contentIds``     hash of the batch and the data: equal rows of a batch are one entry
=================  =====================================================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from raft_client.wire.request_id import RequestId

TAIL_BYTES: Final = 8
_MODULUS: Final = 2**64
_PERSON: Final = b"zmqraft row id"


def indexed_tails(batch: str, indexes: Sequence[int]) -> list[bytes]:
    """Of rows that have an index of their own, from 0."""
    start = int.from_bytes(RequestId.derive(f"index/{batch}", 0, seconds=0).raw[-TAIL_BYTES:], "big")
    return [((start + index) % _MODULUS).to_bytes(TAIL_BYTES, "big") for index in indexes]


def hashed_tails(batch: str, values: Sequence[Any]) -> list[bytes]:
    """Of rows that are told apart by a value: bytes, text or an integer."""
    # The batch first, hashed to a fixed length: no batch and value look like another batch and value.
    state = hashlib.blake2b(hashlib.sha256(batch.encode()).digest(), digest_size=TAIL_BYTES, person=_PERSON)
    return [_hashed(state, value) for value in values]


def _hashed(state: Any, value: bytes | str | int) -> bytes:
    hasher = state.copy()
    if isinstance(value, bytes):
        hasher.update(value)
    else:
        hasher.update(str(value).encode())
    tail: bytes = hasher.digest()
    return tail


def tail_of(request_id: bytes) -> bytes:
    """What of an id is made of the row."""
    return request_id[-TAIL_BYTES:]
