"""What the methods for keys give back, and what is refused, with both shells, against the embedded server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import (
    BatchError,
    FencingError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    HlcTimestamp,
    InvalidArgumentError,
    Item,
    NotAuthorizedError,
    QuotaExceededError,
    RequestSyntaxError,
)
from statestore_client.core.arguments import SetItem
from statestore_client.server import EmbeddedServer, StoreLimits
from statestore_client.server.store.keyspace import ScanLimits
from statestore_client.wire.commands import decode_command


async def test_set_get_and_delete_tell_what_they_did(shell: Shell, server: EmbeddedServer) -> None:
    """The results of set, get and delete carry the version that the server gave to the value."""
    async with shell.client(server.url) as store:
        done = await store.set("key", b"1")
        again = await store.set("key", b"2")
        assert (done.applied, again.applied) == (True, True)
        assert isinstance(done.version, HlcTimestamp)
        assert again.version > done.version
        assert await store.get("key") == Item(b"2", again.version)
        gone = await store.delete("key")
        assert (gone.count, gone.matched) == (1, True)
        assert await store.get("key") is None
        assert (await store.delete("key")).count == 0


async def test_keys_and_values_are_any_bytes(shell: Shell, server: EmbeddedServer) -> None:
    """Keys and values are any bytes, text is encoded as UTF-8, and values may be empty."""
    async with shell.client(server.url) as store:
        for key, value in (
            ("t\u00e4xt", "w\u00f6rt"),
            (b"\x00\xff\r\n$", b"\r\n\x00*"),
            (b"k", b""),
            (bytearray(b"a"), memoryview(b"b")),
        ):
            await store.set(key, value)
            assert (await store.get(key)).value == (value.encode() if isinstance(value, str) else bytes(value))


async def test_conditions_are_told_from_success(shell: Shell, server: EmbeddedServer) -> None:
    """NX and NEX leave another value in place, and vdelete() deletes the given value only; a missing key has count
    0."""
    async with shell.client(server.url) as store:
        assert (await store.set("key", b"1", condition="NX")).applied
        assert not (await store.set("key", b"2", condition="NX")).applied
        assert (await store.set("key", b"1", condition="NEX")).applied
        assert not (await store.set("key", b"2", condition="NEX")).applied
        other = await store.vdelete("key", b"2")
        assert (other.count, other.matched) == (0, False)
        assert (await store.get("key")).value == b"1"
        same = await store.vdelete("key", b"1")
        assert (same.count, same.matched) == (1, True)
        assert (await store.vdelete("key", b"1")).count == 0


async def test_nex_compares_with_an_expected_value_where_the_document_holds(shell: Shell) -> None:
    """At a server of the document ``NEX <value>`` is applied to a missing key or the expected value, in a guarded store
    too."""
    with EmbeddedServer(dialect="document") as server:
        async with shell.client(server.url) as store:
            assert (await store.set("key", b"1", condition="NEX", expected=b"0")).applied
            assert (await store.set("key", b"2", condition="NEX", expected=b"1", expiry=60)).applied
            assert not (await store.set("key", b"3", condition="NEX", expected=b"1")).applied
            assert (await store.get("key")).value == b"2"
            async with await store.lock("lock").acquire() as lease:
                guarded = store.guarded(lease)
                assert (await guarded.set("key", b"4", condition="NEX", expected=b"2")).applied
                assert not (await guarded.set("key", b"5", condition="NEX", expected=b"2")).applied


async def test_the_official_service_knows_no_value_of_nex(shell: Shell, server: EmbeddedServer) -> None:
    """The official service refuses NEX with another expected value, and nothing is written; the new value itself may be
    expected."""
    async with shell.client(server.url) as store:
        await store.set("key", b"1")
        for expiry in (None, 60.0):
            with pytest.raises(RequestSyntaxError, match=r"^syntax error: the server does not know NEX with a value"):
                await store.set("key", b"2", condition="NEX", expected=b"1", expiry=expiry)
            assert (await store.get("key")).value == b"1"
            assert (await store.set("key", b"1", condition="NEX", expected=b"1", expiry=expiry)).applied


async def test_what_is_to_be_on_disk_is_marked(shell: Shell) -> None:
    """Every way to set a key with ``persist`` marks its own request and no other."""
    with EmbeddedServer(record_messages=1000) as server:
        async with shell.client(server.url) as store:
            await store.set("a", b"", persist=True)
            await store.set("b", b"")
            await store.set_many([("c", b""), SetItem("d", b"", persist=False)], persist=True)
            await store.lock("e").edit("f", lambda _: b"", persist=True)
            async with await store.lock("g", persist=True).acquire() as lease:
                guarded = store.guarded(lease)
                await guarded.set("h", b"", persist=True)
                await guarded.set_many([("i", b"")], persist=True)
            await store.delete("a")
        marked = {
            decode_command(message.payload).key
            for message in server.messages
            if ("aio-persistence", "true") in message.user_properties
        }
        assert marked == {b"a", b"c", b"f", b"g", b"h", b"i"}


async def test_a_key_expires_and_a_later_set_ends_the_expiry(shell: Shell, server: EmbeddedServer) -> None:
    """A key goes when it expires, which a watch sees as a deletion, and a later SET without an expiry makes it stay."""
    async with shell.client(server.url) as store, store.watch("short") as events:
        await store.set("kept", b"1", expiry=30)
        await store.set("kept", b"2")
        done = await store.set("short", b"1", expiry=60)
        assert (await events.get(timeout=5)).kind == "set"
        server.clock.advance(59)
        assert (await store.get("short")).value == b"1"
        server.clock.advance(1)
        gone = await events.get(timeout=5)
        assert (gone.kind, gone.version > done.version) == ("delete", True)
        assert await store.get("short") is None
        assert (await store.get("kept")).value == b"2"


async def test_scan_finds_every_key_over_many_pages(shell: Shell, server: EmbeddedServer) -> None:
    """SCAN returns each matching key once over many pages, and all keys if no pattern is given."""
    async with shell.client(server.url) as store:
        await store.set_many((f"a/{i:05}", b"") for i in range(3000))
        await store.set_many((f"b/{i}", b"") for i in range(10))
        found = [key async for key in store.scan("a/*")]
        assert sorted(found) == [b"a/%05d" % i for i in range(3000)]
        assert [key async for key in store.scan("nothing*")] == []
        assert len([key async for key in store.scan("[!a]/[12]")]) == 2
        assert len([key async for key in store.scan()]) == 3010


async def test_a_listing_that_another_store_has_begun_says_so(shell: Shell) -> None:
    """A server that was started again, empty, cannot go on with a listing; the error says to begin again."""
    with EmbeddedServer(store_limits=StoreLimits(scan=ScanLimits(max_keys=1))) as server:
        async with shell.client(server.url) as store:
            await store.set_many([("a", "1"), ("b", "2")])
            listing = store.scan()
            assert await anext(listing) == b"a"
            server.restart(keep_state=False)
            with pytest.raises(RequestSyntaxError, match="begin the listing again"):
                await anext(listing)


async def test_a_pattern_that_cannot_be_read_is_named(shell: Shell, server: EmbeddedServer) -> None:
    """The error about an unreadable pattern shows its beginning."""
    async with shell.client(server.url) as store:
        with pytest.raises(RequestSyntaxError, match="the server cannot use the pattern") as caught:
            _ = [key async for key in store.scan(b"[" + b"x" * 100)]
    assert str(caught.value).endswith(f"(SCAN of '[{'x' * 79}'... (101 bytes))")


async def test_batches_answer_in_order(shell: Shell, server: EmbeddedServer) -> None:
    """set_many, get_many, delete_many and vdelete_many give one result for each item, in order."""
    async with shell.client(server.url, max_in_flight=8) as store:
        done = await store.set_many([(f"k{i}", str(i)) for i in range(100)])
        assert [d.version for d in done] == sorted(d.version for d in done)
        items = await store.get_many([f"k{i}" for i in reversed(range(101))])
        assert [item and item.value for item in items] == [None, *(b"%d" % i for i in reversed(range(100)))]
        gone = await store.delete_many(["k0", "nothing", "k1"])
        assert [g.count for g in gone] == [1, 0, 1]
        gone = await store.vdelete_many([("k2", b"2"), ("k3", b"other"), ["k4", "4"]])
        assert [(g.count, g.matched) for g in gone] == [(1, True), (0, False), (1, True)]
        assert await store.set_many([]) == []


async def test_a_batch_item_can_have_its_own_expiry_and_token(shell: Shell, server: EmbeddedServer) -> None:
    """A SetItem's own expiry and token are used in place of the batch's."""
    async with shell.client(server.url) as store, store.watch("short") as events:
        token = (await store.set("any", b"")).version
        await store.set_many([("long", b""), SetItem("short", b"", expiry=60), SetItem("kept", b"", None, token)])
        server.clock.advance(60)
        assert [(await events.get(timeout=5)).kind for _ in range(2)] == ["set", "delete"]
        assert await store.get("long") is not None
        with pytest.raises(BatchError, match="fencing token is required"):
            await store.set_many([("kept", b"x")])


async def test_one_bad_item_does_not_lose_the_others(shell: Shell, server: EmbeddedServer) -> None:
    """BatchError has every result, with an exception in the place of each item that could not be used."""
    async with shell.client(server.url) as store:
        with pytest.raises(BatchError, match="5 of 7 items failed") as caught:
            await store.set_many([("a", b"1"), ("", b"2"), ("b", 3), "cd", ("x",), 7, ("c", b"4")])
        assert sorted(caught.value.failures) == [1, 2, 3, 4, 5]
        assert all(isinstance(e, InvalidArgumentError) for e in caught.value.failures.values())
        assert caught.value.results[6].applied
        assert [key async for key in store.scan("*")] == [b"a", b"c"]


async def test_what_is_no_batch_is_refused_at_once(shell: Shell, server: EmbeddedServer) -> None:
    """Text in place of a batch, which would be many keys, and a bad expiry of a whole batch are raised at the call."""
    async with shell.client(server.url) as store:
        for call in (store.get_many, store.set_many):
            with pytest.raises(InvalidArgumentError, match="iterable"):
                await call("keys")
        with pytest.raises(InvalidArgumentError, match="expiry"):
            await store.set_many([("a", b"")], expiry=0)
        assert await store.get("a") is None


async def test_a_source_that_fails_ends_the_batch(shell: Shell, server: EmbeddedServer) -> None:
    """An exception of the caller's iterable ends the batch and is raised as it is, and the client goes on."""

    def pairs() -> Any:
        for i in range(1000):
            yield f"k{i}", b""
        raise KeyError("source")

    async with shell.client(server.url) as store:
        with pytest.raises(KeyError, match="source"):
            await store.set_many(pairs())
        assert await store.get("k0") is not None


