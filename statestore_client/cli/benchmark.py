"""What ``statestore bench`` measures: our clients and hand-written paho, in turns, against the same server."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from statestore_client.aio.client import StateStoreClient as AsyncStateStoreClient
from statestore_client.errors import StateStoreError
from statestore_client.mqtt.paho_baseline import PahoBaseline
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient

__all__ = ["BenchPlan", "Measurement", "measure", "served"]

#: A pipelined round has this many times the operations of a sequential one: it is that much faster.
_PIPELINE_FACTOR: Final = 2
#: The keys of a benchmark delete themselves.
_EXPIRY_S: Final = 60.0


@attrs.frozen
class BenchPlan:
    """How much to do."""

    operations: int = 2000
    rounds: int = 3
    value_bytes: int = 100
    in_flight: int = 64

    def pairs(self, factor: int = 1) -> list[tuple[bytes, bytes]]:
        """Keys repeat, so that the store does not grow from round to round."""
        value = b"v" * self.value_bytes
        return [(b"bench/%04d" % (i % 1000), value) for i in range(self.operations * factor)]


@attrs.frozen
class Measurement:
    """The medians of one way to do the work."""

    name: str
    operations_per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_us_per_operation: float = 0.0


@attrs.frozen
class _Round:
    seconds: float
    cpu_seconds: float
    operations: int
    latencies: list[float]


def measure(settings: ConnectionSettings, plan: BenchPlan, progress: Callable[[str], None]) -> list[Measurement]:
    """Run every workload in turn, round after round, so that a change of the machine's pace meets all of them."""
    workloads: dict[str, Callable[[], _Round]] = {
        "sync, one at a time": lambda: _sync_sequential(settings, plan),
        "hand-written paho, one at a time": lambda: _paho_sequential(settings, plan),
        "aio, one at a time": lambda: asyncio.run(_aio_sequential(settings, plan)),
        f"sync, {plan.in_flight} in flight": lambda: _sync_pipelined(settings, plan),
        f"hand-written paho, {plan.in_flight} in flight": lambda: _paho_pipelined(settings, plan),
        f"aio, {plan.in_flight} in flight": lambda: asyncio.run(_aio_pipelined(settings, plan)),
    }
    results: dict[str, list[_Round]] = {name: [] for name in workloads}
    for number in range(plan.rounds):
        for name, run in workloads.items():
            progress(f"round {number + 1} of {plan.rounds}: {name}")
            results[name].append(run())
    return [_summary(name, rounds) for name, rounds in results.items()]


@contextmanager
def served() -> Iterator[str]:
    """The URL of a ``statestore serve`` of its own process, for the time of the ``with``."""
    command = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    try:
        line = process.stdout.readline() if process.stdout else ""
        url = line.strip().removeprefix("listening on ")
        if not url.startswith("mqtt://"):
            raise StateStoreError(f"statestore serve did not start; it said {line!r}")
        yield url
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout:
            process.stdout.close()


# -- workloads --------------------------------------------------------------------------------------------------------


def _sync_sequential(settings: ConnectionSettings, plan: BenchPlan) -> _Round:
    with StateStoreClient(settings) as store:
        return _one_by_one(plan, lambda key, value: store.set(key, value, expiry=_EXPIRY_S))


def _paho_sequential(settings: ConnectionSettings, plan: BenchPlan) -> _Round:
    with PahoBaseline(settings.host, settings.port) as peer:
        return _one_by_one(plan, peer.set)


async def _aio_sequential(settings: ConnectionSettings, plan: BenchPlan) -> _Round:
    async with AsyncStateStoreClient(settings) as store:
        with _timed(plan.operations) as (latencies, done):
            for key, value in plan.pairs():
                started = time.perf_counter()
                await store.set(key, value, expiry=_EXPIRY_S)
                latencies.append(time.perf_counter() - started)
        return done()


def _sync_pipelined(settings: ConnectionSettings, plan: BenchPlan) -> _Round:
    pairs = plan.pairs(_PIPELINE_FACTOR)
    with StateStoreClient(settings, max_in_flight=plan.in_flight) as store:
        with _timed(len(pairs)) as (_, done):
            store.set_many(pairs, expiry=_EXPIRY_S)
        return done()


def _paho_pipelined(settings: ConnectionSettings, plan: BenchPlan) -> _Round:
    pairs = plan.pairs(_PIPELINE_FACTOR)
    with PahoBaseline(settings.host, settings.port) as peer:
        with _timed(len(pairs)) as (_, done):
            peer.set_many(pairs, plan.in_flight)
        return done()


async def _aio_pipelined(settings: ConnectionSettings, plan: BenchPlan) -> _Round:
    pairs = plan.pairs(_PIPELINE_FACTOR)
    async with AsyncStateStoreClient(settings, max_in_flight=plan.in_flight) as store:
        with _timed(len(pairs)) as (_, done):
            await store.set_many(pairs, expiry=_EXPIRY_S)
        return done()


def _one_by_one(plan: BenchPlan, operation: Callable[[bytes, bytes], object]) -> _Round:
    with _timed(plan.operations) as (latencies, done):
        for key, value in plan.pairs():
            started = time.perf_counter()
            operation(key, value)
            latencies.append(time.perf_counter() - started)
    return done()


@contextmanager
def _timed(operations: int) -> Iterator[tuple[list[float], Callable[[], _Round]]]:
    latencies: list[float] = []
    finished: list[_Round] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield latencies, lambda: finished[0]
    finished.append(_Round(time.perf_counter() - wall, time.process_time() - cpu, operations, latencies))


def _summary(name: str, rounds: list[_Round]) -> Measurement:
    latencies = sorted(seconds for r in rounds for seconds in r.latencies)
    return Measurement(
        name,
        statistics.median(r.operations / r.seconds for r in rounds),
        1000 * latencies[len(latencies) // 2] if latencies else None,
        1000 * latencies[len(latencies) * 99 // 100] if latencies else None,
        statistics.median(1e6 * r.cpu_seconds / r.operations for r in rounds),
    )
