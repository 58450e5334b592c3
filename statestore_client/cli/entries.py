"""All that a state store tells of its keys: value, version, expiry, fence, and keys that are no text.

This package's server tells it, wherever it runs; see "SCAN" in the protocol's reference. Others list names that are
text, and have values: :func:`plain_entries` makes do with that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import click

from raft_client._common.command_line import warn
from statestore_client.errors import UnexpectedReplyError
from statestore_client.sync.client import StateStoreClient
from statestore_client.wire.commands import Scan
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import Entries, KeyEntry

#: Keys whose values are asked for at once.
_AT_ONCE: Final = 1024
#: A pattern may be twice as long.
_LONGEST_PREFIX: Final = 1024
#: Keys that are named one by one.
_NAMED: Final = 10
#: The version of what has come without one.
UNKNOWN: Final = HlcTimestamp(0, 0, "unknown")


class KeysOnlyError(UnexpectedReplyError):
    """The state store is not this package's: it tells keys, values and versions, and nothing else."""

    def __init__(self) -> None:
        super().__init__("this state store does not tell when keys expire, what fences them, and which are no text")


def entries(store: StateStoreClient, pattern: bytes) -> Iterator[KeyEntry]:
    """The entries of all keys that match, in byte order. Raises :class:`KeysOnlyError`."""
    timeout = store.settings.request_timeout
    token: bytes | None = None
    while True:
        page = store._engine.call(Scan(pattern, token, entries=True), timeout)  # noqa: SLF001 - no call of the API: other stores do not know it
        if not isinstance(page, Entries):
            raise KeysOnlyError
        yield from page.entries
        token = page.token
        if token is None:
            return


def plain_entries(store: StateStoreClient, pattern: bytes) -> Iterator[KeyEntry]:
    """The same of any state store: keys that are text, as if none of them expired or were fenced."""
    found = sorted(set(store.scan(pattern)))
    for start in range(0, len(found), _AT_ONCE):
        keys = found[start : start + _AT_ONCE]
        for key, item in zip(keys, store.get_many(keys), strict=True):
            if item is not None:
                yield KeyEntry(key, item.value, item.version or UNKNOWN)


def prefix_pattern(prefix: bytes) -> bytes:
    """A pattern that finds all keys that begin with ``prefix``. It may find others: it ends before the first byte that
    no pattern can have as it is.
    """
    text = prefix[:_LONGEST_PREFIX].decode(errors="surrogateescape")
    end = next((place for place, c in enumerate(text) if c in "*?[" or "\ud800" <= c <= "\udfff"), len(text))
    return text[:end].encode() + b"*"


def entry_of(store: StateStoreClient, key: bytes) -> KeyEntry | None:
    """The entry of one key; None if there is none. Raises :class:`KeysOnlyError`."""
    pattern = prefix_pattern(key)
    if pattern == key + b"*":
        return next(entries(store, key), None)  # for which the right to read this very key is enough
    for entry in entries(store, pattern):
        if entry.key >= key:
            return entry if entry.key == key else None
    return None


class NamedKeys:
    """Keys of which something has to be said on standard error: of each of the first ten, and of the others once."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, key: bytes, text: str) -> None:
        """Say ``text`` of this one."""
        self.count += 1
        if self.count <= _NAMED:
            warn(f"{key.decode('utf-8', 'backslashreplace')} {text}")
        elif self.count == _NAMED + 1:
            warn("and so on: others are counted, and not named")


def confirm(question: str, *, yes: bool) -> None:
    """Go on if the user says so, beforehand with ``--yes`` or now. Raises Abort, or UsageError where nobody can."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Give --yes where there is no terminal.")
    click.confirm(question, abort=True, err=True)
