"""Measures work in rounds: operations a second, their processor time, and how long one of them takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs


@attrs.frozen
class Round:
    """What one round has cost. ``latencies_s`` are those of operations one at a time."""

    seconds: float
    cpu_s: float
    operations: int
    latencies_s: list[float]

    @property
    def rate(self) -> float:
        """Operations in a second."""
        return self.operations / self.seconds

    @property
    def cpu_us(self) -> float:
        """Of one operation."""
        return 1e6 * self.cpu_s / self.operations


@attrs.define
class Timer:
    """Wall clock and processor time of a block, and the latencies of what is done in it."""

    latencies_s: list[float] = attrs.field(factory=list, init=False)
    seconds: float = attrs.field(default=0.0, init=False)
    cpu_s: float = attrs.field(default=0.0, init=False)

    def lap(self, operation: Callable[[], object]) -> None:
        """Do one operation."""
        started = time.perf_counter()
        operation()
        self.latencies_s.append(time.perf_counter() - started)

    def round(self, operations: int) -> Round:
        """The round that the block was, after its end."""
        return Round(self.seconds, self.cpu_s, operations, self.latencies_s)


@contextmanager
def timed() -> Iterator[Timer]:
    """Time the block."""
    timer = Timer()
    wall, cpu = time.perf_counter(), time.process_time()
    yield timer
    timer.seconds, timer.cpu_s = time.perf_counter() - wall, time.process_time() - cpu


def medians(rounds: Sequence[Round]) -> tuple[float, float, float | None, float | None, float | None]:
    """Operations a second, processor time of one (µs); and of those one at a time p50, p90 and p99 (ms)."""
    latencies = sorted(1000 * seconds for r in rounds for seconds in r.latencies_s)
    p50, p90, p99 = (latencies[len(latencies) * percent // 100] if latencies else None for percent in (50, 90, 99))
    return statistics.median(r.rate for r in rounds), statistics.median(r.cpu_us for r in rounds), p50, p90, p99


def decimals(value: float | None) -> str:
    """As a table has it; nothing for what was not measured."""
    return "" if value is None else f"{value:.2f}"
