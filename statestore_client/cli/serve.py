"""``statestore serve``: its options, what they come to, and the process of the server.

They come to endpoints, certificates, limits and a site of the KvStore. The options about a replicated log are in
:mod:`.log_options`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import click
from click.core import ParameterSource

from raft_client._common import event_loops, exits
from raft_client._common.command_line import AddressError, Seconds, option_group, print_line
from raft_client._common.hosts import is_local
from raft_client._common.process import handle_signals, raise_file_limit
from raft_client._common.standard_streams import OutputError
from statestore_client.cli.host import host_of, host_options, run_host
from statestore_client.cli.log_options import replica_of, replica_options
from statestore_client.cli.options import is_not_to_be_had, nonempty_path
from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.broker import WHEN_FULL, BrokerLimits
from statestore_client.server.kvstore.area_store import DEFAULT_LIMITS
from statestore_client.server.kvstore.own_keys import DEFAULT_KEY_TTL_MS, LEAST_KEY_TTL_MS
from statestore_client.server.kvstore.peers import FIRST_WAIT_S, LONGEST_WAIT_S
from statestore_client.server.runtime.observability.logs import CLUSTER_LOGGER, JsonLines
from statestore_client.server.runtime.process import memory_given_back, short_pauses
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import (
    DEFAULT_AREA,
    DEFAULT_SYNC_TIMEOUT_S,
    Endpoints,
    ServerSettings,
    SiteEndpoints,
    origin_problem,
)
from statestore_client.server.runtime.transport.tls import ServerTls
from statestore_client.server.store import Persistence, StoreLimits
from statestore_client.wire.protocol import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable

_FILE: Final = click.Path(exists=True, dir_okay=False)
_PORT: Final = click.IntRange(0, 65535)
#: The size of a CONNECT with a short client identifier. Only tests of clients need so small a limit.
_SHORTEST_LIMIT: Final = 20


def _host(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """An empty one, mostly a variable that is not set, would be all interfaces."""
    del context, parameter
    if not value:
        raise click.BadParameter("it is empty; 0.0.0.0 and :: are all addresses")
    return value


def _origins(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """One that no browser sends would let nobody in."""
    del context, parameter
    for value in values:
        if (problem := origin_problem(value)) is not None:
            raise click.BadParameter(problem)
    return values


#: Option, its least number (or its type), help, and the field of the limits that it sets. The default is that of the
#: field, and so is the largest number. The least one is not always: for "any number", which is 0 in a program, the
#: option is left out.
_Limits: TypeAlias = "tuple[tuple[str, int | click.ParamType[Any], str, str], ...]"
_BROKER_LIMITS: Final[_Limits] = (
    ("--max-packet-size", _SHORTEST_LIMIT, "Largest MQTT packet, bytes.", "packet_bytes"),
    ("--max-connections", 1, "Clients at the same time.", "connections"),
    ("--max-connections-per-user", 1, "Clients of one user at the same time.", "connections_per_user"),
    ("--max-connections-per-address", 1, "Clients from one address at the same time.", "connections_per_address"),
    ("--max-bytes-per-second", 1, "Bytes that one client may send; the rest is read later.", "received_bytes_per_s"),
    ("--max-messages-per-second", 1, "Messages that one client may send in a second.", "received_messages_per_s"),
    ("--receive-maximum", 1, "QoS 2 messages from one client at a time.", "receive_maximum"),
    ("--max-inflight", 1, "Unacknowledged messages to one client.", "in_flight"),
    ("--max-inflight-bytes", 1, "Unacknowledged bytes to one client; one message always goes.", "in_flight_bytes"),
    ("--max-queued-messages", 1, "Messages that wait for one client.", "queued_messages"),
    ("--max-queued-bytes", 1, "Bytes of messages that wait for one client.", "queued_bytes"),
    ("--max-held-bytes", 1, "Bytes that wait for all clients together, with wills.", "held_bytes"),
    ("--when-full", click.Choice(WHEN_FULL), "What to do with messages when a client's queue is full.", "when_full"),
    ("--max-sessions", 1, "Sessions, of clients that are away as well.", "sessions"),
    ("--max-sessions-per-user", 1, "Sessions of one user.", "sessions_per_user"),
    ("--max-session-expiry", 0, "Seconds a client may be away.", "session_expiry_s"),
    ("--max-subscriptions", 1, "Subscriptions of one client.", "subscriptions_per_session"),
    ("--max-retained-messages", 1, "Retained messages.", "retained_messages"),
    ("--max-retained-bytes", 1, "Bytes of retained messages.", "retained_bytes"),
    ("--max-keep-alive", 0, "Longest keep-alive in seconds, in MQTT 5.0; 0: as clients ask.", "keep_alive_s"),
    ("--max-qos", 0, "Highest QoS that clients may use.", "maximum_qos"),
    ("--sys-interval", Seconds(min=0), "Seconds between $SYS messages; 0 for none.", "sys_interval_s"),
)
_STORE_LIMITS: Final[_Limits] = (
    ("--max-keys", 1, "Keys in the state store.", "max_keys"),
    ("--max-bytes", 1, "Bytes in the state store: keys, values and overhead.", "max_bytes"),
    ("--max-keys-per-user", 1, "Keys that one user wrote last.", "max_keys_per_user"),
    ("--max-bytes-per-user", 1, "Bytes that one user wrote last.", "max_bytes_per_user"),
    ("--max-observations", 1, "Watched keys, each once for each client.", "max_observations"),
    ("--max-observations-per-user", 1, "Watched keys of one user.", "max_observations_per_user"),
    ("--max-observations-per-client", 1, "Watched keys of one client.", "max_observations_per_client"),
    (
        "--max-observation-bytes-per-client",
        1,
        "Bytes of one client's watched keys.",
        "max_observation_bytes_per_client",
    ),
    ("--max-observation-bytes", 1, "Bytes of watched keys, and overhead.", "max_observation_bytes"),
    ("--max-observation-bytes-per-user", 1, "Bytes of one user's watched keys.", "max_observation_bytes_per_user"),
)
#: What holds without these options, and what no number says that they take.
_IN_WORDS: Final = {
    "--max-connections-per-user": "all of them",
    "--max-connections-per-address": "all of them",
    "--max-sessions-per-user": "all of them",
    "--max-keys-per-user": "all of them",
    "--max-bytes-per-user": "all of them",
    "--max-observations-per-user": "all of them",
    "--max-observation-bytes-per-user": "all of them",
    "--max-bytes-per-second": "any number",
    "--max-messages-per-second": "any number",
    "--receive-maximum": "20, and up to 1024 for clients that take as many themselves",
}

#: What ``--without`` says, and the field that is switched off.
_FEATURES: Final = {
    "retain": "retain_available",
    "wildcards": "wildcards_available",
    "shared": "shared_subscriptions_available",
    "subscription-ids": "subscription_ids_available",
}

_ENDPOINTS: Final = (
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        callback=_host,
        help="Address to listen on. Beyond this machine, clients need --password-file or --tls-ca-file, or --insecure.",
    ),
    click.option("--port", type=_PORT, default=1883, show_default=True, help="0 takes a free port, here and below."),
    click.option("--tls-port", type=_PORT, help="A port with TLS; --port is without it then."),
    click.option("--ws-port", type=_PORT, help="A port for MQTT over WebSocket, path /mqtt."),
    click.option("--wss-port", type=_PORT, help="A port for MQTT over WebSocket with TLS."),
    click.option(
        "--ws-origin",
        multiple=True,
        callback=_origins,
        help="Accept web pages of this origin over WebSocket: https://host, or * for all. Default: the same host.",
    ),
    click.option(
        "--unix-socket",
        type=click.Path(dir_okay=False),
        callback=nonempty_path,
        help="Listen on this Unix socket, too.",
    ),
    click.option(
        "--metrics-port", type=_PORT, help="A port for Prometheus, path /metrics, and for probes: /health and /ready."
    ),
    click.option(
        "--metrics-host", default="127.0.0.1", show_default=True, callback=_host, help="Address of the metrics port."
    ),
    click.option("--monitor-port", type=_PORT, help="A port for the monitor, a live page for people."),
    click.option(
        "--monitor-host",
        default="127.0.0.1",
        show_default=True,
        callback=_host,
        help="Address of the monitor. Beyond this machine, and with users or certificates, it needs --password-file.",
    ),
    click.option(
        "--monitor-actions",
        is_flag=True,
        help="Let viewers of the monitor end sessions and delete keys. With users, it needs --acl-file.",
    ),
)
_ACCESS: Final = (
    click.option(
        "--tls-cert-file", type=_FILE, help="TLS, with this certificate (PEM, with the intermediate certificates)."
    ),
    click.option("--tls-key-file", type=_FILE, help="The certificate's key, unless it is in the same file."),
    click.option("--tls-key-password-file", type=_FILE, help="The password of an encrypted key."),
    click.option(
        "--tls-ca-file", type=_FILE, help="Clients must show a certificate that one of these authorities issued."
    ),
    click.option(
        "--tls-crl-file",
        type=_FILE,
        help="Certificates that the authorities have revoked (PEM). A list of each authority.",
    ),
    click.option(
        "--password-file", type=_FILE, help="Users, written by statestore passwd. Clients must be one of them."
    ),
    click.option(
        "--allow-anonymous", is_flag=True, help="With --password-file: also accept clients without a user name."
    ),
    click.option(
        "--insecure",
        is_flag=True,
        help="Listen beyond this machine and accept all clients, without a password or certificate.",
    ),
    click.option("--acl-file", type=_FILE, help="Access rules. What no line allows is forbidden."),
)


def limit_options(command: Callable[..., int]) -> Callable[..., int]:
    """See :func:`broker_limits_of` and :func:`store_limits_of`."""
    command = click.option(
        "--without",
        type=click.Choice(tuple(_FEATURES)),
        multiple=True,
        help="Do not offer this to clients. Can be repeated.",
    )(command)
    for table, usual in ((_BROKER_LIMITS, BrokerLimits()), (_STORE_LIMITS, StoreLimits())):
        for name, kind, text, field in reversed(table):
            words = _IN_WORDS.get(name)
            default = None if words else getattr(usual, field)
            check = getattr(attrs.fields(type(usual)), field).validator
            taken = click.IntRange(kind, check.high) if isinstance(kind, int) else kind
            command = click.option(name, type=taken, default=default, show_default=words or True, help=text)(command)
    return command


def data_option(command: Callable[..., int]) -> Callable[..., int]:
    """A directory that may not be there yet, and what is kept in it; see :func:`check_persist`."""
    command = click.option(
        "--persist",
        multiple=True,
        metavar="all|asked|none|PATTERN",
        help="Of --data: keep all keys, those that clients ask for, none, or those that match. Can be repeated. "
        "Default: all.",
    )(command)
    return click.option(
        "--data",
        type=click.Path(file_okay=False, readable=False),  # the server itself says what is wrong with it
        callback=nonempty_path,
        help="Keep keys, sessions, QoS 1 and 2 messages and retained messages in this directory.",
    )(command)


def check_persist(data: str | None, words: tuple[str, ...], *, has_log: bool) -> None:
    """Raises click's UsageError for words without a directory of its own, and for what is not a pattern."""
    if words and has_log:
        raise click.UsageError("--persist is of a server that is alone: servers of a log keep all keys")
    if words and data is None:
        raise click.UsageError("--persist says which keys are kept in --data DIR; give both")
    try:
        Persistence.of(words or "all")
    except InvalidArgumentError as error:
        raise click.UsageError(f"--persist: {error}") from None


