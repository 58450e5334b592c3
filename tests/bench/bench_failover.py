"""What clients notice when a server of a replicated log goes, and what the log costs: three of our peers and two
servers, each a process, on this machine.

    python tests/bench/bench_failover.py [--quick] [--rounds 3] [--times 10]

A client that knows both servers sets one key after the other. The gap is the longest time between two answers around
the moment when something was killed (-9), paused (SIGSTOP), or told to hand over.
"""

from __future__ import annotations

import itertools
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from measure import Options, Report, Sample, interleaved, percentile, ratio, timed
from workloads import one_by_one_blocking

from raft_client import RaftClient
from statestore_client import StateStoreClient
from statestore_client.cli.bench import served

sys.path.append(str(Path(__file__).parents[1]))

from support.raft_peers import Peers

_SETTLE_S = 1.5
#: A client whose connection lasted five seconds tries all addresses before it pauses.
_STABLE_S = 5.5
#: What happens, and how long the gap may be: median, and 99 % (of so few, the longest), in milliseconds.
_BARS = {
    "kill -9 of the active server": (450, 1000),
    "hand-over": (100, None),
    "SIGSTOP of the active server": (None, 1000),
    "active server and Raft leader killed": (None, 1200),
    "Raft leader killed": (None, 1000),
}


class Server:
    """One of the two, which can be started again at its ports."""

    def __init__(self, server_id: str, log: str) -> None:
        self.id = server_id
        self._log = log
        self.port = self._metrics_port = 0
        self.start()

    def start(self) -> None:
        options = ("--port", str(self.port), "--metrics-port", str(self._metrics_port), "--log", self._log)
        command = [sys.executable, "-m", "statestore_client.cli", "serve", *options, "--id", self.id]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(3)]
        ports = [re.search(r":(\d+)(/metrics)?$", line.strip()) for line in lines]
        self.port, self._metrics_port = (int(found[1]) for found in ports[:2] if found)

    @property
    def is_active(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._metrics_port}/ready", timeout=1) as page:
                return bool(page.status == 200)
        except OSError:
            return False

    @property
    def index(self) -> int:
        """How far it has followed the log."""
        with urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10) as page:
            found = re.search(rb"^statestore_log_index (\d+)", page.read(), re.MULTILINE)
        return int(found[1]) if found else 0

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Writer(threading.Thread):
    """Sets one key after the other, and notes when it was answered."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.answered: list[float] = []
        self.is_over = False

    def run(self) -> None:
        with StateStoreClient(self._url, retry_first_connect=True) as client:
            for number in itertools.count():
                if self.is_over:
                    return
                client.set("key", b"%d" % number)
                self.answered.append(time.monotonic())

    def gap_ms(self, since: float, until: float) -> float:
        """The longest one, as far as it lies between these moments."""
        pairs = itertools.pairwise([*self.answered, float("inf")])
        return 1000 * max(min(b, until) - a for a, b in pairs if b >= since and a <= until)

    def end(self) -> None:
        self.is_over = True
        self.join()


class Pair:
    """Two servers on three peers."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.servers = [Server(server_id, peers.url) for server_id in "ab"]
        self.url = "mqtt://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def active(self) -> Server:
        while True:
            found = [server for server in self.servers if server.is_active]
            if len(found) == 1:
                return found[0]
            time.sleep(0.01)

    def wait_until_both_follow(self) -> None:
        """A server that was started or deposed reads the log anew, and takes over when it has."""
        last = self.active().index
        while min(server.index for server in self.servers) < last:
            time.sleep(0.01)

    def leader(self) -> str:
        with RaftClient(self.peers.url) as client:
            assert client.leader is not None
            return client.leader.id

    def strike(self, what: str) -> float:
        """It happens, and is put right a moment later. Returns when it was put right."""
        active, leader = self.active(), self.leader()
        if what.endswith("killed"):
            self.peers.end(leader, signal.SIGKILL)
        if what.startswith("SIGSTOP"):
            active.process.send_signal(signal.SIGSTOP)
        elif what.startswith(("kill", "active")):
            active.end(signal.SIGKILL)
        elif what == "hand-over":
            active.end(signal.SIGTERM)
        time.sleep(_SETTLE_S)
        righted = time.monotonic()
        if what.startswith("SIGSTOP"):
            active.process.send_signal(signal.SIGCONT)
        elif active.process.returncode is not None:
            active.start()
        if what.endswith("killed"):
            self.peers.start(leader, "--machine", "broadcast")
        time.sleep(_SETTLE_S)
        return righted

    def gap_ms(self, what: str) -> float:
        """A client that is connected to a server that stands still waits for it; one that is passed on does not."""
        self.wait_until_both_follow()
        writer = Writer(self.standby_url() if what.startswith("SIGSTOP") else self.url)
        writer.start()
        time.sleep(_STABLE_S)
        began = time.monotonic()
        righted = self.strike(what)
        writer.end()
        return writer.gap_ms(began, righted)

    def standby_url(self) -> str:
        active = self.active()
        return next(f"mqtt://127.0.0.1:{server.port}" for server in self.servers if server is not active)


