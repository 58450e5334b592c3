"""Servers of one log as processes that start at once: forked from one that has loaded everything. On demand with a
defect, which all of them have.

* ``speaks without the right``: what is durable is said, whether this server may be deposed or not;
* ``applies old epochs``: a standby takes batches of an owner that was deposed before they were in the log.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, cast

import attrs
from support.server_processes import ReplicatedServer

from statestore_client.server.cluster.entries import BatchPiece, LogEntry, unpack_batch
from statestore_client.server.cluster.fence import Verdict
from statestore_client.server.cluster.interface import BatchReplicated
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.runtime.replication.log_link import LogLink, LogReader
from statestore_client.server.runtime.replication.replica import LogReplica
from statestore_client.server.runtime.replication.settings import ReplicaSettings
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import Endpoints, ServerSettings

__all__ = ["ForkedServer"]


def _apply_old_epochs() -> None:
    original = ClusterMember._receive_owned

    def receive_owned(self: ClusterMember, index: int, entry: LogEntry, verdict: Verdict, now: Any) -> None:
        body = entry.body
        is_old = verdict is Verdict.OUTDATED and entry.epoch < self.fence.epoch
        if is_old and self._ownership is None and isinstance(body, BatchPiece) and body.is_last:
            self.events.append(BatchReplicated(index, unpack_batch(body.data)))
        original(self, index, entry, verdict, now)

    ClusterMember._receive_owned = receive_owned  # type: ignore[method-assign]


class _LateReader:
    """What is new in the log arrives so much later: this server goes on meanwhile with what is older."""

    def __init__(self, reader: LogReader, seconds: float) -> None:
        self._reader, self._seconds = reader, seconds

    def __getattr__(self, name: str) -> Callable[..., object]:
        """Whatever the reader is told."""
        return partial(asyncio.get_running_loop().call_later, self._seconds, getattr(self._reader, name))


def _slow_down_tail(seconds: float) -> None:
    original = LogLink.open
    LogLink.open = lambda self, reader, after: original(  # type: ignore[method-assign]
        self, cast("LogReader", _LateReader(reader, seconds)), after
    )


def _break(defect: str) -> None:
    """For good: the process is that of this server alone, and there is no fixture in it that would undo anything."""
    if defect == "speaks without the right":
        LogReplica.holds_lease = lambda *_: True  # type: ignore[method-assign]
    elif defect == "applies old epochs":
        _apply_old_epochs()
    elif defect:
        raise ValueError(f"an unknown defect: {defect}")


async def _serve(port: int, settings: ReplicaSettings, ready: Connection) -> None:
    server = Server(ServerSettings(endpoints=Endpoints(port=port, metrics_port=0), log=settings))
    await server.start()
    assert server.replication is not None
    ready.send((server.endpoints.metrics_port, int(server.replication.url.rpartition(":")[2])))
    await server.wait_for_failure()
    raise RuntimeError(f"the server stops: {server.failure}")


def _run(port: int, settings: ReplicaSettings, defect: str, tail_delay_s: float, ready: Connection) -> None:
    _break(defect)
    if tail_delay_s:
        _slow_down_tail(tail_delay_s)
    asyncio.run(_serve(port, settings, ready))


@attrs.define(eq=False)
class ForkedServer(ReplicatedServer):
    """``tail_delay_s`` is asked for at each start."""

    defect: str = ""
    tail_delay_s: Callable[[], float] = float
    child: ForkServerProcess | None = None

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.is_alive()

    async def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["statestore_client.server.runtime.server"])
        ready, in_child = context.Pipe(duplex=False)
        settings = ReplicaSettings(log=self.log, id=self.id)
        arguments = (self.port, settings, self.defect, self.tail_delay_s(), in_child)
        self.child = context.Process(target=_run, args=arguments, daemon=True)
        await asyncio.to_thread(self.child.start)
        in_child.close()
        self.metrics_port, self.internal_port = await asyncio.to_thread(ready.recv)
        ready.close()

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        assert self.child.pid is not None
        os.kill(self.child.pid, number)

    async def end(self, number: signal.Signals) -> None:
        if self.is_running and self.child is not None:
            self.signal(number)
            await asyncio.to_thread(self.child.join)
