"""``statestore load``: many keys out of files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import attrs
import click

from raft_client._common import exits
from raft_client._common.command_line import Seconds, print_json, print_line, progress_bar, warn
from raft_client._common.standard_streams import standard_input
from statestore_client.cli.options import (
    bytes_from_json,
    connection_options,
    counted,
    fencing_token_option,
    open_client,
)
from statestore_client.core.arguments import SetItem
from statestore_client.errors import BatchError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.client import StateStoreClient
from statestore_client.wire.protocol import MAX_PACKET_SIZE

_STDIN: Final = "-"
#: As much as a pipe holds.
_CHUNK_BYTES: Final = 65_536
#: Lines in one batch. Between batches the pipeline runs dry, so it is many times what is in flight.
_BATCH: Final = 1024
#: The largest value of MQTT in Base64, and some room for the rest of the object.
_LONGEST_LINE: Final = MAX_PACKET_SIZE // 3 * 4 + 1_000_000


@click.command("load")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="[FILE]...")
@click.option("--expiry", type=Seconds(min=0.001), help="Until keys expire, for lines that do not say.")
@fencing_token_option
@click.option("--persist", is_flag=True, help="Mark the values as ones that must be on the broker's disk.")
@click.option("--json", "json_output", is_flag=True, help="Print the numbers as a JSON object.")
@connection_options
def load(
    files: tuple[str, ...],
    *,
    expiry: float | None,
    fencing_token: str | None,
    persist: bool,
    json_output: bool,
    settings: ConnectionSettings,
) -> int:
    """Store keys and values from FILEs or standard input. Each line is a JSON object, as get --json prints it.

    An object has "key" and "value", or "key_base64" and "value_base64", and may have "expiry" in seconds. Anything else
    in it is ignored, and so are empty lines. Exit code 8 when some lines cannot be used: they are named, and the
    others are stored. When the state store refuses or does not answer, it stops, and says how far it came.
    """
    sources = files or (_STDIN,)
    with open_client(settings) as store, progress_bar(has_count=False) as bar:
        task = bar.add_task("loading", total=_total_bytes(sources))
        loading = _Loading(store, expiry, fencing_token, persist)
        for name in sources:
            with nullcontext(standard_input()) if name == _STDIN else Path(name).open("rb") as stream:
                for lines in _lines(name, stream):
                    loading.store_lines(name, lines)
                    bar.update(task, advance=sum(len(line) + 1 for line in lines))
            loading.line = 0
    if json_output:
        print_json({"stored": loading.stored, "refused": loading.refused})
    else:
        print_line(f"stored {counted(loading.stored, 'keys')}")
    return exits.PARTLY if loading.refused else exits.DONE


@attrs.define(eq=False)
class _Loading:
    """One run, and what became of its lines; ``line`` is the number of the last one of the present file."""

    client: StateStoreClient
    expiry: float | None
    fencing_token: str | None
    persist: bool
    stored: int = 0
    refused: int = 0
    line: int = 0

    def store_lines(self, name: str, lines: Sequence[bytes]) -> None:
        """Store a batch. Raises what the state store or the connection says, when it has told how far it came."""
        items: dict[int, SetItem] = {}
        unusable: dict[int, ValueError] = {}
        for number, line in enumerate(lines, self.line + 1):
            try:
                if line.strip():
                    items[number] = _item(line)
            except ValueError as error:
                unusable[number] = error
        self.line += len(lines)
        try:
            results: Sequence[Any] = self.client.set_many(
                items.values(), expiry=self.expiry, fencing_token=self.fencing_token, persist=self.persist
            )
        except BatchError as error:
            results = error.results
        except KeyboardInterrupt:
            self._count(name, unusable)
            doubt = f"of its lines {min(items, default=0)} to {self.line}, any may be, too"
            warn(f"interrupted in {_called(name)}: stored for certain are {counted(self.stored, 'keys')}; {doubt}")
            raise
        self._count(name, unusable | dict(zip(items, results, strict=True)))

    def _count(self, name: str, results: Mapping[int, Any]) -> None:
        """Say what became of lines, in their order."""
        lost: StateStoreError | None = None
        for number, result in sorted(results.items(), key=itemgetter(0)):
            if isinstance(result, ValueError):  # no item, or one with an InvalidArgumentError
                self._refuse(name, number, result)
            elif isinstance(result, StateStoreError):
                if lost is None:
                    warn(f"{_called(name)}, line {number}: {result}")
                lost = lost or result
            else:
                self.stored += 1
        if lost is not None:
            place = f"stopped before line {self.line + 1} of {_called(name)}"
            warn(f"{place}; stored {counted(self.stored, 'keys')} until then")
            raise lost

    def _refuse(self, name: str, number: int, error: Exception) -> None:
        self.refused += 1
        warn(f"{_called(name)}, line {number}: {error}")


def _item(line: bytes) -> SetItem:
    """Raises ValueError that says what is wrong."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return SetItem(bytes_from_json(found, "key"), bytes_from_json(found, "value"), found.get("expiry"))


def _lines(name: str, stream: BinaryIO) -> Iterator[list[bytes]]:
    """What has arrived, at most a batch at a time, without waiting for more."""
    rest = bytearray()
    while chunk := _read(name, stream):
        first, *others = chunk.split(b"\n")
        rest += first
        if others:
            lines = [bytes(rest), *others[:-1]]
            for start in range(0, len(lines), _BATCH):
                yield lines[start : start + _BATCH]
            rest = bytearray(others[-1])
        elif len(rest) > _LONGEST_LINE:  # not collected to its end: the file may be no text at all
            raise click.UsageError(f"a line has more than {_LONGEST_LINE} bytes")
    if rest:
        yield [bytes(rest)]


def _read(name: str, stream: BinaryIO) -> bytes:
    """What is there, waiting only for the first byte."""
    try:
        data: bytes = getattr(stream, "read1", stream.read)(_CHUNK_BYTES)
    except OSError as error:
        raise click.UsageError(f"{_called(name)} cannot be read: {error.strerror}") from error
    return data


def _called(name: str) -> str:
    return "standard input" if name == _STDIN else name


def _total_bytes(files: Sequence[str]) -> int | None:
    """Of all files; None when one of them is not a regular file, but a pipe, for example."""
    try:
        found = [os.fstat(standard_input().fileno()) if name == _STDIN else Path(name).stat() for name in files]
    except OSError:  # standard input that is not a file at all
        return None
    return sum(f.st_size for f in found) if all(stat.S_ISREG(f.st_mode) for f in found) else None
