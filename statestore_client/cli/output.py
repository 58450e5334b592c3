"""Keys and values in and out: binary-safe, for people, pipes and programs."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from raft_client._common.standard_streams import shown, standard_input
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["argument_bytes", "as_json", "print_json", "print_line", "read_input", "value_argument", "write_value"]


def argument_bytes(argument: str) -> bytes:
    """The bytes that were typed, valid text or not."""
    return os.fsencode(argument)


def value_argument(value: str | None, value_file: str | None) -> bytes:
    """The value: typed, from a file, or from standard input with ``-``. Exactly one source must be given."""
    if (value is None) == (value_file is None):
        raise click.UsageError("give the value either as an argument or with --value-file (- is standard input)")
    if value is not None:
        return argument_bytes(value)
    if value_file == "-":
        return read_input()
    try:
        return Path(str(value_file)).read_bytes()
    except OSError as error:
        raise click.UsageError(f"--value-file {value_file}: {error.strerror}") from error


def read_input() -> bytes:
    """Standard input, up to its end."""
    try:
        return standard_input().read()
    except OSError as error:
        raise click.UsageError(f"standard input cannot be read: {error.strerror}") from error


def as_json(name: str, data: bytes | None) -> dict[str, Any]:
    """``{name: text}``, or ``{name_base64: …}`` for bytes that are not UTF-8 text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def print_json(*parts: dict[str, Any], version: HlcTimestamp | None = None) -> None:
    """One JSON object on one line."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    if version is not None:
        merged["version"] = str(version)
    write_value(shown(json.dumps(merged, ensure_ascii=False).encode() + b"\n"))  # UTF-8, whatever the locale


def print_line(*words: bytes | str) -> None:
    """Words with blanks between them, as bytes, and a line feed; flushed, because pipes are read while we run."""
    line = b" ".join(w if isinstance(w, bytes) else w.encode() for w in words)
    write_value(shown(line + b"\n"))


def write_value(data: bytes) -> None:
    """Exactly these bytes on standard output."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
