"""Sites with real sockets: they find each other, are equal when it is calm, and come back after any loss."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import logging
import math
import os
import resource
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio
from support.keys import make_keys
from support.ports import reserved_port
from support.sites import SiteThread
from support.waiting import eventually, until

from statestore_client.errors import ClosedError, InvalidArgumentError, SettingsError
from statestore_client.kvstore import LostKey, SiteClient
from statestore_client.server import EmbeddedServer, Hooks, SiteSynced
from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.floods import FloodRate
from statestore_client.server.kvstore.members import DOWN_S, SiteSettings
from statestore_client.server.kvstore.peers import SyncWaits
from statestore_client.server.kvstore.replica import Replica
from statestore_client.server.runtime import sites
from statestore_client.server.runtime.security import site_keys
from statestore_client.server.runtime.security.site_keys import SiteKeys
from statestore_client.server.runtime.settings import SiteEndpoints
from statestore_client.server.runtime.sites import SitePeering
from statestore_client.server.runtime.transport.site_sockets import Came, ConnectionChanged, SiteSockets
from statestore_client.wire.kvstore.codec import decode, encode
from statestore_client.wire.kvstore.messages import MAX_MESSAGE, ChangePeer, Failure, GetSummary, Hello, Set
from statestore_client.wire.kvstore.value import Value

_ANYWHERE = "tcp://127.0.0.1:*"
_seeds = Random(1)


async def test_two_sites_become_equal_through_one_connection() -> None:
    """The site that dials gets what the other one has, and the other way round; what is set later comes at once."""
    async with nodes("x", "y") as (x, y):
        x.set("only-x", b"1")
        y.set("only-y", b"2")
        x.set("both", b"old", version=1)
        y.set("both", b"new", version=2)
        x.dial(y)
        await until(lambda: x.keys() == y.keys() == {"only-x", "only-y", "both"})
        assert x.value("both") == b"new"
        y.set("later", b"3")
        await until(lambda: x.value("later") == b"3")


def test_a_new_peering_syncs_once() -> None:
    """The hello that was said when the address was dialled, and the one when the connection stood, are one beginning.

    Each site has a thread, as the second hello is then often on its way when the first one is answered.
    """
    for _ in range(5):
        with SiteThread("bonn") as bonn, SiteThread("rome") as rome:
            rome.call(partial(rome.peering.add_peer, bonn.url))
            replicas = [site.peering.site.replicas["default"] for site in (bonn, rome)]
            eventually(partial(_are_synced, replicas))
            assert [replica.counters.full_syncs for replica in replicas] == [1, 1]


def _are_synced(replicas: list[Replica]) -> bool:
    return all(replica.peers and replica.is_ready for replica in replicas)


@pytest.mark.ci
def test_what_has_come_while_a_site_stood_still_is_too_old() -> None:
    """The other one tells it of a key, which ends before the site goes on; libzmq has received the message. The key
    does not come back: a connection that was silent for so long is dead, and the sync that follows knows what is there.
    """
    with (
        SiteThread("bonn") as bonn,
        SiteThread("rome", bonn.url) as rome,
        SiteClient(bonn.url) as at_bonn,
        SiteClient(rome.url, timeout_s=20) as at_rome,
        at_rome.subscribe() as changes,
    ):
        eventually(partial(_are_synced, [site.peering.site.replicas["default"] for site in (bonn, rome)]))
        stands_still = threading.Event()

        async def stand_still() -> None:
            stands_still.set()
            time.sleep(DOWN_S + 0.5)  # noqa: ASYNC251  # the fault: the loop serves nobody

        still = rome.begin(stand_still())
        assert stands_still.wait(20)
        at_bonn.merge({"short": Value(1, "bonn", b"v", 1_000), "long": Value(1, "bonn", b"v", 60_000)})
        still.result(20)
        seen: list[str] = []
        eventually(lambda: seen.extend(change.key for change in [changes.get(1.0)] if change) or "long" in seen)
        assert "short" not in [*seen, *at_rome.dump()]


async def test_a_line_of_sites_passes_everything_on() -> None:
    """What is set at one end of a line of five arrives at the other end, and nothing goes round for ever."""
    async with nodes("1", "2", "3", "4", "5") as line:
        for left, right in itertools.pairwise(line):
            left.dial(right)
        line[0].set("k", b"from 1")
        await until(lambda: all(node.value("k") == b"from 1" for node in line))
        line[4].set("k", b"from 5", version=2)
        await until(lambda: all(node.value("k") == b"from 5" for node in line))


async def test_a_site_that_was_killed_gets_everything_again() -> None:
    """A site that starts again at its address is synced with, and hears what is set while it syncs."""
    async with nodes("x", "y", "z") as (x, y, z):
        for node in (y, z):
            node.dial(x)
        for n in range(500):
            y.set(f"k{n}", b"%d" % n)
        await until(lambda: len(z.keys()) == len(x.keys()) == 500)
        x.peering.close()
        z.set("meanwhile", b"z")
        x.start()
        y.set("after", b"y")
        await until(lambda: x.keys() == y.keys() == z.keys() and len(x.keys()) == 502)


async def test_areas_are_apart() -> None:
    """An area that both have is shared; what is in another one stays where it is."""
    async with nodes("x", areas=("a", "b")) as (x,), nodes("y", areas=("b", "c")) as (y,):
        x.set("k", b"1", area="a")
        x.set("k", b"2", area="b")
        y.set("k", b"3", area="c")
        y.dial(x)
        await until(lambda: y.value("k", "b") == b"2")
        assert (x.value("k", "a"), y.value("k", "c")) == (b"1", b"3")


async def test_a_site_with_a_name_that_is_taken_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The second site of a name is told so and shares nothing; the first one goes on, and it is in the log."""
    async with nodes("x", "y", "x") as (x, y, impostor):
        x.dial(y)
        x.set("k", b"1")
        await until(lambda: y.value("k") == b"1")
        impostor.set("fake", b"1")
        impostor.dial(y)
        await until(lambda: any("two living sites are named 'x'" in r.getMessage() for r in caplog.records))
        x.set("k2", b"1")
        await until(lambda: y.value("k2") == b"1")
        assert y.value("fake") is None


