"""Servers with their own peers of the log, in one process: each with its peer in a thread."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.keys import add_client, make_keys
from support.ports import reserved_ports
from support.waiting import eventually
from zmq.utils import z85

from raft_client import RaftClient, RaftError, RaftSettings, StorageFullError
from raft_client._common import exits
from raft_client.server import BroadcastStateMachine, EmbeddedCluster, EmbeddedPeer
from statestore_client import (
    DataDamagedError,
    DataDirectoryError,
    DataInUseError,
    ReplicatedLogError,
    SettingsError,
    StateStoreClient,
)
from statestore_client.curve_keys import KeyPair
from statestore_client.server import ClusterKeys, EmbeddedServer, LogKeys, ReplicaSettings
from statestore_client.server.runtime.replication.log_link import member_warning
from statestore_client.server.runtime.replication.own_peer import _translated
from statestore_client.server.testing import embedded_server


def cluster() -> dict[str, str]:
    """The places of three servers on this machine."""
    return {name: f"127.0.0.1:{reserved_ports(3)}" for name in "abc"}


def server(nodes: dict[str, str], name: str, directory: Path, **options: object) -> EmbeddedServer:
    """Not started."""
    log = ReplicaSettings.in_cluster(nodes, id=name, data=directory / name, **options)  # type: ignore[arg-type]
    return EmbeddedServer(log=log, metrics_port=0)


@contextmanager
def together(*servers: EmbeddedServer) -> Iterator[None]:
    """They start together: before two have come, there is no log."""
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(EmbeddedServer.start, servers))
            yield
        finally:
            list(pool.map(EmbeddedServer.stop, servers))


def _figures(of: EmbeddedServer) -> bytes:
    with urllib.request.urlopen(of.urls["http"]) as page:  # noqa: S310 - of this test's own server
        return bytes(page.read())


@pytest.mark.ci
def test_servers_are_restarted_one_by_one(tmp_path: Path) -> None:
    """Each in its turn is stopped, and goes on with its directory; two are enough meanwhile, and nothing is lost."""
    nodes = cluster()
    servers = {name: server(nodes, name, tmp_path) for name in nodes}
    with together(*servers.values()):
        for name, each in servers.items():
            url = "mqtt://" + ",".join(f"127.0.0.1:{one.port}" for one in servers.values())
            with StateStoreClient(url) as store:
                store.set(f"before/{name}", name, timeout=30)
                each.stop()
                store.set(f"after/{name}", name, timeout=30)
            each.start()
        with StateStoreClient(servers["a"].url) as store:
            for name in servers:
                assert store.get(f"before/{name}", timeout=30).value == name.encode()
                assert store.get(f"after/{name}", timeout=30).value == name.encode()
        eventually(lambda: sum(each.is_active for each in servers.values()) == 1, "one is active")
        for each in servers.values():
            page = _figures(each)
            assert b"\nstatestore_log_epoch " in page
            assert b"\nzmqraft_commit_index " in page


@pytest.mark.ci
def test_a_server_without_a_majority_gives_up_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alone: it says what is missing, and its threads end. With the others it starts at the same place."""
    nodes = cluster()
    threads = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(embedded_server, "_START_TIMEOUT_S", 1.0)
        alone = server(nodes, "a", tmp_path)
        with pytest.raises(ReplicatedLogError, match=r"within 1 s: .* does a majority of the log's peers run"):
            alone.start()
    eventually(lambda: threading.active_count() <= threads, "the threads have ended")
    other = server(nodes, "b", tmp_path)
    with together(alone, other):
        eventually(lambda: alone.is_active != other.is_active, "one is active")


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """That of another server, or of another cluster, one in use, damaged, or with the data of a server alone."""
    nodes = cluster()
    url = f"tcp://{nodes['a']}"
    other = f"tcp://127.0.0.1:{reserved_ports(1)}"
    peer = EmbeddedPeer("a", {"a": url}, tmp_path / "a" / "log", machine=BroadcastStateMachine)
    with peer, pytest.raises(DataInUseError, match="another peer has"):
        server(nodes, "a", tmp_path).start()
    renamed = ReplicaSettings.in_cluster(nodes, id="a", data=tmp_path / "a", cluster="another one")
    with pytest.raises(DataDirectoryError, match="belongs to"):
        EmbeddedServer(log=renamed).start()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "log").rename(tmp_path / "b" / "log")
    with pytest.raises(DataDirectoryError, match="belongs to"):
        server(nodes, "b", tmp_path).start()
    (tmp_path / "b" / "log" / "meta").write_bytes(b"something else")
    with pytest.raises(DataDamagedError):
        server(nodes, "b", tmp_path).start()
    with EmbeddedServer(data=tmp_path / "c"):
        pass
    with pytest.raises(DataDirectoryError, match="a server without a cluster"):
        server(nodes, "c", tmp_path).start()
    taken = {**nodes, "a": other.removeprefix("tcp://")}
    with EmbeddedPeer("x", {"x": other}, tmp_path / "x"), pytest.raises(SettingsError, match="cannot listen"):
        server(taken, "a", tmp_path).start()


