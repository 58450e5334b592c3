"""Simulated schedules on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

__all__ = ["on_all_cores"]

T = TypeVar("T")


def on_all_cores(run: Callable[[int], T], seeds: range, *, at_once: int) -> Iterator[T]:
    """What ``run``, a function that other processes can import, returns for each seed, in their order. A process gets
    ``at_once`` seeds at a time; when there are few of them, they run here.
    """
    if len(seeds) <= 2 * at_once:
        yield from map(run, seeds)
        return
    # Not forked: threads of other tests may hold locks.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run, seeds, chunksize=at_once)
