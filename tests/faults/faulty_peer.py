"""``zmqraft serve`` with a disk that a test can stall; and, on demand, with a defect.

``RAFT_STALL`` names a file: while it exists, the disk does nothing. ``RAFT_DEFECT`` names what is broken:

* ``no read index``: a peer answers questions to its state machine at once, whoever leads;
* ``no quorum``: a leader never asks whether it still leads, neither for a question nor when it hears nothing.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from raft_client.cli.app import main
from raft_client.server.node.node import RaftNode
from raft_client.server.node.reads import Reads
from raft_client.server.node.ready import ReadGranted
from raft_client.server.node.step_down import StepDownRules
from raft_client.server.runtime.storage.disk_log import DiskLog


def stall_while_there(path: Path) -> None:
    sync = DiskLog.sync

    def stalled(self: DiskLog) -> None:
        while path.exists():
            time.sleep(0.005)
        sync(self)

    DiskLog.sync = stalled  # type: ignore[method-assign]


def answer_at_once(self: RaftNode, token: object, now: float) -> None:
    del now
    self._reads._granted.append(ReadGranted(token, self._state.applied_index))


def break_it(defect: str) -> None:
    if defect == "no read index":
        RaftNode.read = answer_at_once  # type: ignore[method-assign]
    elif defect == "no quorum":
        Reads._has_lease = property(lambda self: self._state.is_leader)  # type: ignore[assignment]
        StepDownRules._quorum_lost_at = property(lambda _limits: math.inf)  # type: ignore[assignment]
    elif defect:
        raise ValueError(f"an unknown defect: {defect}")


if __name__ == "__main__":
    stall_while_there(Path(os.environ["RAFT_STALL"]))
    break_it(os.environ.get("RAFT_DEFECT", ""))
    main()
