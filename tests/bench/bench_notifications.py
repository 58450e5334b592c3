"""Notifications a second that reach the watchers of one client.

    python tests/bench/bench_notifications.py [--quick] [--rounds 3] [--driver native] [--events 50000]

From a stub that pushes as fast as the client acknowledges, to ten watches; and from ``statestore serve``, where a raw
client in a process of its own overwrites one key 64 times at once and one watch follows it: then three processes share
the cores, and each event costs the server a SET, its reply and a notification. Every event counts once, when the
reader of the watch has it; none may be lost (``overflow="error"``).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from collections.abc import Callable
from functools import partial

import stub
import workloads
from measure import Options, Report, Sample, interleaved, timed
from stub_push import GO_KEY

from statestore_client import AsyncStateStoreClient, AsyncWatch, ConnectionSettings, StateStoreClient
from statestore_client.cli.bench import served
from statestore_client.sync.watch import Watch

WATCHES = 10
#: The key that the raw client of workloads.py writes to.
WRITTEN_KEY = b"bench/0001"
PATIENCE_S = 60.0


def pushed_aio(settings: ConnectionSettings, events: int) -> Sample:
    """Ten watches, ten tasks."""

    async def run() -> Sample:
        async with AsyncStateStoreClient(settings) as store:
            watches = [
                await store.watch(b"bench/%d" % i, max_queued=events, overflow="error").start() for i in range(WATCHES)
            ]
            with timed(events) as timer:
                await store.set(GO_KEY, str(events))
                await asyncio.gather(*(_read(watch, events // WATCHES) for watch in watches))
            return timer.sample

    return asyncio.run(run())


async def _read(watch: AsyncWatch, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for _ in watch:
            count -= 1
            if not count:
                return


def pushed_sync(settings: ConnectionSettings, events: int) -> Sample:
    """Ten watches, ten threads."""
    with StateStoreClient(settings) as store:
        watches = [store.watch(b"bench/%d" % i, max_queued=events, overflow="error").start() for i in range(WATCHES)]
        threads = [threading.Thread(target=_read_blocking, args=(w, events // WATCHES)) for w in watches]
        for thread in threads:
            thread.start()
        with timed(events) as timer:
            store.set(GO_KEY, str(events))
            _join(threads)
        return timer.sample


def _read_blocking(watch: Watch, count: int) -> None:
    for _ in watch:
        count -= 1
        if not count:
            return


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "events are missing"


def _write(port: int, operations: int) -> None:
    workloads.raw_many(port, "SET", operations, 64)


def served_aio(settings: ConnectionSettings, events: int) -> Sample:
    """One watch on the key that another process overwrites."""

    async def run() -> Sample:
        async with (
            AsyncStateStoreClient(settings) as store,
            store.watch(WRITTEN_KEY, max_queued=events, overflow="error") as watch,
        ):
            writer = multiprocessing.Process(target=_write, args=(settings.port, events), daemon=True)
            writer.start()
            await _read(watch, 100)  # from here on the writer has started
            with timed(events - 100) as timer:
                await _read(watch, events - 100)
            await asyncio.to_thread(writer.join)
            return timer.sample

    return asyncio.run(run())


def served_sync(settings: ConnectionSettings, events: int) -> Sample:
    """One watch on the key that another process overwrites."""
    with StateStoreClient(settings) as store, store.watch(WRITTEN_KEY, max_queued=events, overflow="error") as watch:
        writer = multiprocessing.Process(target=_write, args=(settings.port, events), daemon=True)
        writer.start()
        _read_blocking(watch, 100)
        with timed(events - 100) as timer:
            _read_blocking(watch, events - 100)
        writer.join()
        return timer.sample


def main() -> int:
    options = Options.parse(__doc__, events=(int, 50_000, "in one work and round"))
    report = Report(options)
    events = options.scaled(options.number("events")) // 64 * 64
    with stub.pushing_server() as pusher, served() as url:
        works: dict[str, Callable[[], Sample]] = {}
        for driver in options.drivers:
            pushing = ConnectionSettings.from_url(pusher.url, driver=driver)
            serving = ConnectionSettings.from_url(url, driver=driver)
            few = events if driver != "paho" else max(640, events // 8 // 64 * 64)
            works[f"{driver} aio, pushed by the stub"] = partial(pushed_aio, pushing, few // 10 * 10)
            works[f"{driver} sync, pushed by the stub"] = partial(pushed_sync, pushing, few // 10 * 10)
            works[f"{driver} aio, through statestore serve"] = partial(served_aio, serving, few)
            works[f"{driver} sync, through statestore serve"] = partial(served_sync, serving, few)
        samples = interleaved(works, options.rounds)
    report.rates(samples, " events/s")
    for name, own in samples.items():
        rate = sorted(s.rate for s in own)[len(own) // 2]
        report.bar(f"{name}, events", rate, 20_000, unit="/s", driver=name.split()[0])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