async def test_a_huge_batch_keeps_to_the_window(shell: Shell, server: EmbeddedServer) -> None:
    """A batch of 2,000 SETs takes items from an iterator as answers come in, never far ahead of them."""
    taken, size = 0, 2_000

    def pairs() -> Any:
        nonlocal taken
        for i in range(size):
            assert i - store.stats.replies <= 3 * 64  # window, one more in this process, one chunk
            taken += 1
            yield b"%d" % i, b"x"

    async with shell.client(server.url) as store:
        done = await store.set_many(pairs(), timeout=60)
        assert len(done) == taken == size
        assert all(d.applied for d in done)


async def test_a_hundred_callers_share_a_client(shell: Shell, server: EmbeddedServer) -> None:
    """Each of 100 concurrent callers gets its own answers, although only 16 requests fit into the window."""

    async def caller(number: int) -> None:
        for i in range(5):
            value = b"%d-%d" % (number, i)
            await store.set(f"key{number}", value)
            assert (await store.get(f"key{number}")).value == value

    async with shell.client(server.url, max_in_flight=16) as store:
        await asyncio.gather(*(caller(n) for n in range(100)))
        assert store.stats.replies == store.stats.requests == 1000
        assert store.stats.late_or_unknown_replies == 0


async def test_a_megabyte_fits(shell: Shell, server: EmbeddedServer) -> None:
    """A key and a value of a megabyte each come back unharmed."""
    key, value = bytes(range(1, 256)) * 4200, bytes(range(256)) * 4096
    async with shell.client(server.url) as store:
        await store.set(key, value)
        assert (await store.get(key)).value == value
        await store.set(b"k" * 1_000_000, b"")
        assert [k async for k in store.scan("*")] == [b"k" * 1_000_000]  # the other one is not UTF-8


