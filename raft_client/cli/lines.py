"""Entries out of files and standard input, a batch at a time, as they arrive."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final, cast

import attrs
import click

from raft_client._common.standard_streams import standard_input
from raft_client.errors import InvalidDataError
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES

#: As much as a pipe holds.
_CHUNK_BYTES: Final = 65_536
#: Lines in one batch. Between batches the pipeline runs dry, so it is many times what is in flight.
_BATCH: Final = 1024
#: The name of standard input.
STDIN: Final = "-"


@attrs.frozen
class Piece:
    """The data of one entry and where it came from; ``line`` counts from 1 and is None for a whole file."""

    data: bytes
    file: str
    line: int | None

    @property
    def place(self) -> str:
        """File and line, for messages."""
        name = _called(self.file)
        return name if self.line is None else f"{name}, line {self.line}"


def whole_files(files: Sequence[str]) -> Iterator[list[Piece]]:
    """Each file is one entry. Raises InvalidDataError for one that is too large, before all of it is read."""
    for name in files:
        with _opened(name) as stream:
            data = stream.read(MAX_ENTRY_DATA_BYTES + 1)
        yield [Piece(data, name, None)]


def with_lines(files: Sequence[str], *, skip_empty: bool) -> Iterator[list[Piece]]:
    """Each line is one entry, without its line feed. What has arrived is handed out without waiting for more."""
    for name in files:
        with _opened(name) as stream:
            yield from _batches(stream, name, skip_empty)


def _batches(stream: BinaryIO, name: str, skip_empty: bool) -> Iterator[list[Piece]]:
    number = 1
    for lines in _lines(stream, name):
        numbered = list(enumerate(lines, number))
        number += len(lines)
        for start in range(0, len(numbered), _BATCH):
            some = numbered[start : start + _BATCH]
            pieces = [Piece(line, name, place) for place, line in some if line or not skip_empty]
            if pieces:
                yield pieces


def _lines(stream: BinaryIO, name: str) -> Iterator[list[bytes]]:
    rest = bytearray()
    number = 1
    while chunk := _read(stream):
        first, *others = chunk.split(b"\n")
        rest += first
        if others:
            yield [bytes(rest), *others[:-1]]
            number += len(others)
            rest = bytearray(others[-1])
        elif len(rest) > MAX_ENTRY_DATA_BYTES:
            # Not collected to its end: the file may be no text at all.
            raise InvalidDataError(f"{Piece(b'', name, number).place} has more than {MAX_ENTRY_DATA_BYTES} bytes")
    if rest:
        yield [bytes(rest)]


def _read(stream: BinaryIO) -> bytes:
    """What is there, waiting only for the first byte."""
    return cast(bytes, getattr(stream, "read1", stream.read)(_CHUNK_BYTES))


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    try:
        with nullcontext(standard_input()) if name == STDIN else Path(name).open("rb") as stream:
            yield stream
    except OSError as error:
        raise click.UsageError(f"{_called(name)} cannot be read: {error.strerror}") from error


def _called(name: str) -> str:
    return "standard input" if name == STDIN else name


def total_bytes(files: Sequence[str]) -> int | None:
    """Of all files; None when one of them is not a regular file, but a pipe, for example."""
    try:
        found = [os.fstat(standard_input().fileno()) if name == STDIN else Path(name).stat() for name in files]
    except OSError:  # standard input that is not a file at all
        return None
    return sum(f.st_size for f in found) if all(stat.S_ISREG(f.st_mode) for f in found) else None
