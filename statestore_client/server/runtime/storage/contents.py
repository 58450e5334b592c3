"""What is in a folder of the store: which files there are, which belong together, and whether anything is lost.

What is there is checked before anything is changed. A database names the log that must be there, and marks how far the
logs had come: fewer frames than that are a loss, and refused. What is broken at the end of the last log, with nothing
behind it and no mark for it, is what a crash left of a batch that was not acknowledged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from statestore_client.server.journal import DamagedRecordError, Stream
from statestore_client.server.runtime.storage.database import Database, Head
from statestore_client.server.runtime.storage.log import Log, note

if TYPE_CHECKING:
    from statestore_client.server.journal import Subject
    from statestore_client.server.runtime.storage.filesystem import Folder

__all__ = ["DATABASE_NAME", "TEMPORARY_NAME", "Contents", "log_name", "logs_in"]

DATABASE_NAME: Final = "statestore.db"

#: Of a database that is being written.
TEMPORARY_NAME: Final = "statestore.db-new"

_LOG_NAME: Final = re.compile(r"statestore-(\d{1,18})\.log")


def log_name(generation: int) -> str:
    return f"statestore-{generation}.log"


def logs_in(names: set[str]) -> list[int]:
    """The generations of the logs that are there."""
    return sorted(int(found[1]) for found in map(_LOG_NAME.fullmatch, names) if found)


class Contents:
    """What is in a folder, checked and unchanged."""

    def __init__(self, folder: Folder) -> None:
        """Raises DamagedRecordError, DataFormatError, OSError."""
        self._names = folder.names()
        self._generations = logs_in(self._names)
        self._files: list[Database | Log] = []
        try:
            self.database: Database = self._open_database(folder)
            self.logs: list[Log] = self._open_logs(folder)
            self._validate()
        except BaseException:
            self.close()
            raise

    def _open_database(self, folder: Folder) -> Database:
        if DATABASE_NAME not in self._names:
            raise DamagedRecordError(f"{DATABASE_NAME} is gone, and what was written last is still in its log")
        file = folder.open(DATABASE_NAME)
        try:
            database = Database(file)
        except DamagedRecordError as error:
            file.close()
            raise DamagedRecordError(f"{DATABASE_NAME}: {error}") from error
        except BaseException:
            file.close()
            raise
        self._files.append(database)
        return database

    def _open_logs(self, folder: Folder) -> list[Log]:
        """Those that belong to the database; none if it is new."""
        logs: list[Log] = []
        generation = self.database.head.generation
        while not self.database.head.is_new and not (logs and not logs[-1].has_ended):
            name = log_name(generation)
            if generation not in self._generations:
                raise DamagedRecordError(f"{name} is gone, and what was written last with it")
            file = folder.open(name)
            try:
                log = Log(file, Head(self.database.head.identity, generation))
            except DamagedRecordError as error:
                file.close()
                raise DamagedRecordError(f"{name}: {error}") from error
            except BaseException:
                file.close()
                raise
            self._files.append(log)
            logs.append(log)
            generation += 1
        self._check_next(folder, generation)
        return logs

    def _check_next(self, folder: Folder, generation: int) -> None:
        """A log that is not known to be needed was begun when a crash came, and nothing was written into it."""
        if any(each > generation for each in self._generations):
            raise DamagedRecordError("there are logs of a later time than the database")
        if generation in self._generations:
            file = folder.open(log_name(generation))
            try:
                has_frames = Log(file, Head(self.database.head.identity, generation)).frames > 0
            except DamagedRecordError:
                has_frames = False  # it was not even begun
            finally:
                file.close()
            if has_frames:
                raise DamagedRecordError(
                    f"what leads to {log_name(generation)}, which is in use, is damaged or too old"
                )

    def _validate(self) -> None:
        mark = self.database.mark
        for log in self.logs:
            name = log_name(log.head.generation)
            if log.has_more_behind:
                problem = "and what was written after the damage cannot be read"
                raise DamagedRecordError(f"{name} is damaged at byte {log.end}, {problem}")
            is_short = log.head.generation == mark.generation and log.frames < mark.frames
            if is_short or (log is self.logs[-1] and log.head.generation < mark.generation):
                raise DamagedRecordError(
                    f"{name} was cut off or is damaged at byte {log.end}: what was written last is lost"
                )

    @property
    def leftovers(self) -> list[str]:
        """Files that a crash left, and that nobody needs."""
        needed = {log.head.generation for log in self.logs}
        logs = [log_name(generation) for generation in self._generations if generation not in needed]
        return [*logs, *([TEMPORARY_NAME] if TEMPORARY_NAME in self._names else [])]

    def latest(self) -> dict[Stream, dict[Subject, bytes | None]]:
        """What the logs come to; None for what was removed. Raises DamagedRecordError."""
        latest: dict[Stream, dict[Subject, bytes | None]] = {stream: {} for stream in Stream}
        for log in self.logs:
            for _, changes in log.batches():
                for stream, puts, removals in changes:
                    note(latest, stream, puts, removals)
                    log.puts += len(puts) * (stream is not Stream.CLOCK)
                    log.removals += len(removals)
        return latest

    def close(self) -> None:
        for each in self._files:
            each.file.close()
        self._files.clear()