async def test_a_site_that_is_no_neighbour_and_has_the_same_name_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its answers come through others, in entries of the own name. One line an hour says so, whatever the keys."""
    async with nodes("x") as (x,):
        area, now = x.areas["a"], asyncio.get_running_loop().time()
        for key in ("k", "l"):
            area.own.persist(key, b"mine", now)
            for version in (5, 9):
                area.merge({key: Value(version, "x", b"of the other one", 300_000, 100 * version)}, "y", now)
        x.peering.changed()
        await until(lambda: x.peering.refused == 2)
        lines = [r.getMessage() for r in caplog.records if "another living site is named 'x'" in r.getMessage()]
        assert len(lines) == 1
        assert "keeps 'k' in area 'a' alive" in lines[0]


async def test_strangers_with_ever_new_names_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many refusals are told, each once; when they are an hour old they are forgotten, and told again."""
    monkeypatch.setattr(sites, "_MOST_REFUSALS", 3)

    def refusals() -> int:
        return sum("no peering with" in record.getMessage() for record in caplog.records)

    async with nodes("x") as (x,):

        async def come(*names: str) -> None:
            before = x.peering.refused
            for name in names:
                hello = encode(Hello(1, name, 1, ("elsewhere",), (), False))
                x.peering.site.receive(f"route of {name}".encode(), hello, asyncio.get_running_loop().time())
            x.peering.changed()
            await until(lambda: x.peering.refused == before + len(names))

        await come("a", "a", "b", "c", "d", "e")
        assert refusals() == 3
        monkeypatch.setattr(sites, "_REFUSALS_S", 0.0)
        await come("d")
        assert refusals() == 4


