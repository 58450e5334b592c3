"""``statestore lock --show`` and ``unlock``: who holds a lock, and how it is taken from a holder that does not let go.

Invariant: a lock that is taken is not free before the lease of its holder has ended, unless the user wants that: no
other contender works beside one that does not know yet.

A lock's key that is deleted is no lock that is free: its holder takes it again at the next renewal. So the key gets
another value first. No renewal succeeds then, and whatever the holder writes is refused by keys that were written with
the version of that value, a newer fencing token than any before. It ends by itself when the holder's lease is over, so
that nothing is left to do when this command is killed in between.
"""

from __future__ import annotations

import os
import re
import socket
import time
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, argument_bytes, as_json, print_json, print_line, warn
from statestore_client.cli.entries import UNKNOWN, KeysOnlyError, confirm, entry_of
from statestore_client.cli.options import connection_options, counted, open_client
from statestore_client.core.arguments import MAX_EXPIRY_S
from statestore_client.errors import ServerError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import KeyEntry

#: As ``statestore lock`` names its holder: host, process, and something that nobody else has.
_OUR_HOLDER: Final = re.compile(rb"(?P<host>.+):(?P<pid>[0-9]{1,10}):[0-9a-f]{12}")
#: What takes the holder's place until the lock is free.
_TAKEN: Final = b"unlock --force by "
#: How much longer (seconds) than needed the key has the value that says that the lock was taken.
_LONGER_S: Final = 5.0
#: How often a value that others change meanwhile is read again.
_ATTEMPTS: Final = 10


def own_name() -> bytes:
    """A holder's name that says where it runs, and is unique."""
    return f"{socket.gethostname() or 'localhost'}:{os.getpid()}:{uuid4().hex[:12]}".encode()


@attrs.frozen
class _Held:
    """What is known of a held lock. Nothing is made up: None is what this state store does not tell."""

    entry: KeyEntry
    tells_all: bool

    def as_json(self) -> dict[str, Any]:
        """The facts; times in seconds since the epoch."""
        version, left_s = self.entry.version, self.left_s
        match = _OUR_HOLDER.fullmatch(self.entry.value)
        return {
            "is_held": True,
            **as_json("holder", self.entry.value),
            "host": None if match is None else match["host"].decode("utf-8", "backslashreplace"),
            "pid": None if match is None else int(match["pid"]),
            "version": str(version),
            "renewed": version.wall_ms / 1000,
            "left_s": left_s,
            "watchers": self.entry.observers if self.tells_all else None,
        }

    @property
    def left_s(self) -> float | None:
        """What is left of the lease; None for no end, or if that is not told."""
        return None if self.entry.expiry_ms is None else self.entry.expiry_ms / 1000

    def lines(self) -> list[tuple[str, bytes]]:
        """For people."""
        entry, facts = self.entry, self.as_json()
        if not self.tells_all:
            until = _NOT_TOLD
        elif self.left_s is None:
            until = "for ever: the key does not expire"
        else:
            until = f"in {self.left_s:.1f} s, unless it is renewed"
        unknown = "unknown: the holder's name does not say it"
        watchers = f"watched by {counted(entry.observers, 'clients')}"
        told = {
            "host": facts["host"] or unknown,
            "pid": str(facts["pid"] or unknown),
            "token": f"{entry.version}, or an older one since which the lease was renewed",
            "since": f"unknown: no later than {_moment(entry.version)}, when the lease was last renewed",
            "until": until,
            "waiting": f"{watchers}: {_WHO_WATCHES}" if self.tells_all else _NOT_TOLD,
        }
        return [("holder", entry.value), *[(name, text.encode()) for name, text in told.items()]]


_NOT_TOLD: Final = "unknown: this state store does not tell it"
_WHO_WATCHES: Final = "those who wait, those who look on, and the holder if it is statestore lock"


