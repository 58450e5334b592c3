"""Waiting for what a client has reached."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from support.waiting import until

from statestore_client import ConnectionState

__all__ = ["sent", "state_of"]


async def sent(store: Any, requests: int) -> None:
    """Wait until this many requests are in flight."""
    request_table = getattr(store, "target", store)._engine._machine.request_table
    await until(lambda: request_table.in_flight >= requests, f"{requests} requests in flight")


async def state_of(store: Any, state: ConnectionState, timeout: float = 10.0) -> None:
    """Wait until the client is in a state."""
    deadline = time.monotonic() + timeout
    while store.state is not state:
        assert time.monotonic() < deadline, f"still {store.state}"
        await asyncio.sleep(0.005)
