"""The options that say which broker, of all commands that are clients. They stand after a command, or before it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from statestore_client.cli.io import Seconds, nonempty_path
from statestore_client.errors import SettingsError
from statestore_client.settings import ConnectionSettings

if TYPE_CHECKING:
    from statestore_client.sync.client import StateStoreClient

F = TypeVar("F", bound=Callable[..., Any])

_URL: Final = "STATESTORE_URL"
_TIMEOUT_S: Final = 10.0
_OPTIONS: Final = {
    "url": click.option("--url", help=f"mqtt://host:port, or mqtts, ws, wss. Default: {_URL}, or AIO_* variables."),
    "client_id": click.option("--client-id", help="MQTT client id. Default: a random one."),
    "timeout": click.option("--timeout", type=Seconds(min=0.001), help=f"For each request. Default: {_TIMEOUT_S:g}."),
    "username": click.option("--username", help="The user name, with --password-file."),
    "password_file": click.option("--password-file", metavar="FILE", help="Where the user's password is."),
    "tls_ca_file": click.option(
        "--tls-ca-file", metavar="FILE", help="Whom to trust. Default: the system's authorities."
    ),
    "tls_cert_file": click.option("--tls-cert-file", metavar="FILE", help="This client's certificate (PEM)."),
    "tls_key_file": click.option("--tls-key-file", metavar="FILE", help="The key of the certificate (PEM)."),
}


_data: Final = click.option(
    "--data",
    type=click.Path(file_okay=False),
    callback=nonempty_path,
    help="In place of a server that runs: the data directory of one that does not.",
)


def _declared(function: F) -> F:
    for option in reversed(_OPTIONS.values()):
        function = option(function)
    return function


def connection_options(function: F) -> F:
    """Add the options of a client; the command receives one ``settings``."""

    @_declared
    @functools.wraps(function)
    def with_settings(*args: Any, **options: Any) -> Any:
        return function(*args, settings=connection_settings(_taken(options)), **options)

    return with_settings  # type: ignore[return-value]  # click's decorators keep the callable, not its type


def optional_connection(function: F) -> F:
    """As :func:`connection_options`; without ``--url``, ``settings`` is None, whatever the environment says."""

    @_declared
    @functools.wraps(function)
    def with_settings(*args: Any, **options: Any) -> Any:
        given = _taken(options)
        if given["url"] is None and (others := [name for name in _OPTIONS if given[name] is not None]):
            raise click.UsageError(f"{_option(others[0])} is for the broker at --url; give both")
        settings = None if given["url"] is None else connection_settings(given)
        return function(*args, settings=settings, **options)

    return with_settings  # type: ignore[return-value]  # as above


def server_or_directory(function: F) -> F:
    """``--data`` beside the options of a client; ``settings`` is None with it. What is not said comes from the
    environment, as for a client.
    """

    @_data
    @_declared
    @functools.wraps(function)
    def with_place(*args: Any, data: str | None, **options: Any) -> Any:
        given = _taken(options)
        others = [name for name in _OPTIONS if given[name] is not None]
        if data is None:
            return function(*args, data=None, settings=connection_settings(given), **options)
        if others:
            raise click.UsageError(f"{_option(others[0])} is for a server that runs, and --data for one that does not")
        return function(*args, data=data, settings=None, **options)

    return with_place  # type: ignore[return-value]  # as above


def for_any_command(function: Callable[[], None]) -> Callable[..., None]:
    """For the group: the same options before the command, ``statestore --url … get k``. What is said after it wins."""

    @_declared
    @functools.wraps(function)
    def group(**options: Any) -> None:
        function()
        context = click.get_current_context()
        name = context.invoked_subcommand or ""
        command = context.command.get_command(context, name) if isinstance(context.command, click.Group) else None
        given = [option for option, value in options.items() if value is not None]
        if given and command is not None and not _is_client(command):
            option = _option(given[0])
            if any(option in parameter.opts for parameter in command.params):  # serve has some of the same names
                raise click.UsageError(f"{option} belongs after the command: statestore {name} {option}")
            raise click.UsageError(f"{option} is for commands that are clients, not for {name}")

    return group


def _is_client(command: click.Command) -> bool:
    """Whether it has these options, or one of its own commands has."""
    commands = command.commands.values() if isinstance(command, click.Group) else (command,)
    return any(parameter.name == "url" for each in commands for parameter in each.params)


def _taken(options: dict[str, Any]) -> dict[str, Any]:
    """The connection's options, out of a command's, or what stands before the command."""
    before = click.get_current_context().find_root().params
    own = {name: options.pop(name) for name in _OPTIONS}
    return {name: before.get(name) if value is None else value for name, value in own.items()}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def connection_settings(given: dict[str, Any]) -> ConnectionSettings:
    """Settings from the options and, for what they leave open, the environment."""
    overrides = {name: value for name, value in given.items() if value is not None}
    url = overrides.pop("url", None)
    if url is None:
        url = os.environ.get(_URL) or None
    timeout = overrides.pop("timeout", _TIMEOUT_S)
    overrides |= {"request_timeout": timeout, "connect_timeout": min(timeout, 3600.0)}
    if url is not None:
        return ConnectionSettings.from_url(url, **overrides)
    if "AIO_BROKER_HOSTNAME" not in os.environ:
        raise SettingsError(f"no broker is named: give --url mqtt://host:port, or set {_URL} or AIO_BROKER_HOSTNAME")
    if "username" in overrides:
        overrides["sat_file"] = None  # of the environment: with a user name on the command line, it is not meant
    return ConnectionSettings.from_env(**overrides)


@contextmanager
def open_client(settings: ConnectionSettings) -> Iterator[StateStoreClient]:
    """A client that is connected; standard error has what its log tells meanwhile."""
    from statestore_client.cli.client_log import client_log  # not for commands that are not clients
    from statestore_client.sync.client import StateStoreClient

    with client_log(), StateStoreClient(settings) as store:
        yield store
