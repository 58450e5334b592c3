"""Clients of a site of the KvStore, blocking and asyncio, against real sites on sockets, and against an impostor."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dropped import unclosed
from support.interruptions import interrupting, is_free, needs_timer
from support.ports import reserved_port
from support.sites import SHELLS, Impostor, Looped, SiteThread
from support.waiting import eventually, until

from statestore_client.errors import (
    BusyError,
    ClosedError,
    ForkedClientError,
    InvalidArgumentError,
    NotMergedError,
    RemoteProtocolError,
    RequestTimeoutError,
    SettingsError,
    UnexpectedReplyError,
)
from statestore_client.kvstore import AsyncSiteClient, Differences, NoMergeReason, SiteClient, Value
from statestore_client.kvstore.calls import pattern_of
from statestore_client.server.kvstore.patterns import KeyFilter
from statestore_client.server.runtime.settings import SiteEndpoints
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import Failure, Found, Message, SetResult
from statestore_client.wire.kvstore.value import hash_of


@pytest.fixture(params=SHELLS, ids=lambda shell: shell.__name__)
def client_of(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of one shell, and closes them."""
    made: list[Any] = []

    def make(url: str, **more: Any) -> Any:
        made.append(request.param(url, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()
        if isinstance(each, Looped):
            each.runner.close()


@pytest.fixture
def site() -> Iterator[SiteThread]:
    """One site."""
    with SiteThread() as one:
        yield one


def test_what_one_client_has_said_another_site_tells(client_of: Callable[..., Any], site: SiteThread) -> None:
    """Set, persist, refresh, unset, clear and erase at one site; get and dump at another one."""
    with SiteThread("rome", site.url) as rome:
        here, there = client_of(site.url), client_of(rome.url)
        assert there.get("k") is None
        assert (here.clear("k"), here.erase("k"), here.refresh("k", 9000)) == (False, False, False)
        here.set("k", "1", version=5, ttl_ms=60_000)
        eventually(lambda: there.get("k") is not None)
        entry = there.get("k")
        assert (entry.version, entry.originator, entry.value) == (5, "bonn", b"1")
        assert 50_000 < entry.ttl_ms <= 60_000
        assert here.refresh("k", 90_000) is True
        eventually(lambda: there.get("k").ttl_ms > 80_000)
        here.persist("p", b"2")
        eventually(lambda: set(there.dump()) == {"k", "p"})
        here.unset("p", "last")
        eventually(lambda: there.get("p").value == b"last")
        assert here.clear("p") is False
        assert (here.clear("k"), here.erase("k")) == (True, True)


def test_dumps_and_hashes(client_of: Callable[..., Any], site: SiteThread) -> None:
    """By prefix, which means itself, by patterns, and by sites; hashes have no values."""
    site.set_many({"a.b": b"1", "axb": b"2", "b": b"3"})
    client = client_of(site.url)
    assert set(client.dump()) == {"a.b", "axb", "b"}
    assert set(client.dump("a.")) == {"a.b"}
    assert set(client.dump(patterns=["a.b", "b"])) == {"a.b", "axb", "b"}
    assert set(client.dump("a.", originators=["bonn"], match_all=True)) == {"a.b"}
    assert set(client.dump(originators=["rome"])) == set()
    (entry,) = client.hashes("b").values()
    assert entry.value is None
    assert entry.hash == hash_of(1, "bonn", b"3")


def test_differences_are_what_a_sync_would_carry(client_of: Callable[..., Any], site: SiteThread) -> None:
    """What is newer at the site comes with its value; what is newer in the program is named."""
    site.set_many({"same": b"1", "there": b"2", "newer there": b"3", "older there": b"4", "odd": b"5"})
    client = client_of(site.url)
    known = {
        "same": Value(1, "bonn", b"1"),
        "newer there": Value(1, "aachen", b"3"),
        "older there": Value(2, "bonn", b"4"),
        "here": Value(1, "bonn", b"6"),
        "odd": Value(1, "bonn", b"7"),
    }
    found = client.differences(known)
    assert {key: entry.value for key, entry in found.newer.items()} == {
        "there": b"2",
        "newer there": b"3",
        "odd": b"5",
    }
    assert found.older == ("here", "odd", "older there")
    assert client.differences(client.hashes()) == Differences({}, ())
    assert client.differences({"same": known["same"]}, "same") == Differences({}, ())
    assert client.merge({key: known[key] for key in found.older}) == {}


async def test_one_client_is_for_several_areas() -> None:
    """In one call, or in each area as if it were the only one, over one connection."""
    with SiteThread(areas=("default", "plant")) as site, SiteClient(site.url) as client:
        plant = client.in_area("plant")
        client.set("k", "1")
        plant.set("k", "2")
        found = client.dump_areas()
        assert {area: entries["k"].value for area, entries in found.items()} == {"default": b"1", "plant": b"2"}
        assert set(client.dump_areas(["plant"], "k", hashes=True)["plant"]) == {"k"}
        assert client.dump_areas((), "k") == {}
        with pytest.raises(InvalidArgumentError, match="no area 'nowhere'"):
            client.dump_areas(["nowhere"])
        with plant.subscribe() as changes:
            assert changes.snapshot["k"].value == b"2"
        async with AsyncSiteClient(site.url) as other:
            assert (await other.in_area("plant").get("k")).value == b"2"
            assert list(await other.dump_areas(["plant", "default"])) == ["plant", "default"]
        plant.close()
        with pytest.raises(ClosedError):
            client.get("k")


def test_what_does_not_fit_into_one_message_is_read_in_parts(client_of: Callable[..., Any], site: SiteThread) -> None:
    """3 MB of values, all at once and key by key."""
    values = {f"k{n}": bytes(3000) for n in range(1000)}
    site.set_many(values)
    client = client_of(site.url)
    assert {key: entry.value for key, entry in client.dump().items()} == values
    wanted = [*values, "nothing", "k1"]
    assert {key: entry.value for key, entry in client.get_many(wanted).items()} == values
    assert client.get_many([]) == {}


def test_what_a_site_does_not_take_is_an_error(client_of: Callable[..., Any], site: SiteThread) -> None:
    """With the reason, the key, and nothing changed; what cannot be asked is the caller's mistake."""
    client = client_of(site.url)
    client.set("k", b"v", version=2)
    with pytest.raises(NotMergedError, match="'k': OLD_VERSION") as caught:
        client.set("k", b"w", version=1)
    assert (caught.value.key, caught.value.reason) == ("k", NoMergeReason.OLD_VERSION)
    with pytest.raises(NotMergedError, match="INVALID_VERSION"):
        client.set("k", b"w", version=2**62 + 1)
    with pytest.raises(InvalidArgumentError, match="a TTL of 1 ms"):
        client.set("k", b"w", ttl_ms=1)
    for wrong in ({"version": -1}, {"ttl_ms": -5}):
        with pytest.raises(InvalidArgumentError, match="must be a positive integer"):
            client.set("k", b"w", **wrong)
    with pytest.raises(InvalidArgumentError, match="and not one text"):
        client.get_many("k")
    with pytest.raises(InvalidArgumentError, match="a message of"):
        client.set("k", bytes(2 << 20))
    with pytest.raises(InvalidArgumentError):
        client.dump(patterns=["("])
    assert client.get("k").value == b"v"
    with pytest.raises(InvalidArgumentError, match="no area 'x'"):
        client_of(site.url, area="x").get("k")


def test_an_address_that_cannot_be_is_refused(client_of: Callable[..., Any]) -> None:
    """With what an address looks like."""
    for url in (
        "", "127.0.0.1:1", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "http://127.0.0.1:1", "tcp://\udcff:1", "tcp://a:1;b:2",
        "tcp://127.0.0.1:1\0", "ipc:///tmp/a\0b", f"tcp://{'a' * 300}:1",
    ):  # fmt: skip
        with pytest.raises(SettingsError, match="addresses are tcp://host:port or ipc://path"):
            client_of(url).get("k")


def test_settings_that_cannot_be_are_refused(client_of: Callable[..., Any]) -> None:
    """When the client is made, not deep inside its first call."""
    for wrong in (0, -1, float("nan"), float("inf"), 1e308, None, "1", True):
        with pytest.raises(SettingsError, match="must be positive"):
            client_of("tcp://127.0.0.1:1", timeout_s=wrong)
    with pytest.raises(SettingsError, match="url must be a text, not NoneType"):
        client_of(None)
    with pytest.raises(SettingsError, match="keys must be ClientKeys, not str"):
        client_of("tcp://127.0.0.1:1", keys="keys")
    with pytest.raises(InvalidArgumentError, match="area must be a text, not int"):
        client_of("tcp://127.0.0.1:1", area=5)
    assert "tcp://127.0.0.1:1" in repr(client_of("tcp://127.0.0.1:1").client)


#: What programs write by mistake, and what they are told.
_MISTAKES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda client: client.get(b"k"), "key must be a text, not bytes"),
    (lambda client: client.get("\udcff"), "surrogates"),
    (lambda client: client.get_many("k"), "keys must be several texts, and not one"),
    (lambda client: client.get_many(None), "keys must be several texts, not NoneType"),
    (lambda client: client.get_many([b"k"]), "each of keys must be a text, not bytes"),
    (lambda client: client.dump(patterns="abc"), "patterns must be several texts, and not one"),
    (lambda client: client.subscribe(5), "prefix must be a text, not int"),
    (lambda client: client.subscribe(originators="abc"), "originators must be several texts, and not one"),
    (lambda client: client.set("k", "\udcff"), "the value of 'k'.*surrogates"),
    (lambda client: client.set("k", 5), "value must be bytes"),
    (lambda client: client.set("k", b"v", version="1"), "version is '1'; it must be a positive integer"),
    (lambda client: client.set("k", b"v", version=2**64), "out of range"),
    (lambda client: client.refresh("k", 2000.5), "ttl_ms is 2000.5; it must be a positive integer"),
    (lambda client: client.refresh("k", 10**40), "out of range"),
    (lambda client: client.differs({}, timeout_s=None), "timeout_s must be seconds, not None"),
    (lambda client: client.differs(None), "known must be a mapping, not NoneType"),
    (lambda client: client.differs({"k": b"v"}), "the entry of 'k' must be a Value, not bytes"),
    (lambda client: client.differs({"k": Value(1, "a", "v")}), "the value of 'k' must be bytes or None, not str"),
    (lambda client: client.differs({"k": Value("1", "a", b"v")}), "the version of 'k' must be an integer, not '1'"),
    (lambda client: client.differs({"k": Value(1, b"a", b"v")}), "the originator of 'k' must be a text, not bytes"),
    (lambda client: client.merge([]), "entries must be a mapping, not list"),
    (lambda client: client.merge({5: Value(1, "a", b"v")}), "each key must be a text, not int"),
]


