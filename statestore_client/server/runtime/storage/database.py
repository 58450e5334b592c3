"""A data directory: one sqlite database, opened by one server at a time, with a format version.

What can be wrong with it, and which error says so:

==========================================  ==========================================================================
the directory cannot be made or written     :class:`~statestore_client.errors.DataDirectoryError`
another server has it open                  :class:`~statestore_client.errors.DataInUseError`
no database, or not ours                    :class:`~statestore_client.errors.DataDamagedError`
torn or corrupt, or its log is gone         :class:`~statestore_client.errors.DataDamagedError`
written by a newer release                  :class:`~statestore_client.errors.DataFormatError`
==========================================  ==========================================================================

The database is in WAL mode with ``synchronous=FULL``: a commit returns when it is on the disk. The lock is sqlite's
own, held as long as the database is open, and gone with the process however that ends. The data directory must not be
on a network file system, where such locks are not to be trusted.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from statestore_client.errors import DataDamagedError, DataDirectoryError, DataFormatError, DataInUseError
from statestore_client.server.journal import ALL_STREAMS, DamagedRecordError, Stream
from statestore_client.server.runtime.storage.watched_files import LOG_LIMIT_BYTES, forget_log, noted_log_bytes
from statestore_client.server.runtime.storage.write_ahead import is_log_damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DATABASE_NAME", "FORMAT_VERSION", "close_database", "erase_data", "log_path", "open_database", "refusals"]

#: Of the tables and of the records in them. A release that changes either adds one, and reads the older ones.
#: 1: deadlines are wall clocks. 2: they are log time, which begins as the wall clock of the first start with format 2.
FORMAT_VERSION: Final = 2

DATABASE_NAME: Final = "statestore.db"

#: "StSt", in the header of the file: whose database it is (``PRAGMA application_id``).
_APPLICATION_ID: Final = 0x53745374

#: How long to wait for a server that is about to end, in seconds.
_LOCK_TIMEOUT_S: Final = 2.0

#: Large, because each page of a batch costs two system calls. Of a database that is new; others keep theirs.
_PAGE_BYTES: Final = 16_384

#: Pages of the write-ahead log after which they go into the database: 16 MiB.
_CHECKPOINT_PAGES: Final = 1024

_SETTINGS: Final = (
    f"PRAGMA page_size={_PAGE_BYTES}",
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA synchronous=FULL",
    f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}",
    f"PRAGMA journal_size_limit={LOG_LIMIT_BYTES}",
    "PRAGMA temp_store=MEMORY",
)


def open_database(directory: str | os.PathLike[str], *, create: bool = True) -> sqlite3.Connection:
    """Lock and check the database of a data directory, which is made if there is none (and ``create``)."""
    path = Path(directory)
    with refusals(path):
        if create:
            _make(path)
        elif not (path / DATABASE_NAME).is_file():
            raise DataDirectoryError(f"{path} is no data directory: there is no {DATABASE_NAME} in it")
        _check_permissions(path)
        _check_log(path)
        with suppress(FileExistsError):  # sqlite gives its other files the same permissions
            os.close(os.open(path / DATABASE_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(
            path / DATABASE_NAME,
            timeout=_LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        try:
            _prepare(connection, path)
        except BaseException as error:
            if isinstance(error, sqlite3.Error) and isinstance(_refusal(error, path), DataInUseError):
                connection.close()  # the files are the other server's
            else:
                close_database(connection, path)
            raise
    return connection


def _make(path: Path) -> None:
    """For nobody else's eyes: keys, values and messages are in it. A directory that is there stays as it is."""
    if os.path.lexists(path) and not path.is_dir():
        raise DataDirectoryError(f"the data directory {path} cannot be used: it is no directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def _check_permissions(path: Path) -> None:
    """sqlite opens what it may only read, and fails later, at its lock, as if the disk were broken."""
    effective = os.access in os.supports_effective_ids
    for each in (path, path / DATABASE_NAME):
        if each.exists() and not os.access(each, os.W_OK, effective_ids=effective):
            raise DataDirectoryError(
                f"the data directory {path} cannot be written. Check its permissions, and the disk's."
            )


def close_database(connection: sqlite3.Connection, directory: str | os.PathLike[str]) -> None:
    """What is in the log goes into the database, and sqlite removes the log."""
    with suppress(OSError):
        forget_log(Path(directory) / DATABASE_NAME)
    connection.close()


def log_path(directory: str | os.PathLike[str]) -> Path:
    """Of the write-ahead log, in which acknowledged data may be that is nowhere else."""
    return Path(directory) / f"{DATABASE_NAME}-wal"


def _check_log(path: Path) -> None:
    """Before sqlite opens it: sqlite would take what it can from a damaged log, and remove it."""
    database, log = path / DATABASE_NAME, log_path(path)
    noted_bytes, log_bytes = noted_log_bytes(database), log.stat().st_size if log.exists() else 0
    if (noted_bytes or log_bytes) and not (database.exists() and database.stat().st_size):
        # Not to be opened, not even to read: sqlite removes a log that has no database.
        problem = f"the database {database} is gone, and what was written last is still in its log {log}"
        raise DataDamagedError(f"{problem}. {_WHAT_TO_DO}")
    if log_bytes < noted_bytes:
        problem = f"the log {log} is gone or was cut off, and what was written last with it"
    elif is_log_damaged(log):
        problem = f"the log {log} is damaged, and what was written behind the damage cannot be read"
    else:
        return
    if not _is_in_use(path):  # a server that writes may have confused us
        raise DataDamagedError(f"{problem}. {_WHAT_TO_DO}")


def _is_in_use(path: Path) -> bool:
    database = (path / DATABASE_NAME).resolve()
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as probe:
            probe.execute("PRAGMA locking_mode=EXCLUSIVE")  # or it leaves a file behind
            probe.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        return isinstance(_refusal(error, path), DataInUseError)
    return False


def erase_data(directory: str | os.PathLike[str]) -> None:
    """Remove the database of a data directory that no server has open, if there is one."""
    for suffix in ("", "-logged", "-wal", "-shm", "-journal"):
        (Path(directory) / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    for setting in _SETTINGS:
        connection.execute(setting)
    _check_header(connection, path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN EXCLUSIVE")
    for stream in ALL_STREAMS:
        subject = "INTEGER PRIMARY KEY" if stream.is_numbered else "PRIMARY KEY NOT NULL"
        connection.execute(f"CREATE TABLE IF NOT EXISTS {stream.value} (subject {subject}, value BLOB NOT NULL)")
    connection.execute("CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, value BLOB NOT NULL)")
    # Writing something shows at once whether that is possible: a full disk, a read-only file system.
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
    connection.execute("CREATE TABLE IF NOT EXISTS starts (number INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO starts VALUES (NULL)")
    connection.execute("DELETE FROM starts WHERE number < (SELECT max(number) FROM starts)")
    connection.execute("COMMIT")
    (problem,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if problem != "ok":
        raise DataDamagedError(f"the database in {path} is damaged ({problem}). {_WHAT_TO_DO}")
    # What a crash left at the end of the log: two of them behind each other would look like damage.
    connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()


def _check_header(connection: sqlite3.Connection, path: Path) -> None:
    """Before anything is written into it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application != _APPLICATION_ID and (tables or application or version):
        raise DataDamagedError(f"{path / DATABASE_NAME} is the database of another program. Choose another directory.")
    if version > FORMAT_VERSION:
        raise DataFormatError(
            f"{path} was written by a newer release (format {version}, this one reads up to {FORMAT_VERSION}). "
            "Use that release or a newer one."
        )
    missing = {"log", "starts", *(stream.value for stream in ALL_STREAMS if stream not in _LATER)} - tables
    if application == _APPLICATION_ID and (version < 1 or missing):  # all of it is made in one transaction
        what = "format version" if version < 1 else f"table {min(missing)}"
        raise DataDamagedError(f"the database in {path} is damaged (it has no {what}). {_WHAT_TO_DO}")


#: Streams that the databases of earlier releases do not have.
_LATER: Final = frozenset((Stream.LOSSES, Stream.COPIES))

_WHAT_TO_DO: Final = "Restore the directory from a backup, or move it away and start with an empty one."


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Whatever sqlite and the system say, as our errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise _refusal(error, path) from error
    except DamagedRecordError as error:
        raise DataDamagedError(f"the data in {path} is damaged: {error}. {_WHAT_TO_DO}") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataDirectoryError(_disk_full(path)) from error
        raise DataDirectoryError(f"the data directory {path} cannot be used: {error.strerror or error}") from error


def _disk_full(path: Path) -> str:
    return f"the disk with the data directory {path} is full. Make room, and start again."


def _refusal(error: sqlite3.Error, path: Path) -> DataDirectoryError:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DataInUseError(f"the data directory {path} is in use by another server. Stop that one first.")
    if name.startswith("SQLITE_NOTADB"):
        return DataDamagedError(f"{path / DATABASE_NAME} is no database. {_WHAT_TO_DO}")
    if name.startswith("SQLITE_CORRUPT"):
        return DataDamagedError(f"the database in {path} is damaged ({error}). {_WHAT_TO_DO}")
    if name.startswith("SQLITE_FULL"):
        return DataDirectoryError(_disk_full(path))
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return DataDirectoryError(f"the data directory {path} cannot be written: {error}. Check its permissions.")
    return DataDirectoryError(f"the data directory {path} cannot be used: {error} ({name or type(error).__name__})")
