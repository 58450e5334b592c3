"""A task of Spark that waits in the middle of its rows until the test lets it go on.

It takes all its rows from Spark first, so that it needs nobody for the rest. Both sides speak through files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Gate", "TaskFailedError"]


class TaskFailedError(Exception):
    """A task fails because the test wants it to, after all its rows were written."""


@attrs.frozen
class Gate:
    """``folder`` is there. The gate is open until it is shut, and again when the word was said."""

    folder: Path
    name: str

    def _file(self, what: str) -> Path:
        return self.folder / f"{self.name}.{what}"

    def _write(self, what: str, text: str) -> None:
        part = self._file(f"{what}.part")
        part.write_text(text)
        part.rename(self._file(what))

    def _read(self, what: str) -> str | None:
        return self._file(what).read_text() if self._file(what).exists() else None

    # -- the test's side -----------------------------------------------------------------------------------------------

    def shut(self) -> None:
        """Before the task begins. A task that has waited is forgotten."""
        self._file("waiting").unlink(missing_ok=True)
        self._write("shut", "")

    def worker(self) -> int | None:
        """The process that waits, or has waited."""
        pid = self._read("waiting")
        return None if pid is None else int(pid)

    def open(self, word: str = "go") -> None:
        """Nobody waits any more, nor will. With ``fail`` the task fails when it has written all its rows."""
        self._write("word", word)

    def has_passed(self) -> bool:
        """Whether a task that waited has written the rest of its rows."""
        return self._read("passed") is not None

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Whether nobody has to wait."""
        return self._read("shut") is None or self._read("word") is not None

    def through(self, batches: Iterator[pa.RecordBatch], before: int) -> Iterator[pa.RecordBatch]:
        """All rows, in their order; ``before`` of them go ahead, and the others when the word was said."""
        rows = list(batches)
        if rows:
            yield rows[0].slice(0, before)
        self._write("waiting", str(os.getpid()))
        while (word := self._read("word")) is None:
            time.sleep(0.01)
        if rows:
            yield rows[0].slice(before)
        yield from rows[1:]
        self._write("passed", "")
        if word == "fail":
            raise TaskFailedError
