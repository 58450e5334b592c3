"""``statestore serve``."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any

import attrs
import click

from statestore_client.cli import exits
from statestore_client.server.broker import BrokerLimits
from statestore_client.server.runtime.garbage import short_pauses
from statestore_client.server.runtime.security import Security
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.tls import ServerTls
from statestore_client.server.store import StoreLimits
from statestore_client.wire.dialect import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["serve"]

_FILE = click.Path(exists=True, dir_okay=False)


@click.command("serve")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Everybody is let in without --password-file and --tls-ca.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=1883, show_default=True, help="0 takes a free port.")
@click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect]),
    default=Dialect.SERVICE.value,
    show_default=True,
    help="Answer as the real service does, or to the letter of the published document.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    help="Keep keys, sessions, QoS 1 and 2 messages and retained messages in this directory.",
)
@click.option("--tls-cert", type=_FILE, help="TLS, with this certificate (PEM, with what is between it and its CA).")
@click.option("--tls-key", type=_FILE, help="The certificate's key.")
@click.option("--tls-key-password-file", type=_FILE, help="The password of an encrypted key.")
@click.option("--tls-ca", type=_FILE, help="Clients must show a certificate that one of these authorities issued.")
@click.option("--password-file", type=_FILE, help="Users, written by statestore passwd. Clients must be one of them.")
@click.option("--allow-anonymous", is_flag=True, help="Let clients without a user name in all the same.")
@click.option("--acl-file", type=_FILE, help="Access rules: what no line allows is forbidden.")
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
    data: str | None,
    max_keys: int | None,
    max_bytes: int | None,
    max_packet_size: int | None,
    max_connections: int | None,
    verbose: bool,
    **secure: Any,
) -> int:
    """Serve an MQTT broker with a state store, in memory. Prints its address when ready; ends on SIGTERM or Ctrl-C.

    With --data, nothing is acknowledged before it is on the disk, and all of it is there again after a restart.

    Certificates, passwords and access rules are read again when their files change, and on SIGHUP.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    server = Server(
        host=host,
        port=port,
        dialect=dialect,
        data=data,
        broker_limits=attrs.evolve(BrokerLimits(), **_given(packet_bytes=max_packet_size, connections=max_connections)),
        store_limits=attrs.evolve(StoreLimits(), **_given(max_keys=max_keys, max_bytes=max_bytes)),
        tls=_tls(secure["tls_cert"], secure["tls_key"], secure["tls_key_password_file"], secure["tls_ca"]),
        security=Security.of(
            passwords=secure["password_file"], acl=secure["acl_file"], allow_anonymous=secure["allow_anonymous"]
        ),
    )
    asyncio.run(_serve(server))
    return exits.DONE


def _tls(cert: str | None, key: str | None, key_password_file: str | None, ca: str | None) -> ServerTls | None:
    if cert is not None and key is not None:
        return ServerTls(cert_file=cert, key_file=key, ca_file=ca, key_password_file=key_password_file)
    if any(given is not None for given in (cert, key, key_password_file, ca)):
        raise click.UsageError("TLS needs both --tls-cert and --tls-key")
    return None


async def _serve(server: Server) -> None:
    stop = asyncio.Event()
    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: stop.set,
        signal.SIGINT: stop.set,
        signal.SIGHUP: server.reload,
    }
    for number, handler in handlers.items():
        asyncio.get_running_loop().add_signal_handler(number, handler)
    try:
        await server.start()
    except OSError as error:
        raise click.UsageError(f"cannot listen on {server.host}:{server.port}: {error.strerror or error}") from error
    host = f"[{server.host}]" if ":" in server.host else server.host
    click.echo(f"listening on {server.scheme}://{host}:{server.port}")
    with short_pauses(asyncio.get_running_loop()):
        failing = asyncio.ensure_future(server.wait_for_failure())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((failing, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            failing.cancel()
            stopping.cancel()
            await server.stop()
    if server.failure is not None:
        raise server.failure


def _given(**values: int | None) -> dict[str, Any]:
    """The options that were given; the limits have defaults for the others."""
    return {name: value for name, value in values.items() if value is not None}
