"""The server: the one file that puts the rooms together. Listener, broker, state store, clock."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from statestore_client.errors import DataDirectoryError
from statestore_client.server.broker import Broker, BrokerLimits
from statestore_client.server.runtime.acl import ClientPermissions
from statestore_client.server.runtime.clock import Clock, system_clock
from statestore_client.server.runtime.connection import ClientConnection
from statestore_client.server.runtime.events import LOGGER, log_event
from statestore_client.server.runtime.hub import Hub
from statestore_client.server.runtime.security import Security
from statestore_client.server.runtime.service import Authorizer, StateStoreService
from statestore_client.server.runtime.sockets import Acceptor, take_over
from statestore_client.server.runtime.storage.disk import Disk
from statestore_client.server.runtime.tls import ServerTls, TlsDoor, TlsFiles
from statestore_client.server.store import StateStore, StoreLimits
from statestore_client.wire.dialect import Dialect
from statestore_client.wire.hlc import HybridLogicalClock

if TYPE_CHECKING:
    import ssl

    from statestore_client.server.broker import Counters, Witness
    from statestore_client.server.runtime.storage import Gate
    from statestore_client.wire.commands import Command

__all__ = ["Server"]

#: Sockets that the kernel keeps for us while we are busy: a burst of reconnecting clients must not be refused.
_BACKLOG: Final = 1024

#: What asyncio is told instead: it accepts so many at a time, and out of file descriptors it logs and sets a timer for
#: each of them, every second, instead of once.
_ACCEPTED_AT_ONCE: Final = 4

#: How often the files of certificates, passwords and access rules are looked at.
_LOOK_EVERY_S: Final = 1.0

#: How long clients get at the end to take their DISCONNECT.
_SHUTDOWN_GRACE_S: Final = 0.05

#: Turns of the event loop between accept() and a connection that can be closed.
_ACCEPT_STEPS: Final = 5

#: The clock node in every version that this server gives out.
_NODE_ID: Final = "StateStore"


class Server:
    """A broker with the state store inside, listening on one TCP address. Belongs to the event loop that started it."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        dialect: Dialect | str = Dialect.SERVICE,
        broker_limits: BrokerLimits | None = None,
        store_limits: StoreLimits | None = None,
        authorize: Authorizer | None = None,
        tls: ServerTls | ssl.SSLContext | None = None,
        security: Security | None = None,
        clock: Clock = system_clock,
        data: str | os.PathLike[str] | None = None,
        witness: Witness | None = None,
    ) -> None:
        """``port`` 0 lets the system choose; :attr:`port` tells after the start. ``clock`` and ``witness`` are for
        tests. ``data`` is a directory for what is to survive; without, nothing does.

        ``security`` without a value admits everybody. Raises SettingsError for files of ``tls`` that cannot be used.
        """
        self._host = host
        self._port = port
        self._dialect = Dialect(dialect)
        self._clock = clock
        self._tls = None if tls is None else TlsFiles(tls)
        self._security = security or Security()
        self._authorize = authorize
        self._witness = witness
        self._broker_limits = broker_limits
        self._store_limits = store_limits or StoreLimits()
        self._disk = None if data is None else Disk(data, self._disk_clock(), self._fail)
        self._failed = asyncio.Event()
        self.failure: DataDirectoryError | None = None
        self._service, self._broker = self._new_broker()
        self._hub: Hub | None = None
        self._listener: asyncio.Server | None = None
        self._acceptors: list[Acceptor] = []  # in front of it
        self._door: TlsDoor | None = None
        self._look: asyncio.TimerHandle | None = None

    def _disk_clock(self) -> Clock:
        """The clock by which times are written down."""
        return self._clock

    def _new_broker(self) -> tuple[StateStoreService, Broker]:
        """Empty, with an empty store inside."""
        journal = None if self._disk is None else self._disk.journal
        store = StateStore(
            clock=HybridLogicalClock(_NODE_ID, guard=threading.Lock()),
            limits=self._store_limits,
            dialect=self._dialect,
            journal=journal,
        )
        has_rules = self._security.has_rules
        service = StateStoreService(
            store,
            dialect=self._dialect,
            authorize=self._may_run if has_rules else self._authorize,
            may_be_answered_on=self._may_be_answered_on if has_rules else None,
            journal=journal,
        )
        broker = Broker(
            # Client identifiers that we assign need not be secret, but must not repeat from one process to the next.
            random=random.SystemRandom(),
            application=service,
            limits=self._broker_limits,
            gatekeeper=self._security,
            journal=journal,
            witness=self._witness,
        )
        return service, broker

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        """The port it listens on; before the start the one that was asked for."""
        return self._port

    @property
    def counters(self) -> Counters:
        return self._broker.counters

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had, DataDirectoryError when the data cannot."""
        loop = asyncio.get_running_loop()
        gate = None if self._disk is None else self._disk.open(self._broker, self._service, loop)
        try:
            await self._listen(loop, gate)
        except BaseException:
            if self._disk is not None:
                self._disk.close()
            raise

    async def _listen(self, loop: asyncio.AbstractEventLoop, gate: Gate | None) -> None:
        hub = self._new_hub(loop, gate)
        connect = partial(self._new_connection, hub)
        self._door = None if self._tls is None else TlsDoor(self._tls, hub, connect)
        self._listener = await loop.create_server(
            self._door or connect, self._host, self._port, backlog=_ACCEPTED_AT_ONCE
        )
        self._hub = hub
        self._look = loop.call_later(_LOOK_EVERY_S, self._look_again)
        make = None if self._door is not None else connect
        self._acceptors = take_over(self._listener, make, backlog=_BACKLOG)
        self._port = self._listener.sockets[0].getsockname()[1]
        log_event(logging.INFO, "listening", host=self._host, port=self._port, dialect=str(self._dialect))
        hub.flush()  # what was due while the server was away

    def _new_hub(self, loop: asyncio.AbstractEventLoop, gate: Gate | None) -> Hub:
        return Hub(self._broker, self._clock, loop, verify=self._security.verify, gate=gate)

    def _new_connection(self, hub: Hub) -> ClientConnection:
        return ClientConnection(hub)

    @property
    def scheme(self) -> str:
        """Of its URL."""
        return "mqtt" if self._tls is None else "mqtts"

    def reload(self) -> None:
        """Read certificates, passwords and access rules that have changed. Happens every second by itself."""
        if self._tls is not None:
            self._tls.refresh()
        gone = self._security.refresh()
        if gone is not None and self._hub is not None:
            self._hub.review(gone)

    def _look_again(self) -> None:
        try:
            self.reload()
        except Exception:  # noqa: BLE001 - a defect of ours; looking goes on
            LOGGER.exception("reloading failed")
        self._look = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look_again)

    # -- access rules -------------------------------------------------------------------------------------------------

    def _may_run(self, client_id: str, command: Command) -> bool:
        permissions = self._broker.permissions(client_id)
        is_permitted = isinstance(permissions, ClientPermissions) and permissions.may_run(command)
        return is_permitted and (self._authorize is None or self._authorize(client_id, command))

    def _may_be_answered_on(self, client_id: str, topic: str) -> bool:
        permissions = self._broker.permissions(client_id)
        return isinstance(permissions, ClientPermissions) and permissions.may_be_answered_on(topic)

    # -- the disk -----------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """Nothing can be written any more. Whoever runs the server is to stop it."""
        self.failure = error if isinstance(error, DataDirectoryError) else DataDirectoryError(str(error))
        log_event(logging.CRITICAL, "disk failed", error=self.failure.message)
        for acceptor in self._acceptors:
            acceptor.close()
        if self._listener is not None:
            self._listener.close()
        if self._hub is not None:
            self._hub.give_up()
        self._failed.set()

    async def wait_for_failure(self) -> None:
        """Returns when the server cannot go on; :attr:`failure` tells why. Call :meth:`stop` then."""
        await self._failed.wait()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop listening, tell every client, close. Safe to call twice."""
        listener, self._listener = self._listener, None
        hub, self._hub = self._hub, None
        if listener is None or hub is None:
            return
        if self._look is not None:
            self._look.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        await _stop_accepting(listener)
        listener.close()
        if self._door is not None:
            self._door.close()
        await hub.close(_SHUTDOWN_GRACE_S)
        await listener.wait_closed()
        if self._disk is not None:
            self._disk.close()
        log_event(logging.INFO, "stopped", host=self._host, port=self._port)


async def _stop_accepting(listener: asyncio.Server) -> None:
    """Let sockets that were accepted a moment ago become connections, and accept no more.

    Closing a listener in that moment trips asyncio over its own assertion, and the accepted socket is never closed.
    """
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # event loops without readers do not accept in this way either
        for sock in listener.sockets:
            loop.remove_reader(sock.fileno())
    for _ in range(_ACCEPT_STEPS):
        await asyncio.sleep(0)
