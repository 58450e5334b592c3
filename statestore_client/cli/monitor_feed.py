"""The stream of a server's monitor, as a client of it sees it: for ``statestore top`` and ``statestore monitor``."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import attrs
import click

from statestore_client.errors import (
    InvalidArgumentError,
    NotAuthorizedError,
    SettingsError,
    StateStoreError,
    TransportError,
)

F = TypeVar("F", bound=Callable[..., Any])

#: What came: its kind, ``hello`` or ``tick``, and all of it.
Message = tuple[str, dict[str, Any]]

#: A machine that is gone answers no attempt to connect.
_CONNECT_S: Final = 1.0
#: A server says something every second; one that says nothing for so long is gone, or stands still.
_SILENCE_S: Final = 3.0

#: Schemes of addresses that are somebody else's.
_OF_CLIENTS: Final = ("mqtt", "mqtts", "ws", "wss")
_WHICH_URL: Final = (
    "A monitor has one of its own, http://host:port, or https:// if the server has a certificate: statestore serve "
    "--monitor-port prints it"
)


@attrs.frozen
class MonitorAddress:
    """Where a monitor is, and as whom to look."""

    host: str
    port: int
    is_tls: bool
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    ca_file: str | None = None

    @property
    def url(self) -> str:
        """For people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


def monitor_address(function: F) -> F:
    """Add the options of a client of the monitor; the command receives one ``address``, or None."""

    @click.argument("address", required=False, metavar="[URL]")
    @click.option("--username", help="A user of the server, with --password-file.")
    @click.option("--password-file", metavar="FILE", help="Where the user's password is.")
    @click.option("--tls-ca-file", metavar="FILE", help="Whom to trust. Default: the system's authorities.")
    @functools.wraps(function)
    def with_address(
        *args: Any,
        address: str | None,
        username: str | None,
        password_file: str | None,
        tls_ca_file: str | None,
        **options: Any,
    ) -> Any:
        found = None if address is None else _address(address, username, password_file, tls_ca_file)
        return function(*args, address=found, **options)

    return with_address  # type: ignore[return-value]  # click's decorators keep the callable, not its type


def _address(text: str, user: str | None, password_file: str | None, ca_file: str | None) -> MonitorAddress:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError as error:
        raise click.UsageError(f"{text}: {error}") from None
    if parts.scheme not in ("http", "https"):
        what = "MQTT clients connect there" if parts.scheme in _OF_CLIENTS else f"it begins with {parts.scheme}://"
        raise click.UsageError(f"{text!r} is not the address of a monitor: {what}. {_WHICH_URL}")
    if not parts.hostname or port is None:
        raise click.UsageError(f"{text!r} is not the address of a monitor: it lacks a host or a port. {_WHICH_URL}")
    if (user is None) != (password_file is None):
        raise click.UsageError("give both --username and --password-file, or none of them")
    password = None if password_file is None else _password(Path(password_file))
    return MonitorAddress(parts.hostname, port, parts.scheme == "https", user, password, ca_file)


def _password(file: Path) -> str:
    try:
        return file.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--password-file {file}: {error}") from error


@contextmanager
def open_feed(address: MonitorAddress) -> Iterator[Iterator[Message]]:
    """The messages of a monitor, from now on; the iterator ends when the server does. Raises TransportError if it
    cannot be reached or does not know the user, NotAuthorizedError, and InvalidArgumentError for what is not a monitor.
    """
    connection = _connection(address)
    try:
        yield _messages(_stream(connection, address))
    finally:
        connection.close()


def _connection(address: MonitorAddress) -> http.client.HTTPConnection:
    if not address.is_tls:
        return http.client.HTTPConnection(address.host, address.port, timeout=_CONNECT_S)
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
    except OSError as error:
        raise SettingsError(f"--tls-ca-file {address.ca_file}: {error}") from error
    return http.client.HTTPSConnection(address.host, address.port, timeout=_CONNECT_S, context=context)


def _stream(connection: http.client.HTTPConnection, address: MonitorAddress) -> http.client.HTTPResponse:
    headers = {}
    if address.user is not None:
        login = f"{address.user}:{address.password}".encode()
        headers["Authorization"] = f"Basic {b64encode(login).decode()}"
    try:
        connection.connect()
        connection.sock.settimeout(_SILENCE_S)
        connection.request("GET", "/events", headers=headers)
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        is_distrusted = isinstance(error, ssl.SSLCertVerificationError)
        text = f"no monitor at {address.url}: {error}{_question(error, address)}"
        raise TransportError(text, fatal=is_distrusted) from error
    if (refusal := _refusal(response, address)) is not None:
        raise refusal
    if response.status != HTTPStatus.OK or response.headers.get_content_type() != "text/event-stream":
        raise InvalidArgumentError(f"{address.url} is not the monitor of a server (--monitor-port)")
    return response


def _question(error: Exception, address: MonitorAddress) -> str:
    """What may be wrong with the address, where the error does not say it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "; see --tls-ca-file"
    if isinstance(error, ssl.SSLError):
        return "; is that port one with TLS, or is it http://?"
    if isinstance(error, (http.client.HTTPException, ConnectionResetError)):
        return f"; is it the port of a monitor{'' if address.is_tls else ', or is it https://'}?"
    return ""


def _refusal(response: http.client.HTTPResponse, address: MonitorAddress) -> StateStoreError | None:
    """The viewer is not known there, has to wait, or may not look. None for another answer."""
    if response.status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS):
        return None
    text = f"{address.url}: {response.read(500).decode(errors='replace').strip()}"
    if response.status == HTTPStatus.FORBIDDEN:
        return NotAuthorizedError(text)
    return TransportError(text, fatal=response.status == HTTPStatus.UNAUTHORIZED)


def _messages(response: http.client.HTTPResponse) -> Iterator[Message]:
    kind = ""
    try:
        for line in response:
            name, _, text = line.rstrip(b"\n").partition(b": ")
            if name == b"event":
                kind = text.decode()
            elif name == b"data":
                yield kind, json.loads(text)
    except (OSError, http.client.HTTPException, ValueError):
        return  # it is gone, perhaps in the middle of a message
