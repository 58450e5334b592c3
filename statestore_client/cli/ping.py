"""``statestore ping``."""

from __future__ import annotations

import contextlib
import time
from typing import Final

import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, print_json, print_line
from statestore_client.cli.options import client_log, connection_options
from statestore_client.errors import NotAuthorizedError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient

#: A client that may not read it gets an answer, too.
_KEY: Final = b"statestore/ping"
_SHORTEST_S: Final = 0.05


@click.command("ping")
@click.option("--wait", type=Seconds(min=0), help="Keep trying for this time, while a broker starts.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object on one line.")
@connection_options
def ping(*, wait: float | None, json_output: bool, settings: ConnectionSettings) -> int:
    """Send one request to the state store, and print the time. It reads the key statestore/ping.

    An answer shows that the broker is there, lets this client in, and has a state store. Exit code 4 when none comes.
    """
    if wait is not None:
        settings = settings.evolve(retry_first_connect=True, request_timeout=max(wait, _SHORTEST_S))
    client = StateStoreClient(settings, give_up_on=StateStoreError)  # --wait is for a broker that is not there yet
    with client_log(tells_of_connection=False), contextlib.closing(client) as store:
        store.open(timeout=settings.request_timeout)
        asked = time.monotonic()
        with contextlib.suppress(NotAuthorizedError):  # an answer as well
            store.get(_KEY)
        answered_ms = (time.monotonic() - asked) * 1000
    if json_output:
        print_json({"url": settings.url, "answered_ms": round(answered_ms, 3)})
    else:
        print_line(settings.url, f"answered in {answered_ms:.2f} ms")
    return exits.DONE