@pytest.mark.ci
async def test_a_key_that_two_sites_keep_alive_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Two sites that persist one key override each other; after some rounds both say so, and the rest goes on."""
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        now = asyncio.get_running_loop().time()
        for node in (x, y):
            node.areas["a"].own.persist("k", node.name.encode(), now)
            node.peering.changed()
        await until(
            lambda: all(f"site {n}: " in caplog.text and "one of the two must stop" in caplog.text for n in "xy")
        )
        assert not x.areas["a"].own.events
        x.set("other", b"1")
        await until(lambda: y.value("other") == b"1")


async def test_strangers_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever comes in on a socket, of any shape, is dropped; peers do not notice."""
    caplog.set_level(logging.DEBUG, "statestore_client.server")
    frames = [
        [b""],
        [b"\xc1"],
        [b"a", b"b"],
        [b"", b"", b""],
        [msgpack.packb([])],
        [msgpack.packb([1])],
        [msgpack.packb(["x"] * 10_000)],
        [msgpack.packb({"a": 1})],
        [msgpack.packb([99, 1])],
        [bytes(1 << 20)],
    ]
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.connect(y.url)
            for message in frames * 20:
                await stranger.send_multipart(message)
            x.set("k", b"1")
            await until(lambda: y.value("k") == b"1")
            await until(lambda: y.peering.dropped >= 40, "messages of several frames")
        assert y.keys() == {"k"}


async def test_bad_addresses_are_refused() -> None:
    """An address that nobody can connect to, or listen at, is an error that says so."""
    async with nodes("x", "y") as (x, y):
        for url in (
            "x", "tcp://", "tcp://host", "http://a:1", "", "tcp://a:99999", "tcp://\udc80:1", "tcp://a\0b:1", "ipc:///tmp/a\0b",
            f"tcp://{'a' * 300}:1",
        ):  # fmt: skip
            with pytest.raises(SettingsError, match="no site can be at"):
                x.peering.add_peer(url)
            with pytest.raises(SettingsError, match="no site can be at"):
                x.peering.listen(url)
        for url in ("tcp://a b:1", f"ipc:///{'a' * 200}"):
            with pytest.raises(SettingsError, match="no site can be dialled at"):
                x.peering.add_peer(url)
        with pytest.raises(SettingsError, match="cannot listen for sites at"):
            x.peering.listen(y.url)
        x.dial(y)
        x.dial(y)
        x.set("k", b"1")
        await until(lambda: y.value("k") == b"1")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"peers": None}, "peers must be a tuple, not NoneType"),
        ({"peers": "tcp://127.0.0.1:1"}, "peers must be a tuple, not str"),
        ({"areas": None}, "areas must be a tuple"),
        ({"areas": ()}, "at least one area"),
        ({"listen": _ANYWHERE, "areas": tuple(map(str, range(65)))}, "at most 64"),
        ({"peers": tuple(f"tcp://127.0.0.1:{n + 1}" for n in range(257))}, "at most 256 addresses, not 257"),
        ({"listen": _ANYWHERE, "exports": ["line/"]}, "exports must be a tuple, not list"),
        ({"listen": _ANYWHERE, "imports": None}, "imports must be"),
        ({"listen": _ANYWHERE, "key_ttl_s": 1.9}, "key_ttl_s must be a number of seconds from 2 to"),
        ({"listen": _ANYWHERE, "key_ttl_s": float("inf")}, "key_ttl_s must be"),
        ({"listen": _ANYWHERE, "key_ttl_s": "5"}, "key_ttl_s must be"),
        ({"listen": _ANYWHERE, "flood_rate": 0}, "flood_rate must be a whole number of at least 1"),
        ({"listen": _ANYWHERE, "flood_rate": 1.5}, "flood_rate must be a whole number"),
        ({"listen": _ANYWHERE, "flood_burst": 5}, "there is none"),
        ({"listen": _ANYWHERE, "flood_rate": 5, "flood_burst": 0}, "flood_burst must be a whole number"),
        ({"listen": _ANYWHERE, "sync_timeout_s": -1}, "sync_timeout_s must be a number of seconds"),
        ({"listen": _ANYWHERE, "sync_backoff_s": 0}, "sync_backoff_s must be a number of seconds of at least 0.1"),
        ({"listen": _ANYWHERE, "sync_max_backoff_s": 3}, "sync_max_backoff_s must be .* of at least 4"),
        ({"listen": _ANYWHERE, "max_keys": 0}, "max_keys must be a whole number of at least 1"),
        ({"listen": _ANYWHERE, "max_bytes": "1"}, "max_bytes must be a whole number"),
        ({"name": None}, "must be a text"),
        ({}, "neither listens nor dials"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], told: str) -> None:
    """With what is wrong about them."""
    with pytest.raises(InvalidArgumentError, match=told):
        SiteEndpoints(**{"name": "a", **wrong})


