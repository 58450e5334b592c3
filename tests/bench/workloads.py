"""The same work, done by each client: SETs or GETs on a server, pipelined or one at a time; returns a sample."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from measure import Sample, timed
from paho_baseline import PahoBaseline
from raw import RawClient

from statestore_client import AsyncStateStoreClient, ConnectionSettings, StateStoreClient

__all__ = [
    "VALUE",
    "Verb",
    "aio_many",
    "aio_one",
    "aio_tasks",
    "paho_many",
    "paho_one",
    "raw_many",
    "raw_one",
    "sync_many",
    "sync_one",
]

Verb: TypeAlias = Literal["SET", "GET"]
VALUE = b"v" * 100
KEYS = [b"bench/%04d" % i for i in range(1000)]
_WARM_UP = 500


def keys(operations: int) -> list[bytes]:
    return [KEYS[i % 1000] for i in range(operations)]


def pairs(operations: int) -> list[tuple[bytes, bytes]]:
    return [(key, VALUE) for key in keys(operations)]


def aio_many(settings: ConnectionSettings, verb: Verb, operations: int) -> Sample:
    """``set_many`` or ``get_many``, the window of ``settings`` in flight."""

    async def run() -> Sample:
        async with AsyncStateStoreClient(settings) as store:
            await store.set_many(pairs(_WARM_UP))
            if verb == "SET":
                work = pairs(operations)
                with timed(operations) as timer:
                    await store.set_many(work)
            else:
                wanted = keys(operations)
                with timed(operations) as timer:
                    await store.get_many(wanted)
            return timer.sample

    return asyncio.run(run())


def aio_tasks(settings: ConnectionSettings, verb: Verb, operations: int) -> Sample:
    """As many tasks as may be in flight, each of which awaits one request after the other."""

    async def run() -> Sample:
        async with AsyncStateStoreClient(settings) as store:
            return await tasks(_call(store, verb), settings.max_in_flight, operations)

    return asyncio.run(run())


def aio_one(settings: ConnectionSettings, verb: Verb, operations: int) -> Sample:
    """One at a time."""

    async def run() -> Sample:
        async with AsyncStateStoreClient(settings) as store:
            return await one_by_one(_call(store, verb), operations)

    return asyncio.run(run())


def sync_many(settings: ConnectionSettings, verb: Verb, operations: int) -> Sample:
    """``set_many`` or ``get_many``, the window of ``settings`` in flight."""
    with StateStoreClient(settings) as store:
        store.set_many(pairs(_WARM_UP))
        if verb == "SET":
            work = pairs(operations)
            with timed(operations) as timer:
                store.set_many(work)
        else:
            wanted = keys(operations)
            with timed(operations) as timer:
                store.get_many(wanted)
        return timer.sample


def sync_one(settings: ConnectionSettings, verb: Verb, operations: int) -> Sample:
    """One at a time."""
    with StateStoreClient(settings) as store:
        call: Callable[[], object]
        call = (lambda: store.set(KEYS[0], VALUE)) if verb == "SET" else (lambda: store.get(KEYS[0]))
        return one_by_one_blocking(call, operations)


def raw_many(port: int, verb: Verb, operations: int, in_flight: int) -> Sample:
    """Raw asyncio sockets with so many tasks."""

    async def run() -> Sample:
        client = await RawClient("raw", verb, len(VALUE)).open(port)
        try:
            return await tasks(client.request, in_flight, operations)
        finally:
            client.close()

    return asyncio.run(run())


def raw_one(port: int, verb: Verb, operations: int) -> Sample:
    """Raw asyncio sockets, one at a time."""

    async def run() -> Sample:
        client = await RawClient("raw", verb, len(VALUE)).open(port)
        try:
            return await one_by_one(client.request, operations)
        finally:
            client.close()

    return asyncio.run(run())


def paho_many(port: int, verb: Verb, operations: int, in_flight: int) -> Sample:
    """Hand-written paho."""
    with PahoBaseline("127.0.0.1", port) as peer:
        if verb == "SET":
            work = pairs(operations)
            with timed(operations) as timer:
                peer.set_many(work, in_flight)
        else:
            wanted = keys(operations)
            with timed(operations) as timer:
                peer.get_many(wanted, in_flight)
        return timer.sample


def paho_one(port: int, verb: Verb, operations: int) -> Sample:
    """Hand-written paho, one at a time."""
    with PahoBaseline("127.0.0.1", port) as peer:
        call = (lambda: peer.set(KEYS[0], VALUE)) if verb == "SET" else (lambda: peer.get(KEYS[0]))
        return one_by_one_blocking(call, operations)


def _call(store: AsyncStateStoreClient, verb: Verb) -> Callable[[], Awaitable[object]]:
    if verb == "SET":
        return lambda: store.set(KEYS[0], VALUE)
    return lambda: store.get(KEYS[0])


async def tasks(call: Callable[[], Awaitable[object]], in_flight: int, operations: int) -> Sample:
    """``in_flight`` tasks share the operations."""

    async def work(count: int) -> None:
        for _ in range(count):
            await call()

    await asyncio.gather(*(work(5) for _ in range(in_flight)))
    each = operations // in_flight
    with timed(each * in_flight) as timer:
        await asyncio.gather(*(work(each) for _ in range(in_flight)))
    return timer.sample


async def one_by_one(call: Callable[[], Awaitable[object]], operations: int) -> Sample:
    """Each operation starts when the one before has ended."""
    for _ in range(20):
        await call()
    with timed(operations) as timer:
        for _ in range(operations):
            started = time.perf_counter()
            await call()
            timer.latencies_s.append(time.perf_counter() - started)
    return timer.sample


def one_by_one_blocking(call: Callable[[], object], operations: int) -> Sample:
    """As :func:`one_by_one`, without a loop."""
    for _ in range(20):
        call()
    with timed(operations) as timer:
        for _ in range(operations):
            started = time.perf_counter()
            call()
            timer.latencies_s.append(time.perf_counter() - started)
    return timer.sample
