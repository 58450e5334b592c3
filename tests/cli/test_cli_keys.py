"""``keys rotate``: the pair of a peer of a log, and of a site, is changed while all run; what ends it in its middle."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
import zmq.auth
from support.keys import make_keys, settings_for
from support.ports import reserved_port
from support.waiting import eventually

from raft_client import RaftClient
from raft_client._common import exits
from raft_client._common.key_rotation import KeyRotation
from raft_client.server import EmbeddedCluster
from statestore_client.kvstore import ClientKeys, SiteClient
from statestore_client.server import EmbeddedServer, SiteEndpoints

Here = Callable[..., tuple[int, str, str]]


def public_key(file: Path) -> bytes:
    return zmq.auth.load_certificate(file)[0]


def steps(here: Here, *command: str | Path) -> tuple[str, str]:
    """Give the command until it has made its step, as an operator does who copied a second ago."""
    said: dict[str, str] = {}

    def is_made() -> bool:
        nonlocal said
        code, out, complaint = here("keys", "rotate", *command, "--json")
        said = json.loads(out)
        assert code in (exits.DONE, exits.NEGATIVE), complaint
        return code == exits.DONE

    eventually(is_made, "the step is made", every_s=0.05)
    return said["step"], said["reason"]


@pytest.mark.ci
@pytest.mark.timeout(120)
def test_the_keys_of_a_peer_are_changed_under_load(here: Here, tmp_path: Path) -> None:
    """All peers read the directory; a client that knows both keys goes on appending; the old key opens nothing then."""
    folder = make_keys(tmp_path / "keys")
    shutil.copytree(folder, tmp_path / "old")
    with EmbeddedCluster(3, curve_keys=folder) as cluster:
        where = [f"--peer={peer.id}={peer.url}" for peer in cluster.peers]
        old = settings_for(folder, cluster.peers)
        assert (
            here("keys", "rotate", folder, "2", *where)[1]
            == "no change of the keys of 2 is under way; --new begins one\n"
        )
        assert steps(here, folder, "2", *where, "--new") == ("comes", "")
        new = public_key(folder / "also/2.key").decode()
        second = next(peer.url for peer in cluster.peers if peer.id == "2")
        both = ",".join([f"{url}={key}" for url, key in old.curve_peer_keys] + [f"{second}={new}"])
        with RaftClient(old.evolve(curve_peer_keys=both)) as log:
            log.append(b"before")
            assert steps(here, folder, "2", *where) == ("goes", "")
            code, _, complaint = here("keys", "rotate", folder, "2", *where)
            assert (code, "2, at tcp://" in complaint, "restart it" in complaint) == (exits.NEGATIVE, True, True)
            log.append(b"between")
            cluster.kill("2")
            cluster.restart("2")
            assert steps(here, folder, "2", *where) == ("one", "")
            last = log.append(b"after")
            eventually(lambda: log.log_info(second).last_applied >= last, "peer 2 follows")
    assert public_key(folder / "2.key").decode() == new
    assert [*(folder / "also").iterdir()] == []


@pytest.mark.ci
@pytest.mark.timeout(120)
def test_the_keys_of_a_site_are_changed_while_both_run(here: Here, tmp_path: Path) -> None:
    """The other one lets the new key in, and finds out which of the two it has to expect where it dials."""
    folder = make_keys(tmp_path / "keys", ("bonn", "rome"))
    url = f"tcp://127.0.0.1:{reserved_port()}"

    def site(name: str, listen: str, *peers: str) -> EmbeddedServer:
        return EmbeddedServer(site=SiteEndpoints(name=name, listen=listen, peers=peers, curve_keys=folder))

    def client(of: str, name: str) -> SiteClient:
        return SiteClient(of, keys=ClientKeys.read(tmp_path / "app.key_secret", folder / f"{name}.key"))

    def is_told(key: str) -> None:
        with client(url, "bonn") as at_bonn:
            eventually(lambda: at_bonn.get(key) is not None, f"bonn is told of {key}", timeout_s=30)

    with site("rome", "tcp://127.0.0.1:*", f"bonn={url}") as rome:
        assert rome.site_url is not None
        where = (f"--peer=bonn={url}", f"--peer=rome={rome.site_url}")
        with client(rome.site_url, "rome") as at_rome:
            with site("bonn", url):
                at_rome.set("before", b"1")
                is_told("before")
                assert steps(here, folder, "bonn", *where, "--new") == ("comes", "")
                assert steps(here, folder, "bonn", *where) == ("goes", "")
            with site("bonn", url):
                at_rome.set("after", b"2")
                is_told("after")
                assert steps(here, folder, "bonn", *where) == ("one", "")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["4"], "4.key_secret cannot be used"),
        (["1"], "where is 2? --peer 2=URL says it"),
        (["1", "--peer", "2"], "'2' is not NAME=URL"),
        (["1", "--peer", "2=nowhere", "--peer", "3=nowhere"], "nowhere is no address"),
    ],
)
def test_what_cannot_be_is_refused(here: Here, tmp_path: Path, command: list[str], says: str) -> None:
    """With the name that is at fault; and nothing is written."""
    folder = make_keys(tmp_path / "keys")
    if command[0] == "1":
        assert here("keys", "rotate", folder, "1", "--new")[0] == exits.DONE
        assert "under way already" in here("keys", "rotate", folder, "1", "--new")[2]
    before = sorted((file, file.stat().st_mtime_ns) for file in folder.rglob("*.key*"))
    code, _, complaint = here("keys", "rotate", folder, *command)
    assert (code in (exits.USAGE, exits.NEGATIVE), says in complaint) == (True, True), complaint
    assert sorted((file, file.stat().st_mtime_ns) for file in folder.rglob("*.key*")) == before


#: Ends its process in place of the so-manieth change of a file.
_KILLED = """
import os, pathlib, signal, sys
from raft_client._common import key_rotation
left = int(sys.argv[1])
def counted(change):
    def do(*arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return change(*arguments, **options)
    return do
pathlib.Path.replace, pathlib.Path.unlink = counted(pathlib.Path.replace), counted(pathlib.Path.unlink)
rotation = key_rotation.KeyRotation(pathlib.Path(sys.argv[2]), "clients/app")
rotation.go_on(begins=True)
"""


@pytest.mark.ci
@pytest.mark.timeout(120)
@pytest.mark.parametrize("step", ["one", "comes", "goes"])
def test_a_change_that_is_killed_goes_on_where_it_was(tmp_path: Path, step: str) -> None:
    """With kill -9, before each file that it writes or removes: the pair in the directory is always one that is let in,
    and in the end there is one new pair, and the old key once while it is let in.
    """
    folder = make_keys(tmp_path / "keys")
    (tmp_path / "app.key_secret").rename(folder / "clients/app.key_secret")
    first = public_key(folder / "clients/app.key")
    for _ in range(["one", "comes", "goes"].index(step)):
        KeyRotation(folder, "clients/app").go_on(begins=True)
    deaths = 0
    while True:
        copy = tmp_path / f"copy-{deaths}"
        shutil.copytree(folder, copy)
        killed = subprocess.run([sys.executable, "-c", _KILLED, str(deaths), str(copy)], check=False)
        files = [copy / "clients/app.key", copy / "also/clients/app.key"]
        let_in = {public_key(file) for file in files if file.exists()}
        assert public_key(copy / "clients/app.key_secret") in let_in
        assert first in let_in or step == "goes"
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL
        deaths += 1
        while (again := KeyRotation(copy, "clients/app")).step != "one" or public_key(files[0]) == first:
            again.go_on(begins=True)
        assert public_key(files[0]) == public_key(copy / "clients/app.key_secret")
        assert [*(copy / "also/clients").glob("[!.]*")] == []
    assert deaths == {"one": 2, "comes": 4, "goes": 1}[step]
