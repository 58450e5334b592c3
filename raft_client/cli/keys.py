"""``zmqraft get | set | del | watch``: entries of the key/value format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import (
    CommandBehindDashes,
    argument_bytes,
    as_json,
    json_line,
    key_variable,
    print_json,
    progress_bar,
    run_command,
    stdout_is_terminal,
    warn,
    write,
)
from raft_client._common.standard_streams import ends_with_reader, shown
from raft_client.cli.append import append_one, request_id_option
from raft_client.cli.options import connection_options, open_client, to_position
from raft_client.codecs import KeyValueCodec
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.core.selectors import Prefix, Selector, Tree, Where
from raft_client.core.watch_events import SnapshotEvent, WatchEvent
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
from raft_client.sync.watch import Watch
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.log_entry import Position, SnapshotChunk

#: A snapshot of more is kept on disk until it is complete.
_SPOOL_BYTES: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024

_json = click.option("--json", "json_output", is_flag=True, help="One JSON object on one line.")


@click.command("get")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--raw", is_flag=True, help="The bytes of the value and nothing else, no line feed at the end.")
@_json
@connection_options
def get_key(keys: Sequence[str], *, raw: bool, json_output: bool, settings: RaftSettings) -> int:
    """Print the value of each KEY. Exit code 1 if a key does not exist.

    A log has no table of keys: the command reads all of it, from its snapshot to its end now. Keys that do not exist
    are named on standard error.
    """
    if raw and json_output:
        raise click.UsageError("give either --raw or --json")
    names = [argument_bytes(key) for key in keys]
    with open_client(settings) as client:
        values = _Values({*names})
        values.read(client)
    for name in names:
        value, position = values.found.get(name, (None, None))
        if json_output:
            written = {} if position is None else {"index": position.index, "position": str(position)}
            print_json({**as_json("key", name), **as_json("value", value), **written})
        elif value is not None:
            write(value if raw else shown(value + b"\n", lines=True))
        elif len(names) > 1:
            warn(f"there is no key {name.decode('utf-8', 'backslashreplace')}")
    return exits.DONE if all(name in values.found for name in names) else exits.NEGATIVE


class _Values:
    """What some keys have at the end of the log, and where that was written: in an entry, or in a snapshot up to it."""

    def __init__(self, wanted: set[bytes]) -> None:
        self._wanted = wanted
        self._codec = KeyValueCodec()
        self.found: dict[bytes, tuple[bytes, Position]] = {}

    def read(self, client: RaftClient) -> None:
        """All of the log, up to where it ends now."""
        if not (end := client.log_info().last_applied):
            return
        with (
            progress_bar(shown=not stdout_is_terminal()) as bar,
            tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool,
            client.entries(0, end, snapshot=SnapshotPolicy.DELIVER) as entries,
        ):
            task = bar.add_task("reading the log", total=end)
            while entries.position.index < end and (batch := entries.next_batch()) is not None:
                if isinstance(batch, SnapshotChunk):
                    self._snapshot(batch, spool, entries.position)
                else:
                    for entry in batch:
                        if entry.is_state and entry.index <= end:
                            self._apply(self._codec.decode(entry.data), entry.position)
                bar.update(task, completed=entries.position.index)

    def _snapshot(self, chunk: SnapshotChunk, spool: tempfile.SpooledTemporaryFile[bytes], position: Position) -> None:
        """It may start anew from another peer; what it says counts when it is complete."""
        if chunk.is_first:
            spool.seek(0)
            spool.truncate()
        spool.write(chunk.data)
        if chunk.is_last:
            spool.seek(0)
            self.found.clear()
            items = self._codec.decode_snapshot(iter(lambda: spool.read(_READ_BYTES), b""))
            self._apply([Change(ChangeKind.SET, key, value) for key, value in items if key in self._wanted], position)

    def _apply(self, changes: Sequence[Change], position: Position) -> None:
        for change in changes:
            if change.key not in self._wanted:
                continue
            if change.value is None:
                self.found.pop(change.key, None)
            else:
                self.found[change.key] = (change.value, position)


@click.command("set")
@click.argument("key")
@click.argument("value")
@request_id_option
@_json
@connection_options
def set_key(key: str, value: str, *, request_id: str | None, json_output: bool, settings: RaftSettings) -> int:
    """Append an entry that sets KEY to VALUE, and print its index."""
    name = argument_bytes(key)
    append_one(KeyValueCodec.set(name, argument_bytes(value)), request_id, json_output, settings, key=name)
    return exits.DONE


@click.command("del")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@request_id_option
@_json
@connection_options
def delete_key(keys: Sequence[str], *, request_id: str | None, json_output: bool, settings: RaftSettings) -> int:
    """Append an entry that deletes each KEY, and print its index. One entry deletes all of them.

    The log does not say whether the keys existed.
    """
    names = [argument_bytes(key) for key in keys]
    data = KeyValueCodec.encode(Change(ChangeKind.DELETE, name) for name in names)
    append_one(data, request_id, json_output, settings, key=names[0] if len(names) == 1 else None)
    return exits.DONE


# -- watch -------------------------------------------------------------------------------------------------------------


@click.command("watch", cls=CommandBehindDashes)
@click.argument("prefixes", metavar="[PREFIX]... [-- COMMAND...]", nargs=-1)
@click.option("--tree", is_flag=True, help="PREFIX is a path: it, and all below it, separated by '/'.")
@click.option(
    "--after",
    metavar="POSITION",
    callback=to_position,
    help="Begin after this INDEX, or INDEX@TERM@ID (which is checked). Default: now.",
)
@click.option("--relist", is_flag=True, help="Where the log was compacted after --after, print the snapshot first.")
@click.option(
    "--progress", is_flag=True, help="Also print the position up to which nothing was missed, and losses of the leader."
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many changes.")
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
    command: Sequence[str],
    settings: RaftSettings,
) -> int:
    """Print the changes of keys with a PREFIX as they happen. Each line is set INDEX KEY VALUE, or delete INDEX KEY.

    A PREFIX is literal, also with * or ? in it.

    It reads entries of the key/value format, as zmqraft set and del append them. All changes of one entry have the same
    INDEX. To go on where it ended, give that of the last entry of which all was seen with --after; in JSON, the last
    "position". A VALUE is printed as it is and may contain line feeds of its own; scripts should use --json.

    With --relist, 'snapshot INDEX' says: forget all keys, what follows with this INDEX is what there is; it ends with
    'complete INDEX'. Until then one cannot go on from the INDEX. With --progress, 'suspended INDEX' says that no
    leader is heard, and 'resumed INDEX' that all that happened meanwhile was printed.

    With -- COMMAND nothing is printed: COMMAND is run for each line that would be, one after the other. It finds the
    value on its standard input, and ZMQRAFT_EVENT (set, delete, ...), ZMQRAFT_KEY, ZMQRAFT_INDEX and, where --after may
    go on, ZMQRAFT_POSITION in its environment.
    """
    report = Report(command, json_output, count)
    names = [argument_bytes(prefix) for prefix in prefixes]
    say_that_prefixes_are_literal(names, tree=tree)
    selector = _selector(names or [b""], tree=tree)
    with (
        open_client(settings) as client,
        client.watch(selector, after=after, relist=relist, connection_events=progress) as events,
    ):
        report.run(_lines(events, selector, progress=progress))
    return exits.DONE


def say_that_prefixes_are_literal(names: Sequence[bytes], *, tree: bool = False) -> None:
    """Say on standard error, in one line, if a prefix looks like a pattern of other tools."""
    name = next((name for name in names if b"*" in name or b"?" in name), None)
    if name is not None:
        what = "path" if tree else "prefix"
        click.echo(f"zmqraft: {os.fsdecode(name)!r} is taken as a {what} with these very characters", err=True)


def _selector(names: Sequence[bytes], *, tree: bool) -> Selector:
    """What any of the prefixes, or paths, stands for."""
    each: list[Prefix | Tree] = [Tree(name) if tree else Prefix(name) for name in names]
    return each[0] if len(each) == 1 else Where(lambda change: any(one.matches(change) for one in each))


@attrs.frozen
class Line:
    """One event as it is reported: a change of a key, or how far the watch is.

    ``position`` is where ``--after`` may go on; None inside an entry and a snapshot.
    """

    event: str
    index: int
    change: Change | None = None
    position: Position | None = None

    @classmethod
    def of(cls, index: int, change: Change, position: Position | None = None) -> Line:
        """Report a change. Only the last one of an entry has a position: one can go on behind it."""
        return cls(change.kind.value, index, change, position)

    @property
    def value(self) -> bytes:
        """What the command gets on its standard input."""
        return b"" if self.change is None or self.change.value is None else self.change.value

    def as_text(self) -> bytes:
        """The line for people."""
        words = [self.event.encode(), b"%d" % self.index]
        if self.change is not None:
            words += [self.change.key, *([] if self.change.value is None else [self.change.value])]
        return b" ".join(words) + b"\n"

    def as_json(self) -> bytes:
        """The line for programs."""
        record: dict[str, Any] = {"event": self.event, "index": self.index}
        if self.change is not None:
            record |= as_json("key", self.change.key) | as_json("value", self.change.value)
        return json_line(record | ({} if self.position is None else {"position": str(self.position)}))

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the command, which describe the event beside the value."""
        found = {
            "ZMQRAFT_EVENT": self.event,
            "ZMQRAFT_INDEX": str(self.index),
            "ZMQRAFT_POSITION": "" if self.position is None else str(self.position),
        }
        return found if self.change is None else found | key_variable("ZMQRAFT_KEY", self.change.key)


