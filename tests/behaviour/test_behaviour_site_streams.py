"""Clients that follow a site, blocking and asyncio: what there is and what changes, over restarts and slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

import pytest
from support.sites import SHELLS, Impostor, Looped, SiteThread
from support.waiting import eventually, until

from statestore_client.errors import (
    BusyError,
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    RequestTimeoutError,
)
from statestore_client.kvstore import (
    INFINITE_TTL_MS,
    AsyncSiteClient,
    KeyChange,
    LostKey,
    NoMergeReason,
    SiteClient,
    Value,
)
from statestore_client.server.kvstore.area import AreaSubscribers, HistoryLimits
from statestore_client.server.kvstore.requests import MAX_HELD_OF_LINK
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import Found


class LoopedStream:
    """An asyncio stream, whose coroutines are run one by one."""

    def __init__(self, looped: Looped, stream: Any) -> None:
        self._run = looped.runner.run
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        what = getattr(self._stream, name)
        return (lambda *args, **more: self._run(what(*args, **more))) if inspect.iscoroutinefunction(what) else what

    def __enter__(self) -> Self:
        self._run(self._stream.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stream.close())


class Shell:
    """A client of one shell, and streams that are used alike."""

    def __init__(self, kind: Any, url: str, **more: Any) -> None:
        self.made = kind(url, **more)

    def stream(self, name: str, *args: Any, **more: Any) -> Any:
        """Not entered yet."""
        stream = getattr(self.made.client, name)(*args, **more)
        return LoopedStream(self.made, stream) if isinstance(self.made, Looped) else stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)


@pytest.fixture
def site() -> Iterator[SiteThread]:
    """One site."""
    with SiteThread() as one:
        yield one


@pytest.fixture(params=SHELLS, ids=lambda shell: shell.__name__)
def client(request: pytest.FixtureRequest, site: SiteThread) -> Iterator[Shell]:
    """A client of the site."""
    shell = Shell(request.param, site.url)
    yield shell
    shell.close()
    if isinstance(shell.made, Looped):
        shell.made.runner.close()


def next_of(stream: Any) -> Any:
    """What comes next, and it comes soon."""
    found = stream.get(20)
    assert found is not None
    return found


def test_a_stream_begins_with_what_there_is_and_misses_nothing(client: Shell, site: SiteThread) -> None:
    """The snapshot first, then each change: new values, other sites' values, and keys that end."""
    client.set("adj:1", "x")
    client.set("other", "x")
    with client.stream("subscribe", "adj:") as changes:
        assert {key: entry.value for key, entry in changes.snapshot.items()} == {"adj:1": b"x"}
        client.set("adj:2", "y")
        client.set("other", "y")
        client.set("adj:1", "z")
        assert [(change.key, change.entry.value) for change in (next_of(changes), next_of(changes))] == [
            ("adj:2", b"y"),
            ("adj:1", b"z"),
        ]
        client.merge({"adj:3": Value(1, "oslo", b"o", 300)})
        assert next_of(changes).entry.originator == "oslo"
        assert next_of(changes) == KeyChange("adj:3", None)
        assert changes.get(0) is None


def test_hashes_and_times_to_live_are_told_if_asked_for(client: Shell) -> None:
    """A refresh is a change only for those that ask for it."""
    client.set("key", "x")
    with client.stream("subscribe", hashes=True) as hashes, client.stream("subscribe", "k", ttls=True) as ttls:
        assert hashes.snapshot["key"].value is None
        client.refresh("key", 60_000)
        change = next_of(ttls)
        assert change.is_ttl_only
        assert change.entry.ttl_version == ttls.snapshot["key"].ttl_version + 1
        client.set("key", "y")
        change = next_of(hashes)
        assert (change.entry.version, change.entry.value, change.is_ttl_only) == (2, None, False)


def test_a_site_that_was_started_again_is_followed_further(client: Shell, site: SiteThread) -> None:
    """What is not there any more has ended, what is new or other is told, and what is as it was is not."""
    client.set("gone", "x")
    client.set("same", "x", version=1)
    with client.stream("subscribe") as changes:
        site.stop()
        site.start()
        site.set_many({"same": b"x", "new": b"y"})
        found = {change.key: change.entry for change in (next_of(changes), next_of(changes))}
        assert {key: entry and entry.value for key, entry in found.items()} == {"new": b"y", "gone": None}
        site.set_many({"later": b"z"})
        assert next_of(changes).key == "later"
        assert changes.is_connected


def test_a_site_that_does_not_answer_is_no_end(site: SiteThread) -> None:
    """The stream says that it is not connected, and goes on when the site is there again."""
    with SiteClient(site.url, timeout_s=0.2) as client, client.subscribe() as changes:
        site.stop()
        assert changes.get(0.1) is None
        assert not changes.is_connected
        site.start()
        site.set_many({"key": b"x"})
        assert next_of(changes).key == "key"


