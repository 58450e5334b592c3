"""``zmqraft watch``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from raft_client.cli import exits
from raft_client.cli.connection import connection_options, open_client
from raft_client.cli.option_types import to_position
from raft_client.cli.output import argument_bytes, as_json, json_line, write
from raft_client.codecs import KeyValueCodec
from raft_client.core.selectors import Prefix, Selector, Tree, Where
from raft_client.core.watch import SnapshotEvent, WatchEvent, WatchItem
from raft_client.settings import RaftSettings
from raft_client.sync.watch import Watch
from raft_client.wire.changes import Change, ChangeKind
from raft_client.wire.positions import Position

__all__ = ["watch"]

#: A snapshot of more is kept on disk until it is complete.
_SPOOL_BYTES: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024


@click.command("watch")
@click.argument("prefixes", metavar="[PREFIX]...", nargs=-1)
@click.option("--tree", is_flag=True, help="PREFIX is a path: it, and all below it, separated by '/'.")
@click.option(
    "--after",
    metavar="POSITION",
    callback=to_position,
    help="Begin behind this INDEX, or INDEX@TERM (which is checked). Default: now.",
)
@click.option("--relist", is_flag=True, help="Where the log was compacted after --after, print the snapshot first.")
@click.option("--progress", is_flag=True, help="Also print up to where nothing was missed, and if no leader is heard.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object per line.")
@connection_options
def watch(
    prefixes: Sequence[str],
    *,
    tree: bool,
    after: Position | None,
    relist: bool,
    progress: bool,
    count: int | None,
    json_output: bool,
    settings: RaftSettings,
) -> int:
    """Print the changes of keys that start with a PREFIX as they happen: set INDEX KEY VALUE, or delete INDEX KEY.

    It reads entries of the key/value format, as zmqraft set and del append them. All changes of one entry have the same
    INDEX. To go on where it ended, give that of the last entry of which all was seen with --after; in JSON, the last
    "position". A VALUE is printed as it is and may contain line feeds of its own; scripts should use --json.

    With --relist, 'snapshot INDEX' says: forget all keys, what follows with this INDEX is what there is; it ends with
    'complete INDEX'. Until then the INDEX is no place to go on from. With --progress, 'suspended INDEX' says that no
    leader is heard, and 'resumed INDEX' that all that happened meanwhile was printed.
    """
    selector = _selector([argument_bytes(prefix) for prefix in prefixes] or [b""], tree=tree)
    with (
        open_client(settings) as client,
        client.watch(selector, after=after, relist=relist, connection_events=progress) as events,
    ):
        lines = Lines(selector, progress=progress, json_output=json_output)
        seen = 0
        for line in lines.of(events):
            write(line)
            seen += lines.is_change
            if seen == count:
                break
    return exits.DONE


def _selector(names: Sequence[bytes], *, tree: bool) -> Selector:
    """What any of the prefixes, or paths, stands for."""
    each: list[Prefix | Tree] = [Tree(name) if tree else Prefix(name) for name in names]
    return each[0] if len(each) == 1 else Where(lambda change: any(one.matches(change) for one in each))


class Lines:
    """What is printed for the items of one watch. ``is_change`` tells whether the last line was a change of a key."""

    def __init__(self, selector: Selector, *, progress: bool, json_output: bool) -> None:
        self._selector = selector
        self._progress = progress
        self._json = json_output
        self.is_change = False

    def of(self, events: Watch) -> Iterator[bytes]:
        """One after the other, as they come."""
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
            for event in events:
                self.is_change = isinstance(event, WatchEvent)
                if isinstance(event, SnapshotEvent):
                    yield from self._snapshot(event, spool)
                else:
                    yield from self._plain(event)

    def _plain(self, event: WatchItem) -> Iterator[bytes]:
        if isinstance(event, WatchEvent):
            for change in event.changes[:-1]:
                yield self._change(event.index, change)
            yield self._change(event.index, event.changes[-1], event.position)
        elif self._progress:
            yield self._mark(type(event).__name__.lower(), event.position)

    def _snapshot(self, event: SnapshotEvent, spool: tempfile.SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
        """Nothing until it is complete: it may start anew from another peer."""
        chunk = event.chunk
        if chunk.is_first:
            spool.seek(0)
            spool.truncate()
        spool.write(chunk.data)
        if chunk.is_last:
            yield self._mark("snapshot", event.position, resumable=False)
            spool.seek(0)
            self.is_change = True
            for key, value in KeyValueCodec().decode_snapshot(iter(lambda: spool.read(_READ_BYTES), b"")):
                change = Change(ChangeKind.SET, key, value)
                if self._selector.matches(change):
                    yield self._change(chunk.index, change)
            self.is_change = False
            yield self._mark("complete", event.position)

    def _mark(self, kind: str, position: Position, *, resumable: bool = True) -> bytes:
        if not self._json:
            return b"%b %d\n" % (kind.encode(), position.index)
        record: dict[str, Any] = {"event": kind, "index": position.index}
        return json_line(record | ({"position": str(position)} if resumable else {}))

    def _change(self, index: int, change: Change, position: Position | None = None) -> bytes:
        """``position`` is that of the whole entry, and comes with its last change."""
        if self._json:
            record: dict[str, Any] = {"event": change.kind.value, "index": index}
            record |= as_json("key", change.key) | as_json("value", change.value)
            return json_line(record | ({} if position is None else {"position": str(position)}))
        words = [change.kind.value.encode(), b"%d" % index, change.key]
        return b" ".join(words if change.value is None else [*words, change.value]) + b"\n"
