"""A token for each micro-batch: a task left over from one batch cannot write into a later one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from statestore_client import LeaseLostError, StateStoreClient

if TYPE_CHECKING:
    from recording_server import RecordingServer


def test_tokens_grow_and_stay_below_the_next_holders(store: StateStoreClient) -> None:
    """Each token is newer than all before, and the next holder of the lock has a newer one."""
    with store.lock("job", renew=False) as lease:
        tokens = [lease.next_token() for _ in range(50)]
    assert [lease.fencing_token, *tokens] == sorted({lease.fencing_token, *tokens})
    with store.lock("job") as following:
        assert following.fencing_token > tokens[-1]


def test_tokens_stay_below_the_next_holders_while_the_clock_stands(
    server: RecordingServer, store: StateStoreClient
) -> None:
    """Tokens stay below the next holder's while a client whose clock is ahead keeps the server's wall clock still."""
    with StateStoreClient(server.url) as fast:
        fast._engine._machine.request_table._clock.tick(time.time_ns() // 1_000_000 + 30_000)
        version = fast.set("a", "1").version
    assert version is not None
    assert version.wall_ms > time.time_ns() // 1_000_000 + 20_000
    with store.lock("job") as lease:
        tokens = [lease.next_token() for _ in range(20)]
    with store.lock("job") as following:
        assert following.fencing_token > tokens[-1]


def test_lost_lock_gives_no_token(server: RecordingServer, store: StateStoreClient) -> None:
    """Once somebody else holds the lock, the old holder gets an error instead of a token."""
    lock = store.lock("job", renew=False)
    lease = lock.acquire()
    store.delete("job")
    message = "somebody else holds the lock"
    with StateStoreClient(server.url) as other, other.lock("job"), pytest.raises(LeaseLostError, match=message):
        lease.next_token()


def test_ended_lease_gives_no_token(store: StateStoreClient) -> None:
    """A lease that may have ended gives no token, because others may have written in between."""
    lock = store.lock("job", lease=0.2, renew=False)
    lease = lock.acquire()
    with store.watch("job") as events:
        while (event := events.get(5.0)) is not None and event.kind != "delete":
            pass
    with pytest.raises(LeaseLostError):
        lease.next_token()
    assert store.get("job") is None