def test_a_reader_that_is_too_slow_gets_the_last_state(client: Shell, site: SiteThread) -> None:
    """What it missed is not told step by step; in the end it knows what the site has."""

    def forget_soon() -> None:
        site.peering.site.replicas["default"].contents.subscribers = AreaSubscribers(
            "default", HistoryLimits(max_publications=3)
        )

    site.call(forget_soon)
    with client.stream("subscribe") as changes:
        for number in range(20):
            client.set("key", str(number))
        change = next_of(changes)
        while change.entry.value != b"19":
            change = next_of(changes)
        assert changes.get(0) is None


def test_a_large_area_is_followed(client: Shell, site: SiteThread) -> None:
    """A snapshot of many pages, and a change that is larger than a message."""
    site.set_many({f"key{number}": bytes(1000) for number in range(3000)})
    with client.stream("subscribe") as changes:
        assert len(changes.snapshot) == 3000
        assert client.merge({f"new{number}": Value(1, "oslo", bytes(1000), 60_000) for number in range(3000)}) == {}
        seen = {next_of(changes).key for _ in range(3000)}
        assert seen == {f"new{number}" for number in range(3000)}


def test_merge_says_what_was_not_taken(client: Shell) -> None:
    """One that is refused changes nothing for the others; what cannot be sent at all is an error before anything is."""
    reasons = client.merge({"good": Value(1, "oslo", b"x", 1000), "bad": Value(1, "oslo", b"x", 0)})
    assert reasons == {"bad": NoMergeReason.INVALID_TTL}
    with pytest.raises(InvalidArgumentError, match="more than"):
        client.merge({"fine": Value(1, "oslo", b"x", 1000), "large": Value(1, "oslo", bytes(1 << 20), 1000)})
    assert client.get("fine") is None


def test_a_long_poll_is_answered_by_a_difference(client: Shell, site: SiteThread) -> None:
    """At once if there is one, else as soon as there is one; times to live are none."""
    client.set("adj:1", "x")
    known = client.hashes("adj:")
    assert client.differs({}, "adj:")
    assert client.differs({"adj:1": Value(9, "bonn", b"x")}, "adj:")
    assert client.differs(known | {"adj:2": Value(9, "bonn", b"x")}, "adj:")
    with SiteClient(site.url) as other:
        other.refresh("adj:1", 60_000)
        other.set("other", "x")
        assert client.differs(known, "adj:", timeout_s=0.2) is False
        timer = threading.Timer(0.2, lambda: other.set("adj:1", "y"))
        timer.start()
        assert client.differs(known, "adj:")
        timer.join()


def test_callbacks_are_called_one_after_the_other_until_the_stream_is_closed(
    site: SiteThread, caplog: pytest.LogCaptureFixture
) -> None:
    """What is there first, then each change. What a callback raises is logged, and is its own affair."""
    seen: list[tuple[str, bytes | None]] = []

    def heard(change: KeyChange) -> None:
        seen.append((change.key, change.entry and change.entry.value))
        if change.key == "bad":
            raise ValueError("of the callback")

    with SiteClient(site.url) as client:
        client.set("first", "x")
        with client.subscribe(callback=heard):
            client.set("bad", "y")
            client.set("last", "z")
            eventually(lambda: len(seen) == 3)
        client.set("after", "x")
        assert seen == [("first", b"x"), ("bad", b"y"), ("last", b"z")]
        assert [record.exc_info[1].args for record in caplog.records if record.levelno == logging.ERROR] == [  # type: ignore[index, union-attr]
            ("of the callback",)
        ]
        with pytest.raises(InvalidArgumentError, match="coroutine"):
            client.subscribe(callback=asyncio.sleep)


async def test_an_asyncio_callback_may_be_a_coroutine_function_and_may_close_its_stream(site: SiteThread) -> None:
    """It is awaited, in a task of its own."""
    seen = asyncio.Event()
    async with AsyncSiteClient(site.url) as client:

        async def heard(change: KeyChange) -> None:
            await asyncio.sleep(0)
            assert change.key == "key"
            await stream.close()
            seen.set()

        stream = client.subscribe(callback=heard)
        async with stream:
            await client.set("key", "x")
            await asyncio.wait_for(seen.wait(), 20)


async def test_iterating_ends_when_the_stream_is_closed(site: SiteThread) -> None:
    """Tasks iterate while others use the client; a stream has a connection of its own."""
    async with AsyncSiteClient(site.url) as client, client.subscribe() as changes:
        await client.set("key", "x")
        seen = []
        async for change in changes:
            seen.append(change.key)
            await changes.close()
        assert seen == ["key"]
        with pytest.raises(ClosedError):
            await changes.get()


