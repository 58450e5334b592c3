"""Watches on prefixes, with both shells and a real server: what they see, what goes wrong, and how they end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.server_clients import Gate
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    AsyncStateStoreClient,
    BusyError,
    ClosedError,
    EventKind,
    NotAuthorizedError,
    RequestTimeoutError,
    TooManyKeysError,
    WatchEvent,
)
from statestore_client.server import EmbeddedServer, StoreLimits
from statestore_client.server.store.keyspace import ScanLimits
from statestore_client.wire.commands import KeyNotify, Scan

#: Far longer than a test: only what is notified is seen.
NEVER_S = 1e6


class Recorder:
    """``EmbeddedServer(authorize=recorder)``: it notes what the server is asked, and forbids what a test wants."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.forbidden: Any = None

    def __call__(self, _client_id: str, command: Any) -> bool:
        self.commands.append(command)
        return bool(command != self.forbidden)


async def take(events: Any, count: int) -> list[WatchEvent]:
    """The next ``count`` events."""
    found = [await events.get(timeout=20) for _ in range(count)]
    assert None not in found
    return found


async def follow(events: Any, known: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> None:
    """Until what is known by the events is what is wanted."""
    while known != wanted:
        (event,) = await take(events, 1)
        if event.kind is EventKind.SET:
            known[event.key] = event.value
        elif event.kind is EventKind.DELETE:
            known.pop(event.key, None)


# -- what it sees ------------------------------------------------------------------------------------------------------


async def test_changes_of_all_keys_with_the_prefix_are_seen(shell: Shell, server: EmbeddedServer) -> None:
    """Sets and deletions of all keys with the prefix are seen with their versions, by any client, and of no other
    key."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        await store.set_many([("a/1", "one"), ("a/2", "two"), ("ab", "no"), ("b/1", "no")])
        async with store.watch_prefix("a/", rescan=NEVER_S) as events:
            assert events.key == b"a/"
            assert "prefix b'a/'" in repr(events)
            versions = [(await other.set("a/2", b"x")).version, (await other.set("a/1", b"y")).version]
            await other.set("ab", b"")
            await other.delete("a/2")
            await other.set("a/2", b"z")
            seen = await take(events, 4)
            of_2 = [event for event in seen if event.key == b"a/2"]
            assert of_2[0] == WatchEvent("set", b"a/2", b"x", versions[0])
            assert [(event.kind, event.value) for event in of_2] == [("set", b"x"), ("delete", None), ("set", b"z")]
            assert [event for event in seen if event.key == b"a/1"] == [WatchEvent("set", b"a/1", b"y", versions[1])]
            assert await events.get(timeout=0.05) is None


async def test_initial_delivers_the_present_values_first(shell: Shell, server: EmbeddedServer) -> None:
    """With ``initial`` all present values come first, also more than the queue holds."""
    async with shell.client(server.url) as store:
        await store.set_many((f"a/{n:03}", b"%d" % n) for n in range(300))
        async with store.watch_prefix("a/", initial=True, max_queued=1) as events:
            seen = await take(events, 300)
            assert sorted((event.key, event.value) for event in seen) == [
                (b"a/%03d" % n, b"%d" % n) for n in range(300)
            ]
            assert not any(event.missed for event in seen)
            await store.set("a/007", b"new")
            assert (await take(events, 1))[0].value == b"new"


async def test_a_new_key_is_found_and_then_followed(shell: Shell, server: EmbeddedServer) -> None:
    """The first event of a new key is marked and may come late; the next ones come at once."""
    async with shell.client(server.url) as store, store.watch_prefix("a/", rescan=0.05) as events:
        await store.set("a/new", b"1")
        (found,) = await take(events, 1)
        assert (found.key, found.value, found.missed) == (b"a/new", b"1", True)
        for n in range(2, 50):
            await store.set("a/new", b"%d" % n)
        assert [(event.value, event.missed) for event in await take(events, 48)] == [
            (b"%d" % n, False) for n in range(2, 50)
        ]


async def test_a_key_that_is_gone_is_let_go(shell: Shell) -> None:
    """The next listing lets go the keys that are gone, and closing the watch lets go all others."""
    recorder = Recorder()
    with EmbeddedServer(authorize=recorder) as server:
        async with shell.client(server.url) as store:
            await store.set_many([("a/1", "x"), ("a/2", "x")])
            async with store.watch_prefix("a/", rescan=0.05) as events:
                await store.set("a/1", b"y", expiry=0.05)
                assert [event.kind for event in await take(events, 2)] == ["set", "delete"]
                await until(lambda: KeyNotify(b"a/1", stop=True) in recorder.commands)
                assert KeyNotify(b"a/2", stop=True) not in recorder.commands
            await until(lambda: KeyNotify(b"a/2", stop=True) in recorder.commands)
            assert recorder.commands.count(KeyNotify(b"a/2")) == 1


async def test_a_slow_reader_gets_the_latest_of_each_key(shell: Shell, server: EmbeddedServer) -> None:
    """A slow reader gets the latest event of each key, since a busy key takes no place from a quiet one."""
    async with shell.client(server.url) as store, store.watch("barrier") as barrier:
        await store.set_many([("a/busy", "0"), ("a/quiet", "0")])
        async with store.watch_prefix("a/", max_queued=1, max_keys=2, rescan=NEVER_S) as events:
            await store.set("a/quiet", b"only")
            for n in range(20):
                await store.set("a/busy", b"%d" % n)
            await store.set("barrier", b"")
            await barrier.get(timeout=20)
            seen = await take(events, 3)
            assert [(event.key, event.value, event.missed) for event in seen] == [
                (b"a/quiet", b"only", False),
                (b"a/busy", b"18", True),
                (b"a/busy", b"19", False),
            ]


async def test_many_keys_are_watched_and_requests_pass_by(shell: Shell, server: EmbeddedServer) -> None:
    """Five hundred keys are watched a few at a time while other requests pass, and each is reported."""
    async with shell.client(server.url, max_in_flight=50) as store:
        await store.set_many((f"a/{n:04}", b"") for n in range(500))
        events = store.watch_prefix("a/", max_keys=500, timeout=120, rescan=NEVER_S)
        starting = asyncio.ensure_future(events.start())
        while not starting.done():
            await store.get("a/0000", timeout=60)
            await asyncio.sleep(0)
        await starting
        await store.set_many([(f"a/{n:04}", b"x") for n in range(0, 500, 50)], timeout=60)
        assert {event.key for event in await take(events, 10)} == {b"a/%04d" % n for n in range(0, 500, 50)}
        await events.close()
        assert await store.get("a/0000", timeout=60) is not None


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_a_connection_that_breaks_between_scan_and_keynotify_costs_nothing(shell: Shell) -> None:
    """A watch stands after the reconnect when the connection breaks between SCAN and KEYNOTIFY."""
    with EmbeddedServer(faults=True) as server:
        async with shell.client(server.url) as other, shell.client(server.url, client_id="me") as store:
            await other.set_many((f"a/{n}", b"%d" % n) for n in range(5))
            fault = server.faults.drop("PUBLISH", by="client", client_id="me", skip=1)
            async with store.watch_prefix("a/", initial=True, timeout=30, rescan=NEVER_S) as events:
                assert fault.hits == 1
                assert sorted(event.key for event in await take(events, 5)) == [b"a/%d" % n for n in range(5)]
                await other.set("a/3", b"x")
                assert (await take(events, 1))[0].value == b"x"


@pytest.mark.parametrize("keep_state", [True, False])
async def test_after_a_restart_of_the_server_the_watch_goes_on(
    shell: Shell, server: EmbeddedServer, keep_state: bool
) -> None:
    """After a restart of the server, deletions and new keys come between SUSPENDED and RESUMED."""
    async with shell.client(server.url) as store:
        await store.set_many([("a/1", "x"), ("a/2", "x")])
        async with store.watch_prefix("a/", initial=True, connection_events=True, rescan=NEVER_S) as events:
            await take(events, 2)
            server.restart(keep_state=keep_state)
            seen = await take(events, 2 if keep_state else 4)
            assert (seen[0].kind, seen[0].key) == (EventKind.SUSPENDED, b"a/")
            assert (seen[-1].kind, seen[-1].key) == (EventKind.RESUMED, b"a/")
            assert {(event.kind, event.key, event.missed) for event in seen[1:-1]} == (
                set() if keep_state else {("delete", b"a/1", True), ("delete", b"a/2", True)}
            )
            await store.set("a/1", b"y")
            assert (await take(events, 1))[0].value == b"y"


async def test_keys_that_come_and_go_while_they_are_listed(shell: Shell) -> None:
    """When keys come and go during listings of three keys a page, the watch knows all of them in the end."""
    limits = StoreLimits(scan=ScanLimits(max_keys=3))
    with EmbeddedServer(store_limits=limits) as server:
        async with shell.client(server.url) as store, shell.client(server.url) as writer:
            await writer.set_many((f"a/{n}", b"0") for n in range(10))
            known: dict[bytes, bytes] = {}
            async with store.watch_prefix("a/", initial=True, rescan=0.01) as events:
                for n in range(200):
                    await writer.set(f"a/{n * 7 % 30}", b"%d" % n)
                    if n % 3 == 0:
                        await writer.delete(f"a/{n * 11 % 30}")
                wanted = {}
                for n in range(30):
                    item = await writer.get(f"a/{n}")
                    if item is not None:
                        wanted[b"a/%d" % n] = item.value
                await asyncio.wait_for(follow(events, known, wanted), 60)


async def test_closing_while_the_keys_are_listed(shell: Shell) -> None:
    """When a watch is closed during a listing, the late answer is dropped, and no key in it is watched."""
    gate, recorder = Gate(), Recorder()
    gate.open()
    is_held = threading.Event()

    def authorize(client_id: str, command: Any) -> bool:
        recorder(client_id, command)
        if isinstance(command, Scan) and recorder.commands.count(command) > 1:
            is_held.set()
            return gate(client_id, command)
        return True

    with EmbeddedServer(authorize=authorize) as server:
        async with shell.client(server.url) as store:
            events = await store.watch_prefix("a/", rescan=0.05).start()
            await store.set("a/1", b"x")
            gate.shut()
            await until(is_held.is_set)
            await events.close()
            gate.open()
            await store.get("a/1", timeout=20)
            with pytest.raises(ClosedError):
                await events.get(timeout=1)
            held = len(recorder.commands)
            await store.get("a/1")
            assert len(recorder.commands) == held + 1


async def test_a_start_that_timed_out_can_be_tried_again(shell: Shell) -> None:
    """A start that timed out leaves nothing behind and can be tried again."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url) as store:
            events = store.watch_prefix("a/", initial=True, timeout=0.2, rescan=NEVER_S)
            with pytest.raises(RequestTimeoutError, match="could not be started within"):
                await events.start()
            with pytest.raises(BusyError, match="was not started"):
                await asyncio.wait_for(events.get(), 5)
            gate.open()
            await store.set("a/1", b"1", timeout=20)
            again = store.watch_prefix("a/", initial=True, timeout=20, rescan=NEVER_S)
            async with again:
                await store.set("a/1", b"2")
                assert [event.value for event in await take(again, 2)] == [b"1", b"2"]


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    """A cancelled start lets go the keys that it had found."""
    gate, recorder = Gate(), Recorder()

    def authorize(client_id: str, command: Any) -> bool:
        recorder(client_id, command)
        return gate(client_id, command) if command == KeyNotify(b"a/2") else True

    with EmbeddedServer(authorize=authorize) as server:
        async with AsyncStateStoreClient(server.url) as store:
            await store.set_many([("a/1", "x"), ("a/2", "x")])
            starting = asyncio.ensure_future(store.watch_prefix("a/").start())
            await until(gate.reached.is_set)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            gate.open()
            await until(lambda: {KeyNotify(b"a/1", stop=True), KeyNotify(b"a/2", stop=True)} <= {*recorder.commands})
            assert not store._engine._machine.watching


# -- how it ends -------------------------------------------------------------------------------------------------------


async def test_too_many_keys_end_it_with_advice(shell: Shell, server: EmbeddedServer) -> None:
    """Too many keys, at the start or in a later listing, end the watch with advice, and the client goes on."""
    async with shell.client(server.url) as store:
        await store.set_many((f"a/{n}", b"") for n in range(5))
        with pytest.raises(TooManyKeysError, match=r"more than 4 keys begin with b'a/'; raise max_keys"):
            await store.watch_prefix("a/", max_keys=4).start()
        async with store.watch_prefix("a/", max_keys=5, rescan=0.05) as events:
            await store.set("a/5", b"")
            with pytest.raises(TooManyKeysError):
                await events.get(timeout=20)
            assert isinstance(events.error, TooManyKeysError)
        assert await store.get("a/5") is not None


async def test_a_key_that_may_not_be_watched_is_named(shell: Shell) -> None:
    """A key that may not be watched ends the watch, and the error names it."""
    recorder = Recorder()
    recorder.forbidden = KeyNotify(b"a/2")
    with EmbeddedServer(authorize=recorder) as server:
        async with shell.client(server.url) as store:
            await store.set_many([("a/1", "x"), ("a/2", "x")])
            with pytest.raises(NotAuthorizedError, match="KEYNOTIFY of 'a/2'") as caught:
                await store.watch_prefix("a/").start()
            assert caught.value.key == b"a/2"
            await until(lambda: KeyNotify(b"a/1", stop=True) in recorder.commands)
