"""What ten viewers of the monitor cost the server: its processor time with them and without, idle and under load.

    python tests/bench/bench_monitor.py [--quick] [--viewers 10]

The server is a process of its own. A round is idle without viewers, idle with them, then the same with a client that
sets keys at a rate. Viewers are plain sockets that read the stream of events and ask for a panel as often as the page
does, each for another one; what a browser does with it is its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from measure import Options, Report

from statestore_client import AsyncStateStoreClient

_ROUND_S: Final = 30
_RATE: Final = 500
_KEYS: Final = 1_000
_BAR: Final = 2.0
#: As the page does it, for the panel that is open.
_ASK_S: Final = 3.0
_PANELS: Final = ("keys?prefix=", "watches?", "sessions?at=", "retained?filter=%23", "site?")
_COMMAND: Final = (
    sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--monitor-port", "0",
)  # fmt: skip


def cpu_s(pid: int) -> float:
    """Of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def view(host: str, port: int, came: asyncio.Event) -> None:
    """Until it is cancelled."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        while await reader.read(1 << 16):
            came.set()
    finally:
        writer.close()


async def look_inside(host: str, port: int, panel: str) -> None:
    """Ask for a panel, again and again, until it is cancelled."""
    request = f"GET /{panel} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    while True:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        writer.close()
        await asyncio.sleep(_ASK_S)


@asynccontextmanager
async def viewers(host: str, port: int, count: int) -> AsyncIterator[None]:
    """So many of them look."""
    came = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.create_task(view(host, port, each)) for each in came]
    try:
        await asyncio.gather(*(each.wait() for each in came))
        panels = (_PANELS[number % len(_PANELS)] for number in range(count))
        tasks.extend([asyncio.create_task(look_inside(host, port, each)) for each in panels])
        yield
        assert not any(task.done() for task in tasks), "a viewer was turned away"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def set_keys(client: AsyncStateStoreClient) -> None:
    """At a rate, until it is cancelled."""
    began, number = time.monotonic(), 0
    while True:
        number += 1
        await client.set(f"key/{number % _KEYS}", f"{number}")
        await asyncio.sleep(began + number / _RATE - time.monotonic())


async def share(pid: int, seconds: float) -> float:
    """Per cent of a core that the server uses during that time."""
    began, before = time.monotonic(), cpu_s(pid)
    await asyncio.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - began)


async def measure(options: Options, report: Report, pid: int, url: str, host: str, port: int) -> None:
    seconds = options.scaled(_ROUND_S)
    shares: dict[tuple[str, int], list[float]] = {}
    async with AsyncStateStoreClient(url) as client:
        for _ in range(options.rounds):
            for load in ("idle", "loaded"):
                task = asyncio.create_task(set_keys(client)) if load == "loaded" else None
                for count in (0, options.number("viewers")):
                    async with viewers(host, port, count):
                        shares.setdefault((load, count), []).append(await share(pid, seconds))
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
    for load in ("idle", "loaded"):
        without, with_them = (statistics.median(shares[load, count]) for count in (0, options.number("viewers")))
        what = f"{load}, {options.number('viewers')} viewers"
        print(f"{load}: {without:.2f} % of a core without viewers, {with_them:.2f} % with them")
        report.bar(f"{what}: more than without", with_them - without, _BAR, unit="%", at_most=True)
        if load == "idle":
            report.bar(f"{what}: the whole process", with_them, _BAR, unit="%", at_most=True)


def main() -> int:
    options = Options.parse(__doc__, viewers=(int, 10, "how many look"))
    report = Report(options)
    with subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = monitor = ""
            while not (url and monitor):
                line = server.stdout.readline()
                assert line, "the server has ended"
                url = url or next(iter(re.findall(r"mqtt://\S+", line)), "")
                monitor = monitor or next(iter(re.findall(r"http://([\w.]+:\d+)", line)), "")
            host, _, port = monitor.partition(":")
            asyncio.run(measure(options, report, server.pid, url, host, int(port)))
        finally:
            server.terminate()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
