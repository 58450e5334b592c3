"""Clusters of real ØMQ Raft peers, each a process on ports of 127.0.0.1 that can be killed: npm zmq-raft, ours, or
both.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgpack
import zmq

from raft_client import HandOverError, RaftClient
from raft_client.server import EmbeddedCluster
from support.ports import reserved_port
from support.waiting import eventually

# -- tool cache --------------------------------------------------------------------------------------------------------

# Where tests keep what they build from other projects' packages: outside the clone, once for all clones.


def tool_folder(variable: str, name: str) -> Path:
    """The folder that the environment variable names, or ``name`` in the user's cache."""
    chosen = os.environ.get(variable)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "statestore-client-tests" / name


# -- raft cluster ------------------------------------------------------------------------------------------------------

# A cluster of real ØMQ Raft peers: the npm package zmq-raft, each peer a process on free ports of 127.0.0.1.
#
# The package is installed once, into ``$STATESTORE_ZMQ_RAFT`` or a folder in the user's cache. That needs node, npm, a
# C++ compiler, pkg-config and libzmq's headers (Debian: ``nodejs npm g++ make pkg-config libzmq3-dev``).
# Nothing here uses the package under test: what is asked of the peers is asked with hand-made frames.


_VERSION: Final = "0.5.0"
#: zeromq 5.2 of the package's own wish does not build on present Node; "debug" is missing among its dependencies.
_PACKAGE: Final = {
    "private": True,
    "dependencies": {"debug": "*", "zmq-raft": _VERSION},
    "overrides": {"zeromq": "5.3.1"},
    "allowScripts": {"zeromq": True},
}
_START_TIMEOUT_S: Final = 30.0
_ASK_TIMEOUT_MS: Final = 150


def _folder() -> Path:
    return tool_folder("STATESTORE_ZMQ_RAFT", f"zmq-raft-{_VERSION}")


def _works(folder: Path) -> bool:
    """Whether node can load the package's native part."""
    if not (folder / "node_modules" / "zmq-raft" / "bin" / "zmq-raft.js").exists():
        return False
    done = subprocess.run(
        ["node", "-e", "require('zeromq'); require('zmq-raft')"], cwd=folder, capture_output=True, check=False
    )
    return done.returncode == 0


