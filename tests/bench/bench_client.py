"""The clients beside raw asyncio sockets and hand-written paho, all against the same stub, in turns.

    python tests/bench/bench_client.py [--quick] [--rounds 3] [--driver native] [--operations 20000] [--stub codec]

The stub runs in a process of its own; with two cores, each end has one. What it costs is in everybody's numbers: with
many in flight, 64 answers arrive in one chunk and 64 requests leave in one write, so client and stub mostly take turns.
The last lines tell how busy the stub was, and what a request costs its client:

* CPU: processor time of the client's process, all its threads, through the requests (``time.process_time``);
* calls: function calls, Python's and C's, that one request makes in the event loop's thread (``sys.setprofile``). It
  does not depend on the machine or its load, so a change shows at once.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import workloads
from measure import Options, Report, Sample, interleaved, medians, percentile, ratio
from open_loop import open_loop
from raw import RawClient
from stub import StubProcess, codec_server, streams_server
from workloads import VALUE, Verb

from statestore_client import AsyncStateStoreClient, ConnectionSettings

WINDOWS: Final = (64, 256)
VERBS: Final[tuple[Verb, ...]] = ("SET", "GET")
#: Hand-written paho is that much slower; it need not run longer than the others.
PAHO_SHARE: Final = 8


def settings_of(url: str, driver: str, window: int = 64) -> ConnectionSettings:
    return ConnectionSettings.from_url(url, driver=driver, max_in_flight=window)


def pipelined(server: StubProcess, options: Options, operations: int) -> dict[str, Callable[[], Sample]]:
    """Name -> work, for both verbs and windows. paho, ours too, does less of it."""
    works: dict[str, Callable[[], Sample]] = {}
    few = max(1000, operations // PAHO_SHARE)
    for verb in VERBS:
        for window in WINDOWS:
            tag = f"{verb} {window}"
            works[f"raw {tag}"] = partial(workloads.raw_many, server.port, verb, operations, window)
            works[f"hand paho {tag}"] = partial(workloads.paho_many, server.port, verb, few, window)
            for driver in options.drivers:
                settings = settings_of(server.url, driver, window)
                count = few if driver == "paho" else operations
                for way, run in (
                    ("aio many", workloads.aio_many),
                    ("aio tasks", workloads.aio_tasks),
                    ("sync many", workloads.sync_many),
                ):
                    works[f"{driver} {way} {tag}"] = partial(run, settings, verb, count)
    return works


def sequential(server: StubProcess, options: Options, operations: int) -> dict[str, Callable[[], Sample]]:
    """Name -> work, one request at a time."""
    works: dict[str, Callable[[], Sample]] = {}
    for verb in VERBS:
        works[f"raw {verb} 1"] = partial(workloads.raw_one, server.port, verb, operations)
        works[f"hand paho {verb} 1"] = partial(workloads.paho_one, server.port, verb, operations)
        for driver in options.drivers:
            settings = settings_of(server.url, driver)
            works[f"{driver} aio {verb} 1"] = partial(workloads.aio_one, settings, verb, operations)
            works[f"{driver} sync {verb} 1"] = partial(workloads.sync_one, settings, verb, operations)
    return works


def report_pipelined(report: Report, samples: Mapping[str, Sequence[Sample]], drivers: Sequence[str]) -> None:
    for driver in drivers:
        for verb in VERBS:
            for window in WINDOWS:
                tag = f"{verb} {window}"
                for way, to_raw, to_paho in (("aio many", 0.5, 5), ("aio tasks", 0.5, 5), ("sync many", 0.4, 4)):
                    name = f"{driver} {way} {tag}"
                    ours = samples[name]
                    report.bar(f"{name} / raw", ratio(ours, samples[f"raw {tag}"]), to_raw, driver=driver)
                    report.bar(f"{name} / hand paho", ratio(ours, samples[f"hand paho {tag}"]), to_paho, driver=driver)


def report_sequential(report: Report, samples: Mapping[str, Sequence[Sample]], drivers: Sequence[str]) -> None:
    for driver in drivers:
        for verb in VERBS:
            for shell in ("aio", "sync"):
                name = f"{driver} {shell} {verb} 1"
                report.bar(f"{name} / raw", ratio(samples[name], samples[f"raw {verb} 1"]), 0.6, driver=driver)
    for name, own in samples.items():
        latencies = [1e6 * seconds for sample in own for seconds in sample.latencies_s]
        p50, p90, p99 = (percentile(latencies, percent) for percent in (50, 90, 99))
        print(f"{name:40} p50 {p50:7.0f} µs, p90 {p90:7.0f} µs, p99 {p99:7.0f} µs")


# -- latency at half load ----------------------------------------------------------------------------------------------


async def _raw_latencies(port: int, rate: float, seconds: float) -> list[float]:
    client = await RawClient("raw", "SET", len(VALUE)).open(port)
    try:
        return await open_loop(client.request, rate, seconds)
    finally:
        client.close()


async def _our_latencies(settings: ConnectionSettings, rate: float, seconds: float) -> list[float]:
    async with AsyncStateStoreClient(settings) as store:
        return await open_loop(lambda: store.set(b"bench/0001", VALUE), rate, seconds)


def half_load(report: Report, server: StubProcess, options: Options, most: Mapping[str, float]) -> None:
    """Our p99 divided by that of raw sockets, both at half of the most that this driver reached with 64 tasks.

    Printed beside it: raw at half of its own most, which is a higher rate, and the medians.
    """
    seconds = 0.5 if options.quick else 2.0
    for driver in options.drivers:
        rate, raw_rate = most[f"{driver} aio tasks SET 64"] / 2, most["raw SET 64"] / 2
        settings = settings_of(server.url, driver, 1024)
        rounds: dict[str, list[tuple[float, float]]] = {}
        for _ in range(max(options.rounds, 5)):
            for name, run in (
                (f"raw at {rate:,.0f} SET/s", _raw_latencies(server.port, rate, seconds)),
                (f"{driver} at {rate:,.0f} SET/s", _our_latencies(settings, rate, seconds)),
                (f"raw at {raw_rate:,.0f} SET/s, half of its own most", _raw_latencies(server.port, raw_rate, seconds)),
            ):
                latencies = [1e6 * latency for latency in asyncio.run(run)]
                rounds.setdefault(name, []).append((percentile(latencies, 50), percentile(latencies, 99)))
        for name, own in rounds.items():
            p50, p99 = (statistics.median(column) for column in zip(*own, strict=True))
            print(f"{name:58} p50 {p50:7,.0f} µs, p99 {p99:7,.0f} µs")
        raws, ours, raws_half = ([p99 for _, p99 in own] for own in rounds.values())
        worse = statistics.median(our / raw for our, raw in zip(ours, raws, strict=True))
        report.bar(f"{driver} aio SET, p99 at half load / raw", worse, 2.0, at_most=True, driver=driver)
        worse = statistics.median(our / raw for our, raw in zip(ours, raws_half, strict=True))
        print(f"{driver} aio SET, p99 / raw, each at half of its own most: {worse:.2f} ×")


# -- what does not depend on the machine -------------------------------------------------------------------------------


async def _calls(call: Callable[[], Awaitable[object]], requests: int) -> float:
    count = 0

    def counter(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    await call()
    sys.setprofile(counter)
    await call()
    sys.setprofile(None)
    return count / requests


async def _our_calls(settings: ConnectionSettings, requests: int) -> float:
    async with AsyncStateStoreClient(settings) as store:
        return await _calls(lambda: store.set_many(workloads.pairs(requests)), requests)


async def _raw_calls(port: int, requests: int) -> float:
    client = await RawClient("raw", "SET", len(VALUE)).open(port)
    try:
        return await _calls(lambda: workloads.tasks(client.request, 64, requests), requests)
    finally:
        client.close()


def function_calls(server: StubProcess, options: Options) -> None:
    """Here the raw client is used with tasks and ours with batches: that is how each is normally used."""
    requests = 64 * 20
    print(f"{'raw SET 64':40} {asyncio.run(_raw_calls(server.port, requests)):6.1f} function calls a request")
    for driver in options.drivers:
        calls = asyncio.run(_our_calls(settings_of(server.url, driver), requests))
        print(f"{driver + ' aio many SET 64':40} {calls:6.1f} function calls a request")


def stub_share(server: StubProcess) -> None:
    """How busy the stub is while raw sockets load it as they can."""
    before, _ = server.counts()
    sample = workloads.raw_many(server.port, "SET", 20_000, 64)
    busy = (server.counts()[0] - before) / sample.seconds
    print(
        f"raw SET 64 at {sample.rate:,.0f}/s: the client is busy {sample.cpu_s / sample.seconds:.0%}, stub {busy:.0%}"
    )


def main() -> int:
    options = Options.parse(
        __doc__,
        operations=(int, 24_000, "of one pipelined work and round"),
        stub=(str, "codec", "codec or streams: the peer's server"),
    )
    report = Report(options)
    operations = options.scaled(options.number("operations"))
    with codec_server() if options.extra["stub"] == "codec" else streams_server() as server:
        # Short and often: others use the machine too, and how quickly a sleeping core wakes up changes in seconds.
        many = interleaved(pipelined(server, options, operations // 3), 3 * options.rounds)
        report.rates(many)
        report_pipelined(report, many, options.drivers)
        one = interleaved(sequential(server, options, operations // 20), 3 * options.rounds)
        report.rates(one)
        report_sequential(report, one, options.drivers)
        half_load(report, server, options, medians(many))
        function_calls(server, options)
        stub_share(server)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
