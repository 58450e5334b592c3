"""How long an update takes from one site to the next: five sites in a line, and a client that follows two of them.

    python tests/bench/bench_hops.py [--quick]

Each site is a server in a process of its own, as in bench_sites.py. A client sets a key at the first site, again and
again, and follows the second and the last one: between these two lie three hops, and what the client itself takes is
in both moments. All sites and the client share the processors of one machine.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

from bench_sites import Site
from measure import Options, Report, percentile

from statestore_client.kvstore import AsyncSiteClient

_SITES: Final = 5
_UPDATES: Final = 1_000
_TIMEOUT_S: Final = 30.0


async def follow(url: str, ready: asyncio.Event, told: asyncio.Queue[float]) -> None:
    """The moments at which the client is told of changes at this site."""
    async with AsyncSiteClient(url) as client, client.subscribe("key") as changes:
        ready.set()
        async for _ in changes:
            told.put_nowait(time.monotonic())


async def measure(urls: list[str], report: Report, updates: int) -> None:
    """One update after the other, each when the one before is everywhere."""
    moments: list[asyncio.Queue[float]] = [asyncio.Queue(), asyncio.Queue()]
    ready = [asyncio.Event(), asyncio.Event()]
    hops, told = [], []
    async with asyncio.TaskGroup() as group, AsyncSiteClient(urls[0]) as client:
        tasks = [group.create_task(follow(urls[at], ready[n], moments[n])) for n, at in enumerate((1, -1))]
        for each in ready:
            await each.wait()
        for number in range(updates):
            began = time.monotonic()
            await client.set("key", f"{number:0100d}")
            async with asyncio.timeout(_TIMEOUT_S):
                near, far = [await each.get() for each in moments]
            hops.append((far - near) / (_SITES - 2))
            told.append(far - began)
        for task in tasks:
            task.cancel()
    report.bar("a hop, p50", percentile(hops, 50) * 1e3, 3, unit="ms", at_most=True)
    print(f"a hop, p99 {percentile(hops, 99) * 1e3:.2f} ms")
    for percent in (50, 99):
        milliseconds = percentile(told, percent) * 1e3
        print(f"from set() until a subscriber {_SITES - 1} hops away is told, p{percent} {milliseconds:.2f} ms")


async def run(options: Options, report: Report) -> None:
    sites = [await Site.start(f"site-{number}") for number in range(_SITES)]
    try:
        urls = [(await site.answer())["site"] for site in sites]
        for site, url in zip(sites, urls[1:], strict=False):
            await site.ask("dial", url)
            await asyncio.wait_for(site.done.get(), _TIMEOUT_S)
        await measure(urls, report, options.scaled(_UPDATES))
    finally:
        for site in sites:
            await site.stop()


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    asyncio.run(run(options, report))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