def why_not() -> str | None:
    """What is missing on this machine, or None when the cluster can be had."""
    if shutil.which("node") is None:
        return "node is not installed"
    if _works(_folder()):
        return None
    for tool in ("npm", "g++", "make", "pkg-config"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; it is needed to install the npm package zmq-raft"
    if subprocess.run(["pkg-config", "--exists", "libzmq"], check=False).returncode:
        return "libzmq's headers (Debian: libzmq3-dev) are not installed; the npm package zmq-raft needs them"
    return None


def install_zmq_raft() -> Path:
    """The folder with the installed package; installs it when it is not there yet. Safe in parallel test runs."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _works(folder):
            (folder / "package.json").write_text(json.dumps(_PACKAGE))
            environment = {**os.environ, "npm_config_zmq_external": "true", **_node_headers()}
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund"],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode or not _works(folder):
                raise RuntimeError(f"npm install of zmq-raft failed:\n{done.stdout}\n{done.stderr}")
    return folder


def _node_headers() -> dict[str, str]:
    """Node's own headers when they came with it (Debian: libnode-dev); otherwise node-gyp downloads them."""
    prefix = Path(shutil.which("node") or "/usr/bin/node").resolve().parent.parent
    return {"npm_config_nodedir": str(prefix)} if (prefix / "include" / "node" / "node.h").exists() else {}


class RaftCluster:
    """Peers "1", "2", "3" … with their data under ``directory``. Use as a context manager.

    ``environment`` gives the variables that the process of a peer has besides those of this one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        ident: str = "",
        environment: Callable[[str], Mapping[str, str]] = lambda _peer: {},
    ) -> None:
        self._environment = environment
        self._install = install_zmq_raft()
        self._directory = directory
        self._ident = ident
        self._context = zmq.Context()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Peer id -> URL of its ROUTER, and of its PUB socket.
        self.urls: dict[str, str] = {}
        self.pub_urls: dict[str, str] = {}
        for number in range(1, size + 1):
            self.allot(str(number))
        self._members = list(self.urls)

    def __enter__(self) -> Self:
        try:
            for peer in self._members:
                self.start(peer)
            self.leader()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for peer in list(self._processes):
            self.kill(peer)
        self._context.destroy(linger=0)

    @property
    def seeds(self) -> tuple[str, ...]:
        """The URLs of the peers that the cluster began with."""
        return tuple(self.urls[peer] for peer in self._members)

    @property
    def running(self) -> list[str]:
        """Ids of the peers whose process was started and not killed."""
        return list(self._processes)

    def pid(self, peer: str) -> int:
        """Of the process of a peer that is running."""
        return self._processes[peer].pid

    def start(self, peer: str) -> None:
        """Start or restart a peer on the data it has; returns when it answers."""
        self.launch(peer)
        self.until(lambda: self.ask(peer) is not None, f"peer {peer} does not answer")

    def launch(self, peer: str) -> None:
        """Start a peer without waiting. One that is not a member yet waits to be made one, and answers nobody."""
        if peer not in self.urls:
            self.allot(peer)
        config = self._directory / f"{peer}.json"
        config.write_text(json.dumps({"raft": self._config(peer)}))
        arguments = ["node", "node_modules/zmq-raft/bin/zmq-raft.js", "-c", str(config), "-b", self.urls[peer]]
        self._run(peer, [*arguments, "-p", self.pub_urls[peer], peer], self._install)

    def _run(self, peer: str, command: Sequence[str], folder: Path | None = None) -> None:
        environment = {**os.environ, **self._environment(peer)}
        with (self._directory / f"{peer}.log").open("ab") as log:
            self._processes[peer] = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def kill(self, peer: str) -> None:
        """As ``kill -9``: no goodbye, nothing flushed. Also ends a frozen one."""
        process = self._processes.pop(peer)
        process.kill()
        process.wait()

    def freeze(self, peer: str) -> None:
        """SIGSTOP: its sockets stay open and silent."""
        self._processes[peer].send_signal(signal.SIGSTOP)

    def thaw(self, peer: str) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        self._processes[peer].send_signal(signal.SIGCONT)

    def leader(self, among: list[str] | None = None) -> str:
        """Id of the peer that calls itself the leader; waits until there is one."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [p for p in (among or self.running) if (answer := self.ask(p)) is not None and answer[0]]
            return len(found) == 1

        self.until(look, "no leader")
        return found[0]

    def ask(self, peer: str) -> tuple[bool, str | None, list[list[str]]] | None:
        """RequestConfig: is it the leader, whom does it take for the leader, the peers. None: no answer."""
        frames = self._request(peer, b"\x5e")
        return None if frames is None else (bool(frames[0]), msgpack.unpackb(frames[1]), msgpack.unpackb(frames[2]))

    def log_info(self, peer: str) -> dict[str, int] | None:
        """RequestLogInfo: the numbers by name. None: no answer."""
        frames = self._request(peer, b"\x25")
        names = ("term", "first", "applied", "commit", "last", "snapshot_size", "prune")
        if frames is None:
            return None
        return {name: int.from_bytes(frame, "little") for name, frame in zip(names, frames[2:], strict=True)}

    def compact(self, peer: str, index: int) -> None:
        """Replace the peer's log up to ``index`` by a snapshot of the data of its STATE entries, one after another."""
        data = self._directory / peer
        target = data / "compact" / "snap.new"
        tool = [
            "node", "node_modules/zmq-raft/bin/zr-log-compact.js", "-c", str(self._directory / f"{peer}.json"),
            "-d", str(data), "-t", str(target), "-m", "node_modules/zmq-raft/example/passthrough_state.js",
            "-i", str(index), "-z", "0", "-N",
        ]  # fmt: skip
        subprocess.run(tool, cwd=self._install, check=True, capture_output=True, timeout=_START_TIMEOUT_S)
        # An installed snapshot is moved away by the peer's folder watcher; the log then begins after it.
        self.until(lambda: (self.log_info(peer) or {}).get("snapshot_size", 0) > 0, f"peer {peer} does not compact")

    def until(self, condition: Callable[[], bool], complaint: str) -> None:
        """Ask again and again; the peers' own logs are part of the complaint."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{complaint}\n{self._logs()}")
            time.sleep(0.01)

    def _request(self, peer: str, message_type: bytes) -> list[bytes] | None:
        with self._dealer(self.urls[peer]) as dealer:
            dealer.send_multipart([b"\x07", message_type, self._ident.encode()])
            if not dealer.poll(_ASK_TIMEOUT_MS):
                return None
            return dealer.recv_multipart()[1:]

    @contextlib.contextmanager
    def _dealer(self, url: str) -> Iterator[Any]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(url)
        try:
            yield dealer
        finally:
            dealer.close()

    def allot(self, peer: str) -> None:
        """Addresses for a peer that is started later."""
        self.urls[peer], self.pub_urls[peer] = (f"tcp://127.0.0.1:{reserved_port()}" for _ in range(2))

    def _config(self, peer: str) -> dict[str, Any]:
        peers = [{"id": p, "url": self.urls[p], "pub": self.pub_urls[p]} for p in self._members]
        data = {"path": str(self._directory), "appendIdToPath": True, "compact": {"watch": True}}
        return {"id": peer, "secret": self._ident, "peers": peers, "data": data, "webmonitor": {"enable": False}}

    def _logs(self) -> str:
        return "\n".join(f"--- {f.name}\n{f.read_text()[-2000:]}" for f in sorted(self._directory.glob("*.log")))


# -- peer processes ----------------------------------------------------------------------------------------------------

# Peers of this package as processes of their own: ``zmqraft serve``.


SERVE = [sys.executable, "-m", "raft_client.cli", "serve"]
_TRACED: Final = Path(__file__).with_name("raft_trace.py")


class Peers:
    """Three peers with fixed addresses; each can be ended and started again."""

    def __init__(self, directory: Path, *, are_traced: bool = False) -> None:
        self.directory = directory
        self.are_traced = are_traced  # into NAME.ndjson there
        self.urls = {name: f"tcp://127.0.0.1:{reserved_port()}" for name in ("1", "2", "3")}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return ",".join(self.urls.values())

    def command(self, name: str, *more: str) -> list[str]:
        members = [f"--peer={peer}={url}" for peer, url in self.urls.items()]
        traced = [sys.executable, str(_TRACED), str(self.directory / f"{name}.ndjson"), "serve"]
        serve = traced if self.are_traced else SERVE
        return [*serve, "--id", name, *members, "--data", str(self.directory / name), *more]

    def start(self, name: str, *more: str) -> None:
        process = self.running[name] = subprocess.Popen(self.command(name, *more), stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {self.urls[name]}\n".encode()

    def end(self, name: str, number: signal.Signals) -> int:
        process = self.running.pop(name)
        process.send_signal(number)
        code = process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def kill_all(self) -> None:
        """Whatever still runs."""
        for name in list(self.running):
            self.end(name, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()


# -- mixed cluster -----------------------------------------------------------------------------------------------------

# A cluster of Node peers (npm zmq-raft) and ours, each a process of its own that can be killed.


class MixedCluster(RaftCluster):
    """As :class:`RaftCluster`; the peers of ``ours`` are ``zmqraft serve``, with this state machine."""

    def __init__(
        self,
        directory: Path,
        *,
        ours: set[str],
        size: int = 3,
        machine: str = "broadcast",
        environment: Callable[[str], Mapping[str, str]] = lambda _peer: {},
    ) -> None:
        super().__init__(directory, size=size, environment=environment)
        self.ours = ours
        self._machine = machine

    def launch(self, peer: str) -> None:
        """Start a peer without waiting."""
        if peer not in self.ours:
            super().launch(peer)
            return
        members = [f"--peer={member}={self.urls[member]}" for member in self._members]
        command = [sys.executable, "-m", "raft_client.cli", "serve", "--id", peer, *members, "--verbose"]
        command += ["--machine", self._machine, "--publish", self.pub_urls[peer], "--data", str(self._directory / peer)]
        self._run(peer, command)


# -- next leader -------------------------------------------------------------------------------------------------------

# Log peers that die one after the other.


def next_leader(cluster: EmbeddedCluster) -> None:
    """Kill the leader, and before that start the one that was killed before, so that a majority is left."""
    for peer in {peer.id for peer in cluster.peers} - set(cluster.running):
        cluster.restart(peer)
    cluster.kill(cluster.leader())


# -- who leads ---------------------------------------------------------------------------------------------------------


def move_leadership(log: RaftClient, to: str | None = None) -> str:
    """Ask for a hand-over until it is done, and return who leads. A disk that stands still for an election time-out
    fails one: the leader goes on then, and says so.
    """
    led: list[str] = []

    def is_moved() -> bool:
        with contextlib.suppress(HandOverError):
            led.append(log.transfer_leadership(to))
        return bool(led)

    eventually(is_moved, f"a hand-over to {to or 'another peer'}")
    return led[0]
