"""Files that are there when they are complete, and not before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from raft_client._common.standard_streams import ReaderGoneError
from raft_client.errors import RaftError


@contextmanager
def complete_file(name: str) -> Iterator[BinaryIO]:
    """Write a file that takes its name when the block has ended well; nothing is left behind otherwise.

    ``-`` is standard output. What exists and is not a regular file (a pipe, ``/dev/null``) is written to as it is.
    Raises UsageError when the file cannot be written.
    """
    if name == "-":
        yield sys.stdout.buffer
        return
    path = Path(name)
    is_special = path.exists() and not path.is_file()
    target = path if is_special else path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with target.open("wb") as stream:
            yield stream
        if not is_special:
            target.replace(path)
    except RaftError:  # some are TimeoutErrors, and so OSErrors
        raise
    except BrokenPipeError:
        raise ReaderGoneError from None
    except OSError as error:
        raise click.UsageError(f"{name} cannot be written: {error.strerror or error}") from error
    finally:
        if not is_special:
            target.unlink(missing_ok=True)
