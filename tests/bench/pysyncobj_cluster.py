"""Three PySyncObj peers, each a process. It is the only other Raft in Python that is kept; it syncs nothing to disk."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from measure import Sample
from support.ports import reserved_port

__all__ = ["REQUIREMENT", "PySyncObjCluster"]

REQUIREMENT: Final = "pysyncobj==0.3.17"
_PEER: Final = Path(__file__).with_name("pysyncobj_peer.py")
_PATIENCE_S: Final = 30.0


class PySyncObjCluster:
    """Use as a context manager. Appends are made from within the leader."""

    def __init__(self, python: Path, folder: Path) -> None:
        addresses = [f"127.0.0.1:{reserved_port()}" for _ in range(3)]
        self._processes = [
            subprocess.Popen(
                [str(python), str(_PEER), str(folder / f"{number}.journal"), own, *(a for a in addresses if a != own)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number, own in enumerate(addresses)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def append(self, count: int, size: int, in_flight: int) -> Sample:
        """From within the leader."""
        seconds = _order(self._leader(), do="append", count=count, size=size, in_flight=in_flight)
        return Sample(count, seconds, 0.0)

    def _leader(self) -> subprocess.Popen[str]:
        ends = time.monotonic() + _PATIENCE_S
        while time.monotonic() < ends:
            for process in self._processes:
                if _order(process, do="leads"):
                    return process
            time.sleep(0.05)
        raise RuntimeError("no PySyncObj peer leads")


def _order(process: subprocess.Popen[str], **order: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, "a PySyncObj peer has ended"
    return json.loads(line)
