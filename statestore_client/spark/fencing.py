"""A token for each micro-batch, so that a task left over from one batch cannot write into a later one.

A lock's fencing token protects the holder against earlier holders. It does not protect the holder against itself: a
task of micro-batch 7 that Spark gave up on, and that wakes up during micro-batch 9, carries the very token that batch 9
uses. The cure is a token that grows with each batch.

The lock's key is set again by its holder: the state store gives that write a version, which is newer than all tokens of
this lock so far and older than the token of any later holder. A token made up by the client from the first one (its
counter plus the batch's number, say) would be newer than a later holder's token as soon as the server's clock stands
still between the two, which it does for up to a minute after a client with a fast clock has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.errors import LeaseLostError

if TYPE_CHECKING:
    from statestore_client import HlcTimestamp, StateStoreClient
    from statestore_client.sync.lock import Lease

__all__ = ["next_fencing_token"]


def next_fencing_token(
    store: StateStoreClient, lock_name: bytes | str, lease: Lease, *, lease_s: float = 10.0
) -> HlcTimestamp:
    """A new fencing token of the held lock ``lock_name``: newer than all before, older than any later holder's.

    ``lease_s`` is the lock's ``lease``; the lock is held for that long from now on, or until it is renewed. Use the
    token for one micro-batch. The keys that it wrote then refuse the lease's own, older token. Raises
    :class:`LeaseLostError` when the lock is not ours any more, and as :meth:`StateStoreClient.set` does.
    """
    lease.check()
    done = store.set(lock_name, lease.holder, condition="NEX", expiry=lease_s)
    if not done.applied or done.version is None:
        raise LeaseLostError("somebody else holds the lock")
    # NEX also succeeds when the lock had ended and was free. Somebody may have held it in between, and our batch may
    # build on what he changed since.
    lease.check()
    return done.version