# -- keys of the log ---------------------------------------------------------------------------------------------------

SECRET = b"0123456789abcdef0123"

#: openssl kdf -kdfopt digest:SHA256 -kdfopt hexkey:… -kdfopt hexsalt:… -kdfopt hexinfo:… HKDF
PEER = bytes.fromhex("c9f7d6623e5837912ac627082dbe939fe8360db1f94b4611cc8ba9453d3cd384")
CLIENT = bytes.fromhex("787fe285779323574b1b6e6dcd3f5e888ee6fbdea561d5758341ad1cf993f61d")


def test_keys_are_those_of_hkdf() -> None:
    """Of the secret, with the name of the cluster and of the peer: another program can make them."""
    keys = ClusterKeys.made_from(SECRET, "plant", {"a": "tcp://x:1", "b": "tcp://x:4"})
    pairs = dict(keys.peers)
    assert z85.decode(pairs["a"].secret) == PEER
    assert z85.decode(keys.client.secret) == CLIENT
    assert len({pairs["a"], pairs["b"], keys.client}) == 3
    assert pairs["a"].secret.decode() not in repr(keys)


@contextmanager
def _two_of_three(directory: Path, nodes: dict[str, str], **options: object) -> Iterator[list[EmbeddedServer]]:
    found = [server(nodes, name, directory, key=SECRET, **options) for name in "ab"]
    with together(*found):
        yield found


def _run(command: str) -> tuple[int, str]:
    """By a shell, with the programs of this package."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(  # noqa: S602 - of this test
        command, shell=True, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.ci
def test_the_log_of_a_cluster_is_for_those_who_have_the_secret(tmp_path: Path) -> None:
    """Its servers, and zmqraft with the file that they write; not a client without keys, or with those of a guess."""
    nodes = cluster()
    seeds = tuple(f"tcp://{place}" for place in nodes.values())
    urls = dict(zip(nodes, seeds, strict=True))
    with _two_of_three(tmp_path, nodes) as (first, _second):
        with StateStoreClient(first.url) as store:
            store.set("k", "1", timeout=30)
        file = tmp_path / "a" / "keys" / "zmqraft.env"
        assert file.stat().st_mode & 0o777 == 0o600
        code, output = _run(f"set -a; . {file}; {sys.executable} -m raft_client.cli config")
        assert code == 0, output
        assert all(f"tcp://{place}" in output for place in nodes.values())
        guess = ClusterKeys.made_from(b"fedcba98765432100123", "", urls).of_client(urls)
        right = ClusterKeys.made_from(SECRET, "", urls)
        stranger = LogKeys(right.of_client(urls).peers, guess.own)
        for keys in (None, guess, stranger):
            settings = ReplicaSettings(log=seeds, id="x", log_keys=keys).raft.evolve(request_timeout=0.5)
            with pytest.raises(RaftError), RaftClient(settings) as client:
                client.log_info()
        with RaftClient(ReplicaSettings(log=seeds, id="x", log_keys=right.of_client(urls)).raft) as client:
            assert client.log_info().last_applied > 0


@pytest.mark.ci
def test_keys_of_another_secret_are_left_alone(tmp_path: Path) -> None:
    """A server that runs may use them; a file that others can read is refused, too. What to do is said."""
    nodes = cluster()
    with _two_of_three(tmp_path, nodes):
        other = server(nodes, "a", tmp_path, key=b"another secret, by mistake")
        with pytest.raises(DataDirectoryError, match="were made from another secret"):
            other.start()
    (tmp_path / "a" / "keys" / "a.key_secret").chmod(0o644)
    with pytest.raises(DataDirectoryError, match=r"can be read by other users.*Remove it"):
        server(nodes, "a", tmp_path, key=SECRET).start()


@pytest.mark.ci
def test_an_import_into_a_cluster_with_keys(tmp_path: Path) -> None:
    """The command makes the keys from the same secret; without it the log does not answer."""
    with EmbeddedServer(data=tmp_path / "old") as server, StateStoreClient(server.url) as store:
        store.set("k", "old")
    nodes = cluster()
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_bytes(SECRET)
    command = f"{sys.executable} -m statestore_client.cli ha import {tmp_path / 'old'} --cluster "
    command += ",".join(f"{name}={place}" for name, place in nodes.items())
    places = " ".join(f"127.0.0.1:{int(nodes[name].rpartition(':')[2]) + 2}" for name in "ab")
    asks = f"{sys.executable} -m statestore_client.cli ha status {places} --cluster-key-file {tmp_path / 'secret'}"
    with _two_of_three(tmp_path, nodes, awaits_import=True) as both:
        eventually(lambda: "--await-import wait for statestore ha import" in _run(asks)[1], "status says why")
        code, output = _run(command)
        assert code == exits.NO_CONNECTION, output
        assert "nothing was imported" in output
        code, output = _run(f"{command} --json --cluster-key-file {tmp_path / 'secret'}")
        assert code == exits.DONE, output
        assert json.loads(output)["records"]["keys"] == 1
        eventually(lambda: [each for each in both if each.is_active], "one is active")
        with StateStoreClient(both[0].url) as store:
            assert store.get("k", timeout=30).value == b"old"


async def _serve(*options: str) -> tuple[asyncio.subprocess.Process, bytes]:
    """It, and its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--id", "app", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    return process, await asyncio.wait_for(process.stdout.readline(), 60)


