"""``statestore check``: whether a data directory is sound, and what can be read of one that is not."""

from __future__ import annotations

from typing import Final

import attrs
import click

from statestore_client.cli import exits
from statestore_client.cli.io import counted, print_json, print_line
from statestore_client.server.runtime.storage.inspection import CheckedFile, Finding, check

#: Kinds of records whose names say little to others.
_KINDS: Final = {"responses": "remembered answers"}
_WHAT_TO_DO: Final = (
    "what to do: a server refuses this directory. Restore it from a backup, or move it away and start with an empty "
    "one. Nothing was changed here"
)


@click.command("check")
@click.argument("directory", metavar="DIR", type=click.Path(readable=False))
@click.option("--json", "json_output", is_flag=True, help="One JSON object on a line.")
def check_data(directory: str, *, json_output: bool) -> int:
    """Say whether the data directory DIR is sound; if not, what is wrong, what can be read, and what to do.

    Everything in it is read and compared with its checksums, and whether the records fit together is decided as a
    server does that starts. Changes nothing. The server must not be running. Exit code 0 when a server can start with
    it, 6 when it refuses.
    """
    finding = check(directory)
    if json_output:
        print_json(attrs.asdict(finding))
    else:
        _print(directory, finding)
    return exits.DONE if finding.problem is None else exits.DATA


def _print(directory: str, finding: Finding) -> None:
    is_sound = finding.problem is None
    verdict = "sound: a server can start with it" if is_sound else f"damaged: {finding.problem}"
    print_line(f"{directory} is {verdict}")
    print_line("checked: each frame of the files against its checksum, and whether the records fit together")
    for file in finding.files:
        print_line(f"{file.name}: {_described(file)}")
    if finding.broken_records:
        verb = "is" if finding.broken_records == 1 else "are"
        print_line(f"{counted(finding.broken_records, 'records')} {verb} not what was written")
    records = {_KINDS.get(name, name): count for name, count in finding.records.items() if name != "clock"}
    counts = ", ".join(counted(count, name) for name, count in records.items())
    print_line(f"{'it holds' if is_sound else 'can be read:'} {counts or 'no records'}")
    if not is_sound:
        print_line(_WHAT_TO_DO)


def _described(file: CheckedFile) -> str:
    gaps = ", ".join(f"{start} to {end}" for start, end in file.gaps)
    text = f"{counted(file.size, 'bytes')}, {counted(file.frames, 'frames')}"
    return f"{text}; cannot be read: bytes {gaps}" if gaps else text
