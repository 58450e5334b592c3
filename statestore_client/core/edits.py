"""Change one key under a lock: read, decide, write with the fencing token.

Invariant: what is written was made from the value that was there, as far as all writers hold the lock. A writer that
lost it is refused by the fence as soon as its successor has written the key.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import Final, Literal, TypeAlias

import attrs

from statestore_client.core.callbacks import refuse_awaitable
from statestore_client.core.calls import value_bytes
from statestore_client.core.leases import Held, check_after, next_token
from statestore_client.core.locks import LockTerms, set_result
from statestore_client.core.results import Item
from statestore_client.core.steps import Answer, Invoke, Step
from statestore_client.errors import FencingTokenTooOldError, TransportError
from statestore_client.wire.commands import Command, Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["KEEP", "Change", "Edit", "Keep", "edit"]


class Keep(Enum):
    """The type of :data:`KEEP`."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return "KEEP"


#: What a change returns to leave the key as it is.
KEEP: Final = Keep.KEEP

#: Gets the present value (None: there is no such key), returns the new one, None to delete the key, or KEEP.
Change: TypeAlias = Callable[[bytes | None], bytes | str | Literal[Keep.KEEP] | None]


@attrs.frozen
class Edit:
    """What is to be changed, and how. ``timeout`` (seconds) is for each request."""

    key: bytes
    change: Change
    expiry_ms: int | None
    timeout: float
    persist: bool = False


def edit(terms: LockTerms, lease: Held, work: Edit) -> Generator[Step, Answer, Item | None]:
    """Edit once, under ``lease``. Returns the item as it is afterwards; None when there is none.

    Raises :class:`LeaseLostError` when the lease is lost before the write was sent or answered.
    """
    token = lease.fencing_token
    try:
        return (yield from _edit(lease, work, token))
    except FencingTokenTooOldError:
        # A newer token of this very lease may guard the key: one from next_token(), with which it was written before. A
        # fresh one is newer than that. If it is refused too, another lock guards the key, and repeating is no use.
        token = yield from next_token(terms, lease, work.timeout)
        return (yield from _edit(lease, work, token))


def _edit(lease: Held, work: Edit, token: HlcTimestamp) -> Generator[Step, Answer, Item | None]:
    answer = yield from _guarded(lease, Get(work.key), work.timeout, None)
    item: Item | None = answer.value
    wanted = work.change(None if item is None else item.value)
    refuse_awaitable("change", wanted)
    if wanted is KEEP:
        return item
    if wanted is None:
        if item is not None:
            yield from _guarded(lease, Del(work.key), work.timeout, token)
        return None
    value = value_bytes(wanted)
    write = Set(work.key, value, None, work.expiry_ms, None, work.persist)
    answer = yield from _guarded(lease, write, work.timeout, token)
    return Item(value, set_result(answer).version)


def _guarded(
    lease: Held, command: Command, timeout: float, token: HlcTimestamp | None
) -> Generator[Step, Answer, Answer]:
    """Send a command that waits no longer than the lease lasts: later it might overwrite the next holder's work."""
    lease.check()
    try:
        return (yield Invoke(command, min(timeout, lease.remaining), token))
    except TransportError as error:
        check_after(error, lease)
        raise
