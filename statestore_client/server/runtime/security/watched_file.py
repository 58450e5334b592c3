"""Files that say who may do what, and that change while the server runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from statestore_client.errors import SettingsError

if TYPE_CHECKING:
    import os

__all__ = ["WatchedFile"]


class WatchedFile:
    """A text file, read again when its inode, size or time of change differs.

    A file that is written in place is seen half-written for a moment, and is then read twice. Better is to write
    another one and rename it, as ``statestore passwd`` and Kubernetes do.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._state: tuple[int, int, int] | None = None

    def read(self) -> str:
        """The text. Raises SettingsError that names the file."""
        self._state = self._look()
        try:
            return self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.path} cannot be read: {error}") from error

    def has_changed(self, *, remember: bool = False) -> bool:
        """Whether it was replaced or written since it was read (or since ``remember``, for files that others read).

        A file that is missing is being replaced.
        """
        state = self._look()
        has_changed = state is not None and state != self._state
        if has_changed and remember:
            self._state = state
        return has_changed

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
