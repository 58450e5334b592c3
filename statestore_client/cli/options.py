"""What several commands have on their line: which broker, keys and values; and what they say of it.

The options that say which broker stand after a command, or before it.
"""

from __future__ import annotations

import base64
import errno
import functools
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from raft_client._common.command_line import Seconds, argument_bytes, name_options, option_group
from raft_client._common.standard_streams import standard_input
from statestore_client.errors import SettingsError, StateStoreError
from statestore_client.settings import ConnectionSettings

if TYPE_CHECKING:
    from statestore_client.sync.client import StateStoreClient
    from statestore_client.wire.hlc import HlcTimestamp

F = TypeVar("F", bound=Callable[..., Any])

# -- addresses ---------------------------------------------------------------------------------------------------------

#: Another process has the address, this machine has not, or this user may not.
_NOT_TO_BE_HAD: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})


def is_not_to_be_had(error: BaseException | None) -> bool:
    """Whether it is an address, now, that an endpoint, sites or the own peer of a log cannot have. Names, too, may be
    unknown for a while, when a machine starts.
    """
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno == socket.EAI_AGAIN
        if getattr(error, "errno", None) in _NOT_TO_BE_HAD:
            return True
        error = error.__cause__
    return False


# -- values ------------------------------------------------------------------------------------------------------------

#: Of the commands that write.
fencing_token_option: Final = click.option(
    "--fencing-token", help="Write under this token. lock and elect give it to COMMAND in STATESTORE_FENCING_TOKEN."
)


