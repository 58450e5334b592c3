"""``statestore serve --site``: sites as processes, which find each other, have keys, and are equal after any loss."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from site_processes import COMMAND, Links, SiteProcess
from support.keys import make_keys
from support.ports import reserved_port
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.errors import RequestTimeoutError
from statestore_client.kvstore import ClientKeys, SiteClient
from statestore_client.wire.kvstore.messages import (
    ChangeOwnKey,
    OwnKeyAction,
    SetResult,
)


def test_two_sites_share_what_they_keep_alive(site: Callable[..., SiteProcess]) -> None:
    """A key that one of them keeps alive comes to the other, with each change and the end; SIGTERM ends both."""
    bonn, rome = site("bonn"), site("rome")
    rome.peers.append(bonn.url)
    (_, line), _ = bonn.start(), rome.start()
    assert line == f"listening for sites on {bonn.url}"
    bonn.change(OwnKeyAction.PERSIST, "k", b"1")
    eventually(lambda: rome.values() == {"k": b"1"})
    bonn.change(OwnKeyAction.PERSIST, "k", b"2")
    rome.change(OwnKeyAction.SET, "r", b"3")
    eventually(lambda: rome.values() == bonn.values() == {"k": b"2", "r": b"3"})
    rome.change(OwnKeyAction.ERASE, "r")
    eventually(lambda: rome.values() == bonn.values() == {"k": b"2"})
    assert (bonn.end(signal.SIGTERM), rome.end(signal.SIGTERM)) == (0, 0)


@pytest.mark.ci
def test_five_sites_are_equal_again_after_kills_and_a_partition(site: Callable[..., SiteProcess], links: Links) -> None:
    """A ring of five with a chord. Sites are killed and started at random: nothing of a site is on its disk, so each
    comes back with what the others have. Then two are cut off from three, and both sides go on.
    """
    random = Random(5)
    sites = [site(f"s{n}") for n in range(5)]
    for one, other in (*itertools.pairwise((*sites, sites[0])), (sites[0], sites[2])):
        links.join(one, other)
    for each in sites:
        each.start()
    wanted: dict[str, bytes | None] = {}
    for number in range(3):
        for each in sites:
            wanted[each.name] = b"%d" % number
            each.change(OwnKeyAction.PERSIST, each.name, wanted[each.name])
        victim = random.choice(sites)
        eventually(lambda: all(each.values() == wanted for each in sites))
        assert victim.end(signal.SIGKILL) == -signal.SIGKILL
        victim.start()
        eventually(lambda victim=victim: victim.values() == wanted)
        victim.change(OwnKeyAction.PERSIST, victim.name, wanted[victim.name])

    few, many = sites[:2], sites[2:]
    links.cut(few)
    sites[0].change(OwnKeyAction.SET, "both", b"of few")
    for value in (b"of many", b"of many, again"):
        sites[3].change(OwnKeyAction.SET, "both", value)
    sites[1].change(OwnKeyAction.PERSIST, "s1", b"apart")
    sites[4].end(signal.SIGKILL)
    sites[4].start()
    sites[4].change(OwnKeyAction.PERSIST, "s4", b"apart")
    here, there = {"both": b"of few", "s1": b"apart"}, {"both": b"of many, again", "s4": b"apart"}
    eventually(lambda: all(each.values() == {**wanted, **here} for each in few))
    eventually(lambda: all(each.values() == {**wanted, **there} for each in many))
    links.heal()
    eventually(lambda: all(each.values() == {**wanted, **here, **there} for each in sites))


@pytest.mark.ci
def test_options_of_the_bridge_let_keys_cross(site: Callable[..., SiteProcess]) -> None:
    """A chosen key of one process is in the state store of the other one."""
    bonn = site("bonn", "--site-export", "line/", "--site-export", "pump/")
    rome = site("rome", "--site-import")
    rome.peers.append(bonn.url)
    (here, _), (there, _) = bonn.start(), rome.start()
    with (
        StateStoreClient(here.removeprefix("listening on ")) as at_bonn,
        StateStoreClient(there.removeprefix("listening on ")) as at_rome,
    ):
        at_bonn.set("pump/1", b"x")
        at_bonn.set("other", b"x")
        eventually(lambda: at_rome.get("sites/bonn/pump/1"))
        assert list(at_rome.scan()) == [b"sites/bonn/pump/1"]


@pytest.mark.ci
def test_a_key_ends_with_the_time_to_live_of_its_dead_site(site: Callable[..., SiteProcess]) -> None:
    """It outlives that time while its site is there, and is gone soon after the site was killed."""
    bonn, rome = site("bonn"), site("rome", "--site-key-ttl", "2")
    rome.peers.append(bonn.url)
    bonn.start(), rome.start()
    bonn.change(OwnKeyAction.PERSIST, "bonn", b"v")
    rome.change(OwnKeyAction.PERSIST, "rome", b"v")
    eventually(lambda: rome.values() == bonn.values() == {"bonn": b"v", "rome": b"v"})
    since = time.monotonic()
    eventually(lambda: time.monotonic() > since + 2.5)
    assert bonn.values() == {"bonn": b"v", "rome": b"v"}
    rome.end(signal.SIGKILL)
    eventually(lambda: bonn.values() == {"bonn": b"v"})


@pytest.mark.ci
def test_a_limit_of_floods_merges_updates(site: Callable[..., SiteProcess]) -> None:
    """Of many updates in a second one leaves, with the keys of the others; all arrive."""
    bonn, rome = site("bonn", "--site-flood-rate", "1"), site("rome")
    rome.peers.append(bonn.url)
    began = time.monotonic()
    bonn.start(), rome.start()
    with SiteClient(bonn.url, timeout_s=20) as client:
        eventually(lambda: client.summary().areas["default"]["peers_initialized"])
        for number in range(50):
            client.set(f"k{number}", b"v")
        eventually(lambda: len(rome.values()) == 50)
        flooded = client.summary().areas["default"]["flooded_publications"]
    assert 1 <= flooded <= min(49, time.monotonic() - began + 2)


@pytest.mark.ci
def test_metrics_tell_of_the_site(site: Callable[..., SiteProcess]) -> None:
    """Peers by state, keys and syncs of each area."""
    port = reserved_port()
    bonn, rome = site("bonn", "--metrics-port", str(port), "--area", "default", "--area", 'a"b'), site("rome")
    rome.peers.append(bonn.url)
    bonn.start()
    rome.start()
    rome.change(OwnKeyAction.SET, "k", b"v")
    bonn.change(OwnKeyAction.PERSIST, "own", b"v")

    def page() -> set[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return set(answer.read().decode().splitlines())

    wanted = {
        'statestore_site_keys{area="default"} 2',
        'statestore_site_keys{area="a\\"b"} 0',
        'statestore_site_own_keys{area="default"} 1',
        'statestore_site_peers{area="default",state="initialized"} 1',
        'statestore_site_peers{area="a\\"b",state="initialized"} 0',
        "statestore_site_refused_hellos_total 0",
    }
    eventually(lambda: wanted <= page())
    assert any(line.startswith('statestore_site_full_syncs_total{area="default"} ') for line in page())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--peer", "tcp://127.0.0.1:1"], "--peer needs --site NAME"),
        (["--site-listen", "tcp://127.0.0.1:1"], "--site-listen needs --site NAME"),
        (["--site-flood-rate", "5"], "--site-flood-rate needs --site NAME"),
        (["--site", "a", "--peer", "tcp://127.0.0.1:1", "--site-key-ttl", "1"], "not in the range x>=2"),
        (
            ["--site", "a", "--peer", "tcp://127.0.0.1:1", "--site-key-ttl", "1e308"],
            "--site-key-ttl: key_ttl_s must be a number of seconds from 2 to",
        ),
        (
            ["--site", "a", "--peer", "tcp://127.0.0.1:1", "--site-flood-rate", "0"],
            "--site-flood-rate: flood_rate must",
        ),
        (["--site", "a", "--peer", "tcp://127.0.0.1:1", "--site-max-keys", "0"], "--site-max-keys: max_keys must"),
        (["--site", "a", "--peer", "tcp://127.0.0.1:1", "--site-max-bytes", "-1"], "--site-max-bytes: max_bytes must"),
        (["--site-max-keys", "5"], "--site-max-keys needs --site NAME"),
        (["--site-sync-timeout", "0"], "--site-sync-timeout needs --site NAME"),
        (["--site", "a/b", "--peer", "tcp://127.0.0.1:1", "--site-import"], "so its name has no '/'"),
        (["--site", "a"], "neither listens nor dials other sites"),
        (["--site", "", "--peer", "tcp://127.0.0.1:1"], "the name of a site has 1 to 255 bytes"),
        (["--site", "é" * 128, "--peer", "tcp://127.0.0.1:1"], "the name of a site has 1 to 255 bytes"),
        (["--site", "a", "--peer", "tcp://127.0.0.1:1", "--area", "x", "--area", "x"], "each of them once"),
        (["--site", "a", "--peer", "tcp://127.0.0.1:1", "--area", ""], "the name of an area has 1 to 255 bytes"),
        (["--site", "a", "--peer", "127.0.0.1:1"], "addresses are tcp://host:port or ipc://path"),
        (["--site", "a", "--site-listen", "tcp://127.0.0.1:x"], "addresses are tcp://host:port or ipc://path"),
        (["--site", "a", "--site-listen", "ws://0.0.0.0:1"], "addresses are tcp://host:port or ipc://path"),
        (["--site", "a", "--peer", "tcp://a b:1"], "no site can be dialled at 'tcp://a b:1'"),
        (["--site", "a\nb", "--peer", "tcp://127.0.0.1:1"], "no control characters"),
        (["--site", "a", "--site-listen", "tcp://0.0.0.0:1"], "say --insecure if that is meant"),
        (["--site", "a", "--site-listen", "tcp://*:1"], "say --insecure if that is meant"),
        (["--site", "a", "--site-listen", "tcp://[::]:1"], "say --insecure if that is meant"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    here: Callable[..., tuple[int, str, str]], options: list[str], says: str
) -> None:
    """With exit code 2 and what to do."""
    code, out, told = here("serve", "--port", "0", *options)
    assert (code, out) == (2, "")
    assert says in " ".join(told.split())


def test_an_address_in_use_is_refused(site: Callable[..., SiteProcess]) -> None:
    """Nothing else of the server stays open then: the process ends."""
    bonn = site("bonn")
    bonn.start()
    done = subprocess.run([*COMMAND, "--site", "b", "--site-listen", bonn.url], capture_output=True, timeout=30)
    assert done.returncode == 10
    assert done.stderr.decode().startswith(f"statestore: cannot listen for sites at {bonn.url}")
    reply = bonn.ask(ChangeOwnKey(1, "default", OwnKeyAction.SET, "k", b"v"))
    assert reply == SetResult(1, {})


# -- sites with keys, which other machines may reach -------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keys of two sites and of a client."""
    return make_keys(tmp_path / "keys", ("bonn", "rome"))


