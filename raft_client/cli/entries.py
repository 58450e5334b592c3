"""``zmqraft tail | dump``: entries on the screen, and in files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final, Protocol

import attrs
import click
import msgpack

from raft_client._common import exits
from raft_client._common.command_line import as_json, json_line, progress_bar, stdout_is_terminal, warn, write
from raft_client._common.standard_streams import ReaderGoneError, ends_with_reader, shown
from raft_client.cli.options import Index, connection_options, open_client, to_position
from raft_client.core.entries_stream import EntryBatch, SnapshotPolicy
from raft_client.errors import LogError, RaftError
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.configuration import ConfigChange, Peers, decode_config
from raft_client.wire.log_entry import EntryKind, LogEntry, Position, SnapshotChunk
from raft_client.wire.request_id import ZERO_REQUEST_ID

# -- entries as people and programs read them --------------------------------------------------------------------------


def type_name(entry: LogEntry) -> str:
    """``state``, ``config`` or ``checkpoint``."""
    return entry.kind.name.lower()


def made_at(entry: LogEntry) -> datetime | None:
    """When its request id was made, to the second, by the clock of the one who made it; None for a checkpoint."""
    request_id = entry.request_id
    return None if request_id == ZERO_REQUEST_ID else datetime.fromtimestamp(request_id.seconds, UTC)


def entry_record(entry: LogEntry) -> dict[str, Any]:
    """For JSON. ``data`` is text, or Base64 under ``data_base64``; peers in a CONFIG entry are decoded, too."""
    made = made_at(entry)
    record: dict[str, Any] = {
        "index": entry.index,
        "term": entry.term,
        "type": type_name(entry),
        "request_id": None if made is None else str(entry.request_id),
        "time": None if made is None else made.isoformat().replace("+00:00", "Z"),
        **as_json("data", entry.data),
    }
    if entry.kind is EntryKind.CONFIG:
        change = _change(entry)
        record["peers"] = None if change is None else _by_id(change.new)
        if change is not None and change.old is not None:
            record["old_peers"] = _by_id(change.old)
    return record


def entry_line(entry: LogEntry) -> bytes:
    """``INDEX state DATA``, ``INDEX config ID=URL …`` or ``INDEX checkpoint``; a transition is ``OLD … -> NEW …``."""
    head = f"{entry.index} {type_name(entry)}".encode()
    if entry.kind is EntryKind.STATE:
        return b"%b %b\n" % (head, entry.data)
    if entry.kind is EntryKind.CONFIG:
        return b"%b %b\n" % (head, _sides(_change(entry)).encode())
    return head + b"\n"


def _change(entry: LogEntry) -> ConfigChange | None:
    """None when the entry cannot be read."""
    try:
        return decode_config(entry.data)
    except RaftError:
        return None


def _by_id(peers: Peers) -> dict[str, str]:
    return {peer.id: peer.url for peer in peers}


def _sides(change: ConfigChange | None) -> str:
    """The peers in force; in a transition both lists, for both have to agree on everything."""
    if change is None:
        return ""
    sides = [change.new] if change.old is None else [change.old, change.new]
    return " -> ".join(" ".join(f"{peer.id}={peer.url}" for peer in side) for side in sides)


# -- formats of files --------------------------------------------------------------------------------------------------
# ==============  ====================================================================================================
# JSON lines      one object per line; ``data``, or ``data_base64`` where it is not UTF-8 text; ``time`` in ISO 8601
# MessagePack     one map after another; ``data`` is bin, ``time`` is seconds since 1970
# Parquet         ``data`` is binary, ``time`` a timestamp in UTC; needs pyarrow
# ==============  ====================================================================================================
#
# ``type`` is state, config or checkpoint; ``request_id`` has 24 hexadecimal digits. ``request_id`` and ``time`` are
# null for checkpoints, which no request makes. ``time`` is when the request id was made.


#: A row group of Parquet is held in memory until it is this large.
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_ROW_GROUP_ROWS: Final = 65_536
_SUFFIXES: Final = {
    ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".msgpack": "msgpack", ".mpk": "msgpack",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


class EntryWriter(Protocol):
    """Writes entries to a file. ``close`` completes the file; it does not close the stream."""

    def write(self, entries: Sequence[LogEntry]) -> None: ...

    def close(self) -> None: ...


class JsonLinesWriter:
    """One JSON object per line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, entries: Sequence[LogEntry]) -> None:
        self._stream.write(b"".join([json_line(entry_record(entry)) for entry in entries]))

    def close(self) -> None:
        self._stream.flush()