@pytest.mark.ci
async def test_a_server_has_keys_for_peers_that_have_some(tmp_path: Path) -> None:
    """Its pair, and theirs, are in a directory; what is missing there, or in the list of peers, is said."""
    keys = make_keys(tmp_path / "keys")
    add_client(keys, "app2")
    own = tmp_path / "own"
    own.mkdir()
    for file in (*keys.glob("?.key"), tmp_path / "app.key_secret"):
        (own / file.name).write_bytes(file.read_bytes())
    (own / "app.key_secret").chmod(0o600)
    with EmbeddedCluster(3, machine=BroadcastStateMachine, curve_keys=keys) as cluster:
        places = dict(zip("123", cluster.url.split(","), strict=True))
        named = ",".join(f"{each}={url}" for each, url in places.items())
        process, line = await _serve("--log", named, "--log-curve-keys", str(own))
        assert line.startswith(b"listening on"), line
        process.terminate()
        await process.communicate()
        for log, reason in ((cluster.url, b"ID=tcp://HOST:PORT"), (named.replace("3=", "4="), b"4.key")):
            process, line = await _serve("--log", log, "--log-curve-keys", str(own))
            output, _ = await process.communicate()
            assert reason in line + output
            assert process.returncode == exits.USAGE
        assert LogKeys.read(own, "app", places).own.secret.decode() in (own / "app.key_secret").read_text()
        with pytest.raises(SettingsError, match=r"there is no key of tcp://127\.0\.0\.1:1"):
            ReplicaSettings(log="tcp://127.0.0.1:1", id="a", log_keys=LogKeys.read(own, "app", places))
        with pytest.raises(SettingsError, match="no file can have its name"):
            LogKeys.read(own, "../app", places)


def test_the_repr_of_settings_shows_no_secret(tmp_path: Path) -> None:
    """Neither that of the cluster nor the keys made from it."""
    settings = ReplicaSettings.in_cluster(cluster(), id="a", data=tmp_path, key=SECRET)
    assert isinstance(settings.raft, RaftSettings)
    assert settings.log_keys is not None
    for secret in (SECRET.decode(), settings.log_keys.own.secret.decode()):
        assert secret not in repr(settings)
        assert secret not in repr(settings.raft)


# -- a server whose list of the log's peers is not what the log says is told so, by a line in its log and --------------

NODES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
MEMBERS = {name: f"tcp://{host}:8047" for name, host in NODES.items()}