async def test_a_site_without_a_free_file_says_so_and_goes_on() -> None:
    """It dials no further address, nothing is left of the attempt, and its peers are served."""

    urls = [f"tcp://127.0.0.1:{number}" for number in range(1, 200)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def files() -> int:
        return len(os.listdir("/dev/fd"))

    def dial_all(node: Node) -> None:
        for url in urls:
            node.peering.add_peer(url)

    async with nodes("x", "y") as (x, y):
        x.dial(y)
        await until(lambda: "y" in x.peering.site.replicas["a"].peers)
        before = files()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 20, limits[1]))
        try:
            for _ in range(10):
                with pytest.raises(SettingsError, match=r"no site can be dialled at .*: Too many open files"):
                    dial_all(x)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for url in urls:
            x.peering.remove_peer(url)
        await until(lambda: files() <= before)
        x.set("k", b"1")
        await until(lambda: y.value("k") == b"1")


@pytest.mark.parametrize("has_others", [True, False])
async def test_a_site_rests_after_each_turn_while_others_are_served(
    has_others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes meanwhile is taken when the rest is over, and not at the next heartbeat. Alone it never rests."""
    monkeypatch.setattr(sites, "_REST", 1e9)
    monkeypatch.setattr(sites, "_MOST_REST_S", 0.05)
    monkeypatch.setattr("statestore_client.server.kvstore.members.HEARTBEAT_S", 1_000.0)
    served = itertools.count()
    peering = SitePeering(
        SiteSettings("x", 1), [Area("a", "x")], Random(1), served=lambda: next(served) if has_others else 0
    )
    with contextlib.closing(peering), zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.connect(peering.listen(_ANYWHERE))
        took = []
        for number in range(4):
            started = time.monotonic()
            await client.send(encode(GetSummary(number)))
            async with asyncio.timeout(10):
                await client.recv()
            took.append(time.monotonic() - started)
    if has_others:
        assert min(took[1:]) > 0.03
    else:
        assert peering._rests_until == 0.0


async def test_what_a_long_message_brings_is_told_in_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that took long leaves the rest of its work to the next one, which follows at once."""
    monkeypatch.setattr(sites, "_TURN_S", 0.0)
    monkeypatch.setattr("statestore_client.server.kvstore.members.HEARTBEAT_S", 1_000.0)
    area = Area("a", "x")
    peering = SitePeering(SiteSettings("x", 1), [area], Random(1))
    with contextlib.closing(peering), zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.connect(peering.listen(_ANYWHERE))
        await client.send(encode(Set(1, "a", {"k": Value(1, "x", b"v")})))
        async with asyncio.timeout(10):
            await client.recv()
        await until(lambda: area.get("k") is not None and not area._news, "it is published")


# -- sites with real sockets, in the event loop of a test --------------------------------------------------------------


class Node:
    """One site of a test, which can die and come back at its address."""

    def __init__(self, name: str, areas: tuple[str, ...] = ("a",)) -> None:
        self.name = name
        self.url = f"tcp://127.0.0.1:{reserved_port()}"
        self._areas = areas
        self._peers: list[Node] = []
        self.start()

    def start(self) -> None:
        """With empty areas, as a process that was started."""
        self.areas = {area: Area(area, self.name) for area in self._areas}
        settings = SiteSettings(self.name, _seeds.getrandbits(64))
        self.peering = SitePeering(settings, self.areas.values(), Random(_seeds.random()))
        self.peering.listen(self.url)
        for peer in self._peers:
            self.peering.add_peer(peer.url)

    def dial(self, peer: Node) -> None:
        """Know its address."""
        self._peers.append(peer)
        self.peering.add_peer(peer.url)

    def set(self, key: str, value: bytes, version: int = 1, area: str = "a") -> None:
        """As a client of this site."""
        now = asyncio.get_running_loop().time()
        self.areas[area].set({key: Value(version, self.name, value)}, now)
        self.peering.changed()

    def value(self, key: str, area: str = "a") -> bytes | None:
        """What is stored."""
        entry = self.areas[area].get(key)
        return None if entry is None else entry.value

    def keys(self, area: str = "a") -> set[str]:
        """All of them."""
        return set(self.areas[area].store)


@contextlib.asynccontextmanager
async def nodes(*names: str, areas: tuple[str, ...] = ("a",)) -> AsyncIterator[list[Node]]:
    """Sites that do not know each other yet."""
    made = [Node(name, areas) for name in names]
    try:
        yield made
    finally:
        for node in made:
            node.peering.close()


# -- peers of sites with real sockets ----------------------------------------------------------------------------------


async def test_a_peer_can_be_removed_and_added_at_run_time() -> None:
    """What is set after the peer was removed does not reach it, and does when it was added again."""
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        x.set("before", b"1")
        await until(lambda: y.value("before") == b"1")
        x.peering.remove_peer(y.url)
        x.set("between", b"1")
        await until(lambda: not any(link.name == "x" for link in y.peering.site._links), "the connection is dead")
        assert y.value("between") is None
        x.dial(y)
        await until(lambda: y.value("between") == b"1")


async def test_sites_forget_each_other_also_while_both_talk() -> None:
    """That a site leaves is the last that it says; the connection is closed before the other side has read it."""
    async with nodes("x", "y") as (x, y):
        for number in range(10):
            x.dial(y)
            await until(lambda: "x" in y.peering.site.replicas["a"].peers, "they are peers")
            for key in range(50):
                x.set(f"x{number} {key}", b"1")
                y.set(f"y{number} {key}", b"1")
            x.peering.remove_peer(y.url)
            y.set(f"last {number}", b"1")
            await until(lambda: not y.peering.site.replicas["a"].peers, "it is forgotten")
            assert not x.peering.site.replicas["a"].peers


async def test_a_client_that_has_a_site_forget_a_name_of_a_megabyte_is_refused() -> None:
    """The site goes on."""
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(x.url)
            for url in ("x" * (MAX_MESSAGE - 20), "tcp://" + "\x01" * 200_000, "x" * 1_025):
                await client.send(encode(ChangePeer(7, url, False)))
                assert await client.poll(20_000)
                reply = decode(await client.recv())
                assert isinstance(reply, Failure)
                assert "at most 1024" in reply.text
        x.set("k", b"1")
        await until(lambda: y.value("k") == b"1")


@pytest.mark.ci
async def test_a_site_that_is_killed_and_started_again_is_taken_before_its_silence_would_be_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its name is free as soon as the connection is gone, and nobody is warned of two sites."""
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        x.set("before", b"1")
        await until(lambda: y.value("before") == b"1")
        for _ in range(3):
            x.peering.close()
            x.start()
            began = time.monotonic()
            await until(lambda: x.value("before") == b"1")
            assert time.monotonic() - began < DOWN_S
        assert (x.peering.refused, y.peering.refused) == (0, 0)
        assert [record for record in caplog.records if record.levelname == "WARNING"] == []


# -- the sockets of a site ---------------------------------------------------------------------------------------------

_MESSAGES = 200


@contextlib.contextmanager
def bonn(keys: SiteKeys | None = None) -> Iterator[SiteSockets]:
    """The sockets of a site."""
    sockets = SiteSockets("bonn", lambda _descriptor: None, lambda _descriptor: None, Random(1), keys)
    with contextlib.closing(sockets):
        yield sockets


def test_a_site_that_is_refused_and_then_lacks_the_key_of_its_peer_tries_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pause is up to twice as long as the one before, and up to 32 s, less up to a half of it."""
    monkeypatch.setattr(site_keys, "_READ_AGAIN_S", 0.0)
    folder = make_keys(tmp_path / "keys", ("bonn", "rome"))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as in_the_clear:
        url = f"rome=tcp://127.0.0.1:{in_the_clear.bind_to_random_port('tcp://127.0.0.1')}"
        with bonn(SiteKeys(folder, "bonn")) as sockets:
            sockets.dial(url)
            dealer = sockets._dealers[url]

            def look() -> None:
                for _ in sockets.receive():
                    pass
                sockets.settle(0.0)

            eventually(lambda: dealer.redial_at < math.inf, "the handshake has failed", meanwhile=look)
            (folder / "rome.key").unlink()
            pauses = [dealer.redial_at]
            for _ in range(7):
                at = dealer.redial_at
                sockets.settle(at)
                pauses.append(dealer.redial_at - at)
    longest = [1, 2, 4, 8, 16, 32, 32, 32]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True)), pauses


