"""Values of a megabyte: MB/s beside a raw socket, and how often the payload is copied.

    python tests/bench/bench_values.py [--quick] [--rounds 3] [--driver native] [--operations 300]

The raw peers (``raw_bulk.py``), a blocking socket for the blocking client and asyncio for the asyncio client, send
packets that were built beforehand and receive each reply into memory of its own, without looking at it. They copy
nothing but what asyncio's chunks make necessary: no clients, but all that there is to be had. The stub does as little
at its end.

Copies: the most memory that was in use at one time through one SET or GET (``tracemalloc``, peak over before), in
payloads. The value that the caller of a SET holds is not counted; the value that a GET returns is.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Final

from measure import Options, Report, Sample, interleaved, ratio, timed
from raw_bulk import RawBulk, RawBulkProtocol
from stub import StubProcess, bulk_server
from workloads import Verb

from statestore_client import AsyncStateStoreClient, ConnectionSettings, StateStoreClient

MEGABYTE: Final = 1_000_000
#: So many values are asked for, and held, at once: all of them together would fill the memory.
BATCH: Final = 10
#: Large, so that small objects and the parts that a read brings do not show.
COPIED_BYTES: Final = 16 * MEGABYTE
VERBS: Final[tuple[Verb, ...]] = ("SET", "GET")
WINDOWS: Final = (1, 4)


def raw_aio(port: int, verb: Verb, operations: int, in_flight: int) -> Sample:
    async def run() -> Sample:
        peer = await RawBulkProtocol(verb, MEGABYTE).open(port)
        try:
            await peer.run(5, in_flight)
            with timed(operations) as timer:
                for _ in range(0, operations, BATCH):
                    await peer.run(BATCH, in_flight)
            return timer.sample
        finally:
            peer.close()

    return asyncio.run(run())


def raw_sync(port: int, verb: Verb, operations: int, in_flight: int) -> Sample:
    peer = RawBulk(port, verb, MEGABYTE)
    try:
        peer.run(5, in_flight)
        with timed(operations) as timer:
            for _ in range(0, operations, BATCH):
                peer.run(BATCH, in_flight)
        return timer.sample
    finally:
        peer.close()


def aio(settings: ConnectionSettings, verb: Verb, operations: int) -> Sample:
    async def run() -> Sample:
        value = b"v" * MEGABYTE
        async with AsyncStateStoreClient(settings) as store:
            await store.set_many([(b"bench/1", value)] * 5)
            with timed(operations) as timer:
                for _ in range(0, operations, BATCH):
                    if verb == "SET":
                        await store.set_many([(b"bench/1", value)] * BATCH)
                    else:
                        await store.get_many([b"%d" % MEGABYTE] * BATCH)
            return timer.sample

    return asyncio.run(run())


def sync(settings: ConnectionSettings, verb: Verb, operations: int) -> Sample:
    value = b"v" * MEGABYTE
    with StateStoreClient(settings) as store:
        store.set_many([(b"bench/1", value)] * 5)
        with timed(operations) as timer:
            for _ in range(0, operations, BATCH):
                if verb == "SET":
                    store.set_many([(b"bench/1", value)] * BATCH)
                else:
                    store.get_many([b"%d" % MEGABYTE] * BATCH)
        return timer.sample


async def aio_copies(settings: ConnectionSettings, verb: Verb) -> float:
    value = b"v" * COPIED_BYTES
    async with AsyncStateStoreClient(settings) as store:
        await store.set(b"bench/1", b"warm")
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        result = await (store.set(b"bench/1", value) if verb == "SET" else store.get(b"%d" % COPIED_BYTES))
        return _copies(before, result)


def sync_copies(settings: ConnectionSettings, verb: Verb) -> float:
    value = b"v" * COPIED_BYTES
    with StateStoreClient(settings) as store:
        store.set(b"bench/1", b"warm")
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        result = store.set(b"bench/1", value) if verb == "SET" else store.get(b"%d" % COPIED_BYTES)
        return _copies(before, result)


def _copies(before: int, result: object) -> float:
    assert result is not None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak - before) / COPIED_BYTES


def speed(report: Report, server: StubProcess, options: Options) -> None:
    operations = max(BATCH, options.scaled(options.number("operations")) // BATCH * BATCH)
    works: dict[str, Callable[[], Sample]] = {}
    for verb in VERBS:
        for window in WINDOWS:
            tag = f"{verb} 1 MB, {window} in flight"
            works[f"raw sync {tag}"] = partial(raw_sync, server.port, verb, operations, window)
            works[f"raw aio {tag}"] = partial(raw_aio, server.port, verb, operations, window)
            for driver in options.drivers:
                settings = ConnectionSettings.from_url(server.url, driver=driver, max_in_flight=window)
                works[f"{driver} aio {tag}"] = partial(aio, settings, verb, operations)
                works[f"{driver} sync {tag}"] = partial(sync, settings, verb, operations)
    samples = interleaved(works, options.rounds)
    report.rates(samples, " MB/s")
    for driver in options.drivers:
        for tag in (f"{verb} 1 MB, {window} in flight" for verb in VERBS for window in WINDOWS):
            for shell in ("aio", "sync"):
                name = f"{driver} {shell} {tag}"
                peer = samples[f"raw {shell} {tag}"]
                report.bar(f"{name} / raw", ratio(samples[name], peer), 0.6, driver=driver)


def copies(report: Report, server: StubProcess, options: Options) -> None:
    for driver in options.drivers:
        settings = ConnectionSettings.from_url(server.url, driver=driver)
        for verb in VERBS:
            in_aio = statistics.median(asyncio.run(aio_copies(settings, verb)) for _ in range(options.rounds))
            in_sync = statistics.median(sync_copies(settings, verb) for _ in range(options.rounds))
            for shell, count in (("aio", in_aio), ("sync", in_sync)):
                name = f"{driver} {shell} {verb}, copies of the payload"
                # To one decimal: the objects around the payload are no copies of it.
                report.bar(name, round(count, 1), 2.0, unit="copies", at_most=True, driver=driver)


def main() -> int:
    options = Options.parse(__doc__, operations=(int, 300, "of one work and round"))
    report = Report(options)
    with bulk_server() as server:
        speed(report, server, options)
        copies(report, server, options)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