async def test_a_value_above_the_brokers_limit_is_refused_here(shell: Shell, server: EmbeddedServer) -> None:
    """A packet above the broker's limit is not sent: the error names both sizes, and other requests go on."""
    async with shell.client(server.url) as store:
        with pytest.raises(InvalidArgumentError, match=r"takes \d+ bytes and the broker accepts 16777216") as caught:
            await store.set("key", bytes(16 * 1024 * 1024))
        assert not caught.value.may_have_been_applied
        largest = bytes(16 * 1024 * 1024 - 1000)
        assert (await store.set("key", largest)).applied
        assert (await store.get("key")).value == largest


async def test_a_watch_on_a_key_too_long_for_a_topic_is_refused(shell: Shell, server: EmbeddedServer) -> None:
    """A key of 40,000 bytes can be stored, but not watched or locked, and the error says so."""
    async with shell.client(server.url) as store:
        await store.set(b"k" * 40_000, b"1")
        with pytest.raises(InvalidArgumentError, match=r"cannot be watched; at most 32\d\d\d"):
            store.watch(b"k" * 40_000)
        with pytest.raises(InvalidArgumentError, match="cannot be watched"):
            store.lock(b"k" * 40_000)
        async with store.watch(b"k" * 30_000, timeout=5) as events:
            await store.set(b"k" * 30_000, b"1")
            assert (await events.get(timeout=5)).value == b"1"


