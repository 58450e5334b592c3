"""Standard input, output and error as they may be: closed, full, without a reader, a terminal, or not for UTF-8."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn, TextIO, TypeVar, cast

import click

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

#: Escapes that are shorter than ``\\u000a``.
_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

#: Exit codes, as both commands have them.
_DONE: Final = 0
_OUTPUT: Final = 7

#: What interrupted the block may have swallowed the exception: how long (seconds) to wait before it is raised again.
_AGAIN_S: Final = 1.0


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
            code = _DONE  # nothing is left to say
        except OutputError as error:
            click.echo(f"{program}: {error}", err=True)
            code = _OUTPUT
        if output.failed or errors.failed:
            os._exit(code)  # Python would try again to write what is left over, and complain
    finally:
        sys.stdout, sys.stderr = before
    sys.exit(code)


def shown(data: bytes, *, lines: bool = False) -> bytes:
    """Escape what has no shape of its own, if standard output is a terminal; pipes and files get ``data`` as it is.

    Keys, values and names of others may hold control characters, and a terminal obeys them: they move the cursor, set a
    title, hide a line or make one look like another. ``lines``: keep line feeds and tabs, as in the value of a key that
    somebody asked for. The end of a line always stays.
    """
    if not sys.stdout.isatty():
        return data
    text, end = (data[:-1], "\n") if data.endswith(b"\n") else (data, "")
    kept = "\n\t" if lines else ""
    decoded = text.decode(errors="backslashreplace")
    return ("".join(c if c in kept or c.isprintable() else _escape(c) for c in decoded) + end).encode()


def _escape(character: str) -> str:
    """As JSON has it, so that a line of JSON stays one."""
    code = ord(character)
    return _ESCAPES.get(character) or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")


@contextmanager
def ends_with_reader() -> Iterator[None]:
    """Raise ReaderGoneError inside the block, also in the middle of a wait, once the reader of our output has gone.

    It is for commands that follow something: they write only when it changes, and would never notice. The block is one
    of the main thread, where signal handlers run.
    """
    if (output := _output()) is None or not hasattr(select, "poll"):  # Windows has none
        yield
        return
    main, is_gone = threading.get_ident(), False
    over, ending = os.pipe()

    def look() -> None:
        nonlocal is_gone
        poll = select.poll()
        poll.register(output, 0)  # which leaves POLLERR and POLLHUP
        poll.register(over, select.POLLIN)
        found = dict(poll.poll())
        poll.unregister(output)
        is_broken = found.get(output, 0) & (select.POLLERR | select.POLLHUP)
        while is_broken and not poll.poll(1000 * _AGAIN_S if is_gone else 0):
            is_gone = True
            signal.pthread_kill(main, signal.SIGPIPE)

    def end(_number: int, _frame: object) -> None:
        if is_gone:  # otherwise it is for a connection that has broken, which its owner notices by itself
            raise ReaderGoneError("the reader has gone")

    before = signal.signal(signal.SIGPIPE, end)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    watcher = threading.Thread(target=look, name="reader of standard output", daemon=True)
    watcher.start()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        os.close(ending)
        watcher.join()
        os.close(over)
        signal.signal(signal.SIGPIPE, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _output() -> int | None:
    """The descriptor of standard output, if it has one."""
    try:
        return None if sys.stdout is None else sys.stdout.fileno()
    except (OSError, ValueError):
        return None


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
