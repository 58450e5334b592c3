"""Bytes in and out, for people, pipes and programs; and the progress bar."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from raft_client._common.standard_streams import shown


def argument_bytes(argument: str) -> bytes:
    """The bytes that were typed, valid text or not."""
    return os.fsencode(argument)


def as_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """``{name: text}``, or ``{name_base64: …}`` for bytes that are not UTF-8 text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def json_line(value: dict[str, Any]) -> bytes:
    """One JSON object on one line, always UTF-8 whatever the locale."""
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on one line of standard output."""
    write(shown(json_line(value)))


def print_line(*words: bytes | str) -> None:
    """Words with blanks between them, and a line feed."""
    write(shown(b" ".join(w if isinstance(w, bytes) else w.encode() for w in words) + b"\n"))


def write(data: bytes) -> None:
    """Exactly these bytes on standard output; flushed, because pipes are read while we run."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_table(rows: Sequence[Sequence[str]], *, left: int) -> None:
    """Columns with two blanks between them; the first ``left`` are flush left. Never cut: they are copied and piped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print_line("  ".join(cells).rstrip())


def warn(message: str) -> None:
    """A line on standard error."""
    click.echo(f"zmqraft: {message}", err=True)


def progress_bar(*, shown: bool = True) -> Progress:
    """On standard error, and only for people who look at it. ``shown=False``: they look at something else."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))


def stdout_is_terminal() -> bool:
    """Whether what we print and a progress bar would get into each other's way."""
    return sys.stdout.isatty()
