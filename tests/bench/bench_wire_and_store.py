"""Microseconds per operation of the wire rooms, the state store and its service, and the memory of a million keys.

    python tests/bench/bench_wire_and_store.py [--quick] [--part memory]

The bars are what the design asks for.
"""

from __future__ import annotations

import sys
import threading
import time
import timeit
from functools import partial
from typing import TYPE_CHECKING

from measure import Options, Report, peak_bytes, run_parts

from statestore_client.mqtt.packets.types import Publish, PublishProperties
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import RequestContext, StateStore, StoreLimits
from statestore_client.wire.commands import Get, Set, decode_command
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC
from statestore_client.wire.replies import decode_reply
from statestore_client.wire.resp3 import NEED_DATA, Decoder, decode

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE = b"v" * 100
SET = b"*3\r\n$3\r\nSET\r\n$7\r\nSETKEY2\r\n$100\r\n" + VALUE + b"\r\n"
STAMP = HlcTimestamp(1_696_374_425_000, 0, "CLIENT")
NOW = Instant(monotonic=10.0, wall_ms=1_696_374_425_000)


def best_us(report: Report, name: str, function: Callable[[], object], *, target_us: float | None = None) -> None:
    """The best of five runs, which is the one that was disturbed least."""
    timer = timeit.Timer(function)
    number, _ = timer.autorange()
    microseconds = min(timer.repeat(5, number)) / number * 1e6
    tell(report, name, microseconds, target_us)


def tell(report: Report, name: str, microseconds: float, target_us: float | None = None) -> None:
    if target_us is None:
        print(f"{name:58} {microseconds:>10.2f} µs")
    else:
        report.bar(name, microseconds, target_us, unit="µs", at_most=True)


def new_store() -> StateStore:
    """Big enough for every measurement here."""
    clock = HybridLogicalClock("StateStore", guard=threading.Lock())
    return StateStore(clock=clock, limits=StoreLimits(max_keys=2_000_000, max_bytes=2**32))


def stream(payload: bytes) -> int:
    """A thousand values through the incremental decoder."""
    decoder = Decoder()
    decoder.feed(payload)
    count = 0
    while decoder.next() is not NEED_DATA:
        count += 1
    return count


def wire(report: Report, options: Options) -> None:
    """The codecs and the clock."""
    command = Set(b"SETKEY2", VALUE)
    best_us(report, "resp3 encode SET, 100 B", command.encode, target_us=4)
    best_us(report, "resp3 decode SET, 100 B", lambda: decode(SET), target_us=4)
    best_us(report, "decode_command SET, 100 B", lambda: decode_command(SET))
    many = SET * 1000
    best_us(report, "stream decoder, 1000 SETs", lambda: stream(many))
    best_us(report, "decode_reply +OK", lambda: decode_reply(b"+OK\r\n"))
    best_us(report, "decode_reply GET, 100 B", lambda: decode_reply(b"$100\r\n" + VALUE + b"\r\n"))
    clock = HybridLogicalClock("node", guard=threading.Lock())
    best_us(report, "hlc tick", lambda: clock.tick(5), target_us=2)
    best_us(report, "hlc merge", lambda: clock.merge(STAMP, NOW.wall_ms))
    best_us(report, "hlc parse", lambda: HlcTimestamp.parse("001696374425000:00001:StateStore"))


def store(report: Report, options: Options) -> None:
    """Applying commands must not get slower with the number of keys."""
    machine = new_store()
    filled = 0
    for size in (10**3, 10**4, 10**5) if options.quick else (10**3, 10**4, 10**5, 10**6):
        for number in range(filled, size):
            apply(machine, Set(b"key-%07d" % number, VALUE))
        filled = size
        overwrite, read = Set(b"key-%07d" % (size // 2), VALUE), Get(b"key-%07d" % (size // 2))
        best_us(report, f"store SET (overwrite) at {size} keys", partial(apply, machine, overwrite))
        best_us(report, f"store GET at {size} keys", partial(apply, machine, read))
        started = time.perf_counter()
        for number in range(1000):
            apply(machine, Set(b"key-%07d-new" % (number * size // 1000), VALUE, expiry_ms=1))
        microseconds = (time.perf_counter() - started) * 1000
        tell(report, f"store SET (new key, PX) at {size} keys", microseconds)
        machine.tick(Instant(monotonic=20.0, wall_ms=NOW.wall_ms))


def apply(machine: StateStore, command: Set | Get) -> object:
    """With what a request usually carries."""
    return machine.apply(command, RequestContext("client", STAMP, None, NOW))


def service(report: Report, options: Options) -> None:
    """A whole request: properties, payload, store, response. Every request has its own correlation data."""
    for verb, payload in (("SET", SET), ("GET", b"*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n")):
        application = StateStoreService(new_store(), token_key=bytes(TOKEN_KEY_BYTES))
        best = float("inf")
        for run in range(5):
            messages = [request(payload, run * 20_000 + number) for number in range(20_000)]
            started = time.perf_counter()
            for message in messages:
                application.handle("c", message, NOW)
            best = min(best, (time.perf_counter() - started) / len(messages) * 1e6)
        tell(report, f"service.handle {verb}", best, 15)


def request(payload: bytes, number: int) -> Publish:
    """As the official Go SDK sends it."""
    properties = PublishProperties(
        message_expiry=10,
        response_topic="clients/c/services/statestore/_any_/command/invoke/response",
        correlation_data=number.to_bytes(16),
        user_properties=(
            ("__srcId", "c"),
            ("__protVer", "1.0"),
            ("$partition", "c"),
            ("$high_priority", ""),
            ("__ts", "001696374425000:00000:CLIENT"),
        ),
    )
    return Publish(COMMAND_TOPIC, payload, qos=1, packet_id=1, properties=properties)


def memory(report: Report, options: Options) -> None:
    """A million keys with values of 100 bytes."""
    before = peak_bytes()
    machine = new_store()
    count = options.scaled(1_000_000)
    for number in range(count):
        instant = Instant(monotonic=10.0, wall_ms=NOW.wall_ms + number)
        command = Set(b"key-%012d" % number, b"%0100d" % number)
        machine.apply(command, RequestContext("client", STAMP, None, instant))
    used = machine.usage.bytes / 2**20
    grown = peak_bytes() - before
    name = f"{count:,} keys of 100 B, resident"
    report.bar(name, grown / 1e6, 600 * count / 1e6, unit="MB", at_most=True)
    print(f"{count:,} keys of 100 B: {used:.0f} MiB by quota")


def main() -> int:
    # Memory first: what others used before would hide it.
    parts = {"memory": memory, "wire": wire, "store": store, "service": service}
    return run_parts(__doc__, parts)


if __name__ == "__main__":
    sys.exit(main())
