"""The event loop of commands and servers: one that watches descriptors, as ØMQ and sockets of listeners need.

The loop that asyncio makes on Windows has no ``add_reader()``. Programs choose theirs; what runs a loop of its own does
so here, and what listens in it ends so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Turns of the event loop between accept() and a connection that can be closed.
_ACCEPT_STEPS: Final = 5


def run(main: Coroutine[Any, Any, T]) -> T:
    """As :func:`asyncio.run`, in such a loop."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main)


async def stop_accepting(*servers: asyncio.Server) -> None:
    """Let sockets that were accepted a moment ago become connections, and listen no more.

    Closing a listener in that moment trips asyncio over its own assertion, and the accepted socket is never closed.
    What closes the connections of a listener comes after this. Servers that are closed already are left out.
    """
    for server in servers:
        with suppress(NotImplementedError):  # event loops without readers do not accept in this way either
            for sock in server.sockets:
                server.get_loop().remove_reader(sock.fileno())
    for _ in range(_ACCEPT_STEPS):
        await asyncio.sleep(0)
    for server in servers:
        server.close()