def endpoints_of(options: dict[str, Any]) -> Endpoints:
    """What the endpoint options say. Raises click's UsageError for an option that means nothing without another."""
    context = click.get_current_context()
    for what in ("metrics", "monitor"):
        is_given = context.get_parameter_source(f"{what}_host") is not ParameterSource.DEFAULT
        if options[f"{what}_port"] is None and is_given:
            raise click.UsageError(f"--{what}-host needs --{what}-port")
    if options["monitor_actions"] and options["monitor_port"] is None:
        raise click.UsageError("--monitor-actions needs --monitor-port")
    if options["ws_origin"] and options["ws_port"] is options["wss_port"] is None:
        raise click.UsageError("--ws-origin needs --ws-port or --wss-port")
    clients = ("host", "port", "tls_port", "ws_port", "wss_port", "unix_socket")
    names = (*clients, "metrics_host", "metrics_port", "monitor_host", "monitor_port")
    return Endpoints(ws_origins=options["ws_origin"], **{name: options[name] for name in names})


def check_exposure(options: dict[str, Any]) -> None:
    """Raises click's UsageError for a server that lets everybody in and can be reached from other machines."""
    host = options["host"]
    if options["insecure"] or is_local(host):
        return
    if options["allow_anonymous"] and not options["password_file"] is options["tls_ca_file"] is None:
        raise click.UsageError(
            f"everybody who can reach {host} would be let in, since --allow-anonymous accepts clients without a user "
            "name: leave it out, or say --insecure if that is meant"
        )
    if options["password_file"] is not None:
        return
    has_plain_endpoint = options["tls_port"] is not None or options["ws_port"] is not None  # then --port is without TLS
    if options["tls_ca_file"] is None or has_plain_endpoint:
        raise click.UsageError(
            f"everybody who can reach {host} would be let in. Ask for passwords with --password-file (statestore "
            "passwd writes one), or for certificates with --tls-ca-file and no endpoint without TLS; or say "
            "--insecure if that is meant"
        )


