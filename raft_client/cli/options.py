"""What several commands have on their line: options, their values, and errors in the words of the line.

The options that say which cluster stand after a command, or before it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import zmq.auth

from raft_client._common.command_line import Seconds, name_options, option_group
from raft_client.errors import InvalidArgumentError, RaftError, SettingsError
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.configuration import Peer, Peers, is_tcp_url
from raft_client.wire.log_entry import Position

# -- values ------------------------------------------------------------------------------------------------------------


class Index(click.IntRange):
    """The index of an entry."""

    name = "index"

    def __init__(self) -> None:
        super().__init__(min=1)


def to_position(_context: click.Context, _option: click.Parameter, value: str | None) -> Position | None:
    """Parse an option ``INDEX``, ``INDEX@TERM`` or ``INDEX@TERM@ID``. The log must have that term and id there."""
    try:
        return None if value is None else Position.parse(value)
    except InvalidArgumentError as error:
        raise click.BadParameter(error.message) from None


# -- which cluster -----------------------------------------------------------------------------------------------------


#: The variable of ``--url``, as ``statestore`` has STATESTORE_URL, and that of the setting, as every setting has one.
_VARIABLES: Final = ("ZMQRAFT_URL", "ZMQRAFT_SEEDS")
_OPTIONS: Final = {
    "urls": click.option(
        "--url",
        "urls",
        multiple=True,
        metavar="URL",
        help="tcp://host:port (or ipc:///path) of a peer to ask first (the setting seeds); may be repeated. One that "
        f"is up is enough. Default: {' or '.join(_VARIABLES)}.",
    ),
    "cluster": click.option(
        "--cluster", help="The cluster ident ('secret' of Node peers). Default: ZMQRAFT_CLUSTER, or empty."
    ),
    "timeout": click.option(
        "--timeout", type=Seconds(min=0.001), help="For each request. Default: ZMQRAFT_REQUEST_TIMEOUT, or 10."
    ),
    "curve_server_key": click.option(
        "--curve-server-key", metavar="KEY", help="The peers' public key: encrypt everything. Z85."
    ),
    "curve_peer_keys": click.option(
        "--curve-peer-key",
        "curve_peer_keys",
        multiple=True,
        metavar="URL=KEY",
        help="The public key of the peer at URL, if it has one of its own; may be repeated. Z85.",
    ),
    "curve_public_key": click.option(
        "--curve-public-key", metavar="KEY", help="This client's own, with --curve-secret-key-file. Z85."
    ),
    "curve_secret_key_file": click.option(
        "--curve-secret-key-file",
        metavar="FILE",
        help="The file with this client's secret key: Z85, or a ZeroMQ certificate (NAME.key_secret) with both keys.",
    ),
}
#: Options that are called otherwise in the settings.
_SETTINGS: Final = {"timeout": "request_timeout"}


_declared = option_group(*_OPTIONS.values())


def connection_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a client; the command receives one ``settings``."""

    @_declared
    @functools.wraps(function)
    def with_settings(*args: Any, **given: Any) -> int:
        before = click.get_current_context().find_root().params
        own = {name: given.pop(name) for name in _OPTIONS}
        connection = {name: before.get(name) if value in (None, ()) else value for name, value in own.items()}
        return function(*args, settings=connection_settings(connection), **given)

    return with_settings


def for_any_command(function: Callable[[], None]) -> Callable[..., None]:
    """For the group: the same options before the command, ``zmqraft --url … tail``. One after the command wins."""

    @_declared
    @functools.wraps(function)
    def group(**given: Any) -> None:
        del given  # the commands look for them
        function()

    return group


def connection_settings(given: dict[str, Any]) -> RaftSettings:
    """Settings from the options and, for what they leave open, the environment."""
    urls, source = ",".join(given["urls"] or ()), ""
    if not urls:
        source = next((name for name in _VARIABLES if os.environ.get(name)), "")
        urls = os.environ.get(source, "")
    if not urls:
        raise SettingsError(f"no peer is named: give --url tcp://host:port, or set {_VARIABLES[0]}")
    overrides = {
        _SETTINGS.get(name, name): value for name, value in given.items() if name != "urls" and value not in (None, ())
    }
    overrides["seeds"] = urls
    if (keys := overrides.get("curve_peer_keys")) is not None:
        overrides["curve_peer_keys"] = ",".join(keys)
    if (file := overrides.pop("curve_secret_key_file", None)) is not None:
        overrides = _keys_in(file) | overrides
    try:
        return RaftSettings.from_env(**overrides)
    except SettingsError as error:
        if source and "seeds" in error.arguments:
            raise SettingsError(f"{source}: {error.message}") from None
        raise


def _keys_in(file: str) -> dict[str, str]:
    """The settings that it holds: a certificate has both keys, and another file the secret one alone."""
    try:
        public, secret = zmq.auth.load_certificate(file)
    except ValueError:
        public, secret = b"", _read(file)
    except OSError as error:
        raise _unreadable(file, error) from error
    if secret is None:
        raise SettingsError(f"--curve-secret-key-file {file!r} has a public key only")
    keys = {"curve_public_key": public, "curve_secret_key": secret.strip()}
    try:
        return {name: key.decode("ascii") for name, key in keys.items() if key}
    except UnicodeDecodeError as error:
        raise _unreadable(file, error) from None


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: Exception) -> SettingsError:
    return SettingsError(f"--curve-secret-key-file {file!r} cannot be read: {error}")


def open_client(settings: RaftSettings) -> RaftClient:
    """A client to be used as a context manager."""
    return RaftClient(settings)


# -- peers and their cluster -------------------------------------------------------------------------------------------


F = TypeVar("F", bound=Callable[..., object])


def to_peer(_context: click.Context, _option: click.Parameter, value: str) -> Peer:
    """One peer."""
    peer_id, _, url = value.partition("=")
    if not peer_id or not is_tcp_url(url):
        raise click.BadParameter(f"{value!r} is not ID=URL, as 1=tcp://10.0.0.1:8047")
    return Peer(peer_id, url)


def _to_peers(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> Peers:
    """The members of a cluster."""
    peers = tuple(to_peer(context, option, value) for value in values)
    if len({peer.id for peer in peers}) < len(peers) or len({peer.url for peer in peers}) < len(peers):
        raise click.BadParameter("two peers with the same ID or URL")
    return peers


def members_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """``--peer ID=URL``, once for each member; the argument ``peers``."""
    return click.option(
        "--peer", "peers", callback=_to_peers, metavar="ID=URL", multiple=True, required=required, help=text
    )


def cluster_option(text: str) -> Callable[[F], F]:
    """``--cluster``, which the environment has, too."""
    return click.option(
        "--cluster", default="", envvar="ZMQRAFT_CLUSTER", help=f"{text} Default: ZMQRAFT_CLUSTER, or empty."
    )


# -- errors in the words of the command line ---------------------------------------------------------------------------


#: Arguments of the API whose options have other names.
_OTHERS: Final = {
    "request_timeout": "--timeout",
    "curve_secret_key": "--curve-secret-key-file",
    "curve_peer_keys": "--curve-peer-key",
    "seeds": "--url",
}


def reword(error: RaftError, command: click.Command) -> None:
    """See :func:`~raft_client._common.command_line.name_options`."""
    name_options(error, command, _OTHERS)
