"""The official Rust SDK's state store, lease and lock clients against our server, and against a store that is hosted on
mosquitto or HiveMQ CE, beside our clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import attrs
import pytest
from foreign_brokers import HIVEMQ, MOSQUITTO, ForeignBroker, hosted_store, skip_without
from rust_sdk import Change, RustClient, RustSdkError
from support.shells import Shell
from support.waiting import until

from statestore_client import FencingTokenTooOldError
from statestore_client.server import EmbeddedServer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]  # the first build takes a minute

Start = Callable[[str], RustClient]


@attrs.frozen
class Hosted:
    """A store on another broker."""

    url: str

    @property
    def port(self) -> int:
        """Of the broker."""
        return int(self.url.rpartition(":")[2])


Place: TypeAlias = EmbeddedServer | Hosted

#: These take a store wherever it is. The hosted ones take turns.
anywhere = pytest.mark.parametrize(
    "place",
    [
        pytest.param(None, id="served"),
        *(
            pytest.param(kind, id=kind.name, marks=(pytest.mark.ci, pytest.mark.turns(3)))
            for kind in (MOSQUITTO, HIVEMQ)
        ),
    ],
    indirect=True,
)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The store; our server's, if the test does not say otherwise."""
    kind: ForeignBroker | None = getattr(request, "param", None)
    if kind is None:
        yield request.getfixturevalue("server")
        return
    skip_without(kind)
    lines = ("set_tcp_nodelay true",) if kind is MOSQUITTO else ()
    with kind.running(tmp_path, *lines) as url, hosted_store(url, tmp_path / "data"):
        yield Hosted(url)


@pytest.fixture
def start(rust_program: Path, place: Place) -> Iterator[Start]:
    """Start an application on the SDK, by its client id."""
    with ExitStack() as running:
        yield lambda client_id: running.enter_context(RustClient(rust_program, place.port, client_id))


@pytest.fixture
def rust(start: Start) -> RustClient:
    return start("rust-app")


def _asked(server: EmbeddedServer, client_id: str, *words: bytes) -> bool:
    """Whether the server has got such a request from a client."""
    sent = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return any(m.client_id == client_id and sent in m.payload for m in server.messages)


@anywhere
async def test_values_and_versions_are_the_same_for_both(shell: Shell, place: Place, rust: RustClient) -> None:
    """What the SDK or our client writes, the other reads with the same version, and a missing key has none."""
    async with shell.client(place.url) as store:
        assert (rust.get(b"k").value, rust.get(b"k").version) == (None, None)
        written = rust.set(b"k", b"\x00of rust\r\n")
        item = await store.get("k")
        assert (item.value, str(item.version)) == (b"\x00of rust\r\n", written.version)
        ours = await store.set("k", b"of python")
        theirs = rust.get(b"k")
        assert (theirs.value, theirs.version) == (b"of python", str(ours.version))
        assert rust.delete(b"k").value == 1
        assert await store.get("k") is None


@anywhere
def test_conditions_and_deletions(rust: RustClient) -> None:
    """NX, NEX, DEL and VDEL say in the SDK's types whether they were applied, for empty and large values too."""
    assert rust.set(b"k", b"1", condition="nx").value is True
    assert rust.set(b"k", b"2", condition="nx").value is False
    assert rust.set(b"k", b"2", condition="nex").value is False
    assert rust.set(b"k", b"1", condition="nex", expiry_ms=60_000).value is True
    assert rust.vdelete(b"k", b"2").value == -1
    assert rust.vdelete(b"k", b"1").value == 1
    assert rust.vdelete(b"k", b"1").value == 0
    assert rust.delete(b"k").value == 0
    rust.set(b"k", b"")
    assert rust.get(b"k").value == b""
    rust.set(b"k" * 6_500, b"v" * 200_000)
    assert rust.get(b"k" * 6_500).value == b"v" * 200_000


async def test_an_expired_key_is_gone_for_the_sdk(server: EmbeddedServer, rust: RustClient) -> None:
    """The SDK's observer is told DELETE when a key expires."""
    rust.observe(b"k")
    rust.set(b"k", b"v", expiry_ms=60_000)
    assert rust.notification(b"k").value == b"v"
    server.clock.advance(61, keep_alive=False)
    assert rust.notification(b"k").value is None
    assert rust.get(b"k").value is None


@anywhere
async def test_all_keys_are_listed(shell: Shell, place: Place, rust: RustClient) -> None:
    """The SDK's pager yields each matching key over several pages, and ends."""
    keys = [f"line/{number:04}" for number in range(2_500)]
    async with shell.client(place.url) as store:
        await store.set_many([(key, b"") for key in [*keys, "other"]])
    assert sorted(rust.keys(b"line/*")) == [key.encode() for key in keys]


@anywhere
async def test_changes_reach_an_observer(shell: Shell, place: Place, rust: RustClient) -> None:
    """The SDK's observer gets each change once, in order, with the writer's version, and nothing after it ends."""
    rust.observe(b"k")
    with pytest.raises(RustSdkError, match=r"^DuplicateObserve$"):
        rust.observe(b"k")
    async with shell.client(place.url) as store:
        first = await store.set("k", b"1")
        second = await store.set("k", b"2")
        deleted = await store.delete("k")
        assert deleted.count == 1
        assert rust.notification(b"k") == Change(b"k", b"1", str(first.version))
        assert rust.notification(b"k") == Change(b"k", b"2", str(second.version))
        assert rust.notification(b"k").value is None
        assert rust.unobserve(b"k") is True
        assert rust.unobserve(b"k") is False
        await store.set("k", b"unseen")
        rust.observe(b"k")
        last = await store.set("k", b"3")
        assert rust.notification(b"k") == Change(b"k", b"3", str(last.version))


