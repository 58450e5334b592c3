"""Where a replicated log is, and the keys for it: options of servers, and of commands that are clients of the log.

Those of ``statestore serve`` make a server that shares a replicated log with others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from raft_client._common.command_line import option_group
from raft_client._common.hosts import is_local
from statestore_client.errors import SettingsError

if TYPE_CHECKING:
    from raft_client import RaftSettings
    from statestore_client.server.runtime.replication.settings import LogKeys, ReplicaSettings

curve_keys_option: Final = click.option(
    "--log-curve-keys",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Of --log, if its peers have keys: NAME.key_secret of this --id, and ID.key of each peer, which --log names "
    "then: ID=tcp://HOST:PORT,…",
)

log_options = option_group(
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


def log_of(options: dict[str, Any]) -> RaftSettings:
    """Raises click's UsageError."""
    from statestore_client.server.runtime.replication.settings import ClusterKeys, ReplicaSettings, nodes_of

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
    from statestore_client.server.runtime.replication.settings import LogKeys

    places = tuple(part.strip() for part in log.split(","))
    if folder is None:
        return places, None
    peers = {name: url for name, is_named, url in (place.partition("=") for place in places) if is_named}
    if len(peers) < len(places):
        raise SettingsError("--log-curve-keys needs to know whose keys to use: ID=tcp://HOST:PORT,ID=tcp://HOST:PORT,…")
    return tuple(peers.values()), LogKeys.read(folder, own, peers)


replica_options = option_group(
    click.option(
        "--log",
        metavar="URLS",
        help="Keep everything in the replicated log of these ØMQ Raft peers, tcp://HOST:PORT,…, which other servers "
        "share: one of them is active, the others stand by.",
    ),
    click.option(
        "--cluster",
        metavar="NODES",
        help="As --log, with peers of its own: each server of ID=HOST[:PORT],… runs one in its process, and keeps its "
        "log in --data. Three or more; each takes three ports, by default 8047 to 8049.",
    ),
    click.option(
        "--cluster-bind",
        metavar="ADDRESS",
        default="",
        help="Of --cluster: listen here for the other servers, if it is not the address of the own HOST.",
    ),
    click.option(
        "--id",
        metavar="NAME",
        help="Of --log and --cluster: the name of this server. Each of them has another one.",
    ),
    click.option(
        "--log-cluster", metavar="NAME", help="Of --log and --cluster: the name of the peers' cluster.", default=""
    ),
    curve_keys_option,
    click.option(
        "--log-setting",
        "log_settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="Of --cluster: a time or limit of this server's peer of the log, as zmqraft serve --setting has it.",
    ),
    click.option(
        "--internal",
        metavar="HOST:PORT",
        default="",
        help="Of --log: listen here for the other servers. Port 0 for a free one. [default: 127.0.0.1:0]",
    ),
    click.option(
        "--internal-address",
        metavar="HOST:PORT",
        default="",
        help="Of --log: the address at which the others reach it, if it is another one.",
    ),
    click.option(
        "--await-import",
        is_flag=True,
        help="Of --log and --cluster: do not begin with an empty log, because `statestore ha import` will fill it.",
    ),
    click.option(
        "--cluster-key-file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Of --log and --cluster: a secret that all these servers have. Needed if other machines reach them.",
    ),
)


def replica_of(options: dict[str, Any], data: str | None) -> ReplicaSettings | None:
    """None for a server without a log. Raises click's UsageError."""
    if options["log"] is None and options["cluster"] is None:
        for option in (
            "id", "log_cluster", "cluster_bind", "internal", "internal_address", "await_import", "log_curve_keys",
            "cluster_key_file", "log_settings",
        ):  # fmt: skip
            if options[option]:
                flag = "log-setting" if option == "log_settings" else option.replace("_", "-")
                raise click.UsageError(f"--{flag} needs --log URLS or --cluster NODES")
        return None
    if options["log"] is not None and options["cluster"] is not None:
        raise click.UsageError("--cluster has a log of its own: leave out --log")
    name = "--log" if options["cluster"] is None else "--cluster"
    if options["id"] is None:
        raise click.UsageError(f"{name} needs --id NAME, another one for each server")
    try:
        settings = _with_log(options, data) if options["cluster"] is None else _in_cluster(options, data)
    except SettingsError as error:
        raise click.UsageError(f"{name}: {error}") from None
    if not settings.key and not is_local(settings.internal_host):
        raise click.UsageError(
            f"everybody who can reach {settings.internal_host} could pass for one of these servers: give all of them "
            "the same --cluster-key-file (such as: head -c 32 /dev/urandom | base64 > FILE)"
        )
    return settings


def _with_log(options: dict[str, Any], data: str | None) -> ReplicaSettings:
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

    if data is not None:
        raise click.UsageError("with --log everything is in the log: leave out --data")
    if options["cluster_bind"]:
        raise click.UsageError("--cluster-bind is of --cluster; with --log it is --internal")
    if options["log_settings"]:
        raise click.UsageError(
            "--log-setting is of --cluster; the peers of --log have their own: zmqraft serve --setting"
        )
    host, _, port = (options["internal"] or "127.0.0.1:0").rpartition(":")
    if not host or not port.isdecimal():
        raise click.UsageError(f"--internal is HOST:PORT, not {options['internal']!r}")
    urls, keys = urls_and_keys(options["log"], options["log_curve_keys"], options["id"])
    return ReplicaSettings(
        log=urls,
        log_keys=keys,
        id=options["id"],
        cluster=options["log_cluster"],
        internal_host=host.strip("[]"),
        internal_port=int(port),
        internal_address=options["internal_address"],
        key=_key_of(options),
        awaits_import=options["await_import"],
    )


def _in_cluster(options: dict[str, Any], data: str | None) -> ReplicaSettings:
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

    if data is None:
        raise click.UsageError("--cluster needs --data DIR, where this server's part of the log is")
    for option in ("internal", "internal_address"):
        if options[option]:
            raise click.UsageError(f"--{option.replace('_', '-')} is of --log; --cluster says where servers listen")
    if options["log_curve_keys"]:
        raise click.UsageError("--log-curve-keys is of --log; --cluster makes its keys from --cluster-key-file")
    return ReplicaSettings.in_cluster(
        options["cluster"],
        id=options["id"],
        data=data,
        key=_key_of(options),
        cluster=options["log_cluster"],
        listen=options["cluster_bind"],
        awaits_import=options["await_import"],
        log_settings=ReplicaSettings.log_settings_in(options["log_settings"]),
    )


def _key_of(options: dict[str, Any]) -> bytes:
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

    return b"" if options["cluster_key_file"] is None else ReplicaSettings.key_in(options["cluster_key_file"])
