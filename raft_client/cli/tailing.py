"""``zmqraft tail``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Final

import click

from raft_client._common.standard_streams import ends_with_reader, shown
from raft_client.cli import exits
from raft_client.cli.connection import connection_options, open_client
from raft_client.cli.option_types import Index, to_position
from raft_client.cli.output import json_line, stdout_is_terminal, write
from raft_client.cli.records import entry_line, entry_record
from raft_client.core.entries_stream import EntryBatch, SnapshotPolicy
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk

_LAST: Final = 10


@click.command("tail")
@click.option("--from", "start", type=Index(), help="The first entry. The log begins with 1.")
@click.option(
    "--after",
    metavar="POSITION",
    callback=to_position,
    help="Begin after this INDEX, or INDEX@TERM (which is checked).",
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
    """Print entries of the log: INDEX state DATA, INDEX config ID=URL ..., or INDEX checkpoint. While the peers change,
    a config has both lists: OLD ... -> NEW ...

    Entries come in order and each one once, also while leaders change. DATA is printed as it is and may contain line
    feeds of its own; on a terminal they are escapes. Scripts should use --json. To go on where it ended, give the last
    INDEX with --after, or INDEX@TERM, the index and term of its last line of JSON. Exit code 1 when the log ends before
    that, was compacted there, or has another term there.
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
