"""Measures work in samples: operations a second, their processor time, and how long one of them takes.

``bench`` of both commands and the benchmarks in ``tests/bench`` measure so.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs


@attrs.frozen
class Sample:
    """One run of one work. ``latencies_s`` are those of operations one at a time."""

    operations: int
    seconds: float
    cpu_s: float  # of this process, all threads
    latencies_s: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Operations in a second."""
        return self.operations / self.seconds

    @property
    def cpu_us(self) -> float:
        """Processor time of this process for an operation, in microseconds."""
        return 1e6 * self.cpu_s / self.operations


@attrs.define
class Timer:
    """Made by :func:`timed`; ``sample`` is what its block was, after its end. A block that finds out how many
    operations it has carried out sets ``operations`` itself.
    """

    operations: int
    latencies_s: list[float] = attrs.field(factory=list, init=False)
    seconds: float = attrs.field(default=0.0, init=False)
    cpu_s: float = attrs.field(default=0.0, init=False)

    def lap(self, operation: Callable[[], object]) -> None:
        """Carry out one operation."""
        started = time.perf_counter()
        operation()
        self.latencies_s.append(time.perf_counter() - started)

    @property
    def sample(self) -> Sample:
        """What the block was."""
        return Sample(self.operations, self.seconds, self.cpu_s, tuple(self.latencies_s))


@contextmanager
def timed(operations: int = 0) -> Iterator[Timer]:
    """Time the block, which carries out so many operations. Earlier garbage is collected first."""
    timer = Timer(operations)
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    yield timer
    timer.seconds, timer.cpu_s = time.perf_counter() - wall, time.process_time() - cpu


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def summary(samples: Sequence[Sample]) -> tuple[float, float, float | None, float | None, float | None]:
    """Medians of operations a second and processor time of one (µs); of those one at a time p50, p90 and p99 (ms)."""
    latencies = [1000 * seconds for sample in samples for seconds in sample.latencies_s]
    p50, p90, p99 = (percentile(latencies, percent) if latencies else None for percent in (50, 90, 99))
    rates, costs = [sample.rate for sample in samples], [sample.cpu_us for sample in samples]
    return statistics.median(rates), statistics.median(costs), p50, p90, p99


def decimals(value: float | None) -> str:
    """As a table has it; nothing for what was not measured."""
    return "" if value is None else f"{value:.2f}"
