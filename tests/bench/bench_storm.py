"""All clients come back at once: thousands of idle ones with sessions, when the active one of two servers is killed.

    python tests/bench/bench_storm.py [--quick] [--rounds 3] [--clients 9990]

Two servers on three of our peers. The idle clients are raw sockets in a process of their own, half of them connected to
the active server, half through the standby; each comes back at once where it was cut off, and then tries both in turn.
One more client sets a key every 20 ms. How long until all are back counts from the kill, what a SET takes from when the
first one was answered again until then, each from the moment when it was due.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import resource
import signal
import socket
import statistics
import sys
import time
from typing import TYPE_CHECKING, Final

from bench_failover import Pair, pair
from measure import Options, Report, percentile
from support.waiting import until

from statestore_client import AsyncStateStoreClient
from statestore_client.core.connection import Backoff
from statestore_client.mqtt.packets import Connect, ConnectProperties, encode

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_EVERY_S: Final = 0.02
_DAY: Final = 86_400
_TIMEOUT_S: Final = 60.0
_WARM_UP: Final = 50
#: After the first SET that was answered again.
_LEAST_S: Final = 1.0
_CONNACK: Final = 0x20
#: At the beginning, so many at a time.
_IN_FLIGHT: Final = 200


class _Idle:
    """A client that only is there. Its CONNECT comes with its connection, as those of clients with a processor each."""

    def __init__(self, crowd: _Crowd, number: int) -> None:
        self._crowd = crowd
        self._turn = number  # which address is next
        packet = Connect(f"idle {number}", clean_start=False, properties=ConnectProperties(session_expiry=_DAY))
        self._packet = encode(packet, 5)
        self._failures = 0
        self._has_session = self._is_up = False
        self._sock = socket.socket()

    def connect(self) -> None:
        """Begin, and go on in the background."""
        self._sock = sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.connect(("127.0.0.1", self._crowd.port(self._turn)))
        except BlockingIOError:
            self._crowd.loop.add_writer(sock, self._connected)
        except OSError:
            self._fail()
        else:
            self._connected()

    def _connected(self) -> None:
        self._crowd.loop.remove_writer(self._sock)
        try:
            self._sock.send(self._packet)
        except OSError:
            self._fail()
        else:
            self._crowd.loop.add_reader(self._sock, self._read)

    def _read(self) -> None:
        try:
            data = self._sock.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._crowd.loop.remove_reader(self._sock)
            self._lose()
        elif data[0] == _CONNACK and data[3] == 0:
            assert data[2] == self._has_session, "the session is lost"
            self._has_session, self._failures = True, 0
            self._crowd.one_came()
            self._is_up = True

    def _lose(self) -> None:
        if self._is_up:
            self._is_up = False
            self._crowd.one_went()
            self._sock.close()
            self.connect()
        else:
            self._fail()

    def _fail(self) -> None:
        """As our clients do: the other address at once, then longer and longer pauses."""
        self._sock.close()
        self._turn += 1
        self._failures += 1
        pause_s = 0.0
        if self._failures % 2 == 0:
            pause_s = self._crowd.backoff.delay(self._failures // 2 - 1, self._crowd.random)
        self._crowd.loop.call_later(pause_s, self.connect)


class _Crowd:
    """In a process of its own. It says when all are there, each time."""

    def __init__(self, ports: list[int], clients: int, parent: Connection) -> None:
        self.loop = asyncio.get_running_loop()
        self.backoff = Backoff()
        self.random = random.Random()
        self._ports, self._parent = ports, parent
        self._clients = [_Idle(self, number) for number in range(clients)]
        self._up = 0

    def port(self, number: int) -> int:
        return self._ports[number % len(self._ports)]

    def one_came(self) -> None:
        self._up += 1
        if self._up == len(self._clients):
            self._parent.send(time.monotonic())

    def one_went(self) -> None:
        self._up -= 1

    async def run(self) -> None:
        for number, client in enumerate(self._clients):
            client.connect()
            await until(lambda number=number: number - self._up <= _IN_FLIGHT, "the last ones are in")
        await asyncio.Event().wait()


async def _run(ports: list[int], clients: int, parent: Connection) -> None:
    await _Crowd(ports, clients, parent).run()


def _crowd(ports: list[int], clients: int, parent: Connection) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_run(ports, clients, parent))


async def _sets(url: str, answers: list[tuple[float, float]]) -> None:
    """When each was due, and when it was answered."""
    async with AsyncStateStoreClient(url) as client, asyncio.TaskGroup() as tasks:

        async def one(due: float) -> None:
            await client.set("key", b"x" * 60)
            answers.append((due, time.monotonic()))

        due = time.monotonic()
        while True:
            due += _EVERY_S
            await asyncio.sleep(due - time.monotonic())
            tasks.create_task(one(due))


async def _storm(both: Pair, clients: int) -> tuple[float, float]:
    """Seconds until all are back, and the 99th percentile of what a SET takes meanwhile."""
    here, there = multiprocessing.Pipe()
    ports = [server.port for server in both.servers]
    crowd = multiprocessing.get_context("spawn").Process(target=_crowd, args=(ports, clients, there), daemon=True)
    crowd.start()
    answers: list[tuple[float, float]] = []
    try:
        await asyncio.to_thread(_all_are_there, here)
        await asyncio.to_thread(both.wait_until_both_follow)
        sets = asyncio.ensure_future(_sets(both.url, answers))
        await until(lambda: len(answers) >= _WARM_UP, "keys are set")
        active = both.active()
        killed = time.monotonic()
        await asyncio.to_thread(active.end, signal.SIGKILL)
        back = await asyncio.to_thread(_all_are_there, here)
        await until(lambda: answers[-1][0] > back, "what was due before is answered, in order")
        again = min(answered for due, answered in answers if due > killed)
        ends = max(back, again + _LEAST_S)
        await until(lambda: answers[-1][0] > ends, "enough is measured, also if all are back at once")
        sets.cancel()
    finally:
        crowd.kill()
        crowd.join()
    active.start()
    return back - killed, percentile([answered - due for due, answered in answers if again <= due <= ends], 99)


def _all_are_there(crowd: Connection) -> float:
    """When they were."""
    if not crowd.poll(_TIMEOUT_S):
        raise TimeoutError(f"not all clients came back within {_TIMEOUT_S:g} s")
    moment: float = crowd.recv()
    return moment


def main() -> int:
    options = Options.parse(__doc__, clients=(int, 9_990, "how many are idle; a server takes 10,000 in all"))
    report = Report(options)
    clients = options.scaled(options.number("clients"))
    back, slowest = [], []
    for _ in range(options.rounds):
        with pair() as both:
            seconds, p99 = asyncio.run(_storm(both, clients))
        print(f"back after {seconds:.2f} s, SET p99 meanwhile {1000 * p99:.0f} ms", flush=True)
        back.append(seconds)
        slowest.append(1000 * p99)
    report.bar(f"{clients:,} clients back after kill -9", statistics.median(back), 5, unit="s", at_most=True)
    report.bar("SET p99 meanwhile", statistics.median(slowest), 100, unit="ms", at_most=True)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
