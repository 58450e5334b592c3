"""One peer of a cluster inside another program, whose other peers are elsewhere.

::

    members = {"a": "tcp://10.0.0.1:8047", "b": "tcp://10.0.0.2:8047", "c": "tcp://10.0.0.3:8047"}
    with EmbeddedPeer("a", members, "/var/lib/raft"):
        ...

It is what ``zmqraft serve`` runs, in a thread with an event loop of its own: it speaks to the others in time while the
program is busy. A peer of which nothing can be kept any more says nothing more; ``on_failure`` is told.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from raft_client import thread_locks
from raft_client.errors import BusyError, InvalidArgumentError
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.node.ready import Role
from raft_client.server.runtime.metrics import render
from raft_client.server.runtime.peer import PeerOptions, RaftPeer, open_peer
from raft_client.server.runtime.storage.disk_log import Fsync
from raft_client.wire.configuration import Peer, host_of, is_tcp_url, with_host

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Mapping

    from raft_client.server.machines.state_machine import StateMachine

# -- a thread with an event loop ---------------------------------------------------------------------------------------


T = TypeVar("T")


class LoopThread:
    """Runs in a ``with`` statement. A daemon: a program that forgets it can end."""

    def __init__(self, name: str, what: str) -> None:
        """``what`` runs in it, for errors."""
        self._name = name
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        loop = self._loop = asyncio.SelectorEventLoop()  # Windows' own has no add_reader()
        thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
        try:
            thread_locks.start(thread)
        except BusyError:
            loop.close()
            raise
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)  # if the thread runs, it ends at once
            raise
        self._closing.callback(thread.join)
        self._closing.callback(loop.call_soon_threadsafe, loop.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises; from any other thread. Raises InvalidArgumentError outside the ``with``."""
        if self._loop is None or self._loop.is_closed():
            action.close()
            raise InvalidArgumentError(f"{self._what} is not running: use it in a with statement")
        return asyncio.run_coroutine_threadsafe(action, self._loop).result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


# -- embedded peer -----------------------------------------------------------------------------------------------------


#: How old the figures are at most.
_FIGURES_S: Final = 1.0
#: Another one leads within an election time-out, or this peer goes on leading.
_HAND_OVER_S: Final = 0.5


class EmbeddedPeer:
    """The peer ``peer_id`` of ``peers``, ids with URLs, which count when ``data`` is new; later the log tells them.

    A peer that is none of them has its own ``url``: it copies their log and waits to be made a member, with
    :meth:`.RaftClient.update_config` or ``zmqraft add-peer``.

    ``data`` is the directory of its log. ``host`` is the address to listen at, if it is not that of its URL; it
    broadcasts from ``publisher_port`` there, by default from any free one. ``cluster``, ``machine``, ``fsync``,
    ``curve_keys``, ``compact_bytes`` and ``settings`` are as those of :class:`.EmbeddedCluster`. With
    ``trim_forgets_ids``, entries that are trimmed take their request ids with them, and a repetition is appended again.
    ``on_failure`` is called in the peer's thread, with the error, when the peer has ended by itself.

    Raises InvalidArgumentError for what cannot be used. Entering raises TransportError if a port cannot be had, and
    what :meth:`.DiskLog.open` raises. Leaving lets another peer lead, if this one does.
    """

    def __init__(
        self,
        peer_id: str,
        peers: Mapping[str, str],
        data: str | os.PathLike[str],
        *,
        url: str | None = None,
        cluster: str = "",
        machine: Callable[[], StateMachine] = KeyValueStateMachine,
        host: str = "",
        publisher_port: int | None = None,
        fsync: Fsync = Fsync.GROUP,
        curve_keys: Path | None = None,
        compact_bytes: int | None = None,
        trim_forgets_ids: bool = False,
        settings: Mapping[str, Any] | None = None,
        on_failure: Callable[[BaseException], object] = lambda _error: None,
    ) -> None:
        wrong = [f"{name}={each}" for name, each in peers.items() if not name or not is_tcp_url(each)]
        if wrong or len(set(peers.values())) < len(peers):
            raise InvalidArgumentError(f"peers are ids with different URLs, tcp://host:port; not {wrong or peers!r}")
        if url is None and peer_id not in peers:
            raise InvalidArgumentError(f"{peer_id!r} is none of the peers {', '.join(peers)}, and has no url")
        if url is not None and (peer_id in peers or url in peers.values() or not is_tcp_url(url)):
            raise InvalidArgumentError(
                f"url is the address of a new peer, tcp://host:port, none of those in peers; not {url!r}",
                argument="url",
            )
        self._options = PeerOptions(
            cluster=cluster,
            machine=machine,
            fsync=fsync,
            curve_keys=curve_keys,
            compact_bytes=compact_bytes,
            trim_forgets_ids=trim_forgets_ids,
            settings=settings or {},
        )
        self._peer_id = peer_id
        self._peers = tuple(Peer(*each) for each in peers.items())
        self._data = Path(data)
        #: Where clients and other peers find it.
        self.url: str = url or peers[peer_id]
        self._host = host
        self._publisher_port = publisher_port
        self._on_failure = on_failure
        self._role_changed = asyncio.Event()
        self._closing = ExitStack()
        self._figures = b""
        self.failure: BaseException | None = None

    @property
    def figures(self) -> bytes:
        """As ``zmqraft serve --metrics-port`` has them, a second old at most; empty before the start. Thread-safe."""
        return self._figures

    def start(self) -> Self:
        """As entering. From any thread but with one event loop; it waits for the disk."""
        with ExitStack() as closing:
            thread = closing.enter_context(LoopThread("raft-peer", "the peer"))
            peer = thread.run(self._start())
            watching = thread.run(self._begin_to_watch(peer))
            closing.callback(lambda: thread.run(self._stop(peer, watching)))
            self._closing = closing.pop_all()
        return self

    def stop(self) -> None:
        """As leaving. More than once, and without a start, too."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- in its thread -------------------------------------------------------------------------------------------------

    async def _start(self) -> RaftPeer:
        own_host = host_of(self.url)
        url = with_host(self.url, self._host or own_host)
        peer = open_peer(
            self._options,
            self._peer_id,
            self._peers,
            self._data,
            url=url,
            publisher_url=f"tcp://{host_of(url)}:{self._publisher_port or '*'}",
            public_host=own_host,
            on_role=lambda _status: self._role_changed.set(),
        )
        await peer.start()
        return peer

    async def _begin_to_watch(self, peer: RaftPeer) -> asyncio.Task[None]:
        return asyncio.create_task(self._watch(peer))

    async def _watch(self, peer: RaftPeer) -> None:
        while not peer.ended.is_set():
            self._figures = render(peer)
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIGURES_S):
                    await peer.ended.wait()
        if peer.failure is not None:
            self.failure = peer.failure
            self._on_failure(peer.failure)

    async def _stop(self, peer: RaftPeer, watching: asyncio.Task[None]) -> None:
        self._role_changed.clear()
        if not peer.ended.is_set() and peer.status().role is Role.LEADER and peer.hand_over():
            with suppress(TimeoutError):
                async with asyncio.timeout(_HAND_OVER_S):
                    await self._role_changed.wait()
        await peer.close()
        await watching