@pytest.mark.parametrize("most", [1, 16])
def test_a_turn_takes_as_many_messages_as_it_likes(most: int) -> None:
    """What a turn does not take waits for the next one; nothing is lost, and the order stays."""
    with bonn() as sockets, zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(sockets.bind("tcp://127.0.0.1:*"))
        for number in range(_MESSAGES):
            peer.send(b"%d" % number)
        taken: list[int] = []

        def has_all() -> bool:
            taken.extend(int(each.data) for each in islice(sockets.receive(), most) if isinstance(each, Came))
            return len(taken) >= _MESSAGES

        eventually(has_all, "all messages came")
    assert taken == list(range(_MESSAGES))


def test_a_busy_socket_does_not_hold_up_another_one() -> None:
    """Turns that take one message each take one from either socket, however many wait at each of them."""
    with bonn() as sockets, zmq.Context() as context, context.socket(zmq.ROUTER) as rome:
        rome.setsockopt(zmq.LINGER, 0)
        port = rome.bind_to_random_port("tcp://127.0.0.1")
        url = f"tcp://127.0.0.1:{port}"
        sockets.dial(url)
        eventually(lambda: any(isinstance(each, ConnectionChanged) for each in sockets.receive()), "connected")
        sockets.send(url, b"hello")
        route, _ = rome.recv_multipart()
        with context.socket(zmq.DEALER) as client:
            client.setsockopt(zmq.LINGER, 0)
            client.connect(sockets.bind("tcp://127.0.0.1:*"))
            for _ in range(_MESSAGES):
                client.send(b"client")
                rome.send_multipart([route, b"rome"])
            taken: list[bytes] = []

            def has_all() -> bool:
                taken.extend(each.data for each in islice(sockets.receive(), 1) if isinstance(each, Came))
                return len(taken) == 2 * _MESSAGES

            eventually(has_all, "all messages came")
    # From where both have something until one of them has nothing more.
    first = max(taken.index(b"client"), taken.index(b"rome"))
    both = taken[first + 1 : first + 101]
    assert 45 <= both.count(b"rome") <= 55


