"""A command that is still importing: a stand-in for click, its first import that takes long, never gets done.

It wakes up all the time, as an import does: a signal that comes right before a call that blocks for ever would be seen
by nobody.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["importing"]

_CLICK: Final = """\
import select, sys
print("importing", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass
"""


@contextmanager
def importing(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and the id of the one that imports: its child, if the command is run by another one."""
    (folder / "click.py").write_text(_CLICK)
    paths = os.pathsep.join((str(folder), *filter(None, [os.environ.get("PYTHONPATH")])))
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"importing\n"
            yield process, _importer(process.pid)
        finally:
            process.kill()


def _importer(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid
