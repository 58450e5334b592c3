"""A server that writes down each command that took effect on the lock and on what it protects, in order.

Usage: ``audited_server.py PORT FILE``. Each line of the file: moment (``time.monotonic()``), kind of command, key,
client, version, and fencing token or ``-``. A write that the fence refused has ``refused`` for its kind.
"""

from __future__ import annotations

import sys
import time
from typing import IO, Any

from statestore_client.errors import FencingError
from statestore_client.server import EmbeddedServer
from statestore_client.server.store import StateStore
from statestore_client.wire.commands import Command, Set, VDel
from statestore_client.wire.replies import OK, Count, ErrorReply


def audit(file: IO[str]) -> None:
    """Make every store of this process write to the file."""
    apply = StateStore.apply

    def audited(store: StateStore, command: Command, request: Any) -> Any:
        outcome = apply(store, command, request)
        if isinstance(command, (Set, VDel)):
            reply, kind = outcome.reply, None
            if reply is OK or (isinstance(reply, Count) and reply.count == 1):
                kind = type(command).__name__
            elif isinstance(reply, ErrorReply) and isinstance(reply.error, FencingError):
                kind = "refused"
            if kind is not None:
                token = request.fencing_token or "-"
                key = command.key.decode()
                file.write(f"{time.monotonic():.6f} {kind} {key} {request.client_id} {outcome.version} {token}\n")
                file.flush()
        return outcome

    setattr(StateStore, "apply", audited)  # noqa: B010 - a method is not to be assigned to, says mypy


if __name__ == "__main__":
    with open(sys.argv[2], "a", encoding="ascii") as log, EmbeddedServer(int(sys.argv[1])) as server:
        audit(log)
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        sys.stdin.read()  # until whoever started it is gone
