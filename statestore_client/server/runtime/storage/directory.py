"""A data directory: used by one server at a time, and refused with a reason.

What can be wrong with it, and which error says so:

=============================================  =======================================================================
the directory cannot be made or written        :class:`~statestore_client.errors.DataDirectoryError`
another server has it open                     :class:`~statestore_client.errors.DataInUseError`
torn, corrupt or incomplete, or not ours       :class:`~statestore_client.errors.DataDamagedError`
written by a newer release, or too old a one   :class:`~statestore_client.errors.DataFormatError`
=============================================  =======================================================================

The lock is the operating system's, on a file of its own: it is gone with the process however that ends. The directory
must not be on a network file system, where such locks are not to be trusted.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from raft_client._common.durable_files import SystemFile, SystemFolder, is_full, try_lock, unlock
from statestore_client.clocks import monotonic
from statestore_client.errors import DataDamagedError, DataDirectoryError, DataFormatError, DataInUseError
from statestore_client.server.journal import DamagedRecordError
from statestore_client.server.runtime.storage.files import DATABASE_NAME, TEMPORARY_NAME, log_name, logs_in

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The end of the name of a copy that is being made: it may be a part.
UNFINISHED: Final = ".unfinished"

_LOCK_NAME: Final = "statestore.lock"
_HAS_DATA: Final = b"statestore lock\n"

#: How long to wait for a server that is about to end, in seconds, and how often to look.
_LOCK_TIMEOUT_S: Final = 2.0
_LOCK_PAUSE_S: Final = 0.02

#: Of the development versions before 0.1.0: their database, and what may be left of it.
_SQLITE: Final = b"SQLite format 3\0"
_SQLITE_NAMES: Final = (f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-logged", f"{DATABASE_NAME}-journal")
_SQLITE_APPLICATION: Final = slice(68, 72)

_WHAT_TO_DO: Final = (
    "Restore the directory from a backup, or move it away and start with an empty one; "
    "'statestore check' tells how much of it can be read."
)


def open_folder(path: Path, *, create: bool) -> SystemFolder:
    """The directory, made if need be (and ``create``). Raises DataDirectoryError, OSError."""
    if create:
        if os.path.lexists(path) and not path.is_dir():
            raise DataDirectoryError(f"the data directory {path} cannot be used: it is not a directory")
        _make(path)
    elif not (path / DATABASE_NAME).is_file():
        raise DataDirectoryError(f"{path} is not a data directory: there is no {DATABASE_NAME} in it")
    folder = SystemFolder(path)
    _check_permissions(path, folder)
    return folder


def _make(path: Path) -> None:
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)  # keys, values and messages are in it
    for each in new:
        with suppress(PermissionError):  # whoever may add names need not be allowed to read them
            SystemFolder(each.parent).sync()


def _our_names(names: set[str]) -> list[str]:
    logs = [log_name(generation) for generation in logs_in(names)]
    return [*(name for name in (DATABASE_NAME, TEMPORARY_NAME, _LOCK_NAME) if name in names), *logs]


def _check_permissions(path: Path, folder: SystemFolder) -> None:
    effective = os.access in os.supports_effective_ids
    for each in (path, *(path / name for name in _our_names(folder.names()))):
        if not os.access(each, os.W_OK, effective_ids=effective):
            raise DataDirectoryError(
                f"the data directory {path} cannot be written. Check its permissions, and the disk's."
            )


def check_ours(path: Path) -> None:
    """Files of another program, or of a version that wrote them in another way. Raises DataDirectoryErrors, OSError."""
    database = path / DATABASE_NAME
    first = b""
    with suppress(FileNotFoundError), database.open("rb") as file:
        first = file.read(100)
    is_sqlite = first.startswith(_SQLITE)
    if is_sqlite and first[_SQLITE_APPLICATION] != b"StSt":
        raise DataDamagedError(f"{database} is the database of another program. Choose another directory.")
    if is_sqlite or any((path / name).exists() for name in _SQLITE_NAMES):
        raise DataFormatError(
            f"{path} was written by a development version before 0.1.0, in a format that no release reads. "
            "Move the directory away and start with an empty one, or use that version."
        )


def check_finished(path: Path) -> None:
    """Raises DataDirectoryError for a copy that has not come to its end."""
    if path.absolute().name.endswith(UNFINISHED):
        raise DataDirectoryError(f"{path} is a copy that did not come to its end: remove it, and make it again")


class DirectoryLock:
    """Held until :meth:`close`, or the end of the process. Its file is empty until there is data: if that is gone
    afterwards, nobody starts anew unawares.
    """

    @classmethod
    def existing(cls, path: Path, folder: SystemFolder) -> Self | None:
        """None if there is none, and so no server. Nothing is written."""
        return cls(path, folder) if _LOCK_NAME in folder.names() else None

    def __init__(self, path: Path, folder: SystemFolder) -> None:
        """Raises DataInUseError, OSError."""
        self._folder = folder
        names = folder.names()
        self._file: SystemFile = folder.open(_LOCK_NAME, create=_LOCK_NAME not in names)
        give_up_at = monotonic() + _LOCK_TIMEOUT_S
        while not try_lock(self._file):
            if monotonic() > give_up_at:
                self._file.close()
                raise DataInUseError(f"the data directory {path} is in use by another server. Stop that one first.")
            time.sleep(_LOCK_PAUSE_S)

    def check(self, folder: SystemFolder) -> None:
        """Raises DamagedRecordError if there was data, and is none. Before anything is changed."""
        names = folder.names()
        if self._file.size and DATABASE_NAME not in names and not logs_in(names):
            raise DamagedRecordError(f"it had data once, and {DATABASE_NAME} and its logs are gone")

    def note_data(self) -> None:
        """From now on there is some."""
        if not self._file.size:
            self._file.write(_HAS_DATA, 0)
            self._file.sync()

    @property
    def is_in_place(self) -> bool:
        """Whether others still meet it."""
        return self._folder.is_current(_LOCK_NAME, self._file)

    def close(self) -> None:
        unlock(self._file)
        self._file.close()


def erase_data(directory: str | os.PathLike[str]) -> None:
    """Remove the files of a data directory that no server has open, if there are any."""
    path = Path(directory)
    if path.is_dir():
        for name in _our_names(SystemFolder(path).names()):
            (path / name).unlink(missing_ok=True)


_WHAT_FREES_ROOM: Final = (
    "To delete keys takes some room and gives none back before the files are written anew, beside the old ones: "
    "have as much free as the directory takes."
)


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Whatever the system says, and damage, as our errors."""
    try:
        yield
    except DamagedRecordError as error:
        raise DataDamagedError(f"the data in {path} is damaged: {error}. {_WHAT_TO_DO}") from error
    except OSError as error:
        if is_full(error):
            problem = f"the disk with the data directory {path} is full. Make room, and start again. {_WHAT_FREES_ROOM}"
            raise DataDirectoryError(problem) from error
        problem = f"the data directory {path} cannot be used: {error.strerror or error}{_whose(path, error)}"
        raise DataDirectoryError(problem) from error


def _whose(path: Path, error: OSError) -> str:
    """If this process may not: whose it is. With volumes of containers that is the usual mistake."""
    if isinstance(error, PermissionError) and hasattr(os, "geteuid"):
        with suppress(OSError):
            return f"; it belongs to user {path.stat().st_uid}, and this process is of user {os.geteuid()}"
    return ""
