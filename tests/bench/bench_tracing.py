"""What tracing costs a request: off, on with the API of OpenTelemetry alone, and on with its SDK.

    python tests/bench/bench_tracing.py [--quick] [--rounds 3]

Off, a request is asked three times whether it has a span. That is too little to be seen between two runs, so it is
measured by itself, and as a part of the processor time that a request takes.
"""

from __future__ import annotations

import statistics
import sys
import timeit
from functools import partial
from typing import Final

import workloads
from measure import Options, Report, interleaved, ratio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from stub import codec_server

from statestore_client import ConnectionSettings

_OPERATIONS: Final = 20_000
_ASKED: Final = 1_000_000


class _Nowhere(SpanExporter):
    """Takes spans, as one does that sends them in the background."""

    def export(self, spans: object) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS


class _Untraced:
    """What is asked, where it is kept."""

    __slots__ = ("span", "trace")

    def __init__(self) -> None:
        self.trace = self.span = None


def questions_us() -> float:
    """The three questions, less an empty call."""
    request = _Untraced()

    def ask() -> None:
        if request.trace and request.trace():
            raise AssertionError
        if request.span is not None:
            raise AssertionError
        if request.span is not None:
            raise AssertionError

    def nothing() -> None:
        pass

    asked, empty = (min(timeit.repeat(each, number=_ASKED, repeat=5)) for each in (ask, nothing))
    return 1e6 * (asked - empty) / _ASKED


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    operations = options.scaled(_OPERATIONS)
    with codec_server() as server:
        off, on = (ConnectionSettings.from_url(server.url, tracing=tracing) for tracing in (False, True))
        run = partial(workloads.aio_many, verb="SET", operations=operations)
        samples = interleaved({"off": partial(run, off), "API": partial(run, on)}, options.rounds)
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_Nowhere()))
        trace.set_tracer_provider(provider)
        with_sdk = interleaved({"off": partial(run, off), "SDK": partial(run, on)}, options.rounds)
    request_us = statistics.median(sample.cpu_us for sample in (*samples["off"], *with_sdk["off"]))
    share = 100 * questions_us() / request_us
    report.bar("tracing off: of the processor time of a request", share, 1, unit="%", at_most=True)
    print(f"a SET takes {request_us:.1f} µs of the client's processor")
    print(f"SETs/s, 64 in flight, × off: {ratio(samples['API'], samples['off']):.2f} with the API alone, ", end="")
    print(f"{ratio(with_sdk['SDK'], with_sdk['off']):.2f} with the SDK")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