def test_a_site_with_keys_listens_beyond_its_machine(keys: Path, tmp_path: Path) -> None:
    """Without --insecure. A client with a key comes in, one without is refused, logged and counted."""
    port, metrics = reserved_port(), reserved_port()
    site = ["--site", "bonn", "--site-listen", f"tcp://0.0.0.0:{port}", "--curve-keys", str(keys)]
    peer = ["--peer", "rome=tcp://127.0.0.1:1", "--metrics-port", str(metrics)]
    log = tmp_path / "log"
    with log.open("wb") as file, subprocess.Popen([*COMMAND, *site, *peer], stdout=subprocess.PIPE, stderr=file) as run:
        try:
            assert run.stdout is not None
            while not (line := run.stdout.readline()).startswith(b"listening for sites"):
                assert line, log.read_text()
            url = f"tcp://127.0.0.1:{port}"
            with SiteClient(url, keys=ClientKeys.read(tmp_path / "app.key_secret", keys / "bonn.key")) as client:
                client.set("k", b"v")
                assert client.peers().unreached == ("rome=tcp://127.0.0.1:1",)
            with (
                SiteClient(url, timeout_s=0.4) as client,
                pytest.raises(RequestTimeoutError, match="oes it want keys"),
            ):
                client.get("k")
            eventually(lambda: "site bonn refuses connections from" in log.read_text())
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
                page = answer.read().decode().splitlines()
            (count,) = (each.split()[1] for each in page if each.startswith("statestore_site_refused_handshakes_total"))
            assert int(count) > 0
        finally:
            run.terminate()
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--curve-keys", "KEYS"], "--curve-keys needs --site NAME"),
        (["--site", "oslo", "--curve-keys", "KEYS"], "oslo.key_secret cannot be used: No such file"),
        (["--site", "bonn", "--curve-keys", "KEYS/nowhere"], "cannot be read: there is none"),
        (["--site", "bonn", "--curve-keys", "KEYS", "--peer", "oslo=tcp://127.0.0.1:1"], "the public key of site oslo"),
        (["--site", "bonn", "--curve-keys", "KEYS", "--peer", "tcp://127.0.0.1:1"], "say whose key is expected"),
        (["--site", "bonn", "--peer", "rome=tcp://127.0.0.1:1"], "addresses are tcp://host:port or ipc://path"),
    ],
)
def test_keys_that_cannot_work_end_the_start(
    here: Callable[..., tuple[int, str, str]], keys: Path, options: list[str], says: str
) -> None:
    """With exit code 2 and the file that is at fault."""
    given = [each.replace("KEYS", str(keys)) for each in options]
    listen = ["--site-listen", "tcp://127.0.0.1:*"] if "--site" in options else []
    code, out, told = here("serve", "--port", "0", *given, *listen)
    assert (code, out) == (2, "")
    assert says in " ".join(told.split())
