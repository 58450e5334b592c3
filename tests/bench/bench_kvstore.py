"""The pure store of the KvStore: keys merged a second, what one key costs in memory, patterns of keys. No sockets.

    python tests/bench/bench_kvstore.py [--quick] [--rounds 3] [--part memory]

Entries come as they do from a message: each with texts and bytes of its own, in slices.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from measure import Options, Report, peak_bytes, percentile, run_parts

from statestore_client.server.kvstore.area import Area, SubscriberOptions
from statestore_client.server.kvstore.area_store import page
from statestore_client.server.kvstore.own_keys import OwnKeys
from statestore_client.server.kvstore.patterns import KeyFilter, Patterns
from statestore_client.server.kvstore.sync import RangeSums
from statestore_client.wire.kvstore.value import Value

_KEYS: Final = 100_000
_VALUE_BYTES: Final = 100
_TTL_MS: Final = 300_000
_SLICE: Final = 128

#: Python's own engine needs ages for each of these.
_HOSTILE: Final = ("(adj|a+)+:", "(a*)*b", "(a?){100}a{100}b", "(a|b)*a(a|b){100}c")


def entries(count: int, version: int, *, ttl_version: int = 0, values: bool = True) -> Iterator[dict[str, Value]]:
    """Slices of new objects: keys of 16 characters, 50 originators."""
    for start in range(0, count, _SLICE):
        yield {
            f"adj:node-{number:07d}": Value(
                version, f"site-{number % 50}", b"%0100d" % (number + version) if values else None, _TTL_MS, ttl_version
            )
            for number in range(start, min(start + _SLICE, count))
        }


def summed_area() -> Area:
    """As a site has it: with the sums of its ranges."""
    area = Area("0", "here")
    area.store.on_change = RangeSums().change
    return area


def merged_per_s(area: Area, slices: list[dict[str, Value]], now: float) -> float:
    """Keys a second of this thread's own time, of a peer."""
    started = time.thread_time()
    for entries in slices:
        area.merge(entries, "peer", now)
    return sum(map(len, slices)) / (time.thread_time() - started)


def speed(report: Report, options: Options) -> None:
    """What a store does with what a peer sends, with the sums that a site keeps and without, in turns. The collector
    leaves old objects alone, as in the server.
    """
    count = options.scaled(_KEYS)
    thresholds = gc.get_threshold()
    best: dict[tuple[str, bool], float] = {}
    for _ in range(max(options.rounds, 3)):
        for is_summed in (True, False):
            area = summed_area() if is_summed else Area("0", "here")
            works = {
                "new": list(entries(count, 1)),
                "again": list(entries(count, 1)),
                "TTL alone": list(entries(count, 1, ttl_version=1, values=False)),
                "next version": list(entries(count, 2)),
            }
            gc.collect()
            gc.freeze()
            gc.set_threshold(thresholds[0], thresholds[1], 1_000_000_000)
            for number, (name, slices) in enumerate(works.items()):
                rate = merged_per_s(area, slices, float(number))
                best[name, is_summed] = max(best.get((name, is_summed), 0.0), rate)
            gc.set_threshold(*thresholds)
            gc.unfreeze()
    for (name, is_summed), rate in best.items():
        if is_summed:
            report.bar(f"merge with sums, {name} ÷ without", rate / best[name, False], 0.4)
            print(f"merge with sums, {name}, keys/s: {rate:,.0f}")
        else:
            report.bar(f"merge, {name}, keys/s", rate, 300_000, unit="/s")