# -- the program that has the site inside ------------------------------------------------------------------------------


async def test_what_is_settable_gets_to_where_it_counts() -> None:
    """The time-out of the first sync, the waits after failures, and what may leave at once."""
    settings = {"sync_timeout_s": 3.0, "sync_backoff_s": 1.0, "sync_max_backoff_s": 2.0}
    endpoints = SiteEndpoints(name="a", listen=_ANYWHERE, flood_rate=5, flood_burst=7, **settings)
    peering = SitePeering.of(endpoints, Random(1), 0)
    try:
        assert peering.site.settings.sync_timeout_s == 3.0
        assert peering.site.settings.waits == SyncWaits(1.0, 2.0)
        assert peering.site.settings.flood_rate == FloodRate(5, 7)
    finally:
        peering.close()
    peering = SitePeering.of(SiteEndpoints(name="a", peers=("tcp://127.0.0.1:1",), flood_rate=5), Random(1), 0)
    peering.close()
    assert peering.site.settings.sync_timeout_s == 10.0
    assert peering.site.settings.flood_rate == FloodRate(5, 5)


def test_the_program_of_a_site_is_told_when_it_has_synced() -> None:
    """It waits in another thread, and a hook is called; until then the site says that it is not ready."""
    told: Queue[SiteSynced] = Queue()
    url = f"tcp://127.0.0.1:{reserved_port()}"
    endpoints = SiteEndpoints(name="oslo", peers=(url,), sync_timeout_s=600)
    with EmbeddedServer(site=endpoints, hooks=Hooks(on_site_synced=told.put), metrics_port=0) as oslo:
        assert not oslo.site.wait_synced(0.01)
        assert ready(oslo) == (503, "site oslo has not synced with another site yet\n")
        assert repr(oslo.site) == "<EmbeddedSite 'oslo', not synced yet>"
        with EmbeddedServer(site=SiteEndpoints(name="rome", listen=url)) as rome:
            assert rome.site.wait_synced(20)
            assert oslo.site.wait_synced(20)
            assert told.get(timeout=20) == SiteSynced("oslo", ("rome",))
        assert oslo.site.is_synced
        assert ready(oslo) == (200, "ready\n")