async def test_bad_arguments_are_refused_before_anything_is_sent(shell: Shell, server: EmbeddedServer) -> None:
    """A bad argument of any call raises InvalidArgumentError, a ValueError, before anything is sent."""
    waiting = (
        lambda store: store.set("", b"1"),
        lambda store: store.get(b""),
        lambda store: store.set("k", 5),
        lambda store: store.set("k", b"", condition="XX"),
        lambda store: store.set("k", b"", expiry=float("nan")),
        lambda store: store.set("k", b"", fencing_token="old"),
        lambda store: store.get("k", timeout=0),
        lambda store: store.get("k", timeout=True),
    )
    plain = (
        lambda store: store.watch("k", overflow="newest"),
        lambda store: store.watch_prefix(b"\xff"),
        lambda store: store.watch_prefix("a", rescan=0),
        lambda store: store.watch_prefix("a", callback=7),
        lambda store: store.lock("k", lease=0),
        lambda store: store.lock("k", holder=b""),
        lambda store: store.scan(""),
        lambda store: store.scan("*", timeout=-1),
    )
    async with shell.client(server.url) as store:
        for call in waiting:
            with pytest.raises(InvalidArgumentError):
                await call(store)
        for call in plain:  # and not later, where it is used
            with pytest.raises(InvalidArgumentError):
                call(store)
        assert store.stats.requests == 0


async def test_timeouts_beyond_reason_mean_for_ever(shell: Shell, server: EmbeddedServer) -> None:
    """A time-out of any length is accepted, and no primitive that waits overflows."""
    async with shell.client(server.url) as store:
        for timeout in (None, 1e12, float("inf"), 1e300):
            await store.set("k", b"1", timeout=timeout)
            assert len(await store.get_many(["k"], timeout=timeout)) == 1
            async with store.watch("k", initial=True, timeout=timeout) as events:
                assert (await events.get(timeout=timeout)).value == b"1"
                waiting = asyncio.ensure_future(events.get(timeout=timeout))
                await asyncio.wait([waiting], timeout=0.05)
                await store.set("k", b"2")
                assert (await asyncio.wait_for(waiting, 5)).value == b"2"


