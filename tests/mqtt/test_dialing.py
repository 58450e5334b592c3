"""A name with several addresses, of which some swallow packets or refuse: in both shells, over both drivers."""

from __future__ import annotations

import contextlib
import gc
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.ports import reserved_port
from support.shells import SHELLS, Shell

from statestore_client import ConnectionLostError
from statestore_client.server import EmbeddedServer

_ALL_DRIVERS = pytest.mark.parametrize("names", [pytest.param(names, id="-".join(names)) for names in SHELLS])


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port at which nothing is answered: nobody accepts, and the queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(3):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        time.sleep(0.01)  # the queue fills
        yield port


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the name ``plant`` has for addresses."""
    found: list[int] = []
    look_up = socket.getaddrinfo

    def fake(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("plant", b"plant"):
            return look_up(host, *arguments, **options)
        if options.get("flags"):
            raise socket.gaierror("it is a name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in found]

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    return found


@_ALL_DRIVERS
async def test_an_address_that_swallows_packets_costs_a_tenth_of_a_second(
    names: tuple[str, str], executor: Any, server: EmbeddedServer, ports: list[int]
) -> None:
    """Two of them, and one that refuses, cost two."""
    with black_hole() as hole:
        ports += [hole, reserved_port(), hole, server.port]
        began = time.monotonic()
        async with Shell(*names, executor).client("mqtt://plant", connect_timeout=8.0) as store:
            assert (await store.set("k", b"1")).applied
        assert 0.19 < time.monotonic() - began < 2.0
    gc.collect()  # no socket of an attempt is left: that would be a ResourceWarning


@_ALL_DRIVERS
async def test_the_last_failure_is_told_and_the_time_is_kept(
    names: tuple[str, str], executor: Any, ports: list[int]
) -> None:
    """All refuse, or none answers."""
    shell = Shell(*names, executor)
    ports += [reserved_port(), reserved_port()]
    with pytest.raises(ConnectionLostError, match="refused"):
        await shell.client("mqtt://plant", connect_timeout=8.0).open()
    with black_hole() as hole:
        ports[:] = [hole, hole]
        began = time.monotonic()
        with pytest.raises(ConnectionLostError):
            await shell.client("mqtt://plant", connect_timeout=0.3).open()
        assert 0.25 < time.monotonic() - began < 2.0
    gc.collect()
