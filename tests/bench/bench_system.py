"""The whole system: clients and server beside raw sockets, stubs and hand-written paho, in turns.

    python tests/bench/bench_system.py [--rounds 3] [--operations 20000]

Prints medians over interleaved rounds, and the ratios that docs/explanation/performance.md quotes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

import raw
import stub

from statestore_client import AsyncStateStoreClient, StateStoreClient
from statestore_client.cli.benchmark import served
from statestore_client.mqtt.paho_baseline import PahoBaseline

VALUE = b"v" * 100


def measurements(few: int, many: int) -> dict[str, Callable[[int], float]]:
    """What runs against every server: name -> operations a second."""
    return {
        "raw 64": lambda port: asyncio.run(raw.raw_pipelined(port, many, 64, len(VALUE))),
        "aio 64": lambda port: aio_many(port, many, 64),
        "sync 64": lambda port: sync_many(port, many, 64),
        "paho 64": lambda port: paho_many(port, many // 4, 64),
        "raw 256": lambda port: asyncio.run(raw.raw_pipelined(port, many, 256, len(VALUE))),
        "aio 256": lambda port: aio_many(port, many, 256),
        "sync 256": lambda port: sync_many(port, many, 256),
        "paho 256": lambda port: paho_many(port, many // 4, 256),
        "raw 1": lambda port: asyncio.run(raw.raw_sequential(port, few, len(VALUE))),
        "aio 1": lambda port: aio_one(port, few),
        "sync 1": lambda port: sync_one(port, few),
        "paho 1": lambda port: paho_one(port, few),
    }


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def sync_many(port: int, operations: int, in_flight: int) -> float:
    with StateStoreClient(f"mqtt://127.0.0.1:{port}", max_in_flight=in_flight) as store:
        return timed(operations, lambda: store.set_many((f"bench/{i % 1000}", VALUE) for i in range(operations)))


def sync_one(port: int, operations: int) -> float:
    with StateStoreClient(f"mqtt://127.0.0.1:{port}") as store:
        return timed(operations, lambda: [store.set("bench/1", VALUE) for _ in range(operations)])


def aio_many(port: int, operations: int, in_flight: int) -> float:
    async def run() -> float:
        async with AsyncStateStoreClient(f"mqtt://127.0.0.1:{port}", max_in_flight=in_flight) as store:
            started = time.perf_counter()
            await store.set_many((f"bench/{i % 1000}", VALUE) for i in range(operations))
            return operations / (time.perf_counter() - started)

    return asyncio.run(run())


def aio_one(port: int, operations: int) -> float:
    async def run() -> float:
        async with AsyncStateStoreClient(f"mqtt://127.0.0.1:{port}") as store:
            started = time.perf_counter()
            for _ in range(operations):
                await store.set("bench/1", VALUE)
            return operations / (time.perf_counter() - started)

    return asyncio.run(run())


def paho_many(port: int, operations: int, in_flight: int) -> float:
    pairs = [(b"bench/%d" % (i % 1000), VALUE) for i in range(operations)]
    with PahoBaseline("127.0.0.1", port) as peer:
        return timed(operations, lambda: peer.set_many(pairs, in_flight))


def paho_one(port: int, operations: int) -> float:
    with PahoBaseline("127.0.0.1", port) as peer:
        return timed(operations, lambda: [peer.set(b"bench/1", VALUE) for _ in range(operations)])


def timed(operations: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return operations / (time.perf_counter() - started)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--operations", type=int, default=20_000)
    given = options.parse_args()
    work = measurements(given.operations // 10, given.operations)
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(given.rounds):
        with stub.streams_server() as streams, stub.codec_server() as codec, served() as url:
            for name, run in work.items():
                for server, port in (("streams stub", streams), ("codec stub", codec), ("serve", port_of(url))):
                    rates.setdefault((server, name), []).append(run(port))
    medians = {key: statistics.median(values) for key, values in rates.items()}
    for server in ("streams stub", "codec stub", "serve"):
        for name in work:
            print(f"{server:13} {name:9} {medians[server, name]:>10,.0f} SET/s")
    for name in ("raw 64", "raw 1"):
        for server in ("streams stub", "codec stub"):
            print(f"serve / {server}, {name}: {medians['serve', name] / medians[server, name]:.2f}")
    for flight in ("64", "256", "1"):
        for shell in ("aio", "sync"):
            for peer in ("raw", "paho"):
                ratio = medians["codec stub", f"{shell} {flight}"] / medians["codec stub", f"{peer} {flight}"]
                print(f"{shell} / {peer}, {flight} in flight, codec stub: {ratio:.2f}")


if __name__ == "__main__":
    main()
