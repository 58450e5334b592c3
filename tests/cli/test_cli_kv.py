"""``statestore kv``: a site of the KvStore from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.keys import make_keys
from support.ports import reserved_port
from support.sites import SiteThread
from support.waiting import eventually

from statestore_client.cli.kv import Mesh, drawn, walk
from statestore_client.errors import NotMergedError, RequestTimeoutError
from statestore_client.kvstore import PeerInfo, PeersReply, SiteClient, Value
from statestore_client.server.kvstore.area_store import AreaLimits

Kv = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def site() -> Iterator[SiteThread]:
    """One site, named bonn."""
    with SiteThread() as one:
        yield one


@pytest.fixture
def kv(site: SiteThread, here: Callable[..., tuple[int, str, str]]) -> Kv:
    """Runs `statestore kv` against it: the exit code, and the lines on standard output."""

    def run(command: str, *arguments: str, url: str = "") -> tuple[int, list[str]]:
        code, out, _ = here("kv", command, "--url", url or site.url, *arguments)
        return code, out.splitlines()

    return run


def test_keys_are_set_listed_and_erased(kv: Kv) -> None:
    """What `set-key` says is listed with its version, and ends after `erase-key`."""
    assert kv("set-key", "config/a", "1") == (0, [])
    assert kv("set-key", "other", "2", "--version", "7", "--ttl", "60") == (0, [])
    assert kv("set-key", "config/b", "3", "--persist") == (0, [])
    eventually(lambda: len(kv("keys")[1]) == 3)
    assert kv("keys") == (0, ["1 bonn config/a", "1 bonn config/b", "7 bonn other"])
    assert kv("keys", "--prefix", "config/") == (0, ["1 bonn config/a", "1 bonn config/b"])
    assert kv("keys", "--pattern", "o[a-z]+", "--originator", "bonn") == (0, ["7 bonn other"])
    assert kv("keys", "--originator", "rome") == (0, [])
    (line,) = kv("keys", "--prefix", "o", "--ttl")[1]
    assert 50 < float(line.split()[2]) <= 60
    (found,) = (json.loads(line) for line in kv("keys", "--prefix", "o", "--json")[1])
    assert (found["key"], found["version"], found["originator"]) == ("other", 7, "bonn")
    assert kv("keyvals", "config/a", "other") == (0, ["1", "2"])
    assert kv("keyvals", "config/a", "missing") == (1, ["1"])
    (found,) = (json.loads(line) for line in kv("keyvals", "other", "--json")[1])
    assert found["value"] == "2"
    assert kv("nodes") == (0, ["3 bonn"])
    assert kv("erase-key", "other") == (0, [])
    assert float(kv("keys", "--prefix", "o", "--ttl")[1][0].split()[2]) <= 5
    assert kv("erase-key", "missing") == (1, [])
    assert kv("set-key", "k", "v", "--json") == (0, ['{"key": "k", "is_set": true}'])
    assert kv("erase-key", "k", "--json") == (0, ['{"key": "k", "is_erased": true}'])
    assert kv("erase-key", "missing", "--json") == (1, ['{"key": "missing", "is_erased": false}'])
    assert kv("set-key", "k", "v", "--persist", "--version", "3")[0] == 2
    for ttl in ("0.5", "1e308", "nan"):
        assert kv("set-key", "k", "v", "--ttl", ttl)[0] == 2


def test_sites_are_compared(kv: Kv, site: SiteThread) -> None:
    """Two sites that have the same have one signature; a difference is named, and is an exit code."""
    with SiteThread("rome") as rome:
        site.set_many({"same": b"x", "here": b"x", "other": b"x"})
        rome.set_many({"same": b"x", "other": b"y"})
        code, lines = kv("compare", rome.url)
        assert code == 1
        assert lines == ["here 1@bonn -", "other 1@bonn 1@bonn"]
        assert kv("compare", rome.url, "--prefix", "same") == (0, [])
        mine, theirs = (kv("signature", "--prefix", "same", url=url) for url in (site.url, rome.url))
        assert mine == theirs
        assert kv("signature") != kv("signature", url=rome.url)
        assert json.loads(kv("signature", "--json")[1][0])["keys"] == 3
        found = [json.loads(line) for line in kv("compare", rome.url, "--json")[1]]
        assert [each["there"] is None for each in found] == [True, False]


def test_what_two_sites_have_not_in_common_is_printed(here: Callable[..., tuple[int, str, str]]) -> None:
    """In each area that both have, with the side that is newer."""
    with (
        SiteThread("bonn", areas=("default", "plant", "own")) as bonn,
        SiteThread("rome", areas=("default", "plant")) as rome,
    ):

        def diff(*arguments: str) -> tuple[int, list[str]]:
            code, out, _ = here("kv", "diff", bonn.url, rome.url, *arguments)
            return code, out.splitlines()

        assert diff() == (0, [])
        with SiteClient(bonn.url) as here_, SiteClient(rome.url) as there:
            for one, site in (("a", here_), ("b", there)):
                site.merge({"same": Value(1, "x", b"x"), f"only {one}": Value(1, one, b"x")})
                site.in_area("plant").merge({"newer": Value(1 + (one == "b"), one, b"x")})
        assert diff() == (1, ["< default only a 1@a -", "> default only b - 1@b", "> plant newer 1@a 2@b"])
        assert diff("--prefix", "same") == (0, [])
        assert diff("--area", "plant") == (1, ["> plant newer 1@a 2@b"])
        (found,) = (json.loads(line) for line in diff("--area", "plant", "--json")[1])
        assert (found["newer"], found["left"]["version"], found["right"]["version"]) == ("right", 1, 2)
        assert diff("--area", "own")[0] == 2


def test_peers_areas_numbers_and_troubles(kv: Kv, site: SiteThread) -> None:
    """A site that is alone has no trouble; one whose peer is lost has."""
    assert kv("validate") == (0, [])
    with SiteThread("rome", site.url) as rome:
        rome.set_many({"key": b"x"})
        eventually(lambda: kv("peers")[1] and kv("peers")[1][0].startswith("initialized"))
        (line,) = kv("peers")[1]
        assert line.split()[2:] == ["rome", "(dials", "this", "site)"]
        assert json.loads(kv("peers", "--json")[1][0])["is_connected"]
        assert kv("areas")[1][0].split()[::2] == ["1", "default"]
        assert json.loads(kv("areas", "--json")[1][0])["keys"] == 1
        assert "default peers_initialized 1" in kv("summary")[1]
        assert json.loads(kv("summary", "--json")[1][0])["areas"]["default"]["keys"] == 1
        assert kv("validate") == (0, [])
        assert kv("graph")[1] == ["bonn === rome  in sync"]
    with SiteClient(site.url) as client:
        client.add_peer("tcp://127.0.0.1:1")
    eventually(lambda: kv("peers")[1][0].startswith("lost"))
    code, lines = kv("validate")
    assert code == 1
    assert lines[0].startswith("peer rome: lost")
    assert lines[1] == "address tcp://127.0.0.1:1: no site there has let this one in"
    assert {json.loads(line)["what"] for line in kv("validate", "--json")[1]} == {
        "peer rome",
        "address tcp://127.0.0.1:1",
    }
    lost, unreached = kv("peers")[1]
    assert (lost.split()[0], lost.split()[2:]) == ("lost", ["rome", "-"])
    assert unreached == "unreached - - tcp://127.0.0.1:1"


def test_a_site_that_has_not_synced_and_a_key_that_was_lost_are_told(kv: Kv, site: SiteThread) -> None:
    """`status` says whether the site has what the others had; `validate` names a key that another site has taken."""
    assert kv("status", "--wait", "20") == (
        0,
        ["bonn: synced", "default: 0 keys, 0 of this site, 0 of 0 peers in sync"],
    )
    assert json.loads(kv("status", "--json")[1][0])["is_synced"] is True
    kv("set-key", "k", "mine")
    with SiteClient(site.url) as client:
        client.merge({"k": Value(7, "rome", b"theirs")})
    assert kv("status")[1][1] == "default: 1 keys, 0 of this site, 1 lost, 0 of 0 peers in sync"
    (line,) = kv("validate")[1]
    assert line.startswith("key k: rome has overridden it")
    assert kv("erase-key", "k") == (1, [])
    assert kv("validate") == (0, [])
    site.stop()
    site.start(peers=(f"tcp://127.0.0.1:{reserved_port()}",))
    assert kv("status", "--wait", "0")[0] == 1
    assert kv("status")[1][0] == "bonn: not synced yet"


def test_peers_are_added_and_removed(kv: Kv, site: SiteThread) -> None:
    """By the address that is dialled; one that has dialled and is gone for good by its name."""
    with SiteThread("rome") as rome:
        assert kv("add-peer", rome.url) == (0, [])
        eventually(lambda: kv("peers")[1] and kv("peers")[1][0].startswith("initialized"))
        assert kv("remove-peer", "rome")[0] == 2
        rome.stop()
        eventually(lambda: kv("peers")[1][0].startswith("lost"))
        assert kv("peers")[1][0].split()[2:] == ["rome", rome.url]
        (line,) = kv("validate")[1]
        assert line.endswith(f"s ago at {rome.url}")
        rome.start()
        eventually(lambda: kv("peers")[1][0].startswith("initialized"))
        assert kv("remove-peer", rome.url) == (0, [])
        assert kv("peers") == (0, [])
        eventually(lambda: kv("peers", url=rome.url)[1] == [])
        assert kv("remove-peer", rome.url, "--json") == (
            1,
            [json.dumps({"peer": rome.url, "is_removed": False})],
        )
    with SiteThread("oslo", site.url):
        eventually(lambda: kv("peers")[1] and kv("peers")[1][0].startswith("initialized"))
        assert kv("remove-peer", "oslo")[0] == 2
    eventually(lambda: kv("validate")[0] == 1)
    assert kv("remove-peer", "oslo", "--json") == (0, ['{"peer": "oslo", "is_removed": true}'])
    assert kv("validate") == (0, [])
    assert kv("add-peer", "nonsense")[0] == 2
    url = "tcp://127.0.0.1:1"
    assert kv("add-peer", url, "--json") == (0, [json.dumps({"peer": url, "is_dialled": True})])


def test_an_area_without_room_is_a_trouble(kv: Kv, site: SiteThread) -> None:
    """For five minutes after something that another site has sent was refused."""
    with SiteThread("rome", site.url) as rome:
        eventually(lambda: kv("peers")[1] and kv("peers")[1][0].startswith("initialized"))
        site.peering.site.replicas["default"].contents.store.limits = AreaLimits(max_keys=2)
        rome.set_many({f"key {number}": b"x" for number in range(3)})
        eventually(lambda: kv("validate")[0] == 1)
        assert kv("validate")[1] == ["area default: it has no room for what other sites send: see --site-max-keys"]
        assert "default full 1" in kv("summary")[1]
        with SiteClient(site.url) as client, pytest.raises(NotMergedError, match="NO_ROOM, its area is full: raise"):
            client.set("another", "x")


def test_changes_are_printed_as_they_happen(site: SiteThread) -> None:
    """What is there if asked for, each new value, times to live if asked for, and ends."""
    command = [sys.executable, "-m", "statestore_client.cli", "kv", "snoop", "--url", site.url]
    with SiteClient(site.url) as client:
        client.set("key", "first", version=1, ttl_ms=60_000)
        with subprocess.Popen([*command, "--initial", "--ttls", "--count", "4"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"set 1 bonn key first\n"
            client.refresh("key", 30_000)
            client.set("key", "second")
            client.merge({"short": Value(1, "oslo", b"x", 300)})
            out, _ = process.communicate(timeout=60)
        lines = out.decode().splitlines()
        assert lines[0].split()[:4] == ["ttl", "1", "bonn", "key"]
        assert lines[1] == "set 2 bonn key second"
        assert lines[2:] == ["set 1 oslo short x", "end short"]
        assert process.returncode == 0


def test_peers_are_printed_again_after_each_change(site: SiteThread) -> None:
    """A site that comes is printed with its states; an address where nobody answers, each time."""
    with SiteClient(site.url) as client:
        client.add_peer("tcp://127.0.0.1:1")
    command = [sys.executable, "-m", "statestore_client.cli", "kv", "peers", "--url", site.url, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "unreached - - tcp://127.0.0.1:1\n"
            with SiteThread("rome", site.url):
                line = next(line for line in process.stdout if line.startswith("initialized"))
            assert line.split()[2:] == ["rome", "(dials", "this", "site)"]
            assert process.stdout.readline() == "unreached - - tcp://127.0.0.1:1\n"
        finally:
            process.terminate()


def test_what_cannot_be_done_says_why(kv: Kv, site: SiteThread) -> None:
    """No site there, no such area, a pattern that is none, a picture that cannot be written: each has its exit code."""
    assert kv("keys", "--timeout", "0.1", url=f"tcp://127.0.0.1:{reserved_port()}")[0] == 4
    assert kv("keys", url="http://nowhere")[0] == 2
    assert kv("keys", "--area", "nowhere")[0] == 2
    assert kv("keys", "--pattern", "(")[0] == 2
    assert kv("graph", "--svg", "/nowhere/mesh.svg")[0] == 2
    assert kv("keyvals")[0] == 2
    for wrong in (("--ttl", "1e300"), ("--version", "9" * 30), ("--area", "\udcff")):
        assert kv("set-key", "k", "v", *wrong) == (2, [])


def test_a_site_with_keys_is_spoken_to_by_name(here: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """NAME=URL says whose key is expected; a client without keys is told that it may need some."""
    keys = make_keys(tmp_path / "keys", ["bonn", "rome"])
    own = ["--curve-keys", str(keys), "--curve-secret-key-file", str(tmp_path / "app.key_secret")]
    with SiteThread(keys=keys) as bonn, SiteThread("rome", f"bonn={bonn.url}", keys=keys) as rome:
        assert here("kv", "set-key", "key", "x", "--url", f"bonn={bonn.url}", *own)[0] == 0
        eventually(lambda: here("kv", "keys", "--url", f"rome={rome.url}", *own)[1] == "1 bonn key\n")
        assert here("kv", "compare", f"rome={rome.url}", "--url", f"bonn={bonn.url}", *own)[:2] == (0, "")
        assert here("kv", "graph", "--url", f"rome={rome.url}", *own)[1] == "bonn === rome  in sync\n"
        code, _, complaint = here("kv", "keys", "--url", bonn.url, "--timeout", "0.3")
        assert (code, "oes it want keys" in complaint) == (4, True)
        assert here("kv", "keys", "--url", bonn.url, *own)[0] == 2
        assert here("kv", "keys", "--url", f"oslo={bonn.url}", *own)[0] == 2
        assert here("kv", "keys", "--url", f"bonn={bonn.url}", *own[:2])[0] == 2


# -- the mesh ----------------------------------------------------------------------------------------------------------


def seen(name: str, *peers: tuple[str, int, bool, str], unreached: tuple[str, ...] = ()) -> Mesh:
    """As the site of this name sees its peers: name, state, whether it is connected, where it is."""
    found = {
        other: PeerInfo(state, 0, 0, is_connected, (url,) if url else ()) for other, state, is_connected, url in peers
    }
    return Mesh.seen_by(name, PeersReply(1, 1, 1, found, unreached))


def test_a_mesh_is_walked_as_far_as_sites_can_be_reached() -> None:
    """Each site is asked once; one that does not answer is known by its peers, and the worse view of both counts."""
    answers = {
        "a:": seen("a", ("b", 2, True, "b:"), ("c", 2, True, "")),
        "b:": seen("b", ("a", 1, True, ""), ("d", 0, False, "d:"), unreached=("e:",)),
    }
    asked = []

    def ask(url: str) -> Mesh:
        asked.append(url)
        if url not in answers:
            raise RequestTimeoutError("nobody there")
        return answers[url]

    mesh = walk("a:", ask)
    assert asked == ["a:", "b:", "d:"]
    assert [line.text for line in mesh.lines()] == [
        "a --- b  syncing",
        "a === c  in sync",
        "b -x- d  lost",
        "b -x- e:  unreached",
    ]
    assert mesh.sites == {"a": True, "b": True, "c": False, "d": False}
    with pytest.raises(RequestTimeoutError):
        walk("d:", ask)


def test_a_picture_has_each_site_and_each_connection(kv: Kv, tmp_path: Path) -> None:
    """The file is SVG, whatever the names are."""
    mesh = seen("a<b", ("c&d", 2, True, ""), ("lost", 0, False, ""))
    root = ET.fromstring(drawn(mesh, "today"))  # noqa: S314 - our own picture
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in root.iter(f"{space}text")] == ["a<b", "c&d", "lost"]
    lines = list(root.iter(f"{space}line"))
    assert ["stroke-dasharray" in line.attrib for line in lines] == [False, True]
    assert kv("graph", "--svg", str(tmp_path / "mesh.svg")) == (0, ["bonn is alone"])
    picture = ET.parse(tmp_path / "mesh.svg")  # noqa: S314 - our own picture
    assert [text.text for text in picture.iter(f"{space}text")] == ["bonn"]
