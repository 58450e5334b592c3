"""What was written to a file, and the names in a folder, survive a power failure. For the logs of both packages.

Invariant: "on the disk" means the medium, not a cache of the drive's. On macOS fsync() leaves the data there
(fsync(2) of macOS: F_FULLFSYNC), as nothing else does.
"""

from __future__ import annotations

import errno
import os
from typing import Final

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module or None has no type but Any

__all__ = ["sync_file", "sync_folder"]

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
#: Of file systems that have no such call, as those of networks: there fsync() is all that there is.
_UNKNOWN: Final = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)
#: Without what a file's dates would cost. macOS and Windows do not have it.
_sync: Final = getattr(os, "fdatasync", os.fsync)


def sync_file(descriptor: int) -> None:
    """Wait until the medium has all that was written. Raises OSError; what the medium has is not known then."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
        else:
            return
    _sync(descriptor)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Return when names that came, went or changed in it are there to stay. Raises OSError."""
    if os.name == "nt":  # which has no such thing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
