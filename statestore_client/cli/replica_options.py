"""The options of ``statestore serve`` for a server that shares a replicated log with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from statestore_client.errors import SettingsError
from statestore_client.server.runtime.transport.endpoints import is_local

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.runtime.replication.settings import ReplicaSettings

__all__ = ["replica_of", "replica_options"]

_OPTIONS: Final = (
    click.option(
        "--log",
        metavar="URLS",
        help="Keep everything in the replicated log of these ØMQ Raft peers, tcp://HOST:PORT,…, which other servers "
        "share: one of them is active, the others stand by.",
    ),
    click.option("--id", metavar="NAME", help="Of --log: the name of this server. Each of them has another one."),
    click.option("--log-cluster", metavar="NAME", help="Of --log: the name of the peers' cluster.", default=""),
    click.option(
        "--internal",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        show_default=True,
        help="Of --log: the other servers come in here. Port 0 for a free one.",
    ),
    click.option(
        "--internal-address",
        metavar="HOST:PORT",
        default="",
        help="Of --log: where the others reach that, if it is another address.",
    ),
    click.option(
        "--cluster-key-file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Of --log: a secret that all these servers have. Needed if --internal can be reached from other machines.",
    ),
)


def replica_options(command: Callable[..., int]) -> Callable[..., int]:
    """See :func:`replica_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def replica_of(options: dict[str, Any], data: str | None) -> ReplicaSettings | None:
    """None for a server without a log. Raises click's UsageError."""
    if options["log"] is None:
        for option in ("id", "log_cluster", "internal_address", "cluster_key_file"):
            if options[option]:
                raise click.UsageError(f"--{option.replace('_', '-')} needs --log URLS")
        return None
    if data is not None:
        raise click.UsageError("with --log everything is in the log: leave out --data")
    if options["id"] is None:
        raise click.UsageError("--log needs --id NAME, another one for each server")
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

    host, _, port = options["internal"].rpartition(":")
    host, file = host.strip("[]"), options["cluster_key_file"]
    if not host or not port.isdecimal():
        raise click.UsageError(f"--internal is HOST:PORT, not {options['internal']!r}")
    if file is None and not is_local(host):
        raise click.UsageError(
            f"everybody who can reach {host} could pass for one of these servers: give all of them the same "
            "--cluster-key-file (such as: head -c 32 /dev/urandom | base64 > FILE)"
        )
    try:
        return ReplicaSettings(
            log=options["log"],
            id=options["id"],
            cluster=options["log_cluster"],
            internal_host=host,
            internal_port=int(port),
            internal_address=options["internal_address"],
            key=b"" if file is None else ReplicaSettings.key_in(file),
        )
    except SettingsError as error:
        raise click.UsageError(f"--log: {error}") from None