def nonempty_path(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An empty one, mostly a variable that is not set, would be the current directory."""
    del context, parameter
    if value == "":
        raise click.BadParameter("it is empty")
    return value


def value_argument(value: str | None, value_file: str | None) -> bytes:
    """The value: typed, from a file, or from standard input with ``-``. Exactly one source must be given."""
    if (value is None) == (value_file is None):
        raise click.UsageError("give the value either as an argument or with --value-file (- is standard input)")
    if value is not None:
        return argument_bytes(value)
    if value_file == "-":
        return read_input()
    try:
        return Path(str(value_file)).read_bytes()
    except OSError as error:
        raise click.UsageError(f"--value-file {value_file}: {error.strerror}") from error


def read_input() -> bytes:
    """Standard input, up to its end."""
    try:
        return standard_input().read()
    except OSError as error:
        raise click.UsageError(f"standard input cannot be read: {error.strerror}") from error


def bytes_from_json(found: Mapping[str, Any], name: str) -> bytes:
    """What :func:`~raft_client._common.command_line.as_json` has made of bytes: text, or Base64 where it is not text.

    Raises ValueError that says what is wrong.
    """
    encoded = f"{name}_base64"
    try:
        if isinstance(text := found.get(name), str):
            return text.encode()
        if isinstance(text := found.get(encoded), str):
            return base64.b64decode(text, validate=True)
    except ValueError as error:  # a lone surrogate is one, too
        raise ValueError(f"{name}: {error}") from None
    raise ValueError(f'the object has no text "{name}" or "{encoded}"')


def as_version(version: HlcTimestamp | None) -> dict[str, Any]:
    """``{"version": …}`` for JSON; nothing where there is none."""
    return {} if version is None else {"version": str(version)}


#: Of words that have more than an *s* in the plural.
_SINGULARS: Final = {"copies": "copy", "deliveries": "delivery", "losses": "loss"}


def counted(count: int, name: str) -> str:
    """``3 keys``, ``1 key``. Of a ``name`` in the plural; one that has no other form stays as it is."""
    if count == 1:
        name = _SINGULARS.get(name, name.removesuffix("s"))
    return f"{count} {name}"


# -- which broker ------------------------------------------------------------------------------------------------------

_URL: Final = "STATESTORE_URL"
_TIMEOUT_S: Final = 10.0
_OPTIONS: Final = {
    "url": click.option("--url", help=f"mqtt://host:port, or mqtts, ws, wss. Default: {_URL}, or AIO_* variables."),
    "client_id": click.option("--client-id", help="MQTT client id. Default: a random one."),
    "timeout": click.option("--timeout", type=Seconds(min=0.001), help=f"For each request. Default: {_TIMEOUT_S:g}."),
    "username": click.option("--username", help="The user name, with --password-file."),
    "password_file": click.option("--password-file", metavar="FILE", help="The file with the user's password."),
    "tls_ca_file": click.option(
        "--tls-ca-file", metavar="FILE", help="The authorities to trust (PEM). Default: those of the system."
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


_declared = option_group(*_OPTIONS.values())


def connection_options(function: F) -> F:
    """Add the options of a client; the command receives one ``settings``."""

    @_declared
    @functools.wraps(function)
    def with_settings(*args: Any, **given: Any) -> Any:
        return function(*args, settings=connection_settings(_taken(given)), **given)

    return with_settings  # type: ignore[return-value]  # click's decorators keep the callable, not its type


def optional_connection(function: F) -> F:
    """As :func:`connection_options`; without ``--url``, ``settings`` is None, whatever the environment says."""

    @_declared
    @functools.wraps(function)
    def with_settings(*args: Any, **given: Any) -> Any:
        own = _taken(given)
        if own["url"] is None and (others := [name for name in _OPTIONS if own[name] is not None]):
            raise click.UsageError(f"{_option(others[0])} is for the broker at --url; give both")
        settings = None if own["url"] is None else connection_settings(own)
        return function(*args, settings=settings, **given)

    return with_settings  # type: ignore[return-value]  # as above


def server_or_directory(function: F) -> F:
    """``--data`` beside the options of a client; ``settings`` is None with it. What is not said comes from the
    environment, as for a client.
    """

    @_data
    @_declared
    @functools.wraps(function)
    def with_place(*args: Any, data: str | None, **given: Any) -> Any:
        own = _taken(given)
        others = [name for name in _OPTIONS if own[name] is not None]
        if data is None:
            return function(*args, data=None, settings=connection_settings(own), **given)
        if others:
            raise click.UsageError(f"{_option(others[0])} is for a server that runs, and --data for one that does not")
        return function(*args, data=data, settings=None, **given)

    return with_place  # type: ignore[return-value]  # as above


def for_any_command(function: Callable[[], None]) -> Callable[..., None]:
    """For the group: the same options before the command, ``statestore --url … get k``. What is said after it wins."""

    @_declared
    @functools.wraps(function)
    def group(**given: Any) -> None:
        function()
        context = click.get_current_context()
        name = context.invoked_subcommand or ""
        command = context.command.get_command(context, name) if isinstance(context.command, click.Group) else None
        names = [name for name, value in given.items() if value is not None]
        if names and command is not None and not _is_client(command):
            option = _option(names[0])
            if any(option in parameter.opts for parameter in command.params):  # serve has some of the same names
                raise click.UsageError(f"{option} belongs after the command: statestore {name} {option}")
            raise click.UsageError(f"{option} is for commands that are clients, not for {name}")

    return group


def _is_client(command: click.Command) -> bool:
    """Whether it has these options, or one of its own commands has."""
    commands = command.commands.values() if isinstance(command, click.Group) else (command,)
    return any(parameter.name == "url" for each in commands for parameter in each.params)


def _taken(given: dict[str, Any]) -> dict[str, Any]:
    """The connection's options, out of a command's, or what stands before the command."""
    before = click.get_current_context().find_root().params
    own = {name: given.pop(name) for name in _OPTIONS}
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


# -- while a client runs -----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("statestore_client")


@contextmanager
def open_client(settings: ConnectionSettings) -> Iterator[StateStoreClient]:
    """A client that is connected; standard error has what its log tells meanwhile."""
    from statestore_client.sync.client import StateStoreClient

    with client_log(), StateStoreClient(settings) as store:
        yield store


@contextmanager
def client_log(*, tells_of_connection: bool = True) -> Iterator[None]:
    """Warnings and errors; after a warning that the connection is lost, also the line that it stands again.

    Nothing of the connection for a command whose own error tells of it.
    """
    from statestore_client.core.actions import ConnectionState  # not for commands that are not clients

    handler, level = logging.StreamHandler(), _LOGGER.level
    handler.addFilter(_Chosen(ConnectionState.CONNECTED, tells_of_connection))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
        _LOGGER.removeHandler(handler)


class _Chosen(logging.Filter):
    """Belongs to one command, which has one client."""

    def __init__(self, connected: object, tells_of_connection: bool) -> None:
        super().__init__()
        self._connected = connected
        self._tells_of_connection = tells_of_connection
        self._was_warned = False

    def filter(self, record: logging.LogRecord) -> bool:
        is_loud = record.levelno >= logging.WARNING
        state = getattr(record, "connection_state", None)
        if state is None:
            return is_loud
        if state is self._connected:
            is_loud, self._was_warned = self._was_warned, False
        else:
            self._was_warned = self._was_warned or is_loud
        return is_loud and self._tells_of_connection


# -- errors in the words of the command line ---------------------------------------------------------------------------

#: Arguments of the API whose options have other names.
_OTHERS: Final = {"request_timeout": "--timeout", "connect_timeout": "--timeout"}


def reword(error: StateStoreError, command: click.Command) -> None:
    """See :func:`~raft_client._common.command_line.name_options`."""
    name_options(error, command, _OTHERS)
    if error.args and isinstance(error.args[0], str):
        text = error.args[0].replace("use mqtts:// or tls=True", "use mqtts://")  # of --url; no option sets it
        error.args = (text, *error.args[1:])
