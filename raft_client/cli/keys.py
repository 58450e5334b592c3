"""``zmqraft get | set | del``: entries of the key/value format, which ``zmqraft watch`` reads."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Final

import click

from raft_client._common.standard_streams import shown
from raft_client.cli import exits
from raft_client.cli.appending import append_one, request_id_option
from raft_client.cli.connection import connection_options, open_client
from raft_client.cli.output import argument_bytes, as_json, print_json, progress_bar, stdout_is_terminal, warn, write
from raft_client.codecs import KeyValueCodec
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.settings import RaftSettings
from raft_client.sync.client import RaftClient
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
    """Print the value of KEY; of several, one after the other. Exit code 1 when there is no such key.

    A log has no table of keys: all of it is read, from its snapshot to its end now. Of several keys, those that are
    not there are named on standard error.
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
    """Append an entry that deletes KEY, and print its index; several KEYs are deleted by one entry, at once.

    The log does not tell whether there was one.
    """
    names = [argument_bytes(key) for key in keys]
    data = KeyValueCodec.encode(Change(ChangeKind.DELETE, name) for name in names)
    append_one(data, request_id, json_output, settings, key=names[0] if len(names) == 1 else None)
    return exits.DONE
