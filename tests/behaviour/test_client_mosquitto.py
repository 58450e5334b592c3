"""A broker that is no state store: Debian's mosquitto, over TCP and WebSocket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from shells import Shell

from statestore_client import LockNotAcquiredError, RequestTimeoutError

pytestmark = pytest.mark.interop


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Callable[[str], str]], tuple[int, int]]]:
    """Starts one mosquitto for this file; its TCP and WebSocket ports."""
    running: list[subprocess.Popen[bytes]] = []
    found: list[tuple[int, int]] = []

    def start(require_tool: Callable[[str], str]) -> tuple[int, int]:
        if not found:
            program = require_tool("mosquitto")
            tcp, web = free_port(), free_port()
            config = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
            config.write_text(
                f"listener {tcp} 127.0.0.1\nlistener {web} 127.0.0.1\nprotocol websockets\nallow_anonymous true\n"
                + (f"user {os.environ.get('USER', 'root')}\n" if os.geteuid() == 0 else "")
            )
            running.append(subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL))
            _wait_for(tcp)
            found.append((tcp, web))
        return found[0]

    yield start
    for process in running:
        process.terminate()
        process.wait(10)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "mosquitto did not start"
            time.sleep(0.02)
        else:
            return


@pytest.fixture(params=["mqtt", "ws"])
def url(
    request: pytest.FixtureRequest,
    ports: Callable[[Callable[[str], str]], tuple[int, int]],
    require_tool: Callable[[str], str],
) -> str:
    """Where mosquitto listens."""
    port = ports(require_tool)[request.param == "ws"]
    return f"{request.param}://127.0.0.1:{port}"


async def test_the_timeout_says_that_there_is_no_state_store(shell: Shell, url: str) -> None:
    """mosquitto answers PUBLISH with "no matching subscribers"; the error passes that on."""
    async with shell.client(url) as store:
        for call in (store.get("k", timeout=0.3), store.watch("k", timeout=0.3).start()):
            with pytest.raises(RequestTimeoutError, match=r"probably has no state store|could not be started"):
                await call
        with pytest.raises(LockNotAcquiredError):
            await store.lock("k").acquire(timeout=0.3)


async def test_its_receive_maximum_of_20_is_kept(shell: Shell, url: str) -> None:
    """200 requests that nobody answers: the connection lives through it (0x93 would end it)."""
    async with shell.client(url, max_in_flight=200) as store:
        results = await asyncio.gather(*(store.set("k", b"x", timeout=0.3) for _ in range(200)), return_exceptions=True)
        assert all(isinstance(r, RequestTimeoutError) for r in results)
        assert store.state == "connected"
