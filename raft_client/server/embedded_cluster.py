"""A cluster inside another program: for tests, demos and notebooks.

::

    with EmbeddedCluster() as cluster, RaftClient(cluster.url) as log:        # in a thread of its own
        log.append(b"data")

    async with AsyncEmbeddedCluster() as cluster:                             # in the running event loop
        ...

The peers are real: they speak over sockets, of the loopback interface or without ports, and write to a disk. Peers are
killed and restarted, taken from each other, and given a slow disk.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypeVar, get_args

from raft_client.errors import InvalidArgumentError, NoLeaderError, TransportError
from raft_client.server.embedded_peer import LoopThread
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.node.ready import Role
from raft_client.server.runtime.peer import PeerOptions, RaftPeer, open_peer
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits
from raft_client.thread_locks import Flag
from raft_client.wire.configuration import Peer, Peers, is_ipc_url
from raft_client.zmq_messages import has_unix_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence

    from raft_client.server.machines.state_machine import StateMachine

# -- addresses and sockets ---------------------------------------------------------------------------------------------
# docs/decisions/raft-wire.md says why Unix sockets, and not ØMQ's inproc transport, are what needs no ports.


Transport: TypeAlias = Literal["tcp", "ipc"]

#: Of a peer's Unix socket for broadcasts, after the URL of the other one.
_BROADCASTS: Final = ".pub"


def check_transport(transport: Transport) -> Transport:
    """Raises InvalidArgumentError if there is no such transport, or not on this system."""
    if transport not in get_args(Transport):
        raise InvalidArgumentError(f"transport is 'tcp' or 'ipc', not {transport!r}")
    if transport == "ipc" and not has_unix_sockets():
        raise InvalidArgumentError("libzmq has no Unix sockets on this system: use transport='tcp'")
    return transport


def addresses(transport: Transport, size: int, folder: Path) -> Peers:
    """Where ``size`` peers can listen. Unix sockets are in ``folder``, which others cannot open.

    Raises TransportError if the path of one would be too long, or could not stand in a URL.
    """
    if transport == "tcp":
        return tuple(Peer(str(number), f"tcp://127.0.0.1:{port}") for number, port in enumerate(_free_ports(size), 1))
    peers = tuple(Peer(str(number), f"ipc://{folder}/{number}.sock") for number in range(1, size + 1))
    if not all(is_ipc_url(publisher_url(peer)) for peer in peers):
        raise TransportError(
            f"no Unix socket can be in {folder}: its path may have 103 bytes, and no comma, '=' or white space. "
            "Set TMPDIR to another directory, such as /tmp, or use transport='tcp'"
        )
    return peers


def publisher_url(peer: Peer) -> str:
    """Where this peer broadcasts."""
    return peer.url + _BROADCASTS if is_ipc_url(peer.url) else "tcp://127.0.0.1:*"


def _free_ports(size: int) -> list[int]:
    """Held until the last one is known, so that they differ. Another program may take one before the peer does."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(size)]
        return [each.getsockname()[1] for each in sockets]


# -- slow disks --------------------------------------------------------------------------------------------------------


class SlowableLog(DiskLog):
    """A log whose disk can be made slow, at any time and from any thread."""

    _slowness: tuple[float, Flag] = (0.0, Flag())

    def slow_down(self, seconds: float) -> None:
        """Each job takes so much longer from now on. The one under way does not wait for the end of its old time."""
        before, self._slowness = self._slowness, (seconds, Flag())
        before[1].set()

    def sync(self) -> None:
        """Do the job, later. Raises StorageError."""
        seconds, is_over = self._slowness
        if seconds:
            is_over.wait(seconds)
        super().sync()


