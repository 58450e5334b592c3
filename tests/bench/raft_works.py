"""The works of bench_raft.py: the same appends and reads by hand, by both clients, and by the Node client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
from measure import Sample, Timer, timed
from raw_pyzmq import RawPyzmq

from raft_client import AsyncRaftClient, RaftClient, SnapshotChunk

__all__ = [
    "NodeClient",
    "Stretch",
    "aio_append",
    "aio_read",
    "fill",
    "raw_append",
    "raw_read",
    "sync_append",
    "sync_batches",
    "sync_read",
]

_SCRIPT: Final = Path(__file__).with_name("raft_node_client.js")


@attrs.frozen
class Stretch:
    """Entries of the log: ``count`` of them after the index ``after``, with this many bytes of data each."""

    after: int
    count: int
    size: int


def fill(seeds: str, count: int, size: int) -> Stretch:
    """Append entries to be read later."""
    with RaftClient(seeds, max_in_flight=256) as client:
        after = client.log_info().last_applied
        client.append_many((b"v" * size for _ in range(count)), in_flight=256, timeout=60)
    return Stretch(after, count, size)


# -- appends -----------------------------------------------------------------------------------------------------------


def raw_append(leader_url: str, count: int, size: int, in_flight: int) -> Sample:
    with RawPyzmq(leader_url) as peer:
        peer.append(int(time.time()), b"warm")
        with timed(count) as timer:
            if in_flight == 1:
                for _ in range(count):
                    peer.append(int(time.time()), b"v" * size)
            else:
                peer.append_many(int(time.time()), b"v" * size, count, in_flight)
    return timer.sample


def sync_append(seeds: str, count: int, size: int, in_flight: int) -> Sample:
    with RaftClient(seeds) as client:
        client.append(b"warm")
        with timed(count) as timer:
            if in_flight == 1:
                for _ in range(count):
                    client.append(b"v" * size)
            else:
                client.append_many((b"v" * size for _ in range(count)), in_flight=in_flight)
    return timer.sample


def aio_append(seeds: str, count: int, size: int, in_flight: int) -> Sample:
    async def run(client: AsyncRaftClient) -> Sample:
        await client.append(b"warm")
        with timed(count) as timer:
            if in_flight == 1:
                for _ in range(count):
                    await client.append(b"v" * size)
            else:
                await client.append_many((b"v" * size for _ in range(count)), in_flight=in_flight)
        return timer.sample

    return _aio(seeds, run)


# -- reads -------------------------------------------------------------------------------------------------------------


def raw_read(leader_url: str, stretch: Stretch) -> Sample:
    with RawPyzmq(leader_url) as peer:
        peer.append(int(time.time()), b"warm")
        with timed(stretch.count) as timer:
            entries, _ = peer.stream(stretch.after, stretch.count)
    return _checked(timer, entries, stretch)


def sync_read(seeds: str, stretch: Stretch) -> Sample:
    """Entry by entry."""
    with RaftClient(seeds) as client:
        entries = 0
        with timed(stretch.count) as timer:
            for _ in client.entries(stretch.after, stretch.count):
                entries += 1
    return _checked(timer, entries, stretch)


def sync_batches(seeds: str, stretch: Stretch) -> Sample:
    """As many entries at a time as came in one message."""
    with RaftClient(seeds) as client:
        entries = 0
        with timed(stretch.count) as timer, client.entries(stretch.after, stretch.count) as stream:
            while (batch := stream.next_batch()) is not None:
                assert not isinstance(batch, SnapshotChunk), "nothing was compacted"
                entries += len(batch)
    return _checked(timer, entries, stretch)


def aio_read(seeds: str, stretch: Stretch) -> Sample:
    async def run(client: AsyncRaftClient) -> Sample:
        entries = 0
        with timed(stretch.count) as timer:
            async for _ in client.entries(stretch.after, stretch.count):
                entries += 1
        return _checked(timer, entries, stretch)

    return _aio(seeds, run)


def _aio(seeds: str, work: Callable[[AsyncRaftClient], Awaitable[Sample]]) -> Sample:
    async def run() -> Sample:
        async with AsyncRaftClient(seeds) as client:
            return await work(client)

    return asyncio.run(run())


def _checked(timer: Timer, entries: int, stretch: Stretch) -> Sample:
    assert entries == stretch.count, f"{entries} of {stretch.count} entries came"
    return timer.sample


# -- the Node client ---------------------------------------------------------------------------------------------------


class NodeClient:
    """A Node process with one client. Use as a context manager; its samples have the processor time of that process."""

    def __init__(self, install: Path, seeds: str) -> None:
        self._process = subprocess.Popen(
            ["node", str(_SCRIPT), str(install), seeds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def append(self, count: int, size: int, in_flight: int) -> Sample:
        return self._do(do="append", count=count, size=size, in_flight=in_flight)

    def read(self, stretch: Stretch) -> Sample:
        sample = self._do(do="read", after=stretch.after, count=stretch.count)
        assert sample.operations == stretch.count, f"{sample.operations} of {stretch.count} entries came"
        return sample

    def open(self) -> Sample:
        """A new client, instead of the one before."""
        return self._do(do="open")

    def _do(self, **order: Any) -> Sample:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the Node client has ended"
        return Sample(**json.loads(line))
