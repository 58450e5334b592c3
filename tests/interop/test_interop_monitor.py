"""The monitor in a real browser, under load: what a person sees, with and without a mouse, in the dark and on a phone.

With ``STATESTORE_PICTURES=docs/how-to/pictures`` the pictures of the documentation are taken anew.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from browser import Browser, open_browser
from foreign_brokers import MOSQUITTO, hosted_store, skip_without
from support.ports import reserved_ports
from support.server_clients import Wire

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import FencingTokenTooOldError, StateStoreClient
from statestore_client.server import EmbeddedServer, ReplicaSettings, SiteEndpoints

pytestmark = pytest.mark.interop

#: Where pictures are saved; and for how long a lock is held, which makes the bars of a picture longer.
PICTURES = os.environ.get("STATESTORE_PICTURES")
HELD_S = 1.0 if PICTURES is None else 4.0

HOSTILE = "jobs/<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(monitor_port=0, monitor_actions=True) as running:
        yield running


@contextmanager
def load(server: EmbeddedServer) -> Iterator[None]:
    """A client that writes and reads all the time."""
    over = threading.Event()

    def work() -> None:
        with StateStoreClient(server.url, client_id="sensor-gateway") as store:
            number = 0
            while not over.is_set():
                number += 1
                store.set_many(
                    [(f"plant/line-{each}/temperature", f'{{"celsius": {20 + number % 5}}}') for each in range(6)]
                )
                over.wait(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def save(browser: Browser, name: str) -> None:
    """A picture for the documentation, if they are to be taken."""
    if PICTURES is not None:
        browser.picture(Path(PICTURES) / name)


def test_a_person_sees_a_lock_change_hands_a_refused_write_and_a_client_die(
    browser: Browser, server: EmbeddedServer
) -> None:
    """Under load, the page shows each of them while it happens. What peers have sent stays text, everything comes from
    the server itself, and the console is empty."""
    browser.open(server.monitor_url)
    with (
        load(server),
        StateStoreClient(server.url, client_id="replica-a") as a,
        StateStoreClient(server.url, client_id="replica-b") as b,
    ):
        browser.wait_for_text("#live", "live")
        assert "No lock has been claimed" in browser.text("#locks")
        first = a.lock(HOSTILE, holder="replica-a").acquire()
        a.guarded(first).set("compact/state", "1")
        browser.wait_for_text(".lane", HOSTILE, "replica-a for")
        first.release()
        second = b.lock(HOSTILE, holder="replica-b").acquire()
        b.guarded(second).set("compact/state", "2")
        browser.wait_for_text(".lane", "replica-b for")
        with pytest.raises(FencingTokenTooOldError):
            a.set("compact/state", "late", fencing_token=first.fencing_token)
        browser.wait_for_text("#refusals", "replica-a SET compact/state", "is older than", HOSTILE)
        with Wire(server) as wire:
            wire.connect("pump-7")
            browser.wait_for_text("#events", "came pump-7")
        browser.wait_for_text("#events", "left pump-7")
        browser.wait(
            lambda: browser.run("return document.querySelectorAll('.lane svg .refused').length"), "it is marked"
        )
        browser.wait(lambda: float(browser.text(".tile .figure").rstrip("/s k")) > 1, "requests are counted")
        elsewhere = browser.run(
            "const names = performance.getEntriesByType('resource').map((each) => each.name);"
            "return names.filter((name) => !name.startsWith(location.origin))"
        )
        assert elsewhere == []
        assert browser.run("return [...document.images].map((i) => i.getAttribute('src'))") == ["icon.svg"]
        assert browser.run("return document.scripts.length") == 1
        assert browser.complaints() == []


def test_a_holder_that_dies_leaves_its_lease_behind(browser: Browser, server: EmbeddedServer) -> None:
    """When the client of a holder is gone, the lane says so until the lease is over; then the lock is free."""
    browser.open(server.monitor_url)
    holder = StateStoreClient(server.url, client_id="worker").open()
    lock = holder.lock("leader", holder="worker", lease=4)
    lock.acquire()
    browser.wait_for_text(".lane", "worker for")
    holder.close()
    browser.wait_for_text(".lane", "its client is gone")
    browser.wait_for_text(".lane .who", "free")
    assert browser.complaints() == []


def test_everything_can_be_done_with_the_keyboard(browser: Browser, server: EmbeddedServer) -> None:
    """Holdings, tabs and actions are reached with Tab and arrow keys; an action asks first, and Escape leaves it."""
    from selenium.webdriver.common.keys import Keys

    with StateStoreClient(server.url, client_id="c") as store:
        lock = store.lock("leader", holder="h")
        lock.acquire()
        store.set("pump/<b>1</b>", '{"open": true}')
        browser.open(server.monitor_url)
        browser.wait_for_text("#panel", "pump/<b>1</b>")
        browser.run("document.querySelector('.lane summary').focus()")
        browser.press(Keys.ENTER)
        browser.wait_for_text(".lane", "Fencing token", "Renewals")
        browser.run("document.getElementById('tab-0').focus()")
        browser.press(Keys.ARROW_RIGHT)
        browser.press(Keys.ARROW_RIGHT)
        browser.wait_for_text("#panel", "Subscriptions")
        browser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        browser.wait_for_text("#panel", "Keys that begin with")
        browser.press(Keys.TAB, Keys.TAB)
        browser.press("pump/")
        browser.wait(lambda: "leader" not in browser.text("#panel"), "only keys with the prefix are there")
        browser.run("document.querySelector('#panel button.link').focus()")
        browser.press(Keys.ENTER)
        browser.wait_for_text("#panel", '{"open": true}', "JSON")
        delete = (
            "return [...document.querySelectorAll('#panel button')].find((b) => b.textContent === 'Delete')?.focus()"
        )
        browser.run(delete)
        browser.press(Keys.ENTER)
        browser.wait_for_text("#ask", "Delete this key?", "pump/<b>1</b>")
        browser.press(Keys.ESCAPE)
        browser.wait(lambda: not browser.run("return document.getElementById('ask').open"), "the question is gone")
        assert store.get("pump/<b>1</b>") is not None
        browser.run(delete)
        browser.press(Keys.ENTER)
        browser.wait_for_text("#ask", "Delete this key?")
        browser.press(Keys.TAB, Keys.ENTER)
        browser.wait(lambda: store.get("pump/<b>1</b>") is None, "it is deleted")
        assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_has_a_name_and_enough_contrast(browser: Browser, server: EmbeddedServer, dark: bool) -> None:
    """In both colour schemes each control has an accessible name, and each text a contrast of at least 4.5 to 1,
    whichever panel is open.
    """
    scene = Scene(server)
    with load(server), scene:
        browser.open(server.monitor_url, width=1000, height=1120, dark=dark)
        scene.play(browser)
        with StateStoreClient(server.url, client_id="watcher") as watcher, watcher.watch("compact/state"):
            for tab in range(5):
                browser.run("document.getElementById(`tab-${arguments[0]}`).click()", tab)
                browser.wait(
                    lambda: browser.run("return document.querySelector('#panel .empty, #panel table')"), "it is filled"
                )
                assert browser.nameless() == []
                assert browser.pale() == []
        browser.run("document.getElementById('tab-0').click()")
        browser.wait_for_text("#panel", "compact/state")
        heights = browser.run("return [...document.querySelectorAll('.figure')].map((each) => each.offsetHeight)")
        assert len(set(heights) - {0}) == 1, "a figure has more than one line"
        if not dark:
            save(browser, "monitor.png")
        assert browser.complaints() == []


def test_a_phone_shows_all_of_it_in_one_column(browser: Browser, server: EmbeddedServer) -> None:
    """On a narrow screen nothing is wider than the screen."""
    scene = Scene(server)
    with load(server), scene:
        browser.open(server.monitor_url, width=390, height=844)
        scene.play(browser)
        for tab in range(5):
            browser.run("document.getElementById(`tab-${arguments[0]}`).click()", tab)
            browser.wait(lambda: browser.text("#panel"), "the panel is filled")
            assert browser.run("return document.documentElement.scrollWidth") <= 390
        browser.run("document.getElementById('tab-0').click(); window.scrollTo(0, 0)")
        save(browser, "monitor-phone.png")
        assert browser.complaints() == []


def test_a_page_outlives_its_server(browser: Browser) -> None:
    """When the server is gone the page says so, and when it is back goes on by itself."""
    with EmbeddedServer(monitor_port=0) as server:
        port = int(server.monitor_url.rpartition(":")[2])
        browser.open(server.monitor_url)
        browser.wait_for_text("#live", "live")
    browser.wait_for_text("#live", "no connection")
    with EmbeddedServer(monitor_port=port):
        browser.wait(lambda: browser.text("#live").startswith("live"), "it is live again")
    browser.complaints()  # that the connection was refused


def held_for(browser: Browser, holder: str) -> float:
    """In seconds, as a lane says it; 0 if none does."""
    found = re.search(rf"{holder} for ([\d.]+) s", browser.text("#lanes"))
    return 0.0 if found is None else float(found[1])


def test_a_standby_takes_over(browser: Browser) -> None:
    """When the active server of a log dies, the page of the standby says that it is active, and shows its locks."""
    with EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster:
        first, second = (
            EmbeddedServer(monitor_port=0, log=ReplicaSettings(log=cluster.seeds, id=each)) for each in ("a", "b")
        )
        with second, first:
            active, standby = (first, second) if first.is_active else (second, first)
            browser.open(standby.monitor_url)
            browser.wait_for_text("#about", "standby")
            with StateStoreClient(standby.url, client_id="worker") as store:
                lease = store.lock("leader", holder="worker", lease=60).acquire()
                active.stop()
                browser.wait_for_text("#about", "active")
                store.guarded(lease).set("state", "1", timeout=30)
                browser.wait_for_text("#events", "came worker")
                store.lock("leader", holder="other").try_acquire()
                browser.wait_for_text("#lanes", "leader", "worker for", "1 waiting")
                browser.run("document.getElementById('tab-4').click()")
                browser.wait_for_text("#panel", "This server of the log", "active")
                assert browser.complaints() == []


def test_a_site_dies(browser: Browser) -> None:
    """The page says which one is missing."""
    with EmbeddedServer(monitor_port=0, site=SiteEndpoints(name="rome", listen="tcp://127.0.0.1:*")) as server:
        with EmbeddedServer(site=SiteEndpoints(name="oslo", peers=(str(server.site_url),))):
            browser.open(server.monitor_url)
            browser.wait_for_text("#live", "live")
            look_at_servers(browser)
            browser.wait(lambda: "oslo initialized up" in panel(browser), "the other site is there")
        browser.wait(lambda: "oslo idle down" in panel(browser), "it is missed")
        assert browser.complaints() == []


def test_a_store_on_another_broker_is_shown_as_its_client(browser: Browser, tmp_path: Path) -> None:
    """Where it is and how far behind; sessions are said to be elsewhere. Then the broker is gone."""
    skip_without(MOSQUITTO)
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        url = running.enter_context(MOSQUITTO.running(tmp_path))
        lines = stack.enter_context(hosted_store(url, tmp_path / "data", "--monitor-port", "0"))
        browser.open(next(lines).removeprefix("monitor at ").strip())
        browser.wait_for_text("#about", f"hosted on {url}, connected")
        browser.wait_for_text("#tiles", "Behind the broker by", "In flight to the broker")
        browser.run("document.getElementById('explore').scrollIntoView()")
        browser.run("document.getElementById('tab-2').click()")
        browser.wait_for_text("#panel", "at the broker that this store is hosted on")
        browser.run("document.getElementById('tab-4').click()")
        browser.wait_for_text("#panel", "Client of a broker", url, "connected", "Open requests")
        assert browser.nameless() == []
        assert browser.pale() == []
        running.close()
        browser.wait_for_text("#about", "the broker is away")
        browser.wait_for_text("#events", "broker lost")
        assert browser.complaints() == []


def test_peers_of_the_log_die(browser: Browser, tmp_path: Path) -> None:
    """The page says what the peer in this process is and how far each other one; when there is no majority, that no
    leader is known, and who does not answer.
    """
    nodes = {name: f"127.0.0.1:{reserved_ports(3)}" for name in "abc"}
    servers = [
        EmbeddedServer(monitor_port=0, log=ReplicaSettings.in_cluster(nodes, id=name, data=tmp_path / name))
        for name in nodes
    ]
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(EmbeddedServer.start, servers))
            browser.open(servers[0].monitor_url)
            browser.wait_for_text("#live", "live")
            look_at_servers(browser)
            browser.wait(lambda: "Leader known" in panel(browser), "there is a leader")
            assert "Raft peer in this process" in panel(browser)
            browser.wait(lambda: panel(browser).count("follower") >= 2, "the others answer")
            list(pool.map(EmbeddedServer.stop, servers[1:]))
            browser.wait(lambda: "Leader not known" in panel(browser), "it is missed")
            browser.wait(lambda: panel(browser).count("no answer") == 2, "the others are missed")
            assert browser.complaints() == []
        finally:
            list(pool.map(EmbeddedServer.stop, servers))


def look_at_servers(browser: Browser) -> None:
    """The panel of servers, log and sites, which is asked for while it is seen."""
    browser.run("document.getElementById('tab-4').click()")
    browser.run("document.getElementById('explore').scrollIntoView()")


def panel(browser: Browser) -> str:
    """Its text, on one line."""
    return " ".join(browser.text("#panel").split())


def test_a_recording_is_shown_by_the_same_page(browser: Browser, server: EmbeddedServer, tmp_path: Path) -> None:
    """Any moment of a recording can be looked at, also with the keyboard; what is not in it is not offered."""
    from selenium.webdriver.common.keys import Keys

    statestore = [sys.executable, "-m", "statestore_client.cli", "monitor"]
    file = tmp_path / "incident"
    recorder = subprocess.Popen([*statestore, server.monitor_url, "--record", file])
    browser.wait(lambda: file.exists() and b"tick" in file.read_bytes(), "it records")
    with StateStoreClient(server.url, client_id="app") as store:
        store.lock("jobs/compact", holder="first").acquire().release()
        second = store.lock("jobs/compact", holder="second")
        second.acquire()
        browser.wait(lambda: b'"second"' in file.read_bytes().rpartition(b"\n")[0], "it is recorded")
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(60) == 0
    shown = subprocess.Popen([*statestore, "--replay", file], stdout=subprocess.PIPE)
    try:
        assert shown.stdout is not None
        browser.open(shown.stdout.readline().decode().removeprefix("replay at ").strip())
        browser.wait_for_text("#live", "recording")
        browser.wait_for_text("#lanes", "jobs/compact", "second for")
        assert not browser.run("return document.getElementById('explore').checkVisibility()")
        browser.run("document.getElementById('moment').focus()")
        browser.press(Keys.HOME)
        browser.wait(lambda: "jobs/compact" not in browser.text("#lanes"), "the lock was not there yet")
        browser.run("document.getElementById('play').focus()")
        browser.press(Keys.ENTER)
        browser.wait_for_text("#lanes", "second for")
        assert browser.nameless() == []
        assert browser.pale() == []
        assert browser.complaints() == []
    finally:
        shown.terminate()
        assert shown.wait(60) == 0
        shown.stdout.close()


class Scene:
    """What the pictures show: a lock that changes hands, a late write that is refused, a holder that dies."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._clients = [StateStoreClient(server.url, client_id=f"replica-{name}") for name in "abc"]

    def __enter__(self) -> None:
        for client in self._clients:
            client.open()

    def __exit__(self, *error: object) -> None:
        for client in self._clients:
            client.close()

    def play(self, browser: Browser) -> None:
        """Until the page shows all of it."""
        a, b, c = self._clients
        browser.wait_for_text("#live", "live")
        leader = c.lock("plant/leader", holder="replica-c", lease=2 * HELD_S)
        leader.acquire()
        first = a.lock("jobs/compact", holder="replica-a").acquire()
        a.guarded(first).set("compact/state", "page 17")
        browser.wait_for_text("#lanes", "replica-c for")
        browser.wait(lambda: held_for(browser, "replica-a") >= HELD_S, "it was held for a while")
        c.close()
        first.release()
        self._held = second = b.lock("jobs/compact", holder="replica-b").acquire()
        b.guarded(second).set("compact/state", "page 18")
        with pytest.raises(FencingTokenTooOldError):
            a.set("compact/state", "page 17, late", fencing_token=first.fencing_token)
        a.lock("jobs/compact", holder="replica-a").try_acquire()
        browser.wait_for_text("#lanes", "1 waiting", "free")
        browser.wait(lambda: held_for(browser, "replica-b") >= HELD_S, "it was held for a while")
        browser.wait_for_text("#refusals", "is older than")
        browser.run("document.getElementById('explore').scrollIntoView()")  # what is not seen is not asked for
        browser.wait_for_text("#panel", "compact/state")
        browser.run("window.scrollTo(0, 0)")
