"""Keys of the log: made from the secret of a cluster, or read from files; nobody without one is let in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.keys import add_client, make_keys
from support.ports import reserved_ports
from support.waiting import eventually
from zmq.utils import z85

from raft_client import RaftClient, RaftError, RaftSettings
from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import DataDirectoryError, SettingsError, StateStoreClient
from statestore_client.cli import exits
from statestore_client.server import ClusterKeys, EmbeddedServer, LogKeys, ReplicaSettings

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


def _nodes() -> dict[str, str]:
    return {name: f"127.0.0.1:{reserved_ports(3)}" for name in "abc"}


def _server(nodes: dict[str, str], name: str, directory: Path, **options: object) -> EmbeddedServer:
    log = ReplicaSettings.in_cluster(nodes, id=name, data=directory / name, **{"key": SECRET, **options})  # type: ignore[arg-type]
    return EmbeddedServer(log=log)


@contextmanager
def _two_of_three(directory: Path, nodes: dict[str, str], **options: object) -> Iterator[list[EmbeddedServer]]:
    found = [_server(nodes, name, directory, **options) for name in "ab"]
    with ThreadPoolExecutor() as pool:
        try:
            list(pool.map(EmbeddedServer.start, found))
            yield found
        finally:
            list(pool.map(EmbeddedServer.stop, found))


def _run(command: str) -> tuple[int, str]:
    """By a shell, with the programs of this package."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(  # noqa: S602 - of this test
        command, shell=True, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_log_of_a_cluster_is_for_those_who_have_the_secret(tmp_path: Path) -> None:
    """Its servers, and zmqraft with the file that they write; not a client without keys, or with those of a guess."""
    nodes = _nodes()
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


def test_keys_of_another_secret_are_left_alone(tmp_path: Path) -> None:
    """A server that runs may use them; a file that others can read is refused, too. What to do is said."""
    nodes = _nodes()
    with _two_of_three(tmp_path, nodes):
        other = _server(nodes, "a", tmp_path, key=b"another secret, by mistake")
        with pytest.raises(DataDirectoryError, match="were made from another secret"):
            other.start()
    (tmp_path / "a" / "keys" / "a.key_secret").chmod(0o644)
    with pytest.raises(DataDirectoryError, match=r"can be read by other users.*Remove it"):
        _server(nodes, "a", tmp_path).start()


def test_an_import_into_a_cluster_with_keys(tmp_path: Path) -> None:
    """The command makes the keys from the same secret; without it the log does not answer."""
    with EmbeddedServer(data=tmp_path / "old") as server, StateStoreClient(server.url) as store:
        store.set("k", "old")
    nodes = _nodes()
    (tmp_path / "secret").write_bytes(SECRET)
    command = f"{sys.executable} -m statestore_client.cli ha import {tmp_path / 'old'} --cluster "
    command += ",".join(f"{name}={place}" for name, place in nodes.items())
    with _two_of_three(tmp_path, nodes, awaits_import=True) as both:
        code, output = _run(command)
        assert code == exits.NO_CONNECTION, output
        assert "nothing was imported" in output
        code, output = _run(f"{command} --cluster-key-file {tmp_path / 'secret'}")
        assert code == exits.DONE, output
        eventually(lambda: [each for each in both if each.is_active], "one is active")
        with StateStoreClient(both[0].url) as store:
            item = store.get("k", timeout=30)
            assert item is not None
            assert item.value == b"old"


async def _serve(*options: str) -> tuple[asyncio.subprocess.Process, bytes]:
    """It, and its first line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--id", "app", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    return process, await asyncio.wait_for(process.stdout.readline(), 60)


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
    settings = ReplicaSettings.in_cluster(_nodes(), id="a", data=tmp_path, key=SECRET)
    assert isinstance(settings.raft, RaftSettings)
    assert settings.log_keys is not None
    for secret in (SECRET.decode(), settings.log_keys.own.secret.decode()):
        assert secret not in repr(settings)
        assert secret not in repr(settings.raft)
