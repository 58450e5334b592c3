"""What bench_raft_storage.py runs in a process of its own; each mode prints one line of JSON.

    raft_storage_child.py open DIRECTORY COUNT BEGUN_S PER_SECOND     open a log, and look for request ids in it
    raft_storage_child.py serve DIRECTORY ID MEMBERS MACHINE COMPACT_BYTES

``serve`` runs a peer, and tells how it is for each line that it reads; ``MEMBERS`` is ``ID=URL,…``. Linux only.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final

from raft_memory_child import forget_peak, resident_bytes
from raft_storage_peers import made_id

from raft_client import Peer
from raft_client.server.machines.broadcast import BroadcastStateMachine
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.state_machine import StateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog

MACHINES: Final[dict[str, type[StateMachine]]] = {
    "broadcast": BroadcastStateMachine,
    "key-value": KeyValueStateMachine,
}
#: How often the event loop is asked for a turn.
_PROBE_S: Final = 0.002
#: Request ids that are looked for.
_LOOKS: Final = 2000


class Pauses:
    """The longest time for which the event loop did nothing else: on the clock, and of the processor.

    The first one is that of others, too, where a machine has more to do than processors.
    """

    def __init__(self) -> None:
        self.longest_s = self.longest_busy_s = 0.0

    async def watch(self) -> None:
        before, busy_before = time.monotonic(), time.thread_time()
        while True:
            await asyncio.sleep(_PROBE_S)
            now, busy = time.monotonic(), time.thread_time()
            self.longest_s = max(self.longest_s, now - before - _PROBE_S)
            self.longest_busy_s = max(self.longest_busy_s, busy - busy_before)
            before, busy_before = now, busy


def tell(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def members_of(text: str) -> tuple[Peer, ...]:
    return tuple(Peer(*each.split("=", 1)) for each in text.split(","))


def open_once(folder: Path, count: int, begun_s: float, per_second: int) -> None:
    """``count`` ids are those of :func:`raft_storage_peers.made_id`; 0: none is looked for."""
    idle = forget_peak()
    began = time.perf_counter()
    log = DiskLog.open(folder, peer_id="1", ident=b"", peers=(Peer("1", "tcp://127.0.0.1:1"),))
    seconds = time.perf_counter() - began
    memory = resident_bytes("VmRSS") - idle
    looked = {}
    if count:
        random = Random(1)
        old = [random.randrange(1, count) for _ in range(_LOOKS)]
        made = {
            "new": [made_id(count + 1 + number, begun_s, per_second) for number in range(_LOOKS)],
            "known": [made_id(index, begun_s, per_second) for index in old],
            "old": [made_id(index, begun_s, per_second)[:6] + bytes(6) for index in old],
        }
        looked = {kind: _look(log, ids, known=kind == "known") for kind, ids in made.items()}
    tell(open_s=seconds, last=log.last_index, now=memory, most=resident_bytes("VmHWM") - idle, looked=looked)
    log.close()


def _look(log: DiskLog, ids: list[bytes], *, known: bool) -> float:
    """Microseconds for one of them."""
    began = time.perf_counter()
    for raw in ids:
        assert (log.index_of_request(raw) is not None) is known
    return 1e6 * (time.perf_counter() - began) / len(ids)


async def serve(folder: Path, peer_id: str, members: str, machine: str, compact_bytes: int) -> None:
    peers = members_of(members)
    idle = forget_peak()
    began = time.perf_counter()
    log = DiskLog.open(folder, peer_id=peer_id, ident=b"", peers=peers)
    opened = time.perf_counter() - began
    url = next(peer.url for peer in peers if peer.id == peer_id)
    pauses = Pauses()
    watching = asyncio.ensure_future(pauses.watch())
    peer = RaftPeer(
        NodeSettings(peer_id=peer_id), log, MACHINES[machine](), url=url, compact_bytes=compact_bytes or None
    )
    async with peer:
        await asyncio.sleep(0)
        tell(open_s=opened, started_s=time.perf_counter() - began)
        loop = asyncio.get_running_loop()
        while question := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            status, snapshot = peer.status(), log.snapshot
            tell(
                role=status.role.value,
                term=status.term,
                applied=status.applied_index,
                snapshot=0 if snapshot is None else snapshot.index,
                now=resident_bytes("VmRSS") - idle,
                most=resident_bytes("VmHWM") - idle,
                pause_s=pauses.longest_s,
                busy_s=pauses.longest_busy_s,
            )
            if question == "reset":  # measure from now on
                pauses.longest_s = pauses.longest_busy_s = 0.0
                idle = forget_peak()
    watching.cancel()


def main() -> None:
    match sys.argv[1:]:
        case ["open", folder, count, begun_s, per_second]:
            open_once(Path(folder), int(count), float(begun_s), int(per_second))
        case ["serve", folder, peer_id, members, machine, compact_bytes]:
            asyncio.run(serve(Path(folder), peer_id, members, machine, int(compact_bytes)))


if __name__ == "__main__":
    main()
