"""The whole system: our clients beside raw sockets and hand-written paho, all against ``statestore serve``, in turns.

    python tests/bench/bench_system.py [--quick] [--rounds 3] [--driver native] [--operations 20000]

Client and server share two cores, as on a small edge machine. ``bench_client.py`` is about the client alone and
``bench_server.py`` about the server.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial

import workloads
from measure import Options, Report, Sample, interleaved, ratio

from statestore_client import ConnectionSettings
from statestore_client.cli.bench import served

WINDOWS = (64, 256)


def works(url: str, options: Options, many: int, few: int) -> dict[str, Callable[[], Sample]]:
    """Name -> work."""
    port = ConnectionSettings.from_url(url).port
    found: dict[str, Callable[[], Sample]] = {}
    for window in WINDOWS:
        found[f"raw {window}"] = partial(workloads.raw_many, port, "SET", many, window)
        found[f"hand paho {window}"] = partial(workloads.paho_many, port, "SET", max(500, many // 8), window)
        for driver in options.drivers:
            settings = ConnectionSettings.from_url(url, driver=driver, max_in_flight=window)
            count = many if driver != "paho" else max(500, many // 8)
            found[f"{driver} aio {window}"] = partial(workloads.aio_many, settings, "SET", count)
            found[f"{driver} sync {window}"] = partial(workloads.sync_many, settings, "SET", count)
    found["raw 1"] = partial(workloads.raw_one, port, "SET", few)
    found["hand paho 1"] = partial(workloads.paho_one, port, "SET", few)
    for driver in options.drivers:
        settings = ConnectionSettings.from_url(url, driver=driver)
        found[f"{driver} aio 1"] = partial(workloads.aio_one, settings, "SET", few)
        found[f"{driver} sync 1"] = partial(workloads.sync_one, settings, "SET", few)
    return found


def main() -> int:
    options = Options.parse(__doc__, operations=(int, 20_000, "of one pipelined work and round"))
    report = Report(options)
    many = options.scaled(options.number("operations"))
    with served() as url:
        samples = interleaved(works(url, options, many, many // 10), options.rounds)
    report.rates(samples, " SET/s")
    for driver in options.drivers:
        for shell in ("aio", "sync"):
            for window in (*WINDOWS, 1):
                own = samples[f"{driver} {shell} {window}"]
                to_raw, to_paho = (ratio(own, samples[f"{peer} {window}"]) for peer in ("raw", "hand paho"))
                name = f"{driver} {shell} SET {window} through statestore serve"
                print(f"{name}: {to_raw:.2f} × raw, {to_paho:.2f} × hand-written paho")
                if window in WINDOWS:
                    rate = statistics.median(s.rate for s in own)
                    report.bar(name, rate, 12_000, unit="/s", driver=driver)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
