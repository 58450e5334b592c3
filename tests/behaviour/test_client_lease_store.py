"""``lease.store``: what is read under a lease is claimed for its token first, with both shells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import (
    BatchError,
    FencingTokenTooOldError,
    KeyChangedError,
    LeaseLostError,
    StateStoreClient,
)
from statestore_client.server import EmbeddedServer

LEASE = 30.0

Under = Callable[[Any, Any], Any]  # a client and a lease -> the store to work with


def through_lease_store(_client: Any, lease: Any) -> Any:
    return lease.store


def with_fenced_writes(client: Any, lease: Any) -> Any:
    return client.guarded(lease)


def one_more(item: Any) -> str:
    return str(int(item.value) + 1)


@pytest.mark.parametrize(("under", "late_is_refused", "count"), [
    (through_lease_store, True, b"8"),
    (with_fenced_writes, False, b"8"),  # as many as one update, and there were two
])  # fmt: skip
async def test_a_holder_that_was_frozen_between_read_and_write(
    shell: Shell, server: EmbeddedServer, under: Under, late_is_refused: bool, count: bytes
) -> None:
    """The first holder stands still after its read; the second one has read, too, when the late write arrives. Through
    ``lease.store`` it is refused, and its writer knows. Where writes alone carry the token, both are acknowledged, and
    one of the two updates is lost."""
    async with shell.client(server.url) as one, shell.client(server.url) as two:
        await one.set("count", b"7")
        first = await one.lock("job", lease=LEASE).acquire()
        late = one_more(await under(one, first).get("count"))
        server.clock.advance(LEASE, keep_alive=False)  # the first one's clock stands still with it
        second = await two.lock("job", lease=LEASE).acquire(timeout=5)
        value = one_more(await under(two, second).get("count"))
        if late_is_refused:
            with pytest.raises(FencingTokenTooOldError):
                await under(one, first).set("count", late)
        else:
            assert (await under(one, first).set("count", late)).applied
        assert (await under(two, second).set("count", value)).applied
        assert (await one.get("count")).value == count


async def test_a_late_first_value_is_not_overwritten(shell: Shell, server: EmbeddedServer) -> None:
    """A key that was missing has no mark. The late write is applied, and the second holder is told to read again,
    also in a batch."""
    async with shell.client(server.url) as one, shell.client(server.url) as two:
        first = await one.lock("job", lease=LEASE).acquire()
        assert await first.store.get("count") is None
        server.clock.advance(LEASE, keep_alive=False)
        second = await two.lock("job", lease=LEASE).acquire(timeout=5)
        assert await second.store.get_many(["count", "other"]) == [None, None]
        assert (await first.store.set("count", b"1")).applied
        with pytest.raises(BatchError) as caught:
            await second.store.set_many([("count", b"1"), ("other", b"1")])
        assert isinstance(caught.value.results[0], KeyChangedError)
        assert caught.value.results[1].applied
        assert (await second.store.set("count", one_more(await second.store.get("count")))).applied
        assert await second.store.get("third") is None
        await one.set("third", b"1")
        with pytest.raises(KeyChangedError, match="the key third is not what was read: it was missing") as changed:
            await second.store.set("third", b"1")
        assert changed.value.key == b"third"
        assert [item.value for item in await two.get_many(["count", "other", "third"])] == [b"2", b"1", b"1"]


async def test_an_edit_claims_what_it_changes(shell: Shell, server: EmbeddedServer) -> None:
    """A write of an earlier holder that comes between the read of an edit and its write is not lost."""
    with StateStoreClient(server.url) as late:
        with late.lock("job") as lease:
            token = lease.fencing_token
        seen = []

        def change(value: bytes | None) -> bytes:
            if not seen:
                late.set("count", b"8", fencing_token=token)
            seen.append(value)
            return b"%d" % (int(value or b"0") + 1)

        async with shell.client(server.url) as store:
            await store.set("count", b"7")
            assert (await store.lock("job").edit("count", change)).value == b"9"
        assert seen == [b"7", b"8"]
        with pytest.raises(FencingTokenTooOldError):
            late.set("count", b"9", fencing_token=token)


async def test_reads_of_many_keys_are_claimed(shell: Shell, server: EmbeddedServer) -> None:
    """Each key that is there takes no write with an older token any more, nor one without; its value, and what SET has
    beside it, stay. What is no key is an error in its place. Reading again is one request for each key."""
    async with shell.client(server.url) as store:
        async with store.lock("job") as lease:
            older = lease.fencing_token
        async with store.lock("job") as lease:
            await store.set_many([("a", b"1"), ("b", b"2")], expiry=60)
            items = await lease.store.get_many(["a", "b", "none"], expiry=60)
            assert [item and item.value for item in items] == [b"1", b"2", None]
            for key in ("a", "b"):
                with pytest.raises(FencingTokenTooOldError):
                    await store.set(key, b"late", fencing_token=older)
            with pytest.raises(BatchError) as caught:
                await lease.store.get_many(["a", "", "b"], expiry=60)
            assert [getattr(result, "value", None) for result in caught.value.results] == [b"1", None, b"2"]
            sent = store.stats.requests
            assert await lease.store.get_many(["a", "b"]) == items[:2]
            assert (await lease.store.get("a")) == items[0]
            assert store.stats.requests == sent + 3
            server.clock.advance(60, keep_alive=False)
            assert await store.get_many(["a", "b"]) == [None, None]
        with pytest.raises(LeaseLostError):
            await lease.store.get("a")