@attrs.frozen
class Report:
    """What is done with each line: it is printed, or ``command`` is run for it. It ends after ``count`` changes."""

    command: Sequence[str]
    json_output: bool
    count: int | None

    def __attrs_post_init__(self) -> None:
        if self.command and self.json_output:
            raise click.UsageError("--json is for lines that are printed, and with a COMMAND none are")

    def run(self, lines: Iterable[Line]) -> None:
        """Report one after the other, as they come, until there are enough or the reader of the output has gone."""
        seen = 0
        with nullcontext() if self.command else ends_with_reader():
            for line in lines:
                if self.command:
                    run_command(self.command, os.environ | line.environment(), line.value)
                else:
                    write(shown(line.as_json() if self.json_output else line.as_text()))
                seen += line.change is not None
                if seen == self.count:
                    break


def _lines(events: Watch, selector: Selector, *, progress: bool) -> Iterator[Line]:
    """One after the other, as they come."""
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
        for event in events:
            if isinstance(event, SnapshotEvent):
                yield from _snapshot(event, spool, selector)
            elif isinstance(event, WatchEvent):
                for change in event.changes[:-1]:
                    yield Line.of(event.index, change)
                yield Line.of(event.index, event.changes[-1], event.position)
            elif progress:
                yield Line(type(event).__name__.lower(), event.position.index, None, event.position)


def _snapshot(event: SnapshotEvent, spool: tempfile.SpooledTemporaryFile[bytes], selector: Selector) -> Iterator[Line]:
    """Nothing until it is complete: it may start anew from another peer."""
    chunk = event.chunk
    if chunk.is_first:
        spool.seek(0)
        spool.truncate()
    spool.write(chunk.data)
    if chunk.is_last:
        yield Line("snapshot", event.position.index)
        spool.seek(0)
        for key, value in KeyValueCodec().decode_snapshot(iter(lambda: spool.read(_READ_BYTES), b"")):
            change = Change(ChangeKind.SET, key, value)
            if selector.matches(change):
                yield Line.of(chunk.index, change)
        yield Line("complete", event.position.index, None, event.position)
