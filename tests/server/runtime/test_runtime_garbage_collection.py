"""The collector of a process that belongs to the server."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from statestore_client.server.runtime.garbage_collection import short_pauses


class _Ring:
    """A cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    """This process goes on."""
    yield
    gc.unfreeze()


@pytest.mark.parametrize(("blocks", "is_collected"), [(1000, True), (50_000_000, False)])
async def test_full_collections_happen_while_there_is_little(blocks: int, is_collected: bool) -> None:
    """Full collections run at set times, and are put off while they would stop everybody for long."""
    looks = asyncio.Event()

    def count() -> int:
        looks.set()
        return blocks

    with short_pauses(asyncio.get_running_loop(), pause_s=0.001, blocks=count):
        ring = weakref.ref(_Ring())
        for _ in range(3):
            looks.clear()
            await looks.wait()
        assert (ring() is None) is is_collected


async def test_the_collector_is_left_as_it_was() -> None:
    """After the end the collector's thresholds are the process's own."""
    before = gc.get_threshold()
    with short_pauses(asyncio.get_running_loop()):
        assert gc.get_threshold()[2] > 1_000_000
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