@contextmanager
def running_peers() -> Iterator[Peers]:
    """Three, in processes; they are ended afterwards."""
    with tempfile.TemporaryDirectory() as folder, Peers(Path(folder)) as peers:
        for name in peers.urls:
            peers.start(name, "--machine", "broadcast")
        yield peers


@contextmanager
def pair() -> Iterator[Pair]:
    """Everything is ended afterwards."""
    with running_peers() as peers:
        both = Pair(peers)
        try:
            both.active()
            yield both
        finally:
            for server in both.servers:
                with suppress(ProcessLookupError):
                    server.end(signal.SIGKILL)


def _sets(url: str, count: int, in_flight: int) -> Sample:
    with StateStoreClient(url, max_in_flight=in_flight) as client:
        if in_flight == 1:
            return one_by_one_blocking(lambda: client.set("key", b"x" * 60), count)
        with timed(count) as timer:
            client.set_many([(f"key {number % 1000}", b"x" * 60) for number in range(count)])
        return timer.sample


def _appends(url: str, count: int) -> Sample:
    with RaftClient(url) as client:
        return one_by_one_blocking(lambda: client.append(b"x" * 120), count)


def costs(report: Report, both: Pair, options: Options) -> None:
    """Beside one durable server, and beside what a log alone costs."""
    count, few = options.scaled(20_000), options.scaled(1_000)
    with tempfile.TemporaryDirectory() as data, served("--data", data) as durable:
        many = interleaved(
            {
                "64 in flight, --data": lambda: _sets(durable, count, 64),
                "64 in flight, --log": lambda: _sets(both.url, count, 64),
            },
            options.rounds,
        )
    with running_peers() as peers:
        single = interleaved(
            {
                "one at a time, append": lambda: _appends(peers.url, few),
                "one at a time, --log": lambda: _sets(both.url, few, 1),
            },
            options.rounds,
        )
    report.rates(many | single)
    report.bar(
        "SETs/s 64 in flight, log / durable", ratio(many["64 in flight, --log"], many["64 in flight, --data"]), 0.5
    )
    p50 = {
        name: statistics.median(percentile(each.latencies_s, 50) for each in samples)
        for name, samples in single.items()
    }
    append, one = p50["one at a time, append"], p50["one at a time, --log"]
    report.bar("one SET at a time, p50 ms", 1000 * one, 3, at_most=True)
    report.bar("one SET / one append, p50", one / append, 2, at_most=True)


def main() -> int:
    options = Options.parse(__doc__, times=(int, 10, "how often each thing happens"))
    report = Report(options)
    with pair() as both:
        costs(report, both, options)
        for what, (middle, longest) in _BARS.items():
            gaps = [both.gap_ms(what) for _ in range(options.scaled(options.number("times")))]
            print(f"{what}: {', '.join(f'{gap:.0f}' for gap in sorted(gaps))} ms", flush=True)
            if middle is not None:
                report.bar(f"{what}, median gap ms", statistics.median(gaps), middle, at_most=True)
            if longest is not None:
                report.bar(f"{what}, longest gap ms", max(gaps), longest, at_most=True)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
