"""A program that contends for a lock and writes under it, for as long as it lives; it tells on stdout what it does.

Usage: ``contender.py sync|aio URL NAME LEASE_S``. Each line is a moment (``time.monotonic()``, one clock for all
processes of the machine), a word, and what belongs to it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from statestore_client import AsyncStateStoreClient, StateStoreClient, StateStoreError

_OPTIONS = {"keep_alive": 2.0, "request_timeout": 2.0, "connect_timeout": 2.0, "max_reconnect_delay": 0.2}


def tell(word: str, what: object = "") -> None:
    sys.stdout.write(f"{time.monotonic():.6f} {word} {what}\n")
    sys.stdout.flush()


def writes() -> list[float]:
    """How long to pause before each write of a period of holding: mostly a short one."""
    return [0.0] + [0.01] * random.choice((1, 3, 5, 40))


def contend(url: str, name: str, lease_s: float) -> None:
    with StateStoreClient(url, client_id=name, retry_first_connect=True, **_OPTIONS) as store:
        while True:
            lock = store.lock("job", lease=lease_s)
            try:
                lease = lock.acquire()
                tell("acquired", lease.fencing_token)
                guarded = store.guarded(lease)
                for number, pause in enumerate(writes()):
                    time.sleep(pause)
                    guarded.set("state", f"{name} {number}")
            except StateStoreError as error:
                tell("failed", type(error).__name__)
            try:
                tell("releasing")
                tell("released", lock.release())
            except StateStoreError as error:
                tell("failed", type(error).__name__)


async def contend_in_a_loop(url: str, name: str, lease_s: float) -> None:
    async with AsyncStateStoreClient(url, client_id=name, retry_first_connect=True, **_OPTIONS) as store:
        while True:
            lock = store.lock("job", lease=lease_s)
            try:
                lease = await lock.acquire()
                tell("acquired", lease.fencing_token)
                guarded = store.guarded(lease)
                for number, pause in enumerate(writes()):
                    await asyncio.sleep(pause)
                    await guarded.set("state", f"{name} {number}")
            except StateStoreError as error:
                tell("failed", type(error).__name__)
            try:
                tell("releasing")
                tell("released", await lock.release())
            except StateStoreError as error:
                tell("failed", type(error).__name__)


if __name__ == "__main__":
    _, shell, server_url, own_name, seconds = sys.argv
    if shell == "aio":
        asyncio.run(contend_in_a_loop(server_url, own_name, float(seconds)))
    else:
        contend(server_url, own_name, float(seconds))