def check_anonymous(options: dict[str, Any]) -> None:
    """Raises click's UsageError for --allow-anonymous on a server that accepts all: more was meant than it does."""
    if options["allow_anonymous"] and options["password_file"] is options["tls_ca_file"] is None:
        raise click.UsageError(
            "--allow-anonymous changes nothing without --password-file, since all clients are accepted: give "
            "--password-file, or leave it out"
        )


def broker_limits_of(options: dict[str, Any]) -> BrokerLimits:
    """The defaults, and what was given."""
    given: dict[str, Any] = dict.fromkeys((_FEATURES[name] for name in options["without"]), False)
    if options["receive_maximum"] is not None:
        given["usual_receive_maximum"] = options["receive_maximum"]
    return attrs.evolve(BrokerLimits(), **_given(_BROKER_LIMITS, options), **given)


def store_limits_of(options: dict[str, Any]) -> StoreLimits:
    """The same for the state store."""
    return attrs.evolve(StoreLimits(), **_given(_STORE_LIMITS, options))


def _given(limits: _Limits, options: dict[str, Any]) -> dict[str, Any]:
    values = {field: options[name.removeprefix("--").replace("-", "_")] for name, _, _, field in limits}
    return {field: value for field, value in values.items() if value is not None}


def tls_of(options: dict[str, Any]) -> ServerTls | None:
    """Raises click's UsageError for half of what TLS needs."""
    cert, key = options["tls_cert_file"], options["tls_key_file"]
    key_password_file, ca, crl = options["tls_key_password_file"], options["tls_ca_file"], options["tls_crl_file"]
    if crl is not None and ca is None:
        raise click.UsageError("--tls-crl-file needs --tls-ca-file")
    if cert is not None:
        return ServerTls(cert_file=cert, key_file=key, ca_file=ca, key_password_file=key_password_file, crl_file=crl)
    if any(given is not None for given in (key, key_password_file, ca)):
        raise click.UsageError("TLS needs --tls-cert-file")
    if options["tls_port"] is not None or options["wss_port"] is not None:
        raise click.UsageError("--tls-port and --wss-port need --tls-cert-file")
    return None


