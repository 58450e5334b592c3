"""Servers that share a log, in the event loop of a test: real sockets, real peers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
from support.waiting import until

from raft_client.server import AsyncEmbeddedCluster, BroadcastStateMachine, StorageLimits
from statestore_client import AsyncStateStoreClient
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
from statestore_client.server.runtime.replication.settings import ReplicaSettings
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import ServerSettings

__all__ = ["KEY", "Servers", "replication", "servers", "value_of"]

KEY = b"a key that all of them have"


@attrs.define(eq=False)
class Servers:
    """By id. ``options`` are those of :class:`ServerSettings`."""

    cluster: AsyncEmbeddedCluster
    closing: AsyncExitStack
    by_id: dict[str, Server] = attrs.field(factory=dict)

    async def start(self, server_id: str, *, key: bytes = KEY, **options: Any) -> Server:
        """Returns when it is ready to take over, or active."""
        log = ReplicaSettings(log=self.cluster.seeds, id=server_id, key=key)
        server = Server(ServerSettings(log=log, **options))
        await server.start()
        self.closing.push_async_callback(server.stop)
        self.by_id[server_id] = server
        await until(lambda: replication(server).is_ready, f"{server_id} has read the log")
        return server

    async def active(self) -> Server:
        """Waits until one is."""
        await until(lambda: self._active(), "a server is active")
        found = self._active()
        assert found is not None
        return found

    def _active(self) -> Server | None:
        roles = {server: replication(server).role for server in self.by_id.values()}
        return next((server for server, role in roles.items() if role is Role.ACTIVE), None)

    async def standby(self) -> Server:
        """Waits until there is exactly one active server, and returns another one."""
        active = await self.active()
        return next(server for server in self.by_id.values() if server is not active)

    def client(self, server: Server, **options: Any) -> AsyncStateStoreClient:
        """Through the router of this one."""
        return AsyncStateStoreClient(server.urls[0], **options)


def replication(server: Server) -> ReplicatedServer:
    """What a server with a log has."""
    assert server.replication is not None
    return server.replication


async def value_of(client: AsyncStateStoreClient, key: str = "k") -> bytes | None:
    """What is stored under a key."""
    item = await client.get(key)
    return None if item is None else item.value


@asynccontextmanager
async def servers(*ids: str, limits: StorageLimits | None = None, **options: Any) -> AsyncIterator[Servers]:
    """The first one is active. ``limits`` are those of the log's only peer."""
    async with (
        AsyncEmbeddedCluster(1, machine=BroadcastStateMachine, limits=limits) as cluster,
        AsyncExitStack() as closing,
    ):
        all_of_them = Servers(cluster, closing)
        for server_id in ids:
            await all_of_them.start(server_id, **options)
            await all_of_them.active()
        yield all_of_them
