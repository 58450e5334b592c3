"""``zmqraft append``: one entry, or one for each line of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import attrs
import click
from rich.progress import Progress, TaskID

from raft_client._common import exits
from raft_client._common.command_line import (
    argument_bytes,
    as_json,
    json_line,
    print_json,
    print_line,
    progress_bar,
    stdout_is_terminal,
    warn,
    write,
)
from raft_client._common.standard_streams import standard_input
from raft_client.cli.options import connection_options, open_client
from raft_client.core.arguments import AppendItem, request_id_of
from raft_client.errors import BatchError, InvalidArgumentError, InvalidDataError, RaftError
from raft_client.request_id_factory import new_request_id
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.log_entry import MAX_ENTRY_DATA_BYTES
from raft_client.wire.request_id import RequestId

# -- lines of files ----------------------------------------------------------------------------------------------------


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


# -- the command -------------------------------------------------------------------------------------------------------


request_id_option: Final = click.option(
    "--request-id", metavar="ID", help="24 hexadecimal digits. An id that was used before appends nothing again."
)


@click.command("append")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="[FILE]...")
@click.option("--data", help="One entry, typed here, instead of files.")
@click.option("--whole", is_flag=True, help="Each file is one entry, rather than each of its lines.")
@click.option("--skip-empty", is_flag=True, help="Pass over empty lines, which cannot be entries.")
@request_id_option
@click.option("--ids", is_flag=True, help="Print a line for each entry: INDEX REQUEST_ID.")
@click.option("--json", "json_output", is_flag=True, help="Print a JSON object for each entry, also for failed ones.")
@click.option("--in-flight", type=click.IntRange(1, 65_535), default=64, show_default=True, help="Entries at once.")
@connection_options
def append(
    files: tuple[str, ...],
    *,
    data: str | None,
    whole: bool,
    skip_empty: bool,
    request_id: str | None,
    ids: bool,
    json_output: bool,
    in_flight: int,
    settings: RaftSettings,
) -> int:
    """Append the lines of FILEs or of standard input, in order. A line feed is not part of the entry.

    Every entry has a request id, so what was under way when the leader was lost is not appended twice. A failure names
    the line and the id: append it again with --data or --whole and --request-id. Exit code 8 when some lines cannot be
    entries (empty, more than 10 MiB) and the others were appended, 4 when the cluster stopped answering.
    """
    if data is not None:
        if files or whole:
            raise click.UsageError("give the entries either with --data or as files")
        return _one(argument_bytes(data), request_id, ids, json_output, settings)
    sources = files or (STDIN,)
    if request_id is not None:
        if not whole or len(sources) > 1:
            raise click.UsageError("--request-id is for one entry: give --data, or --whole and one FILE")
        return _one(next(whole_files(sources))[0].data, request_id, ids, json_output, settings)
    batches = whole_files(sources) if whole else with_lines(sources, skip_empty=skip_empty)
    talks = ids or json_output
    with open_client(settings) as client, progress_bar(shown=not (talks and stdout_is_terminal())) as bar:
        task = bar.add_task("appending", total=total_bytes(sources))
        batch = Appending(client, in_flight, ids, json_output)
        code = batch.run(batches, bar, task)
    if not talks:
        print_line(batch.summary)
    return code


def append_one(
    data: bytes, request_id: str | None, json_output: bool, settings: RaftSettings, *, key: bytes | None = None
) -> None:
    """Append one entry and print its index, in JSON beside the ``key`` that it is about."""
    _one(data, request_id, False, json_output, settings, key)


def _one(
    data: bytes, request_id: str | None, ids: bool, json_output: bool, settings: RaftSettings, key: bytes | None = None
) -> int:
    chosen = new_request_id() if request_id is None else request_id_of(request_id)
    with open_client(settings) as client:
        index = client.append(data, chosen, new_id=request_id is None)
    if json_output:
        about = {} if key is None else as_json("key", key)
        print_json({**about, "index": index, "request_id": str(chosen)})
    else:
        print_line(str(index), *([str(chosen)] if ids else []))
    return exits.DONE


@attrs.define(eq=False)
class Appending:
    """A sequence of batches on their way into the log, and what became of them."""

    client: RaftClient
    in_flight: int
    ids: bool
    json_output: bool
    count: int = 0
    first: int = 0
    last: int = 0
    refused: int = 0
    lost: bool = False
    doubt: str = ""  # about the batch that is under way

    def run(self, batches: Iterator[list[Piece]], bar: Progress, task: TaskID) -> int:
        """Append until the end, or until the cluster stops answering; returns the exit code."""
        try:
            return self._run(batches, bar, task)
        except KeyboardInterrupt:
            warn(f"interrupted: {self.summary}{self.doubt}")
            raise

    def _run(self, batches: Iterator[list[Piece]], bar: Progress, task: TaskID) -> int:
        for batch in batches:
            self._append(batch)
            bar.update(task, advance=sum(len(piece.data) + (piece.line is not None) for piece in batch))
            if self.lost:
                warn(f"stopped at {batch[-1].place}; {self.summary}")
                return exits.NO_CONNECTION
        return exits.PARTLY if self.refused else exits.DONE

    @property
    def summary(self) -> str:
        """How many, and where they are."""
        if not self.count:
            return "appended nothing"
        noun = "entry" if self.count == 1 else "entries"
        return f"appended {self.count} {noun}, index {self.first} to {self.last}"

    def _append(self, batch: list[Piece]) -> None:
        items = [AppendItem(piece.data, new_request_id(), new_id=True) for piece in batch]
        self.doubt = f"; of {batch[0].place} to {batch[-1].place}, any may have been, too"
        try:
            outcomes: Sequence[Any] = self.client.append_many(items, in_flight=self.in_flight)
        except BatchError as error:
            outcomes = error.results
        self.doubt = ""
        printed = [
            self._outcome(piece, request_id_of(item.request_id), outcome)
            for piece, item, outcome in zip(batch, items, outcomes, strict=True)
        ]
        if any(printed):
            write(b"".join(printed))

    def _outcome(self, piece: Piece, request_id: RequestId, outcome: int | RaftError) -> bytes:
        """Count it; returns what is to be printed."""
        if isinstance(outcome, RaftError):
            return self._failed(piece, request_id, outcome)
        self.count += 1
        self.first = self.first or outcome
        self.last = max(self.last, outcome)
        if self.json_output:
            return json_line({"index": outcome, "request_id": str(request_id), **_origin(piece)})
        return f"{outcome} {request_id}\n".encode() if self.ids else b""

    def _failed(self, piece: Piece, request_id: RequestId, error: RaftError) -> bytes:
        if isinstance(error, InvalidArgumentError):
            self.refused += 1
        else:
            self.lost = True
        doubt = f" (it may have been appended; request id {request_id})" if error.may_have_been_applied else ""
        warn(f"{piece.place}: {error}{doubt}")
        if not self.json_output:
            return b""
        failure = {"error": str(error), "may_have_been_applied": error.may_have_been_applied}
        return json_line({**failure, "request_id": str(request_id), **_origin(piece)})


def _origin(piece: Piece) -> dict[str, str | int | None]:
    return {"file": piece.file, "line": piece.line}