_OPTIONS: Final = (
    click.option(
        "--site", metavar="NAME", help="Be a site of the KvStore, with this name: every site has another one."
    ),
    click.option(
        "--site-listen",
        metavar="URL",
        help="Listen here for other sites: tcp://HOST:PORT, * for a free port, or ipc://PATH. Without --curve-keys, "
        "sites and clients are not authenticated.",
    ),
    click.option(
        "--peer",
        multiple=True,
        metavar="[NAME=]URL",
        help="A site to dial; with --curve-keys also its name, whose key is expected there. Can be repeated.",
    ),
    click.option(
        "--area",
        multiple=True,
        metavar="NAME",
        help=f"An area, exchanged with sites that have it too. Can be repeated. Default: {DEFAULT_AREA}.",
    ),
    click.option(
        "--curve-keys",
        type=click.Path(path_type=Path),
        metavar="DIRECTORY",
        help="Encrypt, and accept only keys that are here: NAME.key_secret of this site, NAME.key of the others, "
        "clients/*.key.",
    ),
    click.option(
        "--site-export",
        multiple=True,
        metavar="PREFIX",
        help="Make keys with this prefix readable at other sites, as sites/NAME/KEY. Can be repeated.",
    ),
    click.option(
        "--site-import",
        is_flag=True,
        help="Make keys that other sites export readable here.",
    ),
    click.option(
        "--site-key-ttl",
        type=Seconds(min=LEAST_KEY_TTL_MS // 1000),
        help="How long other sites keep this site's keys after it died or was cut off. "
        f"Default: {DEFAULT_KEY_TTL_MS // 1000}.",
    ),
    click.option(
        "--site-sync-timeout",
        type=Seconds(min=0),
        help="How long /ready answers 503 after the start while no other site is reached. "
        f"Default: {DEFAULT_SYNC_TIMEOUT_S:g} with --peer, 0 without.",
    ),
    click.option(
        "--site-flood-rate",
        type=int,
        metavar="N",
        help="Updates in a second that leave each area; more of them are merged. Default: no limit.",
    ),
    click.option(
        "--site-flood-burst",
        type=int,
        metavar="N",
        help="Of those, how many may leave at once after a quiet time. Default: as many as in a second.",
    ),
    click.option(
        "--site-sync-backoff",
        type=Seconds(min=0.1),
        help="The pause after a failed sync with a site; twice as long after each further failure. "
        f"Default: {FIRST_WAIT_S:g}.",
    ),
    click.option(
        "--site-sync-max-backoff",
        type=Seconds(min=0.1),
        help=f"The same at most. Default: {LONGEST_WAIT_S:g}.",
    ),
    click.option(
        "--site-max-keys",
        type=int,
        metavar="N",
        help=f"Keys of each area; further ones are refused. Default: {DEFAULT_LIMITS.max_keys:,}.",
    ),
    click.option(
        "--site-max-bytes",
        type=int,
        metavar="N",
        help=f"The same for the bytes of keys, originators and values together. Default: {DEFAULT_LIMITS.max_bytes:,}.",
    ),
)


#: Options that have a default elsewhere, and what they are called there.
_LIMITS: Final = {
    "site_key_ttl": "key_ttl_s",
    "site_sync_timeout": "sync_timeout_s",
    "site_flood_rate": "flood_rate",
    "site_flood_burst": "flood_burst",
    "site_sync_backoff": "sync_backoff_s",
    "site_sync_max_backoff": "sync_max_backoff_s",
    "site_max_keys": "max_keys",
    "site_max_bytes": "max_bytes",
}


def site_of(options: dict[str, Any]) -> SiteEndpoints | None:
    """None for a server that is not a site. Raises click's UsageError."""
    name, listen = options["site"], options["site_listen"]
    if name is None:
        others = ("site_listen", "peer", "area", "curve_keys", "site_export", "site_import")
        given = [option for option in others if options[option]]
        given += [option for option in _LIMITS if options[option] is not None]  # 0 is a time that may be meant
        if given:
            raise click.UsageError(f"--{given[0].replace('_', '-')} needs --site NAME")
        return None
    is_open = options["curve_keys"] is None and not options["insecure"]
    if listen is not None and is_open and not _is_local(listen):
        raise click.UsageError(
            f"everybody who can reach {listen} could write to the KvStore: give keys to those who may with "
            "--curve-keys, or say --insecure if that is meant"
        )
    try:
        return SiteEndpoints(
            name=name,
            listen=listen,
            peers=options["peer"],
            areas=options["area"] or (DEFAULT_AREA,),
            exports=options["site_export"],
            imports=options["site_import"],
            curve_keys=options["curve_keys"],
            **{name: options[option] for option, name in _LIMITS.items() if options[option] is not None},
        )
    except InvalidArgumentError as error:
        named = next((option for option, name in _LIMITS.items() if name in error.arguments), "site")
        raise click.UsageError(f"--{named.replace('_', '-')}: {error}") from None


def _is_local(url: str) -> bool:
    """Whether only this machine reaches it. What is not an address is refused later, with the reason."""
    scheme, _, address = url.partition("://")
    host = address.rpartition(":")[0]
    return scheme != "tcp" or not host or is_local(host)


# -- the command -------------------------------------------------------------------------------------------------------

#: The thread that writes to the disk waits this long for a busy event loop, several times for each batch. Python's 5 ms
#: would be longer than the commit itself.
_SWITCH_S: Final = 0.0005


@click.command("serve")
@option_group(*_ENDPOINTS)
@click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect]),
    default=Dialect.SERVICE.value,
    show_default=True,
    help="Answer as the real service does, or to the letter of the published document.",
)
@data_option
@host_options
@replica_options
@option_group(*_ACCESS)
@limit_options
@option_group(*_OPTIONS)
@click.option(
    "--verbose",
    is_flag=True,
    help="Also log connections and disconnections to standard error. Refusals, and changes of the cluster (who is "
    "active, who leads the log), are logged in any case.",
)
@click.option("--log-json", is_flag=True, help="Log in JSON, one object per line.")
def serve(
    *, dialect: str, data: str | None, persist: tuple[str, ...], verbose: bool, log_json: bool, **options: Any
) -> int:
    """Serve an MQTT broker with a state store. It prints its addresses when it is ready, and ends on SIGTERM or Ctrl-C.

    Everything is in memory, unless --data names a directory. With it, nothing is acknowledged before it is on the disk,
    and all of it is there again after a restart; --persist can exempt some or all keys. With --log the same holds when
    a machine is lost: another server goes on. With --broker it is no broker itself, but a client of another one, which
    has the state store then.

    Certificates, passwords and access rules are read again when their files change, and on SIGHUP.
    """
    _log(verbose=verbose, in_json=log_json)
    if options["broker"] is not None:
        return _host_store(options, dialect=dialect, data=data, persist=persist)
    if options["broker_id_property"] is not None:
        raise click.UsageError("--broker-id-property needs --broker URL")
    check_exposure(options)
    check_anonymous(options)
    raise_file_limit()
    log = replica_of(options, data)
    check_persist(data, persist, has_log=log is not None)
    server = Server(
        ServerSettings(
            endpoints=endpoints_of(options),
            dialect=dialect,
            data=data if log is None else None,
            persist=persist or "all",
            broker_limits=broker_limits_of(options),
            store_limits=store_limits_of(options),
            tls=tls_of(options),
            passwords=options["password_file"],
            acl=options["acl_file"],
            allow_anonymous=options["allow_anonymous"],
            site=site_of(options),
            log=log,
            monitor_actions=options["monitor_actions"],
        )
    )
    if data is not None or log is not None:
        sys.setswitchinterval(_SWITCH_S)
    event_loops.run(_serve(server))
    return exits.DONE


