"""``statestore serve --broker``: hosts the state store as a client of a foreign broker."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from raft_client._common.command_line import AddressError, option_group, print_line
from raft_client._common.process import handle_signals
from raft_client._common.standard_streams import OutputError
from statestore_client.cli.log_options import replica_of
from statestore_client.cli.options import is_not_to_be_had
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.runtime.process import memory_given_back, short_pauses
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.protocol import Dialect

if TYPE_CHECKING:
    from collections.abc import Collection

    from statestore_client.server.runtime.host.hosted_store import HostedStore
    from statestore_client.server.runtime.host.settings import HostSettings
    from statestore_client.server.store import StoreLimits

#: How long requests wait in the broker for a host that is away, unless its URL says otherwise.
SESSION_EXPIRY_S: Final = 3600.0

#: Of the options of ``serve``, those that mean something for a store that is hosted on another broker; and those that
#: limit the store.
_OF_HOSTS: Final = frozenset(
    {
        "broker", "broker_id_property", "data", "persist", "dialect", "max_packet_size", "metrics_host",
        "metrics_port", "monitor_port", "verbose", "log_json", "log", "cluster", "cluster_bind", "id", "log_cluster",
        "log_curve_keys", "log_settings", "internal", "internal_address", "await_import", "cluster_key_file",
    }
)  # fmt: skip

host_options = option_group(
    click.option(
        "--broker",
        metavar="URL",
        help="Host the state store on this broker, as its client: mqtts://USER@HOST:PORT?NAME=VALUE&…, "
        "with the settings of a client, such as password_file, tls_ca_file, client_id and session_expiry.",
    ),
    click.option(
        "--broker-id-property",
        metavar="NAME",
        help="Of --broker: the user property in which it says who has published a message. Default: the client id is "
        "taken from the response topic, clients/ID/...",
    ),
)


def host_of(
    options: dict[str, Any],
    limits: StoreLimits,
    limit_options: Collection[str],
    *,
    dialect: str,
    data: str | None,
    persist: tuple[str, ...],
) -> HostSettings:
    """What ``--broker`` and the options beside it say. ``limits`` are those of the store, which ``limit_options`` set.
    Raises click's UsageError.
    """
    from statestore_client.server.runtime.host.settings import CLIENT_ID, HostSettings

    context = click.get_current_context()
    for name in context.params:
        is_given = context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
        if is_given and name not in _OF_HOSTS and name not in limit_options:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is of a broker, and with --broker clients come to another one")
    log = replica_of(options, data)
    given: dict[str, Any] = {} if options["max_packet_size"] is None else {"packet_bytes": options["max_packet_size"]}
    try:
        settings = ConnectionSettings.from_url(options["broker"])
        changes: dict[str, Any] = {}
        if settings.client_id is None:
            changes["client_id"] = CLIENT_ID
        if "session_expiry" not in options["broker"]:
            changes["session_expiry"] = SESSION_EXPIRY_S
        return HostSettings(
            connection=settings.evolve(**changes),
            id_property=options["broker_id_property"],
            dialect=Dialect(dialect),
            store_limits=limits,
            data=data if log is None else None,
            persist=persist or "all",
            log=log,
            metrics_host=options["metrics_host"],
            metrics_port=options["metrics_port"],
            monitor_port=options["monitor_port"],
            **given,
        )
    except (InvalidArgumentError, SettingsError) as error:
        raise click.UsageError(f"--broker: {error}") from None


async def run_host(store: HostedStore) -> None:
    """Until a signal, or until it cannot go on."""
    stop = asyncio.Event()
    handle_signals({"SIGTERM": stop.set, "SIGINT": stop.set})
    try:
        await store.start()
    except OSError as error:
        raise AddressError(f"cannot listen: {error.strerror or error}") from error
    except SettingsError as error:
        raise (AddressError if is_not_to_be_had(error) else click.UsageError)(str(error)) from error
    pages = [] if store.metrics_url is None else [f"figures at {store.metrics_url}"]
    pages += [] if store.monitor_url is None else [f"monitor at {store.monitor_url}/"]
    if store.replication is not None:
        _print(f"listening for servers on {store.replication.url}", *pages)
        pages = []
    loop = asyncio.get_running_loop()
    ready, failing, stopping = (
        asyncio.ensure_future(each()) for each in (store.wait_until_ready, store.wait_for_failure, stop.wait)
    )
    with short_pauses(loop), memory_given_back(loop):
        try:
            await asyncio.wait((ready, failing, stopping), return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                _print(f"hosting the state store on {store.url}", *pages)
            await asyncio.wait((failing, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (ready, failing, stopping):
                each.cancel()
            await store.stop()
    if store.failure is not None:
        raise store.failure


def _print(*lines: str) -> None:
    with contextlib.suppress(OutputError):  # a closed pipe does not end the store
        for line in lines:
            print_line(line)
