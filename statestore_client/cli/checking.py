"""``statestore check``: whether a data directory is sound, and what can be read of one that is not."""

from __future__ import annotations

import attrs
import click

from statestore_client.cli import exits
from statestore_client.cli.output import print_json, print_line
from statestore_client.cli.wording import counted
from statestore_client.server.runtime.storage.integrity_check import CheckedFile, Finding, check

__all__ = ["check_data"]


@click.command("check")
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option("--json", "json_output", is_flag=True, help="One JSON object on a line.")
def check_data(directory: str, *, json_output: bool) -> int:
    """Say whether the data directory DIR is sound; if not, what is wrong, and how many records can be read.

    Changes nothing. The server must not be running. Exit code 0 when a server can start with it, 6 when it refuses.
    """
    finding = check(directory)
    if json_output:
        print_json(attrs.asdict(finding))
    else:
        _print(directory, finding)
    return exits.DONE if finding.problem is None else exits.DATA


def _print(directory: str, finding: Finding) -> None:
    print_line(f"{directory} is sound" if finding.problem is None else f"{directory} is damaged: {finding.problem}")
    for file in finding.files:
        print_line(f"{file.name}: {_described(file)}")
    if finding.broken_records:
        verb = "is" if finding.broken_records == 1 else "are"
        print_line(f"{counted(finding.broken_records, 'records')} {verb} not what was written")
    verb = "it holds" if finding.problem is None else "can be read:"
    counts = ", ".join(counted(count, name) for name, count in finding.records.items() if name != "clock")
    print_line(f"{verb} {counts or 'no records'}")


def _described(file: CheckedFile) -> str:
    gaps = ", ".join(f"{start} to {end}" for start, end in file.gaps)
    text = f"{counted(file.size, 'bytes')}, {counted(file.frames, 'frames')}"
    return f"{text}; cannot be read: bytes {gaps}" if gaps else text
