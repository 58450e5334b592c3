"""``statestore serve``."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from raft_client._common import event_loops
from raft_client._common.signals import handle_signals
from raft_client._common.standard_streams import OutputError
from statestore_client.cli import exits
from statestore_client.cli.io import AddressError, print_line
from statestore_client.cli.log_options import replica_of, replica_options
from statestore_client.cli.serve_options import (
    access_options,
    broker_limits_of,
    check_anonymous,
    check_exposure,
    data_option,
    endpoint_options,
    endpoints_of,
    limit_options,
    persistence_of,
    site_of,
    site_options,
    store_limits_of,
    tls_of,
)
from statestore_client.errors import SettingsError
from statestore_client.server.runtime.observability.logs import JsonLines
from statestore_client.server.runtime.process import memory_given_back, raise_file_limit, short_pauses
from statestore_client.server.runtime.security.security import Security
from statestore_client.server.runtime.server import Server
from statestore_client.wire.protocol import Dialect

if TYPE_CHECKING:
    pass


#: The thread that writes to the disk waits this long for a busy event loop, several times for each batch. Python's 5 ms
#: would be longer than the commit itself.
_SWITCH_S: Final = 0.0005

#: Another process has the address, this machine has not, or this user may not.
_NOT_TO_BE_HAD: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})


@click.command("serve")
@endpoint_options
@click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect]),
    default=Dialect.SERVICE.value,
    show_default=True,
    help="Answer as the real service does, or to the letter of the published document.",
)
@data_option
@replica_options
@access_options
@limit_options
@site_options
@click.option(
    "--verbose",
    is_flag=True,
    help="Also log connections and disconnections to standard error. Refusals are logged in any case.",
)
@click.option("--log-json", is_flag=True, help="Log in JSON, one object per line.")
def serve(
    *, dialect: str, data: str | None, persist: tuple[str, ...], verbose: bool, log_json: bool, **options: Any
) -> int:
    """Serve an MQTT broker with a state store. Prints its addresses when ready; ends on SIGTERM or Ctrl-C.

    Everything is in memory, unless --data names a directory. With it, nothing is acknowledged before it is on the disk,
    and all of it is there again after a restart; --persist can exempt some or all keys. With --log the same holds when
    a machine is lost: another server goes on.

    Certificates, passwords and access rules are read again when their files change, and on SIGHUP.
    """
    _log(verbose=verbose, in_json=log_json)
    check_exposure(options)
    check_anonymous(options)
    raise_file_limit()
    log = replica_of(options, data)
    if log is not None and persist:
        raise click.UsageError("--persist is of a server that is alone: servers of a log keep all keys")
    server = Server(
        endpoints=endpoints_of(options),
        dialect=dialect,
        data=data if log is None else None,
        persistence=persistence_of(data, persist),
        broker_limits=broker_limits_of(options),
        store_limits=store_limits_of(options),
        tls=tls_of(options),
        security=Security.of(
            passwords=options["password_file"], acl=options["acl_file"], allow_anonymous=options["allow_anonymous"]
        ),
        site=site_of(options),
        log=log,
        monitor_actions=options["monitor_actions"],
    )
    if data is not None or log is not None:
        sys.setswitchinterval(_SWITCH_S)
    event_loops.run(_serve(server))
    return exits.DONE


def _log(*, verbose: bool, in_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if in_json else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


def _cannot_listen(server: Server, error: OSError) -> str:
    """asyncio names the address in the error of an endpoint, any of several; others name none."""
    text = error.strerror or str(error)
    names_it = "attempting to bind" in text or text.startswith("Unix socket")
    address = "" if names_it else f" on {server.endpoints.host}:{server.endpoints.port}"
    return f"cannot listen{address}: {text}"


def _is_not_to_be_had(error: BaseException | None) -> bool:
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
        raise (AddressError if _is_not_to_be_had(error) else click.UsageError)(text) from error
    except SettingsError as error:
        raise (AddressError if _is_not_to_be_had(error) else click.UsageError)(str(error)) from error
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
