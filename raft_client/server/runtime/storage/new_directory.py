"""A directory that is there when it is complete, and not before."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raft_client.errors import StorageError
from raft_client.server.runtime.storage.filesystem import SystemFolder, make_directory, storage_error

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def new_directory(path: str | os.PathLike[str], doing: str) -> Iterator[Path]:
    """A directory to fill; it gets the name ``path`` when the block has ended well, and is removed otherwise.

    A process that is killed leaves it beside ``path``, with a name that ends in ``.part``. The files in it are synced
    in the block. Raises StorageError if something other than an empty directory is there already, or the disk fails.
    """
    target = Path(path).absolute()
    try:
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise StorageError(f"{os.fspath(path)} exists already: name a new directory")
        make_directory(target.parent)
        place = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent))
        try:
            yield place
            SystemFolder(place).sync()
            if target.is_dir():
                target.rmdir()
            place = place.rename(target)
            SystemFolder(target.parent).sync()
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    except OSError as error:
        raise storage_error(error, doing) from error
