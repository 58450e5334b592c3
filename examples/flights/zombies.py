"""A driver that stands still in the middle of a write, and wakes up when another one leads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from .drivers import Driver
from .failure import LOST, DemoError
from .measuring import read_counts

__all__ = ["freeze_in_a_batch", "wake"]

_TIMEOUT_S: Final = 60.0
#: So many SETs after a batch has begun, its rows are being written; the lock and the marker take two of them.
_SETS: Final = 5


def freeze_in_a_batch(driver: Driver, metrics_url: str, check: Callable[[], None]) -> None:
    """Stop the driver, its Java process and its workers, when the store has got the first rows of a batch."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        check()
        family = driver.family()
        driver.wait_until_it_says("written", 5.0)
        driver.wait_until_it_says("writing", 5.0)
        said, sets = len(driver.told), read_counts(metrics_url).sets
        while driver.told[-1].kind == "writing" and read_counts(metrics_url).sets < sets + _SETS:
            pass  # a batch takes a tenth of a second; each look at the counters is a round trip, which is pause enough
        driver.freeze(family)
        if driver.told[-1].kind == "writing" and not driver.wait_for_more(said, 0.2):
            return
        driver.wake()  # it was quicker
    raise DemoError(f"driver {driver.name} was never seen in the middle of a batch", LOST)


def wake(driver: Driver, check: Callable[[], None]) -> None:
    """Let it go on, and wait until it knows that it leads no longer."""
    said = len(driver.told)
    driver.wake()
    deadline = time.monotonic() + _TIMEOUT_S
    while not driver.has_told("lost", said):
        check()
        if time.monotonic() > deadline:
            raise DemoError(f"driver {driver.name} does not notice that it leads no longer", LOST)
        driver.wait_for_more(len(driver.told), 0.2)