# -- refusals name what was refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "command", "key", "text"),
    [
        (lambda store: store.set("pump-7", b"secret"), "SET", b"pump-7", "SET of 'pump-7'"),
        (lambda store: store.get(b"\xff\x00"), "GET", b"\xff\x00", r"GET of b'\xff\x00'"),
        (lambda store: store.delete("d" * 100), "DEL", b"d" * 100, f"DEL of '{'d' * 80}'... (100 bytes)"),
        (lambda store: store.vdelete("pump-7", b"1"), "VDEL", b"pump-7", "VDEL of 'pump-7'"),
        (lambda store: anext(store.scan("pump-*")), "SCAN", b"pump-*", "SCAN of 'pump-*'"),
        (lambda store: store.watch("pump-7").start(), "KEYNOTIFY", b"pump-7", "KEYNOTIFY of 'pump-7'"),
        (lambda store: store.lock("job").acquire(), "SET", b"job", "SET of 'job'"),
    ],
)
async def test_who_may_not_do_it_hears_what(shell: Shell, call: Any, command: str, key: bytes, text: str) -> None:
    """A refused client gets command and key in the error's text and attributes, beside the server's own words."""
    with EmbeddedServer(authorize=lambda _client, _command: False) as server:
        async with shell.client(server.url) as store:
            with pytest.raises(NotAuthorizedError) as caught:
                await call(store)
    error = caught.value
    assert (error.command, error.key, error.message) == (command, key, "not authorized")
    assert str(error) == f"not authorized ({text})"


async def test_a_fence_names_what_it_keeps_out(shell: Shell, server: EmbeddedServer) -> None:
    """The error of a fenced key names the key, for a missing and an old token, in requests, batches and edits."""
    async with shell.client(server.url) as store:
        old = (await store.set("a", b"")).version
        new = (await store.set("a", b"")).version
        await store.set("guarded", b"1", fencing_token=new)
        calls: list[tuple[Any, type[FencingError]]] = [
            (lambda: store.set("guarded", b"2"), FencingTokenRequiredError),
            (lambda: store.set("guarded", b"2", fencing_token=old), FencingTokenTooOldError),
        ]
        for call, kind in calls:
            with pytest.raises(kind) as caught:
                await call()
            assert (caught.value.command, caught.value.key) == ("SET", b"guarded")
            assert str(caught.value) == f"{kind.wire_text} (SET of 'guarded')"
        with pytest.raises(BatchError, match=r"the first is number 1: a fencing token .* \(DEL of 'guarded'\)"):
            await store.delete_many(["a", "guarded"])


async def test_a_broker_that_refuses_a_publication_is_told_of_with_the_key(shell: Shell) -> None:
    """The error of a publication that the broker refuses (PUBACK 0x87) names the key."""
    with EmbeddedServer(faults=True) as server:
        async with shell.client(server.url) as store:
            server.faults.refuse("PUBLISH", 0x87)
            with pytest.raises(NotAuthorizedError, match=r"does not let this client publish .* \(SET of 'key'\)"):
                await store.set("key", b"1")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_keys": 1}, "keys: at most 1; --max-keys raises that"),
        ({"max_bytes": 1000}, "bytes: at most 1000; --max-bytes raises that"),
    ],
)
async def test_a_quota_that_is_used_up_is_named(shell: Shell, limits: dict[str, int], told: str) -> None:
    """The error says which quota is used up, its value, and what raises it; on the wire its text is as ever."""
    with EmbeddedServer(store_limits=StoreLimits(**limits)) as server:
        async with shell.client(server.url) as store:
            await store.set("a", b"1")
            with pytest.raises(QuotaExceededError) as caught:
                await store.set("b", bytes(1000))
    assert str(caught.value) == f"the quota has been exceeded (SET of 'b'): {told}"
    assert caught.value.message == QuotaExceededError.wire_text


async def test_a_quota_of_watches_is_named(shell: Shell) -> None:
    """The same for the keys that one client watches."""
    with EmbeddedServer(store_limits=StoreLimits(max_observations_per_client=1)) as server:
        async with shell.client(server.url) as store, store.watch("a"):
            with pytest.raises(
                QuotaExceededError, match="observations-per-client: at most 1; --max-observations-per-client raises"
            ):
                async with store.watch("b"):
                    pass
