"""Where a replicated log is, and the keys for it: options of servers, and of commands that are clients of the log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from statestore_client.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client import RaftSettings
    from statestore_client.server.runtime.replication.log_keys import LogKeys

__all__ = ["curve_keys_option", "log_of", "log_options", "urls_and_keys"]

curve_keys_option: Final = click.option(
    "--log-curve-keys",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Of --log, if its peers have keys: NAME.key_secret of this --id, and ID.key of each peer, which --log names "
    "then: ID=tcp://HOST:PORT,…",
)

_OPTIONS: Final = (
    click.option("--log", metavar="URLS", help="The peers of the log, tcp://HOST:PORT,…, as servers have them."),
    click.option(
        "--cluster", metavar="NODES", help="In place of --log: the servers with peers of their own, ID=HOST[:PORT],…"
    ),
    click.option("--log-cluster", metavar="NAME", help="The name of the peers' cluster.", default=""),
    curve_keys_option,
    click.option("--id", metavar="NAME", help="Of --log-curve-keys: whose key pair to use."),
    click.option(
        "--cluster-key-file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Of --cluster: the secret that the servers have.",
    ),
)


def log_options(command: Callable[..., int]) -> Callable[..., int]:
    """See :func:`log_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def log_of(options: dict[str, Any]) -> RaftSettings:
    """Raises click's UsageError."""
    from statestore_client.server.runtime.replication.cluster_nodes import nodes_of
    from statestore_client.server.runtime.replication.log_keys import ClusterKeys
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

    if (options["log"] is None) == (options["cluster"] is None):
        raise click.UsageError("say where the log is, with --log URLS or --cluster NODES")
    name, cluster = "--log" if options["cluster"] is None else "--cluster", options["log_cluster"]
    try:
        if options["cluster"] is None:
            urls, keys = urls_and_keys(options["log"], options["log_curve_keys"], options["id"] or "")
        else:
            peers = {node.id: node.peer_url for node in nodes_of(options["cluster"]).values()}
            file = options["cluster_key_file"]
            made = None if file is None else ClusterKeys.made_from(ReplicaSettings.key_in(file), cluster, peers)
            urls, keys = tuple(peers.values()), None if made is None else made.of_client(peers)
        return ReplicaSettings(log=urls, id="client", cluster=cluster, log_keys=keys).raft
    except SettingsError as error:
        raise click.UsageError(f"{name}: {error}") from None


def urls_and_keys(log: str, folder: Path | None, own: str) -> tuple[tuple[str, ...], LogKeys | None]:
    """Of ``--log`` and ``--log-curve-keys``. Raises SettingsError."""
    from statestore_client.server.runtime.replication.log_keys import LogKeys

    places = tuple(part.strip() for part in log.split(","))
    if folder is None:
        return places, None
    peers = {name: url for name, is_named, url in (place.partition("=") for place in places) if is_named}
    if len(peers) < len(places):
        raise SettingsError("--log-curve-keys needs to know whose keys to use: ID=tcp://HOST:PORT,ID=tcp://HOST:PORT,…")
    return tuple(peers.values()), LogKeys.read(folder, own, peers)
