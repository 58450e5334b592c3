"""A server's process without file descriptors, stopped and continued: what it took on is done, and done once."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Self

from support.proxy import Proxy
from support.shells import Shell

from statestore_client import AsyncStateStoreClient, ConnectionLostError
from statestore_client.mqtt.packets import Connect, encode
from statestore_client.server import EmbeddedServer

TIMEOUT_S = 10.0


class Process:
    """``statestore serve`` on a free port."""

    def __init__(self, *, files: int | None = None) -> None:
        def limit() -> None:
            if files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=limit,
        )
        assert self.process.stdout is not None
        found = re.search(rb"mqtt://127.0.0.1:(\d+)", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


def test_no_file_descriptors_left() -> None:
    """Without free file descriptors new connections wait until there are some, and the log does not fill the disk."""
    with Process(files=40) as server, ExitStack() as crowd:
        for number in range(60):
            sock = crowd.enter_context(socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S))
            sock.sendall(encode(Connect(f"c{number}", version=5), 5))
        assert server.process.stderr is not None
        assert any(b"Too many open files" in line for line in server.process.stderr)
        crowd.close()
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as late:
            late.sendall(encode(Connect("late", version=5), 5))
            assert late.recv(1) == b"\x20"
        server.process.terminate()
        _, log = server.process.communicate(timeout=TIMEOUT_S)
        assert server.process.returncode == 0
        assert len(log) < 50_000


async def test_a_server_that_is_stopped_and_goes_on(shell: Shell) -> None:
    """After SIGSTOP and SIGCONT under load, each SET NX is applied once, and none is sent again."""
    with Process() as server:
        async with shell.client(server.url, max_in_flight=64) as store:
            tasks = [asyncio.ensure_future(store.set(f"k{i}", b"", condition="NX", timeout=30)) for i in range(400)]
            await tasks[0]
            server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            server.process.send_signal(signal.SIGCONT)
            assert all(done.applied for done in await asyncio.gather(*tasks))
            assert store.stats.resent == 0


async def test_nothing_is_executed_by_two_servers(shell: Shell, server: EmbeddedServer) -> None:
    """When an empty server takes over from a stopped one, which then continues, no request is executed by both."""
    with Process() as old:
        async with Proxy(old.port) as proxy, shell.client(proxy.url, max_in_flight=64) as store:
            calls = [asyncio.ensure_future(store.set(f"k{i}", b"", condition="NX", timeout=20)) for i in range(400)]
            await calls[0]
            old.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.05)
            proxy.target_port = server.port
            proxy.cut()
            results = await asyncio.gather(*calls, return_exceptions=True)
            old.process.send_signal(signal.SIGCONT)
        async with AsyncStateStoreClient(old.url) as there, AsyncStateStoreClient(server.url) as here:
            keys_old = {key async for key in there.scan("*")}
            keys_new = {key async for key in here.scan("*")}
        assert not keys_old & keys_new
        for number, result in enumerate(results):
            if isinstance(result, ConnectionLostError):
                assert result.may_have_been_applied
            else:
                assert not isinstance(result, BaseException)
                assert result.applied
                assert b"k%d" % number in keys_old | keys_new
