"""Whether the files of a running server are still the ones it opened, and how long its log is.

Both are told by one look at the directory after each commit. The length is written into a small file of its own, so
that the next start notices when the log was cut off, or left out of a copy: sqlite would take it for a log that was
never longer. That file need not be on the disk in time: it is never ahead of the log, and a killed process does not
lose what it wrote. It is there as long as there must be a log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from statestore_client.errors import DataDirectoryError

__all__ = ["LOG_LIMIT_BYTES", "WatchedFiles", "forget_log", "noted_log_bytes"]

#: sqlite makes a log that was longer this short again when it starts a new round.
LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024

_SUFFIX: Final = "-logged"
_BYTES: Final = 8
_BINARY: Final = getattr(os, "O_BINARY", 0)  # of Windows


class WatchedFiles:
    """A database and its log, while they are open."""

    def __init__(self, database: Path, log: Path) -> None:
        """Raises OSError, also when the length cannot be noted."""
        self._database = os.fspath(database)
        self._log = os.fspath(log)
        self._identities = self._look()[1]
        self._noted_bytes = 0
        self.are_there = True  # as far as is known
        self._note = os.open(_note_path(database), os.O_RDWR | os.O_CREAT | _BINARY, 0o600)

    def _look(self) -> tuple[int, tuple[int, int, int, int]]:
        database, log = os.stat(self._database), os.stat(self._log)
        return log.st_size, (database.st_dev, database.st_ino, log.st_dev, log.st_ino)

    def committed(self) -> None:
        """Raises DataDirectoryError when what was written is in files that are gone, and does not survive us."""
        log_bytes = 0
        try:
            log_bytes, identities = self._look()
            is_there = identities == self._identities
        except OSError:
            is_there = False
        self.are_there = is_there
        if not is_there:
            raise DataDirectoryError(
                f"files in the data directory {Path(self._database).parent} were removed or replaced while it was in "
                "use: what was written does not survive. Restore it from a backup."
            )
        log_bytes = min(log_bytes, LOG_LIMIT_BYTES)
        if log_bytes > self._noted_bytes:
            self._noted_bytes = log_bytes
            os.lseek(self._note, 0, os.SEEK_SET)
            os.write(self._note, log_bytes.to_bytes(_BYTES, "big"))

    def close(self) -> None:
        """The note stays until :func:`forget_log`."""
        os.close(self._note)


def noted_log_bytes(database: Path) -> int:
    """How long the log was at least; 0 if there need not be one."""
    try:
        return int.from_bytes(_note_path(database).read_bytes()[:_BYTES], "big")
    except FileNotFoundError:
        return 0


def forget_log(database: Path) -> None:
    """Before the log is removed, not after: a note without a log means a loss."""
    _note_path(database).unlink(missing_ok=True)


def _note_path(database: Path) -> Path:
    return database.with_name(database.name + _SUFFIX)
