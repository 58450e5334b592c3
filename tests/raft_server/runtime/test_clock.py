"""The clock of a peer, on a machine that was suspended."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

AHEAD_S = 100_000
UNSHARE = ["unshare", "--user", "--map-root-user", "--time", "--boottime", str(AHEAD_S), "--fork"]
PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from raft_client import Peer
from raft_client.server import KeyValueStateMachine, NodeSettings
from raft_client.server.node.node import RaftNode
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog

class Node(RaftNode):
    def tick(self, now, wall_s):
        times.append(now - time.monotonic())
        super().tick(now, wall_s)

async def main():
    log = DiskLog.open(Path(sys.argv[1]), peer_id="1", ident=b"", peers=(Peer("1", "tcp://127.0.0.1:1"),))
    peer = RaftPeer(NodeSettings(peer_id="1"), log, KeyValueStateMachine(), url="tcp://127.0.0.1:*", make_node=Node)
    async with peer:
        while not times:
            await asyncio.sleep(0)

times = []
asyncio.run(main())
print(min(times))
"""


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.machine
@pytest.mark.skipif(not _can_unshare(), reason="this system makes no time namespaces")
def test_the_clock_of_a_peer_goes_on_while_the_machine_is_suspended(tmp_path: object) -> None:
    """In a namespace whose clock of the time since the boot is a day ahead, as after a suspension, the node's is, too:
    its leases are over."""
    command = [*UNSHARE, sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) == pytest.approx(AHEAD_S, abs=60)
