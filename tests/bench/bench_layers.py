"""Where a request spends the client's time, layer by layer: microseconds, without a socket and without waiting.

    python tests/bench/bench_layers.py [--quick]

Batches of 64 SETs go through the client's pure parts, from the command to the result, in the order of the asyncio
shell. What the sum lacks to the CPU time that ``bench_client.py`` prints is the shell itself, the system calls, and
garbage collection. The stub's part, decoding a request and encoding its answer with the same codec, is there to
compare.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from random import Random

from measure import Options
from stub import Echo

from statestore_client import ConnectionSettings
from statestore_client.core import arguments
from statestore_client.core.actions import Subscribe
from statestore_client.core.connection import ClientMachine, node_id
from statestore_client.mqtt.client_connection import ClientConnection
from statestore_client.mqtt.packets import PacketDecoder, encode
from statestore_client.wire.commands import Set
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant

WINDOW = 64
CLIENT_ID = "statestore-client-0123456789abcdef0123456789abcdef"
VALUE = b"v" * 100


class Slot:
    """Stands for the future or the place in a batch that a caller waits for."""

    def __init__(self) -> None:
        self.result: object = None

    def resolve(self, result: object) -> None:
        self.result = result

    def reject(self, error: Exception) -> None:
        raise error


class Connection(ClientConnection):
    __slots__ = ()

    def flush(self) -> None:
        """What is queued is taken when the batch is complete."""


class Layers:
    """A connected client without I/O, and the stub's logic as its broker."""

    def __init__(self) -> None:
        guard = contextlib.nullcontext()
        self._machine = ClientMachine(
            CLIENT_ID,
            clock=HybridLogicalClock(node_id(CLIENT_ID), guard=guard),
            random=Random(1),
            max_in_flight=WINDOW,
            request_timeout=10.0,
        )
        self._connection = self._machine.output.connection = Connection(ConnectionSettings(host="none"), CLIENT_ID)
        self._stub = Echo()
        self._stub_decoder = PacketDecoder(version=None, max_packet_size=1 << 20)
        self._stub.reset()
        self.seconds: dict[str, float] = {}
        self._connect()

    def _connect(self) -> None:
        self._machine.open(Slot())
        self._connection.connect(time.monotonic(), clean_start=True, password=None)
        for _ in range(2):  # CONNACK, SUBACK
            self._carry_out()
            self._receive(self._answer(self._outbox()))
        self._carry_out()
        self.seconds.clear()

    def turn(self) -> None:
        """One batch, there and back."""
        with self._timed("commands"):
            commands = list(arguments.set_commands(((b"bench/%d" % i, VALUE) for i in range(WINDOW)), None))
        with self._timed("machine: submit and encode request"):
            now = _now()
            for command in commands:
                assert isinstance(command, Set)
                self._machine.request_table.submit(command, Slot(), now, timeout=10.0)
        self._carry_out()
        with self._timed("one buffer"):
            data = self._outbox()
        with self._timed("(stub)"):
            data = self._answer(data)
        self._receive(data)
        self._carry_out()
        self._answer(self._outbox())

    def _receive(self, data: bytes) -> None:
        with self._timed("connection: decode PUBACK and reply"):
            self._connection.receive(data, time.monotonic())
            events = self._connection.take_events()
        with self._timed("machine: take events, resolve and acknowledge"):
            now = _now()
            self._machine.receive(events, now)

    def _carry_out(self) -> None:
        for action in self._machine.take_actions():
            if isinstance(action, Subscribe):
                self._connection.subscribe(action.subscribe_id, action.topic_filters)

    def _outbox(self) -> bytes:
        data = b"".join(self._connection.outbox)
        self._connection.outbox.clear()
        return data

    def _answer(self, data: bytes) -> bytes:
        packets = self._stub_decoder.feed(data)
        return b"".join([encode(answer) for packet in packets for answer in self._stub.answers(packet)])

    @contextlib.contextmanager
    def _timed(self, layer: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[layer] = self.seconds.get(layer, 0.0) + time.perf_counter() - started


def _now() -> Instant:
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)


def main() -> int:
    options = Options.parse(__doc__)
    turns = options.scaled(400)
    runs: list[dict[str, float]] = []
    for _ in range(options.rounds):
        layers = Layers()
        for _ in range(turns):
            layers.turn()
        runs.append({name: seconds / turns / WINDOW * 1e6 for name, seconds in layers.seconds.items()})
    costs = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    for name, cost in costs.items():
        print(f"{name:40} {cost:6.2f} µs")
    print(f"{'the client':40} {sum(cost for name, cost in costs.items() if name != '(stub)'):6.2f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
