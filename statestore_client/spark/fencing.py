"""A token for each micro-batch, so that a task left over from one batch cannot write into a later one.

A lock's fencing token protects the holder against earlier holders. It does not protect the holder against itself: a
task of micro-batch 7 that Spark gave up on, and that wakes up during micro-batch 9, carries the very token that batch 9
uses. The cure is a token that grows with each batch: :meth:`Lease.next_token`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.errors import InvalidArgumentError

if TYPE_CHECKING:
    from statestore_client import HlcTimestamp, StateStoreClient
    from statestore_client.sync.lock import Lease

__all__ = ["next_fencing_token"]


def next_fencing_token(
    store: StateStoreClient,  # noqa: ARG001 - the lease knows its store by itself; callers still name it
    lock_name: bytes | str,
    lease: Lease,
    *,
    lease_s: float = 10.0,  # noqa: ARG001 - the lease knows its length by itself; callers still name it
) -> HlcTimestamp:
    """A new fencing token of the held lock ``lock_name``: newer than all before, older than any later holder's.

    Use the token for one micro-batch. The keys that it wrote then refuse the lease's own, older token. Raises
    :class:`LeaseLostError` when the lock is not ours any more, and as :meth:`Lease.next_token` does.
    """
    name = lock_name.encode() if isinstance(lock_name, str) else lock_name
    if name.decode("utf-8", "backslashreplace") != lease.name:
        raise InvalidArgumentError(f"the lease is that of the lock {lease.name}, not of {lock_name!r}")
    return lease.next_token()
