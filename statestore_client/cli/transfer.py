"""``statestore export | import``: all keys of a state store into a file, and back.

Invariant: an import stores nothing of a file that is not whole. What the store has already is not written again, so an
import that was interrupted, or killed, goes on where it was; at its end, all keys are compared with the file.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, BinaryIO, Final

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import (
    argument_bytes,
    print_json,
    print_line,
    progress_bar,
    stdout_is_terminal,
    warn,
    write,
)
from raft_client._common.standard_streams import shown, standard_input
from statestore_client.cli.entries import KeysOnlyError, NamedKeys, entries, plain_entries
from statestore_client.cli.export_file import ExportFile, export_lines
from statestore_client.cli.options import connection_options, counted, open_client
from statestore_client.core.arguments import SetItem
from statestore_client.errors import BatchError, StateStoreError, TransportError, UnexpectedReplyError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient
from statestore_client.wire.replies import KeyEntry

if TYPE_CHECKING:
    from rich.progress import Progress

_STDIN: Final = "-"
#: Keys, and bytes of them, that are written or compared at once. Between batches the pipeline runs dry, so it is many
#: times what is in flight.
_BATCH: Final = 4096
_BATCH_BYTES: Final = 1 << 24
#: Lines that are written to standard output at once.
_LINES: Final = 256
#: How much a clock that is set differently meanwhile, or runs at another speed, may change what is left of an expiry.
_CLOCKS_MS: Final = 1000


# -- export ------------------------------------------------------------------------------------------------------------


@click.command("export")
@click.argument("pattern", default="*")
@click.option("--values-only", is_flag=True, help="Leave out expiries and fences, which not every store tells.")
@connection_options
def export_keys(pattern: str, *, values_only: bool, settings: ConnectionSettings) -> int:
    """Print keys with their values, for `import`. It prints all keys, or those that match the glob PATTERN. Example:
    statestore export > keys.jsonl

    Each with its value, what is left of its expiry, and the fencing token that protects it. Keys that are not text are
    found if PATTERN is a prefix and a star. A file that was interrupted has no end, and is not imported: begin again.
    """
    name = argument_bytes(pattern)
    with open_client(settings) as store, progress_bar(has_count=False, shown=not stdout_is_terminal()) as bar:
        task = bar.add_task("exporting", total=None)
        lines = export_lines(_exported(store, name, values_only), name, values_only=values_only)
        count = -2  # the first line and the last one are none of a key
        while batch := list(islice(lines, _LINES)):
            write(shown(b"".join(batch), lines=True))
            count += len(batch)
            bar.update(task, description=f"exporting, {counted(count, 'keys')}")
    return exits.DONE


def _exported(store: StateStoreClient, pattern: bytes, values_only: bool) -> Iterator[KeyEntry]:
    try:
        yield from entries(store, pattern)
    except KeysOnlyError as error:
        if not values_only:
            raise UnexpectedReplyError(f"{error}; --values-only leaves these out") from None
        yield from plain_entries(store, pattern)


# -- import ------------------------------------------------------------------------------------------------------------


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--skip-refused", is_flag=True, help="Go on when the state store refuses a key: name it, exit code 8.")
@click.option("--without-fences", is_flag=True, help="Leave keys unprotected that a fencing token protects in FILE.")
@click.option("--persist", is_flag=True, help="Mark the values as ones that must be on the broker's disk.")
@click.option("--json", "json_output", is_flag=True, help="Print the numbers as a JSON object.")
@connection_options
def import_keys(
    file: str,
    *,
    skip_refused: bool,
    without_fences: bool,
    persist: bool,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Store the keys that `export` wrote into FILE. FILE can be -, for standard input. Example: statestore import
    keys.jsonl

    They replace those that are there; others stay. A key gets the expiry that it had left when it was exported. Nothing
    is stored of a file that is damaged or has no end (exit code 6). After an interruption, the same command goes on. At
    the end all is compared with FILE; keys that others have changed meanwhile are named (exit code 8).
    """
    with ExitStack() as stack:
        stream = stack.enter_context(_opened(file))
        source = ExportFile.open(stream, "standard input" if file == _STDIN else file)
        store = stack.enter_context(open_client(settings))
        importing = _Importing(store, source, skip_refused=skip_refused, has_fences=not without_fences, persist=persist)
        with progress_bar() as bar:
            importing.run(bar)
    if json_output:
        print_json(importing.numbers())
    else:
        print_line(importing.told())
    return exits.PARTLY if importing.refused.count or importing.different.count else exits.DONE


def _opened(file: str) -> BinaryIO:
    """A file that can be gone through again. What cannot, a pipe, is copied to the disk first."""
    try:
        if file == _STDIN:
            return _copied(standard_input())
        stream = Path(file).open("rb")  # noqa: SIM115 - the caller's
        if stream.seekable():
            return stream
        with stream:
            return _copied(stream)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error


def _copied(stream: BinaryIO) -> BinaryIO:
    copy: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
    copyfileobj(stream, copy)
    copy.seek(0)
    return copy


