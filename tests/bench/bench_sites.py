"""Two sites with 100,000 keys each, of which some differ: how long a full sync takes, and who waits for it meanwhile.

    python tests/bench/bench_sites.py [--quick] [--rounds 3]

Each site is a server in a process of its own, with the broker and the state store in the same event loop. An MQTT
client of the first one sets keys, one at a time, while nothing else happens and then while the sites sync: from the
call to dial until both sites say that their sync is done, and no longer. In between the second site was away, and keys
were changed at both. Steps are measured in processor time, the rest on the clock. Garbage collections are counted
apart from the steps into which they fall.

In life each of the three has a machine of its own; here they share the processors, so the client may wait for one of
those, too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from measure import Options, Report, percentile

from statestore_client import AsyncStateStoreClient, ConnectionSettings

_KEYS: Final = 100_000
_IDLE_S: Final = 1.0
_TIMEOUT_S: Final = 60.0
_CHILD: Final = Path(__file__).with_name("site_child.py")
_MOST_MS: Final = 2.0
_GONE: Final = object()
_PAUSE: Final = "garbage"


class Site:
    """A server that is a site, and its commands."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        #: Moments at which a sync ended, and the connection.
        self.done: asyncio.Queue[float] = asyncio.Queue()
        self.alone: asyncio.Queue[float] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, name: str) -> Site:
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(sys.executable, str(_CHILD), name, stdin=pipe, stdout=pipe))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            told = json.loads(line)
            if "done" in told:
                self.done.put_nowait(told["done"])
            elif "alone" in told:
                self.alone.put_nowait(told["alone"])
            else:
                self._answers.put_nowait(told.get("answer", told))
        self._answers.put_nowait(_GONE)
        self.done.put_nowait(float("nan"))

    async def answer(self) -> Any:
        answer = await self._answers.get()
        if answer is _GONE:
            raise ChildProcessError("a site has ended")
        return answer

    async def ask(self, *command: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.answer()

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading


class Pair:
    """Two sites that are equal, and apart."""

    def __init__(self, first: Site, second: Site, client: AsyncStateStoreClient, url: str, keys: int) -> None:
        self.first, self.second, self.client = first, second, client
        self._url = url
        self._keys = keys
        self._version = 1
        self._apart_since = 0.0
        self.steps: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)

    async def prepare(self) -> None:
        """The same at both; the second one has it from the first one."""
        await self.first.ask("change", 0, 1, self._keys, 1)
        print(f"to a site that has nothing: {await self._sync():.2f} s", flush=True)
        await self._part()

    async def _sync(self) -> float:
        """Seconds from the call until both sites are done."""
        began = time.monotonic()
        await self.second.ask("dial", self._url)
        async with asyncio.timeout(_TIMEOUT_S):
            ended = max([await site.done.get() for site in (self.first, self.second)])
        return ended - began

    async def _part(self) -> None:
        """See that a sync has made the sites equal, and let them be apart again."""
        if await self.first.ask("sum") != await self.second.ask("sum"):
            raise AssertionError("the sites differ after a sync")
        self._apart_since = time.monotonic()
        await self.second.ask("hang up", self._url)

    async def apart(self, share: float) -> None:
        """Change such a share of the keys, half of it at each site. Wait until each knows that it is alone."""
        async with asyncio.timeout(_TIMEOUT_S):
            while await self.first.alone.get() < self._apart_since:
                pass
        self._version += 1
        step = max(2, round(2 / share))
        await self.first.ask("change", 0, step, self._keys, self._version)
        await self.second.ask("change", 1, step, self._keys, self._version)
        for site in (self.first, self.second):
            await site.ask("figures")

    async def synced(self) -> tuple[float, list[float]]:
        """Seconds of the sync, and of SETs that began before it had ended."""
        gc.collect()
        syncing = asyncio.ensure_future(self._sync())
        latencies: list[float] = []
        while not syncing.done():
            latencies.append(await self._set())
        seconds = await syncing
        for site in (self.first, self.second):
            for kind, figures in (await site.ask("figures")).items():
                self.steps[kind].append(figures)
        await self._part()
        return seconds, latencies

    async def idle(self) -> list[float]:
        """Seconds of SETs while nothing else happens."""
        gc.collect()
        ends = time.monotonic() + _IDLE_S
        latencies: list[float] = []
        while time.monotonic() < ends:
            latencies.append(await self._set())
        return latencies

    async def _set(self) -> float:
        started = time.perf_counter()
        await self.client.set(b"key", b"x" * 100)
        return time.perf_counter() - started


def _ms(latencies: list[float], percent: float) -> float:
    return percentile(latencies, percent) * 1e3


async def measure(pair: Pair, report: Report, rounds: int, share: float) -> None:
    """Rounds of a quiet time and a sync."""
    pair.steps.clear()
    took, ratios, p50, p99 = [], [], defaultdict(list), defaultdict(list)
    for _ in range(rounds):
        await pair.apart(share)
        idle = await pair.idle()
        seconds, busy = await pair.synced()
        took.append(seconds)
        for name, latencies in (("idle", idle), ("busy", busy)):
            p50[name].append(_ms(latencies, 50))
            p99[name].append(_ms(latencies, 99))
        ratios.append(_ms(busy, 99) / _ms(idle, 99))
        print(
            f"{seconds:.2f} s, {len(busy)} SETs, p99 {p99['busy'][-1]:.2f} ms; idle {p99['idle'][-1]:.2f}", flush=True
        )
    middle = statistics.median
    for name, when in (("idle", "idle"), ("busy", "from dialling until the sync is done")):
        print(f"{share:.0%} differ: SET {when}, ms: p50 {middle(p50[name]):.2f}, p99 {middle(p99[name]):.2f}")
    if share < 1:
        report.bar(f"{share:.0%} differ: full sync", middle(took), 2, unit="s", at_most=True)
    else:
        print(f"{share:.0%} differ: full sync {middle(took):.1f} s")
    report.bar(f"{share:.0%} differ: SET p99 until the sync is done ÷ idle", middle(ratios), 2, at_most=True)
    for kind, found in sorted(pair.steps.items()):
        count, longest = sum(each[0] for each in found), max(each[2] for each in found)
        if kind.startswith(_PAUSE):
            print(f"{kind}: {count} times, longest {longest:.1f} ms")
        else:
            slow = max(each[1] for each in found)
            report.bar(f"{kind} ({count:,} times), p99", slow, _MOST_MS, unit="ms", at_most=True)
            paused = max(each[3] for each in found)
            print(f"{'':8}longest {longest:.1f} ms; with the collections that fell into it {paused:.1f} ms")


async def run(options: Options, report: Report) -> None:
    first, second = await Site.start("a"), await Site.start("b")
    try:
        told = await first.answer()
        await second.answer()
        async with AsyncStateStoreClient(ConnectionSettings.from_url(told["url"])) as client:
            pair = Pair(first, second, client, told["site"], options.scaled(_KEYS))
            await pair.prepare()
            gc.freeze()
            gc.disable()
            await measure(pair, report, options.rounds, 0.01)
            await measure(pair, report, 1, 1.0)
    finally:
        await first.stop()
        await second.stop()


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    asyncio.run(run(options, report))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