def _host_store(options: dict[str, Any], *, dialect: str, data: str | None, persist: tuple[str, ...]) -> int:
    from statestore_client.server.runtime.host.hosted_store import HostedStore  # most servers are brokers

    has_log = options["log"] is not None or options["cluster"] is not None
    check_persist(data, persist, has_log=has_log)
    names = [name.removeprefix("--").replace("-", "_") for name, *_ in _STORE_LIMITS]
    settings = host_of(options, store_limits_of(options), names, dialect=dialect, data=data, persist=persist)
    if data is not None or has_log:
        sys.setswitchinterval(_SWITCH_S)
    event_loops.run(run_host(HostedStore(settings)))
    return exits.DONE


def _log(*, verbose: bool, in_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if in_json else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    for logger in (CLUSTER_LOGGER, logging.getLogger("raft_client.server.cluster")):
        logger.setLevel(logging.INFO)


def _cannot_listen(server: Server, error: OSError) -> str:
    """asyncio names the address in the error of an endpoint, any of several; others name none."""
    text = error.strerror or str(error)
    names_it = "attempting to bind" in text or text.startswith("Unix socket")
    address = "" if names_it else f" on {server.endpoints.host}:{server.endpoints.port}"
    return f"cannot listen{address}: {text}"


async def _serve(server: Server) -> None:
    stop = asyncio.Event()
    handle_signals({"SIGTERM": stop.set, "SIGINT": stop.set, "SIGHUP": server.reload})
    starting, ending = asyncio.ensure_future(server.start()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not starting.done():  # a replicated log that has no leader, for example
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        await starting
    except OSError as error:
        text = _cannot_listen(server, error)
        raise (AddressError if is_not_to_be_had(error) else click.UsageError)(text) from error
    except SettingsError as error:
        raise (AddressError if is_not_to_be_had(error) else click.UsageError)(str(error)) from error
    with contextlib.suppress(OutputError):  # nobody reads it; the server still runs
        for url in server.urls:
            print_line(f"listening on {url}")
        if server.monitor_url is not None:
            print_line(f"monitor at {server.monitor_url}/")
        if server.site is not None and server.site.url is not None:
            print_line(f"listening for sites on {server.site.url}")
        if server.replication is not None:
            print_line(f"listening for servers on {server.replication.url}")
    loop = asyncio.get_running_loop()
    with short_pauses(loop), memory_given_back(loop):
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
