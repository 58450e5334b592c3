"""``zmqraft append``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import click
from rich.progress import Progress, TaskID

from raft_client.cli import exits
from raft_client.cli.connection import connection_options, open_client
from raft_client.cli.lines import STDIN, Piece, total_bytes, whole_files, with_lines
from raft_client.cli.output import (
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
from raft_client.core.arguments import AppendItem, request_id_of
from raft_client.errors import BatchError, InvalidArgumentError, RaftError
from raft_client.request_id_factory import new_request_id
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.request_id import RequestId

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
    """Append the lines of FILEs, or of standard input, in order; a line feed is not part of its entry.

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
