"""Sites as processes that are killed or stand still, among slow and broken connections and peers that talk nonsense."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgpack
import pytest
import zmq
from site_processes import Links, SiteProcess
from support.waiting import eventually

from statestore_client.kvstore import KeyChange, SiteClient, Value
from statestore_client.server.kvstore.members import DOWN_S
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import Hello, OwnKeyAction

pytestmark = [pytest.mark.ci, pytest.mark.turns(2)]

PERSIST = OwnKeyAction.PERSIST


def test_a_site_that_stands_still_is_missed_and_has_everything_when_it_goes_on(
    site: Callable[..., SiteProcess], links: Links
) -> None:
    """A ring of three, of which one is paused until the others miss it. They share on; what it keeps alive stays."""
    bonn, rome, oslo = sites = [site(name) for name in ("bonn", "rome", "oslo")]
    for one, other in itertools.pairwise((*sites, bonn)):
        links.join(one, other)
    wanted: dict[str, bytes | None] = {}
    for each in sites:
        each.start()
        wanted[each.name] = b"1"
        each.change(PERSIST, each.name, b"1")
    eventually(lambda: all(each.values() == wanted for each in sites))
    oslo.signal(signal.SIGSTOP)
    eventually(lambda: not bonn.knows("oslo") and not rome.knows("oslo"), "it is missed")
    wanted["bonn"] = b"2"
    bonn.change(PERSIST, "bonn", b"2")
    eventually(lambda: rome.values() == bonn.values() == wanted)
    oslo.signal(signal.SIGCONT)
    eventually(lambda: all(each.values() == wanted for each in sites))
    eventually(lambda: bonn.knows("oslo") and rome.knows("oslo"))


def test_a_site_that_wakes_takes_nothing_that_is_old(site: Callable[..., SiteProcess], links: Links) -> None:
    """Of a ring of three one stands still, and the others tell it of a key, which ends before it wakes. The key ends
    once: the message about it is older than the silence that ends a connection. What is there still comes."""
    bonn, rome, oslo = sites = [site(name) for name in ("bonn", "rome", "oslo")]
    for one, other in itertools.pairwise((*sites, bonn)):
        links.join(one, other)
    for each in sites:
        each.start()
    eventually(lambda: oslo.knows("bonn") and oslo.knows("rome") and bonn.knows("rome"))
    seen: dict[str, list[KeyChange]] = {each.name: [] for each in sites}
    with ExitStack() as stack:
        for each in sites:
            client = stack.enter_context(SiteClient(each.url, timeout_s=20))
            heard = seen[each.name]
            stack.enter_context(client.subscribe(callback=lambda change, heard=heard: heard.append(change)))
            if each is bonn:
                at_bonn = client
        assert at_bonn.merge({"before": Value(1, "bonn", b"v", 60_000)}) == {}
        eventually(lambda: "before" in oslo.values())
        oslo.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        assert at_bonn.merge({"short": Value(1, "bonn", b"v", 1_000), "long": Value(1, "bonn", b"v", 60_000)}) == {}
        eventually(lambda: "long" in rome.values())
        eventually(lambda: "short" not in bonn.values() and "short" not in rome.values())
        eventually(lambda: time.monotonic() > stopped + DOWN_S + 0.5)
        oslo.signal(signal.SIGCONT)
        eventually(lambda: "long" in oslo.values())
        eventually(lambda: oslo.knows("bonn") and oslo.knows("rome"))
        eventually(lambda: any(change.key == "long" for change in seen["oslo"]))
    of_short = {
        name: [change.entry is None for change in heard if change.key == "short"] for name, heard in seen.items()
    }
    assert of_short == {"bonn": [False, True], "rome": [False, True], "oslo": []}


def test_sites_with_slow_lines_that_break_become_equal(site: Callable[..., SiteProcess], links: Links) -> None:
    """Whatever is sent takes a fifth of a second, and all connections break again and again while keys change."""
    bonn, rome = site("bonn"), site("rome")
    links.join(rome, bonn)
    links.slow_down(0.2)
    wanted: dict[str, bytes | None] = {}
    bonn.start(), rome.start()
    for number in range(4):
        for each in (bonn, rome):
            for key in range(25):
                wanted[f"{each.name}/{key}"] = value = b"%d" % number
                each.change(PERSIST, f"{each.name}/{key}", value)
        links.break_all()
    eventually(lambda: rome.values() == bonn.values() == wanted)


@contextmanager
def _nonsense(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[tuple[str, list[int]]]:
    """Where one listens that says hello, and then whatever comes to its mind; and how often it was asked something."""
    hello = encode(Hello(1, "nonsense", 1, ("default",), (), False))
    sayings = [
        hello,
        b"",
        b"\xc1",
        msgpack.packb([]),
        msgpack.packb([1, 2, ["x"] * 10_000]),
        bytes(1 << 20),
        hello[:-1],
    ]
    asked = [0]
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        is_over = threading.Event()

        def talk() -> None:
            while not is_over.is_set():
                if not router.poll(50):
                    continue
                route, *_ = router.recv_multipart()
                asked[0] += 1
                for saying in (*sayings, os.urandom(100), msgpack.packb([asked[0] % 40, *range(asked[0] % 7)])):
                    router.send_multipart([route, saying])
                    router.send_multipart([route, saying, saying])

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{port}", asked
        finally:
            is_over.set()
            thread.join()


def test_a_peer_that_talks_nonsense_harms_nobody(site: Callable[..., SiteProcess]) -> None:
    """It says hello, so that it is a peer, and then messages of every wrong kind. The other peers are served on."""
    bonn, rome = site("bonn"), site("rome")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with _nonsense(context) as (url, asked):
        rome.peers += [bonn.url, url]
        bonn.start(), rome.start()
        eventually(lambda: asked[0] > 0, "it has said something")
        wanted: dict[str, bytes | None] = {}
        for number in range(20):
            wanted[f"k{number}"] = b"v"
            bonn.change(PERSIST, f"k{number}", b"v")
            began = time.monotonic()
            eventually(lambda: rome.values() == wanted)
            assert time.monotonic() - began < 5
        assert rome.end(signal.SIGTERM) == 0
    context.term()


# -- killed, or standing still, in the middle of a full sync -----------------------------------------------------------


_KEYS = 10_000


def _keys(site: SiteProcess) -> int:
    with SiteClient(site.url, timeout_s=20) as client:
        return client.summary().areas["default"]["keys"]


def _begun(site: SiteProcess) -> bool:
    """Wait until a site has a tenth of the keys, or more. Returns whether it lacks others."""
    found = 0

    def has_some() -> bool:
        nonlocal found
        found = _keys(site)
        return found > _KEYS // 10

    eventually(has_some)
    return found < _KEYS


def _dies(site: SiteProcess, _neighbour: SiteProcess) -> None:
    site.end(signal.SIGKILL)
    site.start()


def _stands_still(site: SiteProcess, neighbour: SiteProcess) -> None:
    """Until it is missed: what was under way is lost, and it does not know."""
    site.signal(signal.SIGSTOP)
    eventually(lambda: not neighbour.knows(site.name))
    site.signal(signal.SIGCONT)


@pytest.mark.parametrize("happens", [_dies, _stands_still])
def test_sites_that_are_stopped_in_the_middle_of_a_sync_get_everything(
    site: Callable[..., SiteProcess], links: Links, happens: Callable[[SiteProcess, SiteProcess], None]
) -> None:
    """Of a line of three the middle one is stopped while it gets the keys and passes them on, then the last one.

    What others had of the sync is no obstacle to the next one: in the end all have the same.
    """
    oslo, bonn, rome = [site(name) for name in ("oslo", "bonn", "rome")]
    links.join(bonn, oslo)
    links.join(rome, bonn)
    links.slow_down(0.05)
    oslo.start(), rome.start()
    with SiteClient(oslo.url, timeout_s=20) as client:
        assert client.merge({f"line/{n}": Value(1, "oslo", b"%0100d" % n) for n in range(_KEYS)}) == {}
        bonn.start()
        in_the_middle = 0
        for each, neighbour in ((bonn, oslo), (rome, bonn)):
            in_the_middle += _begun(each)
            happens(each, neighbour)
        assert in_the_middle
        eventually(lambda: _keys(bonn) == _keys(rome) == _KEYS)
        wanted = client.hashes()
    for each in (bonn, rome):
        with SiteClient(each.url, timeout_s=20) as client:
            assert client.hashes() == wanted
