"""Changes into the tables of the streams, many rows in one statement.

sqlite lets go of Python's lock while a statement runs, and waits to have it back for as long as the event loop is busy,
which may be milliseconds: once per statement, so there should be few of them.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from statestore_client.server.journal import Changes

__all__ = ["apply", "transaction"]

_Row = TypeVar("_Row")

#: Rows in one statement; powers of two below it for the rest, so that sqlite has all of them prepared.
_ROWS: Final = 4096


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what is executed inside."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def apply(connection: sqlite3.Connection, changes: Changes) -> None:
    """Inside of a transaction."""
    name = changes.stream.value
    for rows in _slices(changes.puts):
        places = ",".join(("(?,?)",) * len(rows))
        statement = f"INSERT OR REPLACE INTO {name} VALUES {places}"  # noqa: S608 - ours
        connection.execute(statement, tuple(chain.from_iterable(rows)))
    for subjects in _slices(changes.removals):
        places = ",".join("?" * len(subjects))
        connection.execute(f"DELETE FROM {name} WHERE subject IN ({places})", subjects)  # noqa: S608 - ours


def _slices(rows: tuple[_Row, ...]) -> Iterator[tuple[_Row, ...]]:
    """Slices whose lengths are powers of two, the longest first."""
    start, size = 0, _ROWS
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield rows[start : start + size]
        start += size