def slices_ms(report: Report, options: Options) -> None:
    """How long one piece of work takes at most."""
    area = summed_area()
    count = options.scaled(_KEYS)
    taken: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.thread_time()
        work()
        taken[name].append(time.thread_time() - started)

    gc.collect()
    gc.freeze()
    gc.disable()
    for piece in entries(count, 1):
        timed("merge a slice", partial(area.merge, piece, "peer", 0.0))
    rest, wanted = list(area.store), KeyFilter([r"adj:.*9\d$"])
    for start in range(0, count, 256):
        keys = rest[start : start + 257]
        timed("a page of a dump", partial(page, area.store, keys, wanted, 0.0))
    while len(area.store):
        timed("expire a slice", lambda: area.store.expire(_TTL_MS / 1000))
    own: OwnKeys = area.own
    for number in range(options.scaled(10_000)):
        own.set(f"own{number}", b"x" * _VALUE_BYTES, 1000.0)
    for _ in range(100):
        timed("refresh a slice of own keys", lambda: own.tick(1000.0 + _TTL_MS / 4000 + 0.1))
    gc.enable()
    for name, seconds in taken.items():
        # The longest one has a dictionary that grew; it is told, too.
        report.bar(f"{name}, p99", percentile(seconds, 99) * 1e3, 2, unit="ms", at_most=True)
        print(f"{name}, longest {max(seconds) * 1e3:.1f} ms")


def subscriptions(report: Report, options: Options) -> None:
    """What a publication costs if somebody follows, and how long those that follow look at it."""
    count = options.scaled(_KEYS)
    filters = ((), (r"adj:.*9\d$",), tuple(f"adj:node-{n:03d}" for n in range(50)))
    best: dict[str, float] = {}
    taken: list[float] = []
    for _ in range(max(options.rounds, 3)):
        for followers in (0, 1, 100):
            area = summed_area()
            for number in range(followers):
                area.subscribers.subscribe(SubscriberOptions(KeyFilter(filters[number % len(filters)])))
            rate = merged_per_s(area, list(entries(count, 1)), 0.0)
            name = f"merge new keys, {followers} subscriptions"
            best[name] = max(best.get(name, 0.0), rate)
        for patterns in filters:
            area = summed_area()
            reader = area.subscribers.subscribe(SubscriberOptions(KeyFilter(patterns)))
            for piece in entries(min(count, 20_000), 1):
                area.merge(piece, "peer", 0.0)
            began = time.thread_time()
            while not reader.is_at_end:
                started = time.thread_time()
                reader.options.wanted(reader.next())
                reader.at += 1
                taken.append(time.thread_time() - started)
            name = f"a subscription with {len(patterns)} patterns looks at"
            best[name] = max(best.get(name, 0.0), min(count, 20_000) / (time.thread_time() - began))
    for name, rate in best.items():
        print(f"{name}, keys/s {rate:,.0f}")
    report.bar("a look at a publication of 128 keys, p99", percentile(taken, 99) * 1e3, 2, unit="ms", at_most=True)


def patterns(report: Report, options: Options) -> None:
    """Microseconds for a key, and for the longest key with the worst patterns."""
    keys = [f"adj:node{number:05d}" for number in range(options.scaled(100_000))]
    for text in ("adj:", r"adj:node\d+$", "prefix:.*"):
        pattern = Patterns([text])
        started = time.thread_time()
        for key in keys:
            pattern.match(key)
        print(f"pattern {text:20} {(time.thread_time() - started) / len(keys) * 1e6:8.2f} µs for a key of 13")
    slowest = 0.0
    for text in _HOSTILE:
        pattern = Patterns([text])
        started = time.thread_time()
        pattern.match("a" * 4096)
        slowest = max(slowest, time.thread_time() - started)
    report.bar("the worst pattern, a key of 4096 characters", slowest * 1e3, 10, unit="ms", at_most=True)


def memory(report: Report, options: Options) -> None:
    """What a key takes besides its own bytes and those of its value."""
    before = peak_bytes()
    area = summed_area()
    count = options.scaled(1_000_000)
    for piece in entries(count, 1):
        area.merge(piece, "peer", 0.0)
    grown = peak_bytes() - before
    report.bar(
        f"{count:,} keys, bytes of each besides key and value",
        grown / count - 16 - _VALUE_BYTES,
        700,
        unit="bytes",
        at_most=True,
    )


def main() -> int:
    # Memory first: what others used before would hide it.
    parts = {
        "memory": memory,
        "speed": speed,
        "slices": slices_ms,
        "subscriptions": subscriptions,
        "patterns": patterns,
    }
    return run_parts(__doc__, parts)


if __name__ == "__main__":
    sys.exit(main())
