"""``statestore monitor``, and the stream of a server's monitor as a client sees it: ``statestore top`` reads it too."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import logging
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import urlsplit

import attrs
import click

from raft_client._common import event_loops, exits
from raft_client._common.command_line import AddressError, Seconds, print_line
from raft_client._common.http_server import HttpEndpoint
from raft_client._common.process import handle_signals
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

#: Schemes of MQTT clients' addresses, which are no monitors.
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
    @click.option("--password-file", metavar="FILE", help="The file with the user's password.")
    @click.option("--tls-ca-file", metavar="FILE", help="The authorities to trust (PEM). Default: those of the system.")
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
    response = _get(connection, address, "/events", "monitor")
    if response.status != HTTPStatus.OK or response.headers.get_content_type() != "text/event-stream":
        raise InvalidArgumentError(f"{address.url} is not the monitor of a server (--monitor-port)")
    return response


def read_page(address: MonitorAddress, path: str) -> bytes | None:
    """A page of a server's monitor, or of its port of figures; None if there is none. Raises TransportError and
    NotAuthorizedError.
    """
    connection = _connection(address)
    try:
        response = _get(connection, address, path, "server")
        return response.read() if response.status == HTTPStatus.OK else None
    except (OSError, http.client.HTTPException) as error:
        raise TransportError(f"the answer of {address.url} has no end: {error}") from error
    finally:
        connection.close()


def _get(
    connection: http.client.HTTPConnection, address: MonitorAddress, path: str, what: str
) -> http.client.HTTPResponse:
    headers = {}
    if address.user is not None:
        login = f"{address.user}:{address.password}".encode()
        headers["Authorization"] = f"Basic {b64encode(login).decode()}"
    try:
        connection.connect()
        connection.sock.settimeout(_SILENCE_S)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        is_distrusted = isinstance(error, ssl.SSLCertVerificationError)
        text = f"no {what} at {address.url}: {error}{_question(error, address)}"
        raise TransportError(text, fatal=is_distrusted) from error
    if (refusal := _refusal(response, address)) is not None:
        raise refusal
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


# -- statestore monitor ------------------------------------------------------------------------------------------------


#: Between attempts to reach a server that has gone: what became of it belongs to the recording.
_AGAIN_S: Final = 1.0
_CONNECTIONS: Final = 64


@click.command("monitor")
@monitor_address
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write what the monitor at URL shows.")
@click.option("--duration", type=Seconds(min=0.001), help="Of --record: end after this time. Default: on Ctrl-C.")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a recording in a browser, on this machine.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of --replay. Default: a free one.")
def monitor(
    *, address: MonitorAddress | None, record: Path | None, duration: float | None, replay: Path | None, port: int
) -> int:
    """Record what the monitor of a server shows, or replay it.

    The monitor itself is a page of the server: statestore serve --monitor-port N. With --record its messages go into a
    new file, over restarts of the server, until Ctrl-C; a second takes about 1 kB. With --replay the same page shows
    them, as they came or at any moment of it.
    """
    if replay is not None and address is None and record is None:
        event_loops.run(_replay(replay, port))
    elif address is not None and record is not None and replay is None:
        _record(address, record, duration)
    else:
        raise click.UsageError("give URL and --record FILE, or --replay FILE. The monitor is a page: open its URL")
    return exits.DONE


def _record(address: MonitorAddress, path: Path, duration: float | None) -> None:
    ends = None if duration is None else time.monotonic() + duration
    try:
        file = path.open("xb")
    except OSError as error:
        raise click.UsageError(f"--record {path}: {error.strerror}") from error
    with file:
        try:
            while _record_until_lost(address, file, ends):
                click.echo(f"statestore: no connection to {address.url}; trying again", err=True)
                time.sleep(_AGAIN_S)
        except KeyboardInterrupt:
            click.echo(f"{path}: {file.tell()} bytes", err=True)
        except BaseException:
            if not file.tell():
                path.unlink()
            raise


def _record_until_lost(address: MonitorAddress, file: BinaryIO, ends: float | None) -> bool:
    """Whether to try again. The first attempt has to succeed."""
    from statestore_client.server.runtime.monitor.pages import MOST_BYTES  # ``statestore top`` loads no server

    try:
        with open_feed(address) as messages:
            for kind, message in messages:
                file.write(json.dumps({"kind": kind, "message": message}, separators=(",", ":")).encode() + b"\n")
                file.flush()
                if file.tell() > MOST_BYTES:
                    click.echo(f"statestore: the recording is full ({MOST_BYTES} bytes)", err=True)
                    return False
                if ends is not None and time.monotonic() >= ends:
                    return False
    except TransportError as error:
        if error.fatal or not file.tell():
            raise
    return ends is None or time.monotonic() < ends


async def _replay(path: Path, port: int) -> None:
    from statestore_client.server.runtime.monitor.pages import ReplayPages  # see above

    try:
        pages = ReplayPages.load(path)
    except InvalidArgumentError as error:
        raise click.UsageError(f"--replay {path}: {error}") from error
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    handle_signals({"SIGTERM": stop.set, "SIGINT": stop.set})
    endpoint = HttpEndpoint(pages.respond, logging.getLogger("statestore_client"), connections=_CONNECTIONS)
    try:
        server = await loop.create_server(endpoint, "127.0.0.1", port)
    except OSError as error:
        raise AddressError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
    print_line(f"replay at http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    await stop.wait()
    await event_loops.stop_accepting(server)
    endpoint.close()
