"""A program that writes one key after the other, and says for each how long it took: ``URL``."""

from __future__ import annotations

import asyncio
import sys
import time

from statestore_client import AsyncStateStoreClient, StateStoreError


async def _write(url: str) -> None:
    async with AsyncStateStoreClient(url, retry_first_connect=True) as store:
        number = 0
        while True:
            began = time.monotonic()
            try:
                await store.set("k", str(number))
                outcome = "set"
            except StateStoreError as error:
                outcome = f"{type(error).__name__}: {error}"
            sys.stdout.write(f"{number} {time.monotonic() - began:.3f} {outcome}\n")
            sys.stdout.flush()
            number += 1
            await asyncio.sleep(0.02)


asyncio.run(_write(sys.argv[1]))
