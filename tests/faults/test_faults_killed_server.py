"""A server that is killed under load, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys

import pytest
from reached_states import state_of
from support.ports import reserved_port
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    ConnectionLostError,
    ConnectionState,
    RequestTimeoutError,
    TransportError,
)


async def start_process(port: int) -> tuple[asyncio.subprocess.Process, int]:
    """``statestore serve`` as a process of its own; its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "statestore_client.cli", "serve", "--port", str(port), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
    found = re.search(r":(\d+)$", line.strip())
    assert found, line
    return process, int(found[1])


async def kill(process: asyncio.subprocess.Process) -> None:
    """SIGKILL: no goodbye, no flush."""
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()


async def test_a_server_killed_under_load_is_survived(shell: Shell) -> None:
    """When the server is killed under load, each request ends in time with a result or typed error, and a new server
    goes on."""
    process, port = await start_process(reserved_port())
    second = None
    try:
        async with shell.client(f"mqtt://127.0.0.1:{port}", client_id="loaded") as store:
            ends: list[object] = []

            async def load(number: int) -> None:
                while not stop.is_set():
                    try:
                        ends.append(await store.set(f"k{number}", b"x", timeout=30))
                    except TransportError as error:
                        ends.append(error)

            stop = asyncio.Event()
            tasks = [asyncio.ensure_future(load(n)) for n in range(16)]
            await until(lambda: len(ends) >= 200, "200 ends")
            os.kill(process.pid, signal.SIGSTOP)  # so that requests are under way, and stay so, when it dies
            with pytest.raises(RequestTimeoutError):
                await store.get("probe", timeout=0.2)
            await kill(process)
            await state_of(store, ConnectionState.SUSPENDED)
            before = len(ends)
            second, _ = await start_process(port)
            await until(lambda: len(ends) >= before + 200, "200 more")
            stop.set()
            await asyncio.gather(*tasks)
            errors = [e for e in ends if isinstance(e, TransportError)]
            assert 0 < len(errors) <= 16
            assert all(e.may_have_been_applied and isinstance(e, ConnectionLostError) for e in errors)
    finally:
        for running in (process, second):
            if running is not None and running.returncode is None:
                await kill(running)
