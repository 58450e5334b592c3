"""The run as a picture: who held the lock when, what came in, what was written and refused, and the lag."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import attrs

from .measuring import Sample

__all__ = ["Mark", "draw"]

#: What is shown of the time before anything happens.
_BEFORE_S = 2.0
_COLOURS = {"a": "tab:blue", "b": "tab:orange", "c": "tab:green"}


@attrs.frozen
class Mark:
    """Something that was done to a driver (seconds since the beginning)."""

    at: float
    text: str


def draw(samples: Sequence[Sample], marks: Sequence[Mark], target: Path) -> list[Path]:
    """Write ``target`` with the suffixes .png and .svg; nothing without matplotlib. Returns what was written."""
    if importlib.util.find_spec("matplotlib") is None or len(samples) < 2:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(4, 1, sharex=True, height_ratios=[1, 2, 2, 2])
    times = [sample.at for sample in samples]
    _draw_leaders(axes[0], samples)
    axes[1].plot(times, _rates(samples, [s.appended for s in samples]), label="entries/s into the log")
    axes[1].plot(times, _rates(samples, [s.counts.sets for s in samples]), label="SETs/s of the state store")
    axes[2].step(times, [s.counts.refused for s in samples], where="post", color="tab:red", label="refused writes")
    axes[3].fill_between(times, [max(0, s.appended - s.stored) for s in samples], alpha=0.5, label="lag, events")
    begun = next((sample.at for sample in samples if sample.leader or sample.appended), 0)
    axes[0].set_xlim(max(0, begun - _BEFORE_S), times[-1])  # Spark starts for a long time, and nothing happens
    for axis in axes[1:]:
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper center")
    for mark in marks:
        for axis in axes:
            axis.axvline(mark.at, color="black", linewidth=0.8, linestyle=":")
        axes[0].annotate(mark.text, (mark.at, 1.02), xycoords=("data", "axes fraction"), rotation=25, fontsize=8)
    axes[0].set_ylabel("lock")
    axes[-1].set_xlabel("seconds")
    written = [target.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in written:
        figure.savefig(path, dpi=120)
    return written


def _draw_leaders(axis: object, samples: Sequence[Sample]) -> None:
    names = sorted({sample.leader for sample in samples if sample.leader is not None})
    for row, name in enumerate(names):
        spans = [(before.at, after.at - before.at) for before, after in pairwise(samples) if before.leader == name]
        axis.broken_barh(spans, (row - 0.4, 0.8), facecolors=_COLOURS.get(name, "tab:gray"))  # type: ignore[attr-defined]  # matplotlib's
    axis.set_yticks(range(len(names)), [f"driver {name}" for name in names])  # type: ignore[attr-defined]  # the same


def _rates(samples: Sequence[Sample], counts: Sequence[int]) -> list[float]:
    """Per second, over the last second or so."""
    rates = []
    for at, (sample, count) in enumerate(zip(samples, counts, strict=True)):
        first = max(0, at - 5)
        seconds = sample.at - samples[first].at
        rates.append((count - counts[first]) / seconds if seconds else 0.0)
    return rates
