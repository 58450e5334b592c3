"""The file of ``statestore export``: one JSON object on each line, and each key on a line of its own.

The first line says what the file is; the last one how many keys there are, and the SHA-256 of all bytes before it. See
"The file of export" in the reference of the command line.

Invariant: keys are in byte order, each once. So a file is compared with a state store by going through both once. A
file whose end is missing, or whose checksum is wrong, is refused before any of its keys is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from json import loads
from typing import Any, BinaryIO, Final

import attrs

from raft_client._common import exits
from raft_client._common.command_line import OneLineError, as_json, json_line
from statestore_client.cli.entries import UNKNOWN
from statestore_client.cli.options import bytes_from_json, counted
from statestore_client.core.arguments import MAX_EXPIRY_S
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import KeyEntry

#: What the first line calls the file, and the only version so far.
_MARK: Final = "statestore_export"
_VERSION: Final = 1
#: A first line has a pattern of 2048 bytes, escaped, and little else. Other files may have no lines at all.
_LONGEST_HEAD: Final = 65_536


class ExportFileError(OneLineError):
    """A file cannot be imported: it is another one, damaged, or has no end."""

    exit_code = exits.DATA


# -- writing -----------------------------------------------------------------------------------------------------------


def export_lines(found: Iterable[KeyEntry], pattern: bytes, *, values_only: bool) -> Iterator[bytes]:
    """The lines of a file with these keys, which are in byte order."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    head = json_line({_MARK: _VERSION, **as_json("pattern", pattern), "values_only": values_only, "time": now})
    digest, count = sha256(head), 0
    yield head
    for entry in found:
        line = _key_line(entry, values_only)
        digest.update(line)
        count += 1
        yield line
    yield json_line({"keys": count, "sha256": digest.hexdigest()})


def _key_line(entry: KeyEntry, values_only: bool) -> bytes:
    facts: dict[str, Any] = {} if entry.version is UNKNOWN else {"version": str(entry.version)}
    if entry.expiry_ms is not None and not values_only:
        facts["expiry"] = entry.expiry_ms / 1000
    if entry.fence is not None and not values_only:
        facts["fence"] = str(entry.fence)
    return json_line({**as_json("key", entry.key), **as_json("value", entry.value), **facts})


# -- reading -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class ExportFile:
    """A file whose end and checksum are right; it can be gone through more than once."""

    stream: BinaryIO
    name: str
    pattern: bytes
    #: Whether it tells nothing of expiries and fences.
    values_only: bool
    count: int

    @classmethod
    def open(cls, stream: BinaryIO, name: str) -> ExportFile:
        """Look at all of it. Raises ExportFileError that says what is wrong."""
        line = stream.readline(_LONGEST_HEAD)
        try:
            pattern, values_only = _read_head(line)
            digest, count, last = sha256(line), -1, b""
            for line in stream:
                digest.update(last)
                last = line
                count += 1
            _check_end(last, max(0, count), digest.hexdigest())
        except ValueError as error:
            raise ExportFileError(f"{name} cannot be imported, and nothing was stored: {error}") from error
        return cls(stream, name, pattern, values_only, count)

    def entries(self) -> Iterator[KeyEntry]:
        """All keys. Raises ExportFileError where another program than ``export`` wrote the file."""
        self.stream.seek(0)
        last = b""
        for number, line in enumerate(islice(self.stream, 1, 1 + self.count), 2):
            try:
                entry = _read_key(_object(line))
                if entry.key <= last:
                    raise ValueError("this key is not greater than the one before")
            except ValueError as error:
                raise ExportFileError(f"{self.name}, line {number}: {error}") from error
            last = entry.key
            yield entry


def _read_head(line: bytes) -> tuple[bytes, bool]:
    """Pattern, and whether only values are told. Raises ValueError."""
    try:
        head = _object(line)
    except ValueError:
        head = {}
    if _MARK not in head:
        raise ValueError("this is no file of statestore export")
    if head[_MARK] != _VERSION:
        raise ValueError(f"it is of version {head[_MARK]}, and this release reads version {_VERSION}")
    return bytes_from_json(head, "pattern"), head.get("values_only") is True


def _check_end(line: bytes, count: int, checksum: str) -> None:
    """Raises ValueError if this last line is none, or does not fit to what stands before it."""
    try:
        end = _object(line)
    except ValueError:
        end = {}
    if "keys" not in end:
        raise ValueError(f"it has no end: the export was interrupted after about {counted(count, 'keys')}")
    if (end["keys"], end.get("sha256")) != (count, checksum):
        raise ValueError("its checksum or its number of keys is wrong: it was changed")


def _read_key(found: dict[str, Any]) -> KeyEntry:
    """Raises ValueError."""
    expiry, fence = found.get("expiry"), found.get("fence")
    if expiry is not None and (type(expiry) not in (int, float) or not expiry >= 0):
        raise ValueError("expiry is no number of seconds")
    if fence is not None and type(fence) is not str:
        raise ValueError("fence is no fencing token")
    return KeyEntry(
        bytes_from_json(found, "key"),
        bytes_from_json(found, "value"),
        UNKNOWN,  # a store gives each key a version of its own
        # What had no whole millisecond left, ends at once. Keys may live longer than clients can say.
        None if expiry is None else max(1, round(min(expiry, MAX_EXPIRY_S) * 1000)),
        None if fence is None else HlcTimestamp.parse(fence),
    )


def _object(line: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        found = loads(line.decode())  # faster than letting json find out what encoding it is
    except RecursionError:
        raise ValueError("not JSON: too deep") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found
