"""Changing a file of passwords: a new file, then a rename, so that a server sees the old one or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.runtime.security.passwords import PasswordHash, check_user, read_passwords
from statestore_client.server.runtime.security.watched_file import WatchedFile

__all__ = ["remove_user", "set_password"]

#: Nobody but the owner: hashes can be guessed at.
_MODE: Final = 0o600


def set_password(path: Path, user: str, password: bytes) -> None:
    """Give a user a password; make the file if there is none.

    Raises InvalidArgumentError for a name or an empty password, SettingsError for a file with mistakes, OSError.
    """
    check_user(user)
    if not password:
        raise InvalidArgumentError("an empty password protects nothing")
    lines = _lines_of_others(path, user)
    _replace(path, [*lines, f"{user}:{PasswordHash.of(password)}"])


def remove_user(path: Path, user: str) -> bool:
    """Take a user out; False if there is none of this name. Raises as :func:`set_password`."""
    if user not in read_passwords(WatchedFile(path).read(), str(path)):
        return False
    _replace(path, _lines_of_others(path, user))
    return True


def _lines_of_others(path: Path, user: str) -> list[str]:
    """With comments and blank lines. A file with mistakes is left to people."""
    if not path.exists():
        return []
    text = WatchedFile(path).read()
    read_passwords(text, str(path))
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line for line in lines if line.startswith("#") or line.partition(":$")[0] != user]


def _replace(path: Path, lines: list[str]) -> None:
    path = path.resolve()  # a link goes on to point there
    before = path.stat() if path.exists() else None
    written = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            for owner, group in ((-1, before.st_gid), (before.st_uid, -1)):
                with suppress(PermissionError):  # not everybody may give a file away
                    os.chown(written, owner, group)
            written.chmod(before.st_mode & 0o777)
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
