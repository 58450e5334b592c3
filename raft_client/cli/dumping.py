"""``zmqraft dump``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import BinaryIO, Final

import attrs
import click

from raft_client.cli import exits
from raft_client.cli.connection import connection_options, open_client
from raft_client.cli.files import complete_file
from raft_client.cli.formats import FORMATS, EntryWriter, format_of, open_writer
from raft_client.cli.option_types import Index
from raft_client.cli.output import progress_bar, stdout_is_terminal, warn
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.errors import LogError
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.wire.log_entry import LogEntry, SnapshotChunk

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
    """Write the log to a file: JSON lines, MessagePack, or Parquet (with pyarrow).

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
