"""Files that say who may do what, and that change while the server runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import SettingsError

if TYPE_CHECKING:
    import os

__all__ = ["WatchedFile"]

#: A file that is missing at as many looks, which are a second apart, is not being replaced.
_LOOKS: Final = 5


@attrs.frozen
class _State:
    """What tells one state of a file from another."""

    device: int
    inode: int
    size: int
    written_ns: int
    changed_ns: int  # with its mode and its owner
    has_name: bool  # in a directory


class WatchedFile:
    """A text file, read again when it is another one than before, or was written or given another owner or mode.

    A file that is written in place is seen half-written for a moment, and is then read twice. Better is to write
    another one and rename it, as ``statestore passwd`` does, or to change a link on the way to it, as Kubernetes does.

    Where the file is mounted alone, and not its directory, nothing of that is seen: the mount keeps the old file, which
    has no name any more.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._state: _State | None = None
        self._had_name = False  # some file systems count no names
        self._missing = 0  # at so many looks

    def read(self) -> str:
        """The text. Raises SettingsError that names the file."""
        self._state = self._look()
        self.check_mount()
        try:
            return self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.path} cannot be read: {error}") from error

    def has_changed(self, *, remember: bool = False) -> bool:
        """Whether it was replaced or written since it was read (or since ``remember``, for files that others read).

        A file that is missing is being replaced; if it stays away for some looks, that is told once, as a change.
        """
        state = self._look()
        self._missing = self._missing + 1 if state is None else 0
        if self._missing == _LOOKS:
            return True
        has_changed = state is not None and state != self._state
        if has_changed and remember:
            self._state = state
        return has_changed

    def check_mount(self) -> None:
        """Raises SettingsError if what was seen last is an old file that only a mount keeps."""
        if self._had_name and self._state is not None and not self._state.has_name:
            raise SettingsError(
                f"{self.path} was replaced or removed where it is mounted from, and a mount of the file alone keeps "
                "the old one: mount its directory, or start again"
            )

    def _look(self) -> _State | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        has_name = found.st_nlink > 0
        self._had_name = self._had_name or has_name
        return _State(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, has_name)
