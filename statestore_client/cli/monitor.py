"""``statestore monitor``."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import BinaryIO, Final

import click

from raft_client._common import event_loops, exits
from raft_client._common.command_line import AddressError, Seconds, print_line
from raft_client._common.http_server import HttpEndpoint
from raft_client._common.process import handle_signals
from statestore_client.cli.monitor_feed import MonitorAddress, monitor_address, open_feed
from statestore_client.errors import InvalidArgumentError, TransportError
from statestore_client.server.runtime.monitor.pages import MOST_BYTES, ReplayPages

#: Between attempts to reach a server that has gone: what became of it belongs to the recording.
_AGAIN_S: Final = 1.0
_CONNECTIONS: Final = 64


@click.command("monitor")
@monitor_address
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write what the monitor at URL shows.")
@click.option("--duration", type=Seconds(min=0.001), help="Of --record: end after this time. Default: on Ctrl-C.")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a recording in a browser, on this machine.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of --replay. Default: a free one.")
def monitor(
    *, address: MonitorAddress | None, record: Path | None, duration: float | None, replay: Path | None, port: int
) -> int:
    """Record what the monitor of a server shows, or show such a recording.

    The monitor itself is a page of the server: statestore serve --monitor-port N. With --record its messages go into a
    new file, over restarts of the server, until Ctrl-C; a second takes about 1 kB. With --replay the same page shows
    them, as they came or at any moment of it.
    """
    if replay is not None and address is None and record is None:
        event_loops.run(_replay(replay, port))
    elif address is not None and record is not None and replay is None:
        _record(address, record, duration)
    else:
        raise click.UsageError("give URL and --record FILE, or --replay FILE. The monitor is a page: open its URL")
    return exits.DONE


def _record(address: MonitorAddress, path: Path, duration: float | None) -> None:
    ends = None if duration is None else time.monotonic() + duration
    try:
        file = path.open("xb")
    except OSError as error:
        raise click.UsageError(f"--record {path}: {error.strerror}") from error
    with file:
        try:
            while _record_until_lost(address, file, ends):
                click.echo(f"statestore: no connection to {address.url}; trying again", err=True)
                time.sleep(_AGAIN_S)
        except KeyboardInterrupt:
            click.echo(f"{path}: {file.tell()} bytes", err=True)
        except BaseException:
            if not file.tell():
                path.unlink()
            raise


def _record_until_lost(address: MonitorAddress, file: BinaryIO, ends: float | None) -> bool:
    """Whether to try again. The first attempt has to succeed."""
    try:
        with open_feed(address) as messages:
            for kind, message in messages:
                file.write(json.dumps({"kind": kind, "message": message}, separators=(",", ":")).encode() + b"\n")
                file.flush()
                if file.tell() > MOST_BYTES:
                    click.echo(f"statestore: the recording is full ({MOST_BYTES} bytes)", err=True)
                    return False
                if ends is not None and time.monotonic() >= ends:
                    return False
    except TransportError as error:
        if error.fatal or not file.tell():
            raise
    return ends is None or time.monotonic() < ends


async def _replay(path: Path, port: int) -> None:
    try:
        pages = ReplayPages.load(path)
    except InvalidArgumentError as error:
        raise click.UsageError(f"--replay {path}: {error}") from error
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    handle_signals({"SIGTERM": stop.set, "SIGINT": stop.set})
    endpoint = HttpEndpoint(pages.respond, logging.getLogger("statestore_client"), connections=_CONNECTIONS)
    try:
        server = await loop.create_server(endpoint, "127.0.0.1", port)
    except OSError as error:
        raise AddressError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
    print_line(f"replay at http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    await stop.wait()
    await event_loops.stop_accepting(server)
    endpoint.close()