@attrs.define(eq=False)
class _Importing:
    """One run, and what became of the keys."""

    store: StateStoreClient
    source: ExportFile
    skip_refused: bool = attrs.field(kw_only=True)
    has_fences: bool = attrs.field(kw_only=True)
    persist: bool = attrs.field(kw_only=True)
    stored: int = 0
    unchanged: int = 0
    refused: NamedKeys = attrs.field(factory=NamedKeys, init=False)
    different: NamedKeys = attrs.field(factory=NamedKeys, init=False)
    _refused_keys: set[bytes] = attrs.field(factory=set, init=False)
    _began: float = attrs.field(factory=time.monotonic, init=False)

    def run(self, bar: Progress) -> None:
        """Store, and compare. Raises what the state store or the connection says; how far it came is told."""
        try:
            for step, name in ((self._store, "storing"), (self._compare, "comparing")):
                task = bar.add_task(name, total=self.source.count)
                present = _Present(self.store, self.source.pattern)
                for batch in _batches(self.source.entries()):
                    step(batch, present)
                    bar.update(task, advance=len(batch))
        except (StateStoreError, KeyboardInterrupt):
            warn(self._so_far())
            raise

    def _store(self, batch: Sequence[KeyEntry], present: _Present) -> None:
        """Write what is not there yet."""
        found = present.of(batch)
        missing = [w for w, entry in zip(batch, found, strict=True) if self._is_to_be_written(w, entry, present)]
        self.unchanged += len(batch) - len(missing)
        self._write(missing)

    def _compare(self, batch: Sequence[KeyEntry], present: _Present) -> None:
        """Count and name the keys that are not as the file has them."""
        for wanted, entry in zip(batch, present.of(batch), strict=True):
            if wanted.key not in self._refused_keys and not self._agrees(wanted, entry, present):
                self.different.add(wanted.key, f"is not as in {self.source.name}: others have changed it meanwhile")

    def _is_to_be_written(self, wanted: KeyEntry, entry: KeyEntry | None, present: _Present) -> bool:
        """One that expires is written in any case: what is left of its time may be from another day."""
        is_doubtful = wanted.expiry_ms is not None or (self.has_fences and wanted.fence and not present.tells_all)
        return bool(is_doubtful) or not self._agrees(wanted, entry, present)

    def _write(self, wanted: Sequence[KeyEntry]) -> None:
        items = (
            SetItem(
                each.key,
                each.value,
                None if each.expiry_ms is None else each.expiry_ms / 1000,
                each.fence if self.has_fences else None,
            )
            for each in wanted
        )
        try:
            self.store.set_many(items, persist=self.persist)
        except BatchError as error:
            self.stored += len(wanted) - len(error.failures)
            for position, failure in error.failures.items():
                self._refuse(wanted[position].key, failure)
        else:
            self.stored += len(wanted)

    def _refuse(self, key: bytes, failure: Exception) -> None:
        if isinstance(failure, TransportError) or not self.skip_refused:
            raise failure
        self._refused_keys.add(key)
        self.refused.add(key, f"was refused: {failure}")

    def _so_far(self) -> str:
        there = self.stored + self.unchanged
        return f"{there} of {counted(self.source.count, 'keys')} are there for certain; the same command goes on there"

    def _agrees(self, wanted: KeyEntry, entry: KeyEntry | None, present: _Present) -> bool:
        """Whether the store has this key as the file has it, but for the time that has passed since this run began."""
        least_ms = (wanted.expiry_ms or 0) - (time.monotonic() - self._began) * 1000 - _CLOCKS_MS
        if entry is None:
            return wanted.expiry_ms is not None and least_ms <= 0
        if entry.value != wanted.value:
            return False
        if self.source.values_only or not present.tells_all:
            return True
        if self.has_fences and entry.fence != wanted.fence:
            return False
        if wanted.expiry_ms is None or entry.expiry_ms is None:
            return wanted.expiry_ms is entry.expiry_ms
        return least_ms <= entry.expiry_ms <= wanted.expiry_ms + _CLOCKS_MS

    def numbers(self) -> dict[str, int]:
        """For JSON."""
        return {
            "keys": self.source.count,
            "stored": self.stored,
            "unchanged": self.unchanged,
            "refused": self.refused.count,
            "different": self.different.count,
        }

    def told(self) -> str:
        """For people."""
        counts = {
            "unchanged": self.unchanged,
            "refused": self.refused.count,
            "not as in the file": self.different.count,
        }
        others = [f"{count} {what}" for what, count in counts.items() if count]
        last = [] if self.refused.count or self.different.count else ["all are as in the file"]
        return "; ".join([f"stored {counted(self.stored, 'keys')}", *others, *last])


def _batches(wanted: Iterable[KeyEntry]) -> Iterator[list[KeyEntry]]:
    batch: list[KeyEntry] = []
    size = 0
    for entry in wanted:
        batch.append(entry)
        size += len(entry.key) + len(entry.value)
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Present:
    """What a state store has of keys that are asked for in byte order."""

    def __init__(self, store: StateStoreClient, pattern: bytes) -> None:
        self._store = store
        self._entries = entries(store, pattern)
        self._next: KeyEntry | None = None
        #: Whether it says when keys expire, and what fences them.
        self.tells_all = True
        try:
            self._next = next(self._entries, None)
        except KeysOnlyError:
            self.tells_all = False

    def of(self, wanted: Sequence[KeyEntry]) -> list[KeyEntry | None]:
        """The entries of these keys, None for one that is not there."""
        if self.tells_all:
            return [self._entry(each.key) for each in wanted]
        items = self._store.get_many(each.key for each in wanted)
        return [
            None if item is None else KeyEntry(each.key, item.value, each.version)
            for each, item in zip(wanted, items, strict=True)
        ]

    def _entry(self, key: bytes) -> KeyEntry | None:
        while self._next is not None and self._next.key < key:
            self._next = next(self._entries, None)
        return self._next if self._next is not None and self._next.key == key else None