def test_a_blocked_reader_is_released_by_closing(site: SiteThread) -> None:
    """Another thread closes the stream: the iteration ends."""
    with SiteClient(site.url) as client:
        changes = client.subscribe().start()
        reader = threading.Thread(target=lambda: list(changes))
        reader.start()
        changes.close()
        reader.join(20)
        assert not reader.is_alive()


def test_a_stream_of_a_site_that_is_not_there_does_not_begin(site: SiteThread) -> None:
    """Entering raises as a request does; what was not entered has no snapshot."""
    with SiteClient(site.url, timeout_s=0.1) as client:
        stream = client.subscribe()
        with pytest.raises(ClosedError):
            _ = stream.snapshot
        site.stop()
        with pytest.raises(RequestTimeoutError):
            stream.start()
    with pytest.raises(ClosedError):
        client.subscribe()


def test_what_cannot_be_followed_is_refused(client: Shell) -> None:
    """What cannot be asked is an error when the stream begins, and a bad time when it is given; the next call is
    served."""
    for more, says in (({"patterns": ["("]}, "without a"), ({"prefix": "x" * 600}, "allowed")):
        with pytest.raises(InvalidArgumentError, match=says):
            client.stream("subscribe", **more).__enter__()
    with client.stream("subscribe") as changes:
        for wrong in (float("nan"), "1", True):
            with pytest.raises(InvalidArgumentError, match="timeout must be seconds, not"):
                changes.get(wrong)
        client.set("key", "x")
        assert next_of(changes).key == "key"


async def test_a_client_that_waits_for_too_much_is_told_so(site: SiteThread) -> None:
    """One connection has a bounded number of requests that wait; the others are answered."""
    async with AsyncSiteClient(site.url) as client, client.subscribe() as changes:
        waiting = [asyncio.ensure_future(changes.get()) for _ in range(MAX_HELD_OF_LINK + 1)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION, timeout=20)
        assert any(isinstance(each.exception(), BusyError) for each in done)
        assert await client.get("key") is None
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


