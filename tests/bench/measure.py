"""What all benchmarks share: interleaved rounds of samples, bars and the table of them.

Everything is a ratio to a peer that ran in the same minute: the machine may be shared, and its pace changes. So the
works of a benchmark run in turns, round after round (every other round backwards), a ratio is formed within each round,
and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from raft_client._common.measuring import Sample, Timer, percentile, timed
from statestore_client import ConnectionSettings, SettingsError

__all__ = [
    "Bar",
    "Options",
    "Report",
    "Sample",
    "Timer",
    "bar_table",
    "drivers",
    "in_processes",
    "interleaved",
    "medians",
    "percentile",
    "ratio",
    "timed",
]

_DRIVERS: Final = ("native", "paho")
#: If one work takes longer than this, the benchmark prints that it is still running.
_LONG_S: Final = 5.0


def in_processes(rows: int, target: Callable[..., None], *arguments: tuple[Any, ...]) -> Sample:
    """As many processes as there are tasks. Their start counts: Spark's workers are there already."""
    with timed(rows) as timer:
        started = [multiprocessing.Process(target=target, args=each) for each in arguments]
        for process in started:
            process.start()
        for process in started:
            process.join()
            assert process.exitcode == 0
    return timer.sample


def interleaved(works: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Run all works in turns; the samples of each, one per round."""
    samples: dict[str, list[Sample]] = {name: [] for name in works}
    order = list(works.items())
    for _ in range(rounds):
        for name, run in order:
            samples[name].append(sample := run())
            if sample.seconds > _LONG_S:
                print(f"… {name}: {sample.rate:,.0f}/s in {sample.seconds:.0f} s", file=sys.stderr, flush=True)
        order.reverse()
    return samples


def medians(samples: Mapping[str, Sequence[Sample]]) -> dict[str, float]:
    """The median rate of each work."""
    return {name: statistics.median(s.rate for s in own) for name, own in samples.items()}


def ratio(ours: Sequence[Sample], peers: Sequence[Sample]) -> float:
    """The median over the rounds of our rate divided by the peer's rate of the same round."""
    return statistics.median(our.rate / peer.rate for our, peer in zip(ours, peers, strict=True))


@attrs.frozen
class Bar:
    """A figure beside what it has to be."""

    name: str
    measured: float
    bar: float
    unit: str = "×"
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured <= self.bar if self.at_most else self.measured >= self.bar


@attrs.frozen
class Options:
    """The command line that all benchmarks share."""

    quick: bool
    rounds: int
    drivers: tuple[str, ...]
    bars_file: Path | None
    extra: Mapping[str, str | int | None]

    @classmethod
    def parse(cls, description: str | None, **extra: tuple[type, str | int | None, str]) -> Options:
        """Read ``sys.argv``; ``extra`` has type, default and help of options of the benchmark's own."""
        parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
        parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
        parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; medians count")
        parser.add_argument("--driver", action="append", choices=drivers(), help="only this one; may be repeated")
        parser.add_argument("--bars", type=Path, help="append the bars to this file, for run_all.py")
        for name, (kind, default, text) in extra.items():
            parser.add_argument(f"--{name}", type=kind, default=default, help=text)
        given = vars(parser.parse_args())
        own = {name: given[name] for name in extra}
        return cls(given["quick"], given["rounds"], tuple(given["driver"] or drivers()), given["bars"], own)

    def scaled(self, count: int) -> int:
        """How much to do where a long run does ``count``."""
        return max(1, count // 10) if self.quick else count

    def number(self, name: str) -> int:
        """An extra option that is a whole number."""
        value = self.extra[name]
        assert isinstance(value, int)
        return value


def drivers() -> tuple[str, ...]:
    """The MQTT drivers that the settings accept, the quicker one first."""
    return tuple(name for name in _DRIVERS if _is_known(name))


def _is_known(driver: str) -> bool:
    try:
        ConnectionSettings.from_url("mqtt://127.0.0.1", driver=driver)
    except SettingsError:
        return False
    return True


class Report:
    """Prints what was measured while it is measured, and collects the bars.

    The bars are those of the first driver: the others are printed to compare with.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._bars: list[Bar] = []

    def rates(self, samples: Mapping[str, Sequence[Sample]], unit: str = "/s", *, cpu: bool = True) -> None:
        """A line for each work: median rate, and this process's time for an operation, if it is the client."""
        for name, rate in medians(samples).items():
            cost = f"  {statistics.median(s.cpu_us for s in samples[name]):8.1f} µs CPU" if cpu else ""
            print(f"{name:40} {rate:>10,.0f}{unit}{cost}", flush=True)

    def bar(
        self, name: str, measured: float, bar: float, *, unit: str = "×", at_most: bool = False, driver: str = ""
    ) -> None:
        """Print a figure beside its bar, and keep it if it is about the driver that the bars are for."""
        made = Bar(name, measured, bar, unit, at_most)
        counts = driver in ("", self._options.drivers[0])
        print(_line(made) if counts else f"{name:58} {_number(measured)} {unit}", flush=True)
        if counts:
            self._bars.append(made)

    def finish(self) -> int:
        """Write the bars for run_all.py; the exit code is 0 also when one was missed: the machine may be busy."""
        if self._options.bars_file is not None:
            with self._options.bars_file.open("a") as lines:
                lines.writelines(json.dumps(attrs.asdict(bar)) + "\n" for bar in self._bars)
        return 0


def run_parts(description: str | None, parts: Mapping[str, Callable[[Report, Options], None]]) -> int:
    """A benchmark of several parts, or the one that ``--part`` names; its exit code."""
    options = Options.parse(description, part=(str, None, f"only one of {', '.join(parts)}"))
    report = Report(options)
    for name, part in parts.items():
        if options.extra["part"] in (None, name):
            part(report, options)
    return report.finish()


def peak_bytes() -> int:
    """The high-water mark of this process's memory; ask where nothing bigger was done before."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _number(value: float) -> str:
    return f"{value:>10,.0f}" if value >= 1000 else f"{value:>10.2f}"


def _line(bar: Bar) -> str:
    sign = "≤" if bar.at_most else "≥"
    return (
        f"{bar.name:58} {_number(bar.measured)} {bar.unit:6} {sign} {_number(bar.bar).strip():>7}"
        f"  {'met' if bar.met else 'MISSED'}"
    )


def bar_table(bars_file: Path) -> str:
    """All bars of a run, one line each."""
    bars = [Bar(**json.loads(line)) for line in bars_file.read_text().splitlines()]
    missed = sum(not bar.met for bar in bars)
    return "\n".join([*map(_line, bars), f"{len(bars) - missed} of {len(bars)} bars met"])