def test_the_program_of_a_site_is_told_of_a_key_that_it_has_lost() -> None:
    """By a hook, and by the list of what is lost."""
    told: Queue[LostKey] = Queue()
    site = SiteEndpoints(name="oslo", listen=_ANYWHERE)
    with EmbeddedServer(site=site, hooks=Hooks(on_lost_key=told.put)) as oslo, SiteClient(oslo.site_url) as client:
        client.set("k", "mine")
        client.merge({"k": Value(7, "rome", b"theirs")})
        loss = LostKey("default", "k", "rome", 7)
        assert told.get(timeout=20) == loss
        assert oslo.site.lost_keys() == [loss]


async def test_waiting_for_a_sync_ends_with_the_site_or_with_the_time_out() -> None:
    """In the loop of the server only the asyncio way works. No sync, no peer: with the time-out it counts as synced."""
    peers = (f"tcp://127.0.0.1:{reserved_port()}",)
    async with EmbeddedServer(site=SiteEndpoints(name="oslo", peers=peers, sync_timeout_s=0)) as server:
        assert await server.site.wait_synced_async(20)
        assert server.site.wait_synced(0)
    async with EmbeddedServer(site=SiteEndpoints(name="oslo", peers=peers)) as server:
        assert not await server.site.wait_synced_async(0)
        with pytest.raises(RuntimeError, match="await wait_synced_async"):
            server.site.wait_synced(1)
        waiting = asyncio.ensure_future(server.site.wait_synced_async())
        await asyncio.sleep(0)
    with pytest.raises(ClosedError, match="stopped before it had synced"):
        await waiting
    async with EmbeddedServer() as server:
        with pytest.raises(RuntimeError, match="no site now"):
            _ = server.site


def ready(server: EmbeddedServer) -> tuple[int, str]:
    """What /ready answers."""
    where = urllib.parse.urlsplit(server.urls["http"])
    asked = http.client.HTTPConnection(str(where.hostname), where.port, timeout=20)
    with contextlib.closing(asked):
        asked.request("GET", "/ready")
        response = asked.getresponse()
        return response.status, response.read().decode()