class MessagePackWriter:
    """One map after another."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._pack = msgpack.Packer().pack

    def write(self, entries: Sequence[LogEntry]) -> None:
        self._stream.write(b"".join([self._pack(_binary_record(entry)) for entry in entries]))

    def close(self) -> None:
        self._stream.flush()


class ParquetWriter:
    """Columns. Raises UsageError when pyarrow is not installed."""

    def __init__(self, stream: BinaryIO) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise click.UsageError("--format parquet needs pyarrow: pip install pyarrow") from None
        columns = {
            "index": pyarrow.int64(),
            "term": pyarrow.int64(),
            "type": pyarrow.string(),
            "request_id": pyarrow.string(),
            "time": pyarrow.timestamp("ms", "UTC"),
            "data": pyarrow.binary(),
        }
        self._table = pyarrow.Table
        self._schema = pyarrow.schema(list(columns.items()))
        self._writer = pyarrow.parquet.ParquetWriter(stream, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self._rows.append(_binary_record(entry) | {"time": made_at(entry)})
            self._bytes += entry.size
            if self._bytes >= _ROW_GROUP_BYTES or len(self._rows) >= _ROW_GROUP_ROWS:
                self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._table.from_pylist(self._rows, schema=self._schema))
            self._rows = []
            self._bytes = 0


def _binary_record(entry: LogEntry) -> dict[str, Any]:
    made = made_at(entry)
    return {
        "index": entry.index,
        "term": entry.term,
        "type": type_name(entry),
        "request_id": None if made is None else str(entry.request_id),
        "time": None if made is None else entry.request_id.seconds,
        "data": entry.data,
    }


_WRITERS: Final[dict[str, Callable[[BinaryIO], EntryWriter]]] = {
    "jsonl": JsonLinesWriter,
    "msgpack": MessagePackWriter,
    "parquet": ParquetWriter,
}
FORMATS: Final = tuple(_WRITERS)


def format_of(output: str) -> str:
    """By the end of the name; JSON lines for standard output. Raises UsageError when the name does not tell."""
    if output == "-":
        return "jsonl"
    suffix = PurePath(output).suffix.lower()
    if suffix not in _SUFFIXES:
        raise click.UsageError(f"{output}: the name does not tell the format; give --format {'|'.join(FORMATS)}")
    return _SUFFIXES[suffix]


def open_writer(kind: str, stream: BinaryIO) -> EntryWriter:
    """A writer of one of the :data:`FORMATS`."""
    return _WRITERS[kind](stream)


# -- complete files ----------------------------------------------------------------------------------------------------


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


# -- tail --------------------------------------------------------------------------------------------------------------


_LAST: Final = 10


@click.command("tail")
@click.option("--from", "start", type=Index(), help="The first entry. The log begins with 1.")
@click.option(
    "--after",
    metavar="POSITION",
    callback=to_position,
    help="Begin after this INDEX, or INDEX@TERM@ID (which is checked).",
)
@click.option("-n", "--last", type=click.IntRange(min=0), help=f"This many at the end of the log. Default: {_LAST}.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new entries, until Ctrl-C.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many entries.")
@click.option("--skip-snapshot", is_flag=True, help="Where the log was compacted, start after the snapshot.")
@click.option("--raw", is_flag=True, help="Only the data of clients' entries, each with a line feed.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
@connection_options
def tail(
    *,
    start: int | None,
    after: Position | None,
    last: int | None,
    follow: bool,
    count: int | None,
    skip_snapshot: bool,
    raw: bool,
    json_output: bool,
    settings: RaftSettings,
) -> int:
    """Print entries of the log. Each line is INDEX state DATA, INDEX config ID=URL ..., or INDEX checkpoint. While the
    peers change, a config has both lists: OLD ... -> NEW ...

    Entries come in order and each one once, also while leaders change. DATA is printed as it is and may contain line
    feeds of its own; on a terminal they are escapes. Scripts should use --json. To go on where it ended, give the last
    INDEX with --after, or INDEX@TERM@ID, the index, term and request_id of its last line of JSON. Exit code 1 when the
    log ends before that, was compacted there, or has another entry there.
    """
    if sum(option is not None for option in (start, after, last)) > 1:
        raise click.UsageError("give only one of --from, --after and --last")
    if raw and json_output:
        raise click.UsageError("give either --raw or --json")
    policy = SnapshotPolicy.SKIP if skip_snapshot else SnapshotPolicy.REFUSE
    line = _json_line if json_output else _raw_line if raw else entry_line
    with open_client(settings) as client:
        if start is not None:
            after = Position(start - 1)
        elif after is None:
            after = Position(_last_entries(client, _LAST if last is None else last))
        batches = _follow(client, after, policy) if follow else _read(client, after, count, policy)
        with closing(batches), ends_with_reader():
            _print(batches, count, line if raw or not stdout_is_terminal() else lambda entry: shown(line(entry)))
    return exits.DONE


def _last_entries(client: RaftClient, wanted: int) -> int:
    """The index after which there are ``last`` entries, or as many as the log still has."""
    log = client.log_info()
    return max(log.last_applied - wanted, log.first_index - 1, 0)


def _read(
    client: RaftClient, after: Position, count: int | None, policy: SnapshotPolicy
) -> Generator[EntryBatch, None, None]:
    with client.entries(after, count, snapshot=policy) as entries:
        while (batch := entries.next_batch()) is not None:
            yield batch


def _follow(client: RaftClient, after: Position, policy: SnapshotPolicy) -> Generator[EntryBatch, None, None]:
    with client.subscribe(after, snapshot=policy) as subscriber:
        while (batch := subscriber.next_batch()) is not None:
            yield batch


def _print(batches: Iterable[EntryBatch], count: int | None, line: Callable[[LogEntry], bytes]) -> None:
    """What came together is written together: half a million entries a second are too many for a flush each."""
    left = count
    for batch in batches:
        entries: Sequence[LogEntry] = () if isinstance(batch, SnapshotChunk) else batch[:left]
        write(b"".join(map(line, entries)))
        if left is not None:
            left -= len(entries)
            if left == 0:
                return


def _json_line(entry: LogEntry) -> bytes:
    return json_line(entry_record(entry))


def _raw_line(entry: LogEntry) -> bytes:
    return entry.data + b"\n" if entry.is_state else b""


# -- dump --------------------------------------------------------------------------------------------------------------


_BINARY: Final = ("msgpack",)


@click.command("dump")
@click.option("-o", "--output", default="-", metavar="FILE", help="Default: standard output.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Default: what the name of FILE ends in, or jsonl.")
@click.option("--from", "start", type=Index(), default=1, show_default=True, help="First index.")
@click.option("--to", "end", type=Index(), help="Last index. Default: the end of the log now.")
@click.option("--state-only", is_flag=True, help="Leave out what no client appended: peers and checkpoints.")
@click.option("--snapshot", metavar="FILE", help="Where the log was compacted, write the snapshot there.")
@click.option("--skip-snapshot", is_flag=True, help="Where the log was compacted, start after the snapshot.")
@connection_options
def dump(
    *,
    output: str,
    kind: str | None,
    start: int,
    end: int | None,
    state_only: bool,
    snapshot: str | None,
    skip_snapshot: bool,
    settings: RaftSettings,
) -> int:
    """Write the log as JSON lines, MessagePack or Parquet. Parquet needs pyarrow.

    Columns: index, term, type (state, config, checkpoint), request_id, time (when the request id was made), data. FILE
    appears when it is complete. Exit code 1 when the log ends before --from or --to, or was compacted after --from and
    neither --snapshot nor --skip-snapshot says what to do then.
    """
    chosen = kind or format_of(output)
    if end is not None and end < start:
        raise click.UsageError(f"--to {end} lies before --from {start}")
    if snapshot is not None and skip_snapshot:
        raise click.UsageError("give either --snapshot or --skip-snapshot")
    if snapshot == output == "-":
        raise click.UsageError("entries and snapshot cannot both go to standard output")
    if output == "-" and (chosen == "parquet" or (chosen in _BINARY and sys.stdout.isatty())):
        raise click.UsageError(f"{chosen} needs --output FILE")
    policy = SnapshotPolicy.SKIP if skip_snapshot else SnapshotPolicy.DELIVER if snapshot else SnapshotPolicy.REFUSE
    with ExitStack() as stack:
        client = stack.enter_context(open_client(settings))
        log_end = client.log_info().last_applied
        last = log_end if end is None else end
        if last > log_end or start > log_end + 1:
            raise LogError(f"the log ends at {log_end}; there is no index {max(last, start)} yet")
        target = stack.enter_context(complete_file(output))
        chunks = stack.enter_context(complete_file(snapshot)) if snapshot else None
        dumping = Dumping(open_writer(chosen, target), chunks, last, state_only)
        dumping.run(client, start - 1, policy, shown=output != "-" or not stdout_is_terminal())
    if output != "-":
        warn(dumping.summary)
    return exits.DONE


@attrs.define(eq=False)
class Dumping:
    """One run through the log, up to and including the index ``last``."""

    writer: EntryWriter
    snapshot: BinaryIO | None
    last: int
    state_only: bool
    count: int = 0
    snapshot_index: int | None = None

    def run(self, client: RaftClient, after: int, policy: SnapshotPolicy, *, shown: bool) -> None:
        """Read and write everything."""
        with progress_bar(shown=shown) as bar:
            task = bar.add_task("dumping", total=self.last - after)
            if self.last > after:
                with client.entries(after, self.last - after, snapshot=policy) as entries:
                    while (batch := entries.next_batch()) is not None:
                        if isinstance(batch, SnapshotChunk):
                            self._save(batch)
                        elif not self._write(batch):
                            break
                        bar.update(task, completed=entries.position.index - after)
        self.writer.close()

    def _write(self, batch: Sequence[LogEntry]) -> bool:
        """Returns whether there is more to come. After a snapshot more entries come than are wanted."""
        wanted = batch[: max(0, self.last + 1 - batch[0].index)]
        if self.state_only:
            wanted = [entry for entry in wanted if entry.is_state]
        self.writer.write(wanted)
        self.count += len(wanted)
        return batch[-1].index < self.last

    def _save(self, chunk: SnapshotChunk) -> None:
        assert self.snapshot is not None  # noqa: S101 - without a file for it, a snapshot is refused or skipped
        if chunk.is_first and self.snapshot_index is not None:  # from another peer: what came before is void
            self.snapshot.seek(0)
            self.snapshot.truncate()
        self.snapshot.write(chunk.data)
        self.snapshot_index = chunk.index

    @property
    def summary(self) -> str:
        """What was written."""
        before = "" if self.snapshot_index is None else f"a snapshot of the first {self.snapshot_index} and "
        return f"wrote {before}{self.count} entries, up to index {self.last}"
