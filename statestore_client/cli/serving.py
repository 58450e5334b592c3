"""``statestore serve``."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

import attrs
import click

from statestore_client.cli import exits
from statestore_client.server.broker import BrokerLimits
from statestore_client.server.runtime.server import Server
from statestore_client.server.store import StoreLimits
from statestore_client.wire.dialect import Dialect

__all__ = ["serve"]


@click.command("serve")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; there is no authentication."
)
@click.option("--port", type=click.IntRange(0, 65535), default=1883, show_default=True, help="0 takes a free port.")
@click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect]),
    default=Dialect.SERVICE.value,
    show_default=True,
    help="Answer as the real service does, or to the letter of the published document.",
)
@click.option("--max-keys", type=click.IntRange(min=1), help="Quota of the state store.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Quota of the state store: keys, values and overhead.")
@click.option("--max-packet-size", type=click.IntRange(min=1024, max=268_435_455), help="Largest MQTT packet, bytes.")
@click.option("--max-connections", type=click.IntRange(min=1), help="Clients at the same time.")
@click.option("--verbose", is_flag=True, help="Log connects, disconnects and refusals to standard error.")
def serve(
    *,
    host: str,
    port: int,
    dialect: str,
    max_keys: int | None,
    max_bytes: int | None,
    max_packet_size: int | None,
    max_connections: int | None,
    verbose: bool,
) -> int:
    """Serve an MQTT broker with a state store, in memory. Prints its address when ready; ends on SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    server = Server(
        host=host,
        port=port,
        dialect=dialect,
        broker_limits=attrs.evolve(BrokerLimits(), **_given(packet_bytes=max_packet_size, connections=max_connections)),
        store_limits=attrs.evolve(StoreLimits(), **_given(max_keys=max_keys, max_bytes=max_bytes)),
    )
    asyncio.run(_serve(server))
    return exits.DONE


async def _serve(server: Server) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await server.start()
    except OSError as error:
        raise click.UsageError(f"cannot listen on {server.host}:{server.port}: {error.strerror or error}") from error
    host = f"[{server.host}]" if ":" in server.host else server.host
    click.echo(f"listening on mqtt://{host}:{server.port}")
    try:
        await stop.wait()
    finally:
        await server.stop()


def _given(**values: int | None) -> dict[str, Any]:
    """The options that were given; the limits have defaults for the others."""
    return {name: value for name, value in values.items() if value is not None}