def _moment(version: HlcTimestamp) -> str:
    return datetime.fromtimestamp(version.wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _look(store: StateStoreClient, name: bytes) -> _Held | None:
    """What the lock's key tells; None if nobody holds it."""
    try:
        entry = entry_of(store, name)
        return None if entry is None else _Held(entry, tells_all=True)
    except KeysOnlyError:
        item = store.get(name)
        return None if item is None else _Held(KeyEntry(name, item.value, item.version or UNKNOWN), tells_all=False)


def show_lock(store: StateStoreClient, name: str, *, json_output: bool) -> int:
    """Print who holds it. NEGATIVE if nobody does."""
    held = _look(store, argument_bytes(name))
    if json_output:
        print_json({"lock": name}, {"is_held": False} if held is None else held.as_json())
    elif held is None:
        print_line(f"nobody holds the lock {name}")
    else:
        _print(held)
    return exits.NEGATIVE if held is None else exits.DONE


def _print(held: _Held) -> None:
    for name, text in held.lines():
        print_line(f"{name + ':':<8}", text)


# -- unlock ------------------------------------------------------------------------------------------------------------

_RISK: Final = (
    "The holder may be at work. If it is a statestore lock, it notices at once and terminates its command. Any other "
    "holder notices at its next renewal, or when its lease ends; until then the store takes its writes, except to keys "
    "that have a newer fencing token (--fence)."
)


@click.command("unlock")
@click.argument("name")
@click.option("--force", is_flag=True, help="Needed: the lock is taken from its holder, which may be at work.")
@click.option(
    "--fence",
    "fenced",
    metavar="KEY",
    multiple=True,
    help="What the lock protects: from now on it refuses what the holder writes. Can be repeated.",
)
@click.option(
    "--after",
    type=Seconds(min=0, max=86_400),
    help="Let others have it after this time, though the holder may not know yet. Default: when its lease has ended.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "json_output", is_flag=True, help="Print what was done as a JSON object.")
@connection_options
def unlock(
    name: str,
    *,
    force: bool,
    fenced: tuple[str, ...],
    after: float | None,
    yes: bool,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Take the lock NAME away from its holder. The next client can have it then. Exit code 1 if the lock is free.

    The lock's key gets another value first, so that no renewal succeeds any more, then the keys of --fence get the
    newer fencing token, and when the lease of the holder has ended, the lock is free. If this is interrupted, it is
    free at that time, too.
    """
    if not force:
        raise click.UsageError(f"to see who holds it: statestore lock --show {name}; to take it away: --force")
    key = argument_bytes(name)
    with open_client(settings) as store:
        held = _look(store, key)
        if held is None:
            warn(f"nobody holds the lock {name}")
            return exits.NEGATIVE
        if fenced and not held.tells_all:
            raise KeysOnlyError  # their expiry would be lost
        if not yes:
            _print(held)
            click.echo(_RISK, err=True)
        confirm(f"Take the lock {name} from this holder?", yes=yes)
        wait = after if after is not None else held.left_s or 0.0
        mark = _TAKEN + own_name()
        expiry = min(wait + _LONGER_S, MAX_EXPIRY_S)
        token = store.set(key, mark, expiry=expiry, fencing_token=held.entry.fence).version
        refused = [text for text in fenced if token is None or not _fence(store, argument_bytes(text), token)]
        if not json_output:
            print_line(f"taken; what was written with a fencing token before {token} is older now")
            print_line(f"it is free in {wait:.1f} s" if wait else "it is free now")
        time.sleep(wait)
        is_free = bool(store.vdelete(key, mark, fencing_token=held.entry.fence).count)
    if not is_free:
        warn(f"the lock {name} was taken by somebody else meanwhile")
    if json_output:
        facts = {"lock": name, "token": str(token), "is_free": is_free, "unfenced": refused}
        print_json(facts, as_json("holder", held.entry.value))
    return exits.PARTLY if refused else exits.DONE


def _fence(store: StateStoreClient, key: bytes, token: HlcTimestamp) -> bool:
    """Have the key refuse older tokens; its value and expiry stay. False, and a warning, if it cannot."""
    shown = key.decode("utf-8", "backslashreplace")
    for _ in range(_ATTEMPTS):
        try:
            entry = entry_of(store, key)
            if entry is None:
                warn(f"{shown} cannot be fenced: there is no such key")
                return False
            expiry = None if entry.expiry_ms is None else entry.expiry_ms / 1000
            if store.set(key, entry.value, condition="NEX", expiry=expiry, fencing_token=token):
                return True
        except ServerError as error:
            warn(f"{shown} cannot be fenced: {error}")
            return False
    warn(f"{shown} cannot be fenced: others change it all the time")
    return False