@pytest.mark.parametrize(
    ("members", "faults"),
    [
        (MEMBERS, []),
        ({**MEMBERS, "d": "tcp://10.0.0.4:8047"}, ["it lacks d, a member at tcp://10.0.0.4:8047"]),
        ({**MEMBERS, "c": "tcp://10.0.0.9:8047"}, ["it has c at tcp://10.0.0.3:8047, which is at tcp://10.0.0.9:8047"]),
        (
            {"a": MEMBERS["a"], "b": MEMBERS["b"], "d": "tcp://10.0.0.4:8047"},
            ["it names c, which is not a member", "it lacks d, a member at tcp://10.0.0.4:8047"],
        ),
    ],
)
def test_each_difference_is_named(members: dict[str, str], faults: list[str], tmp_path: Path) -> None:
    """One that is missing, one too many, one that is elsewhere; nothing is said of what is equal."""
    settings = ReplicaSettings.in_cluster(NODES, id="a", data=tmp_path, listen="127.0.0.1")
    text = member_warning(settings, members)
    assert text.removeprefix("--cluster is not what the log says: ").partition(". ")[0].split("; ") == (faults or [""])


def test_with_a_log_of_its_own_only_keys_count() -> None:
    """A server needs to know one peer, which names the others; but it speaks to none whose key it has not."""
    log = tuple(MEMBERS.values())[:2]
    assert member_warning(ReplicaSettings(log=log, id="x"), MEMBERS) == ""
    keys = LogKeys(tuple((url, "k" * 40) for url in log), KeyPair(b"p" * 40, b"s" * 40))
    text = member_warning(ReplicaSettings(log=log, id="x", log_keys=keys), MEMBERS)
    assert "it has no key of c, a member at tcp://10.0.0.3:8047" in text


def status(*places: str) -> subprocess.CompletedProcess[str]:
    """What ``statestore ha status`` says of these servers."""
    command = [sys.executable, "-m", "statestore_client.cli", "ha", "status", *places, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.ci
def test_a_list_that_was_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other servers go on with the old list; the one that has another one works, and says what to put right."""
    nodes = cluster()
    moved = {**nodes, "c": f"127.0.0.1:{reserved_ports(3)}"}

    with together(server(nodes, "a", tmp_path), server(nodes, "b", tmp_path)):
        pass
    assert "is not what the log says" not in caplog.text
    with together(server(moved, "a", tmp_path), server(nodes, "b", tmp_path)):
        places = [f"127.0.0.1:{int(nodes[name].rpartition(':')[2]) + 2}" for name in "ab"]
        done = status(*places)
        assert done.returncode == 0
        warnings = [json.loads(line)["warning"] for line in done.stdout.splitlines()]
        fault = f"it has c at tcp://{moved['c']}, which is at tcp://{nodes['c']}"
        assert [fault in each for each in warnings] == [True, False]
        assert warnings[1] == ""
        assert done.stderr.startswith("statestore: a: --cluster is not what the log says: ")
        assert caplog.text.count(fault) == 1


@pytest.mark.ci
def test_a_log_without_a_majority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that waits for the others says so soon, and so does status; afterwards the one that was active is told
    apart from one that serves.
    """
    nodes = cluster()
    place = f"127.0.0.1:{int(nodes['a'].rpartition(':')[2]) + 2}"
    a, b = (server(nodes, name, tmp_path) for name in "ab")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(a.start)
        try:
            eventually(lambda: "no leader of the replicated log was found" in caplog.text, "a line in the log")
            assert_has_no_leader(status(place))
            b.start()
            waiting.result()
            eventually(lambda: a.is_active or b.is_active, "an active server")
            eventually(lambda: status(place).stderr == "", "a server that knows the active one")
            b.stop()
            assert_has_no_leader(status(place))
        finally:
            list(pool.map(EmbeddedServer.stop, (a, b)))


def assert_has_no_leader(done: subprocess.CompletedProcess[str]) -> None:
    """It fails, and says what has to be done."""
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert not answer["log_has_leader"]
    assert "more than half of the log's peers must run" in answer["warning"]
    assert done.stderr == f"statestore: a: {answer['warning']}\n"


def test_a_full_disk_says_what_frees_room() -> None:
    """In the line with which the server ends: whoever reads it has no page at hand."""
    error = _translated(StorageFullError("no room writing the log: No space left on device"))
    assert isinstance(error, DataDirectoryError)
    assert "make room on the disk of its --data, by removing other files" in str(error)
