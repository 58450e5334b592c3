"""A program that reads and writes keys that others use as well, and says what it saw: ``URL NAME SECONDS FILE``.

Each line of the file is one operation: kind, key, value, result, call, end, in JSON; end is null if nobody knows what
became of it. Moments are those of the machine's monotonic clock, which all network namespaces share. The keys are new
every two seconds, so that no history is long.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

from statestore_client import AsyncStateStoreClient, StateStoreError

_TASKS = 4
_KEYS = 3
_WINDOW_S = 2.0


async def _use(store: AsyncStateStoreClient, name: str, until: float, seen: list[list[object]]) -> None:
    number = 0
    while (call := time.monotonic()) < until:
        key = f"{int(call / _WINDOW_S)}-{random.randrange(_KEYS)}"
        value, number = f"{name}.{number}", number + 1
        kind = random.choice(("set", "nx", "get", "get", "delete"))
        try:
            match kind:
                case "get":
                    item = await store.get(key)
                    result: object = None if item is None else item.value.decode()
                case "delete":
                    result = (await store.delete(key)).count
                case _:
                    result = (await store.set(key, value, condition="NX" if kind == "nx" else None)).applied
        except StateStoreError as error:
            seen.append([kind, key, value, f"{type(error).__name__}: {error}", call, None])
        else:
            seen.append([kind, key, value, result, call, time.monotonic()])
        await asyncio.sleep(random.uniform(0.0, 0.06))


async def _main(url: str, name: str, seconds: float) -> list[list[object]]:
    until = time.monotonic() + seconds
    seen: list[list[object]] = []
    async with AsyncStateStoreClient(url, retry_first_connect=True) as store:
        await asyncio.gather(*(_use(store, f"{name}.{task}", until, seen) for task in range(_TASKS)))
    return seen


_, url, name, seconds, file = sys.argv
Path(file).write_text("".join(json.dumps(each) + "\n" for each in asyncio.run(_main(url, name, float(seconds)))))