def test_arguments_of_a_wrong_kind_are_refused(client_of: Callable[..., Any], site: SiteThread) -> None:
    """With what they should be; the site has nothing of it."""
    client = client_of(site.url)
    for ask, told in _MISTAKES:
        with pytest.raises(InvalidArgumentError, match=told):
            ask(client)
    assert not client.dump()


def test_nobody_there(client_of: Callable[..., Any]) -> None:
    """A request that could not leave was certainly not carried out."""
    client = client_of(f"tcp://127.0.0.1:{reserved_port()}", timeout_s=0.1)
    with pytest.raises(RequestTimeoutError, match="cannot be reached within") as caught:
        client.set("k", b"v")
    assert not caught.value.may_have_been_applied


def test_a_site_that_was_started_again_is_found_again(client_of: Callable[..., Any], site: SiteThread) -> None:
    """By the same client; what the site kept alive has gone with it."""
    client = client_of(site.url, timeout_s=10)
    client.persist("k", b"v")
    site.stop()
    site.start()
    assert client.get("k") is None
    client.persist("k", b"w")
    eventually(lambda: client.get("k") is not None)


def test_a_closed_client_says_so(client_of: Callable[..., Any], site: SiteThread) -> None:
    """A client can be closed twice, and without having been used."""
    client = client_of(site.url)
    client.get("k")
    client.close()
    client.close()
    with pytest.raises(ClosedError, match=site.url):
        client.get("k")
    unused = client_of(site.url)
    unused.close()
    with pytest.raises(ClosedError):
        unused.get("k")


