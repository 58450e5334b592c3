"""Standard input, output and error as they may be: closed, on a full disk, without a reader, or not for UTF-8."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TextIO, TypeVar, cast

import click

from raft_client.cli import exits

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["OutputError", "ReaderGoneError", "run_guarded", "standard_input"]

T = TypeVar("T")


class OutputError(Exception):
    """Nothing can be written to standard output. It is not an OSError: click would end with 1 for some of those."""


class ReaderGoneError(OutputError):
    """The reader of our output has gone (``… | head -1``)."""


def run_guarded(program: str, command: Callable[[], int]) -> NoReturn:
    """End the process with the exit code of ``command``, or with OUTPUT and one line if its output cannot be written.

    For its time ``sys.stdout`` raises OutputError, and ``sys.stderr`` nothing: what cannot be told changes no code.
    """
    before = sys.stdout, sys.stderr
    output, errors = _Guarded(sys.stdout), _Guarded(sys.stderr, silent=True)
    sys.stdout, sys.stderr = output.text(), errors.text()
    try:
        try:
            code = command()
            sys.stdout.flush()
        except ReaderGoneError:
            code = exits.DONE  # nothing is left to say
        except OutputError as error:
            click.echo(f"{program}: {error}", err=True)
            code = exits.OUTPUT
        if output.failed or errors.failed:
            os._exit(code)  # Python would try again to write what is left over, and complain
    finally:
        sys.stdout, sys.stderr = before
    sys.exit(code)


def standard_input() -> BinaryIO:
    """Standard input, of bytes. Raises UsageError if it is closed."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed")
    return sys.stdin.buffer


class _Guarded(io.BufferedIOBase):
    """The bytes below a standard stream, which outlives this. ``failed`` tells whether something was not written."""

    def __init__(self, stream: TextIO | None, *, silent: bool = False) -> None:
        self._stream = stream
        self._silent = silent
        self.failed = False

    def text(self) -> io.TextIOWrapper:
        """The stream for text. What its encoding does not know is written as an escape."""
        encoding = "utf-8" if self._stream is None else self._stream.encoding
        return io.TextIOWrapper(cast(BinaryIO, self), encoding, "backslashreplace", line_buffering=self.isatty())

    def write(self, data: ReadableBuffer, /) -> int:
        """All of it, to be flushed."""
        if self._stream is None:
            self._fail("standard output is closed", OutputError)
            return memoryview(data).nbytes
        buffer = self._stream.buffer
        return self._guard(lambda: buffer.write(data), memoryview(data).nbytes)

    def flush(self) -> None:
        """After a failure nothing is left to flush."""
        if self._stream is not None and not self.failed:
            self._guard(self._stream.flush, None)

    def close(self) -> None:
        """Not the stream: it is not ours."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("closed")
        return self._stream.fileno()

    def _guard(self, work: Callable[[], T], otherwise: T) -> T:
        try:
            return work()
        except BrokenPipeError:
            self._fail("the reader has gone", ReaderGoneError)
        except (OSError, ValueError) as error:  # ValueError: closed
            why = getattr(error, "strerror", None) or error
            self._fail(f"standard output cannot be written: {why}", OutputError)
        return otherwise

    def _fail(self, why: str, kind: type[OutputError]) -> None:
        self.failed = True
        if not self._silent:
            raise kind(why)
