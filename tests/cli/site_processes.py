"""Sites as processes, and the connections between them."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Self

import zmq
from support.ports import reserved_port
from support.proxy import Proxy

from raft_client.server.embedded_peer import LoopThread
from statestore_client.wire.kvstore.codec import decode, encode
from statestore_client.wire.kvstore.messages import (
    ChangeOwnKey,
    Found,
    GetFiltered,
    GetPeers,
    Message,
    OwnKeyAction,
    PeersReply,
)

__all__ = ["COMMAND", "Links", "SiteProcess"]

COMMAND = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"]

_numbers = itertools.count(1)


class SiteProcess:
    """One site, which can be killed and started again at its address."""

    def __init__(self, name: str, *more: str, log: Path) -> None:
        self.name = name
        self.url = f"tcp://127.0.0.1:{reserved_port()}"
        self.log = log
        self.peers: list[str] = []
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> list[str]:
        """What it prints until it listens for sites."""
        peers = [f"--peer={url}" for url in self.peers]
        command = [*COMMAND, "--site", self.name, "--site-listen", self.url, *peers, *self._more]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("listening for sites"):
            line = self._process.stdout.readline().decode()
            assert line, self.log.read_text()
            lines.append(line.strip())
        return lines

    def end(self, number: signal.Signals) -> int:
        """What it exits with."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.send_signal(number)
        code = process.wait(30)
        process.stdout.close()
        return code

    def signal(self, number: signal.Signals) -> None:
        """It goes on existing."""
        assert self._process is not None
        self._process.send_signal(number)

    def ask(self, request: Message) -> Message:
        """As a client, on a connection of its own."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.url)
            socket.send(encode(request))
            assert socket.poll(20_000), f"{self.name} does not answer"
            reply = decode(socket.recv())
        context.term()
        return reply

    def change(self, action: OwnKeyAction, key: str, value: bytes | None = None) -> None:
        """Have it keep a key alive, or end it."""
        assert self.ask(ChangeOwnKey(next(_numbers), "default", action, key, value)) is not None

    def values(self) -> dict[str, bytes | None]:
        """All that it has."""
        reply = self.ask(GetFiltered(next(_numbers), "default"))
        assert isinstance(reply, Found)
        return {key: entry.value for key, entry in reply.entries.items()}

    def knows(self, peer: str) -> bool:
        """Whether it is connected with this one, as far as it knows."""
        reply = self.ask(GetPeers(next(_numbers), "default"))
        assert isinstance(reply, PeersReply)
        return peer in reply.peers and reply.peers[peer].is_connected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)


class Links:
    """Connections between sites that can be cut, and then heal."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._proxies: dict[tuple[str, str], Proxy] = {}

    def join(self, one: SiteProcess, other: SiteProcess) -> None:
        """The first one dials the other one."""
        proxy = self._proxies[one.name, other.name] = Proxy(int(other.url.rpartition(":")[2]))
        self._thread.run(proxy.accept())
        one.peers.append(proxy.url.replace("mqtt:", "tcp:"))

    def cut(self, side: Collection[SiteProcess]) -> None:
        """Nothing passes between these sites and the others: one connection falls silent, all others break."""
        names = {each.name for each in side}
        crossing = [proxy for ends, proxy in self._proxies.items() if len(names.intersection(ends)) == 1]
        self._thread.run(self._cut(*crossing))

    async def _cut(self, silent: Proxy, *broken: Proxy) -> None:
        silent.hold("up", "down")
        for proxy in broken:
            await proxy.refuse()
            proxy.cut()

    def heal(self) -> None:
        self._thread.run(self._heal())

    async def _heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.flow("up", "down")
            await proxy.refuse()
            await proxy.accept()

    def slow_down(self, delay_s: float) -> None:
        """Whatever passes takes so long, each way."""
        for proxy in self._proxies.values():
            proxy.delay_s = delay_s

    def break_all(self) -> None:
        """Every connection is reset, and what is on its way is lost. They can be made again at once."""
        self._thread.run(self._break_all())

    async def _break_all(self) -> None:
        for proxy in self._proxies.values():
            proxy.cut()

    def close(self) -> None:
        for proxy in self._proxies.values():
            self._thread.run(proxy.__aexit__(None, None, None))