def unreachable(groups: Sequence[Collection[str]], peer_ids: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each peer those that it does not reach: all that are not in its group.

    Those that are in no group are together. Raises InvalidArgumentError for an id that no peer has, or that two groups
    have.
    """
    everybody = frozenset(peer_ids)
    group_of: dict[str, int] = {}
    for number, group in enumerate(groups):
        for peer_id in [group] if isinstance(group, str) else group:
            if peer_id not in everybody or peer_id in group_of:
                what = "in two groups" if peer_id in group_of else f"none of {', '.join(sorted(everybody))}"
                raise InvalidArgumentError(f"peer {peer_id!r} is {what}")
            group_of[peer_id] = number
    return {
        peer_id: frozenset(other for other in everybody if group_of.get(other) != group_of.get(peer_id))
        for peer_id in everybody
    }


# -- embedded cluster --------------------------------------------------------------------------------------------------


T = TypeVar("T")

_MOST_PEERS: Final = 9
_SLOWEST_S: Final = 3600.0
#: A free port may be taken by another program before the peer listens there.
_ATTEMPTS: Final = 10


class AsyncEmbeddedCluster:
    """``size`` peers, named "1", "2" …, in the running event loop.

    ``cluster`` is the name that clients have to give, too. ``machine`` makes the state machine of each peer.
    Their logs are in a temporary directory, which is removed in the end. ``fsync`` OFF is quicker. ``settings`` are
    changes of :class:`~raft_client.server.node.settings.NodeSettings`, such as its time-outs. ``curve_keys`` is a
    directory with the keys of all peers and clients; with it, everything is encrypted, and nobody else is let in.
    ``transport`` "tcp" has free ports of the loopback interface; "ipc" has none: Unix sockets in the temporary
    directory, for clients of this user on this machine. ``compact_bytes`` is what ``zmqraft serve --compact-bytes``
    takes, and ``limits`` :class:`.StorageLimits`: only whole segments are dropped, and only when their request ids have
    expired.

    Entering returns at once; clients wait for the first leader. Raises InvalidArgumentError for arguments and keys that
    cannot be used, TransportError if the path of a Unix socket would be too long, and what :meth:`.DiskLog.open`
    raises.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        cluster: str = "",
        machine: Callable[[], StateMachine] = KeyValueStateMachine,
        fsync: Fsync = Fsync.GROUP,
        settings: dict[str, Any] | None = None,
        curve_keys: Path | None = None,
        transport: Transport = "tcp",
        compact_bytes: int | None = None,
        limits: StorageLimits | None = None,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST_PEERS:
            raise InvalidArgumentError(f"size is a number of peers from 1 to {_MOST_PEERS}, not {size!r}")
        self._size = size
        self._transport = check_transport(transport)
        self._options = PeerOptions(
            cluster=cluster,
            machine=machine,
            fsync=fsync,
            limits=limits,
            curve_keys=curve_keys,
            compact_bytes=compact_bytes,
            settings=settings or {},
        )
        self._folder = Path()
        self._running: dict[str, RaftPeer] = {}
        self._logs: dict[str, SlowableLog] = {}
        self._groups: tuple[Collection[str], ...] = ()
        self._closing = AsyncExitStack()
        self._changed = asyncio.Event()
        #: The members, with the addresses that they listen at.
        self.peers: Peers = ()

    @property
    def cluster(self) -> str:
        """Its name, which clients have to give as well."""
        return self._options.cluster

    @property
    def seeds(self) -> tuple[str, ...]:
        """The URLs of all peers."""
        return tuple(peer.url for peer in self.peers)

    @property
    def url(self) -> str:
        """The same in one text, as clients take them."""
        return ",".join(self.seeds)

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the peers that were not killed."""
        return tuple(self._running)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as closing:
            self._folder = Path(closing.enter_context(_temporary_folder()))
            closing.push_async_callback(self._close_all)
            await self._start_all()
            self._closing = closing.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def leader(self, timeout: float = 10.0) -> str:
        """The id of the peer that leads; waits until there is one. Raises NoLeaderError after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while (found := self._leader()) is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise NoLeaderError(f"no peer of {', '.join(self._running) or 'none'} leads") from None
        return found

    async def kill(self, peer_id: str) -> None:
        """End this peer without a goodbye; what waits is not written. Raises InvalidArgumentError."""
        self._check_running(peer_id)
        await self._close(peer_id)

    async def restart(self, peer_id: str) -> None:
        """Start a peer that was killed, with the data that it has. Raises InvalidArgumentError."""
        peer = next((each for each in self.peers if each.id == peer_id), None)
        if peer is None or peer_id in self._running:
            raise InvalidArgumentError(f"no peer {peer_id!r} was killed")
        await self._start(peer)

    async def partition(self, *groups: Collection[str]) -> None:
        """From now on peers reach only those of their own group; peers in none of ``groups`` are together.

        ``partition(["1"])`` takes peer 1 from all others. It takes the place of an earlier one, holds also for peers
        that are restarted, and ends with :meth:`heal`. Clients still reach all peers. Raises InvalidArgumentError.
        """
        unreachable(groups, [peer.id for peer in self.peers])
        self._groups = groups
        self._cut_off(*self._running)

    async def heal(self) -> None:
        """All peers reach each other again."""
        self._groups = ()
        self._cut_off(*self._running)

    async def slow_disk(self, peer_id: str, seconds: float) -> None:
        """Whatever this peer writes takes this many seconds longer, until it is killed, or 0 is said.

        Its heartbeats do not wait for the disk, but a leader whose disk takes longer than ``disk_stall_s`` steps down.
        Raises InvalidArgumentError.
        """
        self._check_running(peer_id)
        if not isinstance(seconds, int | float) or not 0 <= seconds <= _SLOWEST_S:
            raise InvalidArgumentError(f"seconds is from 0 to {_SLOWEST_S:.0f}, not {seconds!r}")
        self._logs[peer_id].slow_down(seconds)

    def _check_running(self, peer_id: str) -> None:
        if peer_id not in self._running:
            raise InvalidArgumentError(
                f"no peer {peer_id!r} is running; there are {', '.join(self._running) or 'none'}"
            )

    def _cut_off(self, *peer_ids: str) -> None:
        cut = unreachable(self._groups, [peer.id for peer in self.peers])
        for peer_id in peer_ids:
            self._running[peer_id].cut_off(cut[peer_id])

    def _leader(self) -> str | None:
        statuses = [peer.status() for peer in self._running.values()]
        leading = [(status.term, status.peer_id) for status in statuses if status.role is Role.LEADER]
        return max(leading)[1] if leading else None

    async def _start_all(self) -> None:
        for attempt in range(_ATTEMPTS):
            self.peers = addresses(self._transport, self._size, self._folder)
            try:
                for peer in self.peers:
                    await self._start(peer)
            except TransportError:
                await self._close_all()
                for peer in self.peers:  # its log has the addresses of the members
                    shutil.rmtree(self._folder / peer.id, ignore_errors=True)
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _start(self, peer: Peer) -> None:
        running = open_peer(
            self._options,
            peer.id,
            self.peers,
            self._folder / peer.id,
            url=peer.url,
            publisher_url=publisher_url(peer),
            open_log=self._open_log,
            on_role=lambda _status: self._changed.set(),
        )
        await running.start()
        self._running[peer.id] = running
        self._cut_off(peer.id)

    def _open_log(self, path: Path, *, peer_id: str, **more: Any) -> SlowableLog:
        log = self._logs[peer_id] = SlowableLog.open(path, peer_id=peer_id, **more)
        return log

    async def _close(self, peer_id: str) -> None:
        self._logs.pop(peer_id).slow_down(0)  # closing waits for the disk
        await self._running.pop(peer_id).close()

    async def _close_all(self) -> None:
        for peer_id in self.running:
            await self._close(peer_id)


class EmbeddedCluster:
    """The same in a thread of its own, for blocking programs: arguments and methods are those of the other class."""

    def __init__(
        self,
        size: int = 3,
        *,
        cluster: str = "",
        machine: Callable[[], StateMachine] = KeyValueStateMachine,
        fsync: Fsync = Fsync.GROUP,
        settings: dict[str, Any] | None = None,
        curve_keys: Path | None = None,
        transport: Transport = "tcp",
        compact_bytes: int | None = None,
        limits: StorageLimits | None = None,
    ) -> None:
        self._cluster = AsyncEmbeddedCluster(
            size,
            cluster=cluster,
            machine=machine,
            fsync=fsync,
            settings=settings,
            curve_keys=curve_keys,
            transport=transport,
            compact_bytes=compact_bytes,
            limits=limits,
        )
        self._closing = ExitStack()
        self._loop = LoopThread("raft-cluster", "the cluster")

    @property
    def peers(self) -> Peers:
        """The members, with the addresses that they listen at."""
        return self._cluster.peers

    @property
    def cluster(self) -> str:
        """Its name, which clients have to give as well."""
        return self._cluster.cluster

    @property
    def seeds(self) -> tuple[str, ...]:
        """The URLs of all peers."""
        return self._cluster.seeds

    @property
    def url(self) -> str:
        """The same in one text, as clients take them."""
        return self._cluster.url

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the peers that were not killed."""
        return self._cluster.running

    def __enter__(self) -> Self:
        with ExitStack() as closing:
            closing.enter_context(self._loop)
            self._run(self._cluster.__aenter__())
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            self._run(self._cluster.__aexit__())

    def leader(self, timeout: float = 10.0) -> str:
        """The id of the peer that leads; waits until there is one. Raises NoLeaderError after ``timeout`` seconds."""
        return self._run(self._cluster.leader(timeout))

    def kill(self, peer_id: str) -> None:
        """End this peer without a goodbye; what waits is not written. Raises InvalidArgumentError."""
        self._run(self._cluster.kill(peer_id))

    def restart(self, peer_id: str) -> None:
        """Start a peer that was killed, with the data that it has. Raises InvalidArgumentError."""
        self._run(self._cluster.restart(peer_id))

    def partition(self, *groups: Collection[str]) -> None:
        """From now on peers reach only those of their own group; peers in none of ``groups`` are together.

        ``partition(["1"])`` takes peer 1 from all others. It takes the place of an earlier one, holds also for peers
        that are restarted, and ends with :meth:`heal`. Clients still reach all peers. Raises InvalidArgumentError.
        """
        self._run(self._cluster.partition(*groups))

    def heal(self) -> None:
        """All peers reach each other again."""
        self._run(self._cluster.heal())

    def slow_disk(self, peer_id: str, seconds: float) -> None:
        """Whatever this peer writes takes this many seconds longer, until it is killed, or 0 is said.

        Its heartbeats do not wait for the disk, but a leader whose disk takes longer than ``disk_stall_s`` steps down.
        Raises InvalidArgumentError.
        """
        self._run(self._cluster.slow_disk(peer_id, seconds))

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(action)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="raft-cluster-", ignore_cleanup_errors=True)