def test_threads_share_a_client(site: SiteThread) -> None:
    """Each gets its own answer."""
    with SiteClient(site.url) as client:
        site.set_many({f"k{n}": b"%d" % n for n in range(8)})
        wrong: list[int] = []

        def read(number: int) -> None:
            for _ in range(50):
                entry = client.get(f"k{number}")
                if entry is None or entry.value != b"%d" % number:
                    wrong.append(number)

        threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


async def test_many_requests_at_once(site: SiteThread) -> None:
    """Each gets its own answer."""
    site.set_many({f"k{n}": b"%d" % n for n in range(200)})
    async with AsyncSiteClient(site.url) as client:
        entries = await asyncio.gather(*(client.get(f"k{n}") for n in range(200)))
    assert [entry and entry.value for entry in entries] == [b"%d" % n for n in range(200)]


def test_another_loop_is_refused(site: SiteThread) -> None:
    """A client belongs to the loop that used it first."""
    client = AsyncSiteClient(site.url)
    with asyncio.Runner() as runner:
        runner.run(client.get("k"))
        with asyncio.Runner() as other, pytest.raises(BusyError, match="event loop"):
            other.run(client.get("k"))
        runner.run(client.close())


def test_a_forked_process_is_refused(site: SiteThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is that of the parent."""
    with SiteClient(site.url) as client:
        client.get("k")
        parent = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            with pytest.raises(ForkedClientError):
                client.get("k")
        client.get("k")


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_prefix_means_itself(prefix: str, other: str) -> None:
    """Whatever is in it, its pattern takes what begins with it, and nothing else."""
    wanted = KeyFilter([pattern_of(prefix)])
    assert wanted.matches_key(prefix + other)
    assert wanted.matches_key(other) == other.startswith(prefix)


# -- a site that does not answer, or not as it should ------------------------------------------------------------------


@pytest.fixture
def impostor() -> Iterator[Impostor]:
    """It."""
    one = Impostor()
    yield one
    one.close()


def test_a_site_that_does_not_answer(client_of: Callable[..., Any], impostor: Impostor) -> None:
    """A change may have been carried out, a read changes nothing. Replies to others, late ones, and what is no message
    of this protocol are passed over."""
    client = client_of(impostor.url, timeout_s=0.3)
    impostor.answer = lambda number: [b"", b"\x91\x02", encode(Found(number + 7, {})), b"\xc1"]
    with pytest.raises(RequestTimeoutError, match="has not answered") as caught:
        client.set("k", b"v")
    assert caught.value.may_have_been_applied
    with pytest.raises(RequestTimeoutError) as caught:
        client.get("k")
    assert not caught.value.may_have_been_applied
    impostor.answer = lambda number: [
        encode(Found(number - 1, {"k": Value(1, "x", b"old")})),
        encode(Found(number, {})),
    ]
    assert client.get("k") is None


def test_what_was_asked_on_a_connection_that_is_lost_is_asked_again(
    client_of: Callable[..., Any], impostor: Impostor
) -> None:
    """Reads end on the next connection, as soon as it stands. What may have been done is not asked for twice: it ends
    with its time, and says so."""
    asked: list[int] = []

    def answer(number: int) -> list[bytes] | None:
        asked.append(number)
        return None if asked.count(number) < 3 else [encode(Found(number, {"k": Value(1, "x", b"v")}))]

    impostor.answer = answer
    client = client_of(impostor.url, timeout_s=20)
    assert client.get("k").value == b"v"
    assert len(asked) == 3
    asked.clear()
    other = client_of(impostor.url, timeout_s=0.5)
    with pytest.raises(RequestTimeoutError) as caught:
        other.set("k", b"v")
    assert caught.value.may_have_been_applied
    assert len(asked) == 1


def test_replies_that_make_no_sense_are_errors(client_of: Callable[..., Any], impostor: Impostor) -> None:
    """A reply of the wrong kind, or one that never comes to an end, is never taken for an answer; nor is an unknown
    reason."""
    replies: list[tuple[Callable[[int], Message], type[Exception]]] = [
        (lambda number: SetResult(number, {}), UnexpectedReplyError),
        (lambda number: Found(number, {}, 0), UnexpectedReplyError),
        (lambda number: Failure(number, 1, "what?"), RemoteProtocolError),
        (lambda number: Failure(number, 99, "what?"), RemoteProtocolError),
    ]
    client = client_of(impostor.url)
    for reply, error in replies:
        impostor.answer = lambda number, reply=reply: [encode(reply(number))]  # type: ignore[misc]
        for ask in (client.dump, lambda: client.get("k")):
            with pytest.raises(error):
                ask()
    impostor.answer = lambda number: [encode(SetResult(number, {"k": 77}))]
    with pytest.raises(NotMergedError, match="77"):  # a reason of a newer release
        client.persist("k", b"v")


def test_closing_ends_a_call_in_another_thread(impostor: Impostor) -> None:
    """It does not wait for its time to be over."""
    client = SiteClient(impostor.url, timeout_s=60)
    errors: list[Exception] = []

    def call() -> None:
        try:
            client.get("k")
        except ClosedError as error:
            errors.append(error)

    asked = threading.Event()
    impostor.answer = lambda _number: asked.set() or []  # type: ignore[func-returns-value]  # it is called for that
    thread = threading.Thread(target=call)
    thread.start()
    assert asked.wait(20)
    client.close()
    thread.join(20)
    assert len(errors) == 1


def test_a_signal_handler_on_top_of_a_call_does_not_wait_for_it(impostor: Impostor) -> None:
    """A handler that interrupts a call of its thread is refused; it may close the client, which ends that call."""
    client = SiteClient(impostor.url, timeout_s=20)
    refused: list[BusyError] = []

    def handler(*_: object) -> None:
        try:
            client.get("k")
        except BusyError as error:
            refused.append(error)
        client.close()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        # When the request is there, its thread waits for the answer.
        impostor.answer = lambda _number: os.kill(os.getpid(), signal.SIGUSR1) or []  # type: ignore[func-returns-value]
        with pytest.raises(ClosedError):
            client.get("k")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "a signal handler" in str(refused[0])
    assert client._link._context is None


@needs_timer
def test_a_call_that_is_interrupted_at_any_moment_hinders_no_other(site: SiteThread) -> None:
    """After an exception from a signal handler at any moment of its calls, all threads can use the client."""
    with SiteClient(site.url) as client, interrupting() as interrupted:
        client.set("k", b"1")
        assert sum(interrupted(lambda: client.get("k"), 0.002) for _ in range(60)) > 40
        assert is_free(lambda: client.get("k"))
        assert client.get("k") is not None


async def test_tasks_share_a_client_and_one_may_give_up(impostor: Impostor) -> None:
    """A call that is cancelled leaves nothing behind, and closing ends the others."""
    asked: list[int] = []
    impostor.answer = lambda number: asked.append(number) or []  # type: ignore[func-returns-value]  # it is called for that
    client = AsyncSiteClient(impostor.url, timeout_s=60)
    calls = [asyncio.create_task(client.get(f"k{n}")) for n in range(3)]
    await until(lambda: len(asked) == 3)
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    impostor.answer = lambda number: [encode(Found(number, {}))]
    assert await client.get("other") is None
    await client.close()
    for call in calls[1:]:
        with pytest.raises(ClosedError, match="closed meanwhile"):
            await call


def test_a_site_that_cannot_be_is_refused() -> None:
    """With a typed error, whatever it is."""
    wrongs: list[dict[str, Any]] = [
        *({"name": name} for name in (5, "", "a\ud800")),
        {"listen": 5},
        *({"peers": peers} for peers in ("tcp://127.0.0.1:1", (5,))),
        *({"areas": areas} for areas in ("default", (5,), (), ("a", "a"))),
        *(
            {"exports": exports}
            for exports in ("line/", (b"line/",), ("",), ("sites/",), ("sites/rome/line/",), ("a\ud800",))
        ),
        {"imports": 1},
        {"imports": True, "name": "a/b"},
        {"exports": ("line/",), "name": "a/b"},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidArgumentError):
            SiteEndpoints(**{"name": "a", "listen": "tcp://127.0.0.1:1"} | wrong)


@pytest.mark.usefixtures("remains_of_loops")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_client_whose_loop_is_closed_can_be_ended(site: SiteThread) -> None:
    """Closing frees the sockets of a client and of a stream whose loop is closed."""
    client = AsyncSiteClient(site.url)

    async def begin() -> Any:
        stream = await client.subscribe(callback=lambda _change: None).start()
        await client.dump()
        return stream

    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(begin())
    loop.close()
    contexts = [link._context for link in (client._link, stream._link)]

    async def end() -> None:
        await stream.close()
        await client.close()
        with pytest.raises(ClosedError):
            await client.dump()

    asyncio.run(end())
    assert [context is not None and context.closed for context in contexts] == [True, True]


async def test_a_dropped_client_ends(site: SiteThread) -> None:
    """A client or a stream that was dropped closes its socket, and a warning says so."""
    site.set_many({"k": b"v"})
    with unclosed("client of the site at "):
        SiteClient(site.url).get("k")
    with unclosed("client of the site at "):
        stream = SiteClient(site.url).subscribe().start()
        assert stream.snapshot
        del stream
    tasks = asyncio.all_tasks()
    with unclosed("client of the site at "):
        await AsyncSiteClient(site.url).get("k")
        await asyncio.sleep(0)  # the turn in which the client ends
    await until(lambda: asyncio.all_tasks() <= tasks)
    with unclosed():
        async with AsyncSiteClient(site.url) as client, client.subscribe() as changes:
            assert changes.snapshot
        with SiteClient(site.url) as other:
            other.get("k")
        del client, other, changes