@anywhere
def test_refusals_have_their_names(rust: RustClient) -> None:
    """The SDK knows each error text of our server as one of its kinds."""
    old = rust.acquire(b"job")
    rust.release(b"job")
    token = rust.acquire(b"job")
    rust.set(b"guarded", b"v", token=token)
    with pytest.raises(RustSdkError, match=r"^ServiceError\(FencingTokenLowerVersion\)$"):
        rust.set(b"guarded", b"late", token=old)
    for write in (lambda: rust.set(b"guarded", b"bare"), lambda: rust.delete(b"guarded")):
        with pytest.raises(RustSdkError, match=r"^ServiceError\(MissingFencingToken\)$"):
            write()
    years_ahead = f"{int(token[:15]) + 10 * 365 * 86_400_000:015}{token[15:]}"
    with pytest.raises(RustSdkError, match=r"^ServiceError\(FencingTokenSkew\)$"):
        rust.set(b"other", b"v", token=years_ahead)
    assert rust.vdelete(b"guarded", b"v", token=token).value == 1


async def test_a_lock_goes_from_rust_to_python_and_back(shell: Shell, server: EmbeddedServer, rust: RustClient) -> None:
    """A waiter on either side gets the lock by the other's release, with a newer token; former holders' late writes are
    refused."""
    token = await asyncio.to_thread(rust.lock, b"job")
    rust.set(b"state", b"rust's", token=token)
    async with shell.client(server.url, client_id="python-app") as store:
        lock = store.lock("job")
        assert await lock.holder() == b"rust-app"
        assert await lock.try_acquire() is None
        waiting = asyncio.ensure_future(lock.acquire(timeout=30))
        await until(lambda: _asked(server, "python-app", b"KEYNOTIFY", b"job"), "our client waits for the lock")
        await asyncio.to_thread(rust.unlock, b"job")
        lease = await waiting
        assert str(lease.fencing_token) > token
        await store.guarded(lease).set("state", b"python's")
        with pytest.raises(RustSdkError, match="FencingTokenLowerVersion"):
            rust.set(b"state", b"late", token=token)
        assert rust.holder(b"job") == lease.holder

        back = asyncio.ensure_future(asyncio.to_thread(rust.lock, b"job"))
        await until(
            lambda: _asked(server, "rust-app", b"KEYNOTIFY", b"job", b"STOP"), "the first lock's observation ends"
        )
        assert await lock.release()
        newest = await back
        assert newest > str(lease.fencing_token)
        assert await lock.holder() == b"rust-app"
        rust.set(b"state", b"rust's again", token=newest)
        with pytest.raises(FencingTokenTooOldError):
            await store.set("state", b"late", fencing_token=lease.fencing_token)


@anywhere
async def test_a_renewed_lease_stays_with_rust(shell: Shell, place: Place, rust: RustClient) -> None:
    """The SDK's lease renews itself with newer tokens, and nobody else gets the lock meanwhile."""
    first = rust.acquire(b"job", expiry_ms=20_000, renewal_ms=50)
    await until(lambda: (rust.token(b"job") or "") > first, "a renewal")
    async with shell.client(place.url) as store:
        assert await store.lock("job").try_acquire() is None
        newest = rust.token(b"job")
        rust.release(b"job")
        lease = await store.lock("job").acquire(timeout=20)
        assert newest is not None
        assert str(lease.fencing_token) > newest


async def test_python_succeeds_a_rust_holder_that_was_killed(
    shell: Shell, server: EmbeddedServer, start: Start
) -> None:
    """A Python waiter gets the lock of a killed SDK holder when its lease is over, and not before."""
    rust = start("rust-app")
    token = rust.acquire(b"job", expiry_ms=3_600_000)
    rust.kill()
    async with shell.client(server.url) as store:
        assert await store.lock("job").try_acquire() is None
        server.clock.advance(3_601, keep_alive=False)
        lease = await store.lock("job").acquire(timeout=20)
        assert str(lease.fencing_token) > token


async def test_rust_succeeds_a_python_holder_that_is_gone(
    shell: Shell, server: EmbeddedServer, rust: RustClient
) -> None:
    """When a Python holder is gone, its lease runs out and the server says DELETE, by which the SDK's waiter hears of
    it."""
    async with shell.client(server.url) as store:
        lease = await store.lock("job", lease=3_600.0).acquire()
        token = str(lease.fencing_token)
        waiting = asyncio.ensure_future(asyncio.to_thread(rust.lock, b"job"))
        await until(lambda: _asked(server, "rust-app", b"SET", b"job", b"rust-app"), "the SDK asks for the lock")
        server.clock.advance(3_601, keep_alive=False)
        assert await waiting > token


async def test_the_sdk_comes_back_after_a_restart(shell: Shell, server: EmbeddedServer, rust: RustClient) -> None:
    """After a restart the SDK's session is resumed and its requests go on; observations end with the connection and can
    be made anew."""
    rust.observe(b"k")
    await asyncio.to_thread(server.restart, keep_state=True)
    await asyncio.to_thread(rust.set, b"other", b"after")
    rust.observe(b"k")
    async with shell.client(server.url) as store:
        assert (await store.get("other")).value == b"after"
        written = await store.set("k", b"seen")
        assert await asyncio.to_thread(rust.notification, b"k") == Change(b"k", b"seen", str(written.version))