def test_peers_are_added_followed_and_removed(client: Shell, site: SiteThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site dials another one, syncs with it, and hangs up; a client that follows sees each step. The number of
    addresses that it dials is bounded."""
    assert (client.peers().peers, client.peers().unreached) == ({}, ())
    with SiteThread("rome") as rome, client.stream("follow_peers") as changes:
        assert changes.snapshot == {}
        rome.set_many({"of rome": b"x"})
        client.add_peer(rome.url)
        peers = next_of(changes)
        while peers["rome"].state != 2:
            peers = next_of(changes)
        assert (peers["rome"].is_connected, peers["rome"].urls) == (True, (rome.url,))
        assert client.get("of rome").value == b"x"
        assert client.summary().areas["default"]["peers_initialized"] == 1
        assert client.remove_peer(rome.url)
        assert next_of(changes) == {}
        with SiteClient(rome.url) as there:
            eventually(lambda: there.peers().peers == {})
        assert not client.remove_peer(rome.url)
        assert not client.remove_peer("rome")
    client.add_peer("tcp://127.0.0.1:1")
    assert client.peers().unreached == ("tcp://127.0.0.1:1",)
    with pytest.raises(InvalidArgumentError, match="addresses are"):
        client.add_peer("http://nowhere")
    monkeypatch.setattr("statestore_client.server.runtime.sites.MAX_DIALLED", 2)
    client.add_peer("tcp://127.0.0.1:2")
    with pytest.raises(InvalidArgumentError, match="dials 2 addresses"):
        client.add_peer("tcp://127.0.0.1:3")


def test_own_keys_and_numbers(client: Shell) -> None:
    """What the site keeps alive for its clients, and how much there is."""
    client.persist("persisted", "x")
    client.set("set", "x")
    client.merge({"foreign": Value(1, "oslo", b"x", INFINITE_TTL_MS)})
    eventually(lambda: len(client.own_keys()) == 2)
    own = client.own_keys()
    assert {key: (state.entry.value, state.is_persisted, state.is_contested) for key, state in own.items()} == {
        "persisted": (b"x", True, False),
        "set": (b"x", False, False),
    }
    summary = client.summary()
    assert summary.name == "bonn"
    assert (summary.areas["default"]["keys"], summary.areas["default"]["own_keys"]) == (3, 2)


def test_a_program_learns_that_another_site_has_taken_its_key(client: Shell, site: SiteThread) -> None:
    """By asking, by following, and by a callback; what it says anew is lost no more."""
    heard: list[LostKey] = []
    client.set("k", "mine")
    with client.stream("follow_lost_keys") as losses, client.stream("follow_lost_keys", heard.append) as _:
        assert losses.snapshot == {}
        client.merge({"k": Value(7, "rome", b"theirs")})
        loss = LostKey("default", "k", "rome", 7)
        assert next_of(losses) == loss
        assert client.lost_keys() == {"k": loss}
        assert client.summary().areas["default"]["lost_keys"] == 1
        if isinstance(client.made, Looped):
            client.made.runner.run(until(lambda: heard == [loss]))
        eventually(lambda: heard == [loss])
        site.stop()
        site.start()
        assert losses.get(0.01) is None
        client.set("k", "mine")
        client.merge({"k": Value(9, "oslo", b"theirs")})
        assert next_of(losses) == LostKey("default", "k", "oslo", 9)
    with client.stream("follow_lost_keys") as losses:
        assert list(losses.snapshot) == ["k"]
    client.set("k", "mine")
    assert client.lost_keys() == {}


def test_a_client_waits_until_the_site_has_synced(client: Shell, site: SiteThread) -> None:
    """One that dials nobody has nothing to wait for; one that dials Rome has, until Rome is there."""
    assert client.wait_synced(20)
    assert client.is_synced()
    site.stop()
    with SiteThread("rome") as rome:
        site.start(peers=(rome.url,))
        assert client.wait_synced(20)
        site.stop()
    site.start()
    assert not client.wait_synced(0.01)
    assert not client.is_synced()


# -- what ends otherwise than by closing -------------------------------------------------------------------------------


def _said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, type[BaseException] | None]]:
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    return [(record.getMessage(), record.exc_info and record.exc_info[0]) for record in records]


def test_what_ends_a_stream_with_a_callback_is_in_the_log_and_at_the_stream(
    site: SiteThread, caplog: pytest.LogCaptureFixture
) -> None:
    """The site comes back without the area, say: nobody reads the stream, so nobody else would hear of it."""
    with SiteClient(site.url, timeout_s=0.5) as client, client.subscribe(callback=lambda _change: None) as stream:
        assert stream.error is None
        site.stop()
        site.start(areas=("elsewhere",))
        eventually(lambda: stream.error is not None)
        assert isinstance(stream.error, InvalidArgumentError)
    assert _said(caplog) == [(f"the stream of the site at {site.url} has ended", InvalidArgumentError)]


async def test_what_ends_an_asyncio_stream_with_a_callback_is_in_the_log_and_at_the_stream(
    site: SiteThread, caplog: pytest.LogCaptureFixture
) -> None:
    """The same."""
    async with AsyncSiteClient(site.url) as client, client.subscribe(callback=lambda _change: None) as stream:
        site.stop()
        site.start(areas=("elsewhere",))
        await until(lambda: stream.error is not None)
        assert isinstance(stream.error, InvalidArgumentError)
    assert _said(caplog) == [(f"the stream of the site at {site.url} has ended", InvalidArgumentError)]


def test_a_socket_that_fails_is_an_error_at_once_and_the_next_request_has_another(site: SiteThread) -> None:
    """Here somebody has closed it. What only reads cannot have been applied."""
    with SiteClient(site.url) as client:
        for ask, may_have_been_applied in ((partial(client.get, "k"), False), (partial(client.set, "k", b"v"), True)):
            ask()
            client._link._socket.close()
            with pytest.raises(ConnectionLostError, match="the socket for the site at") as failure:
                ask()
            assert failure.value.may_have_been_applied is may_have_been_applied
        entry = client.get("k")
        assert entry is not None
        assert entry.value == b"v"


async def test_requests_under_way_hear_of_a_socket_that_fails() -> None:
    """They do not wait until their time is over, and the next one has another socket."""
    asked: list[int] = []

    def keep_silent(number: int) -> list[bytes]:
        asked.append(number)
        return []

    with contextlib.closing(Impostor()) as impostor:
        impostor.answer = keep_silent
        async with AsyncSiteClient(impostor.url, timeout_s=600.0) as client:
            waiting = [asyncio.create_task(ask) for ask in (client.get("k"), client.set("k", b"w"))]
            await until(lambda: len(asked) == 2)
            client._link._socket.close()
            async with asyncio.timeout(20):
                failed = await asyncio.gather(*waiting, return_exceptions=True)
            assert [(type(each), each.may_have_been_applied) for each in failed] == [  # type: ignore[union-attr]
                (ConnectionLostError, False),
                (ConnectionLostError, True),
            ]
            impostor.answer = lambda number: [encode(Found(number, {}))]
            assert await client.get("k") is None
