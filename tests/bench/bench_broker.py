"""The broker beside Debian's mosquitto and amqtt: messages and connections a second, memory, nothing lost.

    python tests/bench/bench_broker.py [--quick] [--rounds 3] [--only serve] [--version 5]

Each broker is a process of its own and gets the same load from light raw-socket generators, in turns. Version 5 is for
ours and mosquitto: amqtt 0.12 does not accept it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

import attrs
from broker_load import Load, connect_rate, idle_connections, run
from broker_peers import Peer, Start, peers
from measure import Options, Report

#: To amqtt, to mosquitto.
_BARS: Final = {"amqtt": 4.0, "mosquitto": 0.4}

#: QoS, publishers, subscribers, messages of all publishers together.
_FLOWS: Final = {
    f"QoS {qos}, {publishers} -> {subscribers}": Load(qos, publishers, subscribers, messages // subscribers)
    for qos, messages in ((0, 200_000), (1, 60_000), (2, 40_000))
    for publishers, subscribers in ((1, 1), (4, 1), (1, 4))
} | {
    # Nothing to put together into one write: what a message costs that comes alone.
    f"QoS 1, {publishers} -> 1, one by one": Load(1, publishers, 1, 10_000, window=1)
    for publishers in (1, 8)
}

#: What the others get of that: as much time, not as many messages.
_SHARES: Final = {"amqtt": 0.15}

#: One after the other, the time is that of the system and of the generator, and there is no bar for connections.
_NOT_TO_AMQTT: Final = ("1 -> 1, one by one", "at a time")

_CONNECTIONS: Final = 3000
_HUNG_UP: Final = 2000


def works(options: Options, version: int) -> dict[str, Callable[[str, Peer], float]]:
    """Name -> work on a named peer, which returns its rate."""
    found: dict[str, Callable[[str, Peer], float]] = {}
    for name, load in _FLOWS.items():
        found[name] = partial(_flow, attrs.evolve(load, messages=options.scaled(load.messages), version=version))
    for at_a_time in (1, 16):
        found[f"connects, {at_a_time} at a time"] = partial(_connects, options.scaled(_CONNECTIONS), at_a_time)
    return found


def _flow(load: Load, name: str, peer: Peer) -> float:
    share = attrs.evolve(load, messages=max(400, int(load.messages * _SHARES.get(name, 1) / 4) * 4))
    flow = run(peer.port, share)
    if flow.delivered != share.deliveries:
        print(f"{name} delivered {flow.delivered} of {share.deliveries}, {share}", file=sys.stderr)
    return flow.delivered / flow.seconds


def _connects(connections: int, at_a_time: int, name: str, peer: Peer) -> float:
    share = max(160, int(connections * _SHARES.get(name, 1) / 16) * 16)
    return connect_rate(peer.port, share, at_a_time)


def measure(starts: Mapping[str, Start], options: Options, version: int) -> dict[str, dict[str, list[float]]]:
    """Work -> peer -> rates, one per round. Every other round runs backwards."""
    todo = list(works(options, version).items())
    rates: dict[str, dict[str, list[float]]] = {work: {name: [] for name in starts} for work, _ in todo}
    order = list(starts)
    for _ in range(options.rounds):
        with ExitStack() as stack:
            running = {name: stack.enter_context(starts[name]()) for name in order}
            for work, rate in todo:
                for name in order:
                    rates[work][name].append(rate(name, running[name]))
        order.reverse()
    return rates


def compare(report: Report, rates: Mapping[str, Mapping[str, list[float]]]) -> None:
    """A line for each work, then the bars."""
    for work, own in rates.items():
        line = "  ".join(f"{name} {statistics.median(values):>9,.0f}/s" for name, values in own.items())
        print(f"{work:28} {line}", flush=True)
    for work, own in rates.items():
        for name, bar in _BARS.items():
            if name not in own or (name == "amqtt" and work.endswith(_NOT_TO_AMQTT)):
                continue
            ratio = statistics.median(a / b for a, b in zip(own["serve"], own[name], strict=True))
            report.bar(f"broker, {work} / {name}", ratio, bar)


def memory(report: Report, starts: Mapping[str, Start], options: Options) -> None:
    """Resident memory of each idle connection, the first ones aside."""
    few, many = options.scaled(200), options.scaled(1000)
    for name, start in starts.items():
        with start() as peer, idle_connections(peer.port, few):
            before = peer.resident_kb
            with idle_connections(peer.port, many - few, few):
                each = (peer.resident_kb - before) / (many - few)
        if name == "serve":
            report.bar("broker, memory of an idle connection", each, 25, unit="kB", at_most=True)
        else:
            print(f"memory of an idle connection, {name}: {each:.1f} kB")


def hanging_up(report: Report, starts: Mapping[str, Start], version: int) -> None:
    """The publisher closes its socket when the last PUBACK is there."""
    for name, start in starts.items():
        load = Load(1, 1, 1, _HUNG_UP, version=version, hangs_up=True)
        with start() as peer:
            flow = run(peer.port, load)
        lost = load.messages - flow.delivered
        print(f"publisher leaves after its last PUBACK, {name}: {lost} of {_HUNG_UP} lost")
        if name == "serve":
            report.bar("broker, lost or out of order after that", lost + flow.out_of_order, 0, unit="", at_most=True)


def main() -> int:
    options = Options.parse(
        __doc__, only=(str, "", "this broker only"), version=(int, 4, "of MQTT: 4 is 3.1.1, the other is 5")
    )
    report = Report(options)
    version = options.number("version")
    began = time.monotonic()
    with ExitStack() as stack, peers(stack) as found:
        starts = {name: start for name, start in found.items() if options.extra["only"] in ("", name)}
        if version == 5:
            starts.pop("amqtt", None)
        compare(report, measure(starts, options, version))
        memory(report, starts, options)
        hanging_up(report, starts, version)
    print(f"{time.monotonic() - began:.0f} s")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
