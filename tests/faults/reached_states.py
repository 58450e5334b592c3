"""Waiting for a state of a client."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from statestore_client import (
    ConnectionState,
)

__all__ = ["state_of"]


async def state_of(store: Any, state: ConnectionState, timeout: float = 10.0) -> None:
    """Wait until the client is in a state."""
    deadline = time.monotonic() + timeout
    while store.state is not state:
        assert time.monotonic() < deadline, f"still {store.state}"
        await asyncio.sleep(0.005)
