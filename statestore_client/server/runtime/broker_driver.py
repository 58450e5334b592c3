"""Between the sockets and the broker: hands packets in, writes outboxes out, keeps the timer.

Everything here runs in the thread of one event loop. After each call into the broker the driver *flushes*: every
connection with bytes to write gets one write, however many packets that were.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import Connect, ReasonCode
from statestore_client.server.runtime.clock import Alarm
from statestore_client.server.runtime.fairness import SLICE_S, ConcurrencyProbe, RoundRobin, Throttle
from statestore_client.server.runtime.observability.logs import (
    LOGGER,
    RefusalLog,
    contained,
    log_connected,
    log_gone,
    log_reports,
)
from statestore_client.server.runtime.process import package_version
from statestore_client.server.runtime.security.security import VerifierThreads
from statestore_client.server.runtime.transport.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.broker import Broker, Connection, Credentials, PendingAuth, Verdict
    from statestore_client.server.runtime.clock import CallAt, Clock
    from statestore_client.server.runtime.security.files import CertificateId
    from statestore_client.server.runtime.storage import GroupCommit

#: A defect of our own, and what becomes of it.
_FAILED: Final = "the server failed; closing the connection that made it"


class ClientLink(Protocol):
    """What the driver needs of a network connection."""

    def flush(self) -> None:
        """Write the outbox; close if the connection has ended."""

    def resume_reading(self) -> None:
        """The verdict that the peer waited for is there."""

    def read_now(self) -> None:
        """Read what its socket has."""

    def abort(self) -> None:
        """Close now."""

    def drop(self, error: PacketError) -> None:
        """End it, with this reason if it can be told."""

    @property
    def certificate(self) -> CertificateId | None:
        """Which one its peer has shown."""


class BrokerDriver:
    """One broker and its links. Invariant: a connection is known to the broker exactly as long as it has a link
    here.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        verify: Callable[[Credentials], Verdict] | None = None,
        group_commit: GroupCommit | None = None,
        call_at: CallAt | None = None,
    ) -> None:
        """``verify`` finds the verdicts that take time, in threads. With a ``group_commit`` nothing is sent
        before what it depends on is durable. ``call_at`` goes with a ``clock`` that is not the event loop's.
        """
        #: The one that clients are given to now.
        self.broker: Broker = broker
        self._clock = clock
        self._loop = loop
        self._links: dict[Connection, ClientLink] = {}
        self._former: dict[Connection, ClientLink] = {}  # of brokers that were replaced
        self._alarm = Alarm(call_at or loop.call_at, self._tick)
        self.turns: RoundRobin = RoundRobin(loop)
        self._works = False
        self._concurrency = ConcurrencyProbe()
        self._flushes_at = 0.0  # when to write what was caused meanwhile, at the latest; 0 if nothing waits
        self._is_closing = False
        #: Those without a link, too: their handshakes are not over.
        self.peers: Peers = Peers(broker.limits)
        #: Ended connections by reason code and side ("peer" or "server").
        self.endings: Counter[tuple[int, str]] = Counter()
        self._started_at = 0.0
        self._begin()
        #: Also of those who are refused before there is a connection.
        self.refusals: RefusalLog = RefusalLog(lambda: clock().monotonic)
        throttle = Throttle(broker.limits.failed_attempts)
        self._verifiers = (
            None
            if verify is None
            else VerifierThreads(loop, verify, self.verified, clock=clock, throttle=throttle, refusals=self.refusals)
        )
        self.group_commit = group_commit
        self._bind()
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def __len__(self) -> int:
        return len(self._links)

    def _bind(self) -> None:
        if self.group_commit is not None:
            self.group_commit.bind(self.broker, self._send, self._resume_all)

    def _begin(self) -> None:
        now = self._clock()
        self._started_at = now.monotonic
        self.broker.started(now, version=package_version)

    @property
    def uptime_s(self) -> float:
        return self._clock().monotonic - self._started_at

    @property
    def now(self) -> float:
        """Monotonic seconds of the clock that everything here goes by."""
        return self._clock().monotonic

    @property
    def is_closing(self) -> bool:
        """Whether new sockets are to be dropped unheard."""
        return self._is_closing

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of unfinished and unserved packets that all sockets hold together."""
        return self.peers.held_bytes

    # -- from the links -----------------------------------------------------------------------------------------------

    def opened(
        self, link: ClientLink, peer: str, *, certificate: str | None = None, since: float | None = None
    ) -> Connection:
        """A socket can say CONNECT. It was accepted at ``since``, in monotonic seconds; None for now."""
        connection = self.broker.connection_opened(self._clock(), peer=peer, certificate=certificate, since=since)
        self._links[connection] = link
        self._all_gone.clear()
        self._arm()
        return connection

    def read_earlier(self, packet: Packet) -> None:
        """Before a CONNECT is carried out: who said DISCONNECT and is back at once has left, although the socket of
        the old connection comes to be read later. It was not taken over, and leaves no will.
        """
        earlier = self.broker.connection_of(packet.client_id) if isinstance(packet, Connect) else None
        link = None if earlier is None else self._links.get(earlier)
        if link is not None:
            link.read_now()

    def received(self, connection: Connection, packets: Iterable[Packet]) -> None:
        """Packets of one connection."""
        now = self._clock()
        try:
            self.broker.receive(connection, packets, now)
        except Exception:  # noqa: BLE001 - our own defect; the other clients must not suffer from it
            self._give_up(connection)
        if self.group_commit is None and self._concurrency.is_high(id(connection), now.monotonic):
            self._flush_soon(now.monotonic)
        else:
            self.flush()

    def broken(self, connection: Connection, error: PacketError, version: int | None) -> None:
        """The bytes of a connection stopped making sense; ``version`` is what its decoder knows of it."""
        with contained(_FAILED, partial(self._abort, connection)):
            self.broker.receive_broken(connection, error.reason_code, error.message, self._clock(), version=version)
        self.flush()

    def _give_up(self, connection: Connection) -> None:
        """As :func:`contained` does, which takes as long as a packet."""
        LOGGER.exception(_FAILED)
        self._abort(connection)

    def _abort(self, connection: Connection) -> None:
        link = self._links.get(connection)
        if link is not None:
            link.abort()

    def verified(self, verification: PendingAuth, verdict: Verdict) -> None:
        """A verdict that took time. The peer may have left long ago."""
        connection = verification.connection
        link = self._links.get(connection)
        if link is None:
            return
        with contained(_FAILED, partial(self._abort, connection)):
            self.broker.verified(verification, verdict, self._clock())
        link.resume_reading()
        self.flush()

    def entered(self, connection: Connection) -> None:
        log_connected(connection)  # it has a session

    def review(self, gone: Collection[str]) -> None:
        """The rules have changed; the users ``gone`` are no longer known."""
        self.broker.review(self._clock(), gone=gone)
        self.flush()

    def withdrawn(self, problem: Callable[[CertificateId], str | None]) -> None:
        """Some certificates are good no longer, for the reason that this tells; neither are the connections of who has
        shown them.
        """
        for link in tuple(self._links.values()):
            certificate = link.certificate
            if certificate is not None and (reason := problem(certificate)) is not None:
                link.drop(PacketError(reason, reason_code=ReasonCode.NOT_AUTHORIZED))

    def congested(self, connection: Connection) -> None:
        self.broker.congested(connection)

    def drained(self, connection: Connection) -> None:
        self.broker.drained(connection, self._clock())

    def waited(self, connection: Connection) -> None:
        """It was not read for a while, because it may not send so fast: its silence does not count."""
        connection.last_received = self._clock().monotonic

    def lost(self, connection: Connection) -> None:
        """The socket is closed. Called once for every :meth:`opened`."""
        is_former = self._links.pop(connection, None) is None
        if is_former:
            self._former.pop(connection, None)
        if not self._links and not self._former:
            self._all_gone.set()
        if is_former:
            return
        if self._is_closing:
            self._note_end(connection)
            return  # all that the broker holds for its clients ends with it
        with contained("the broker failed on a lost connection"):
            self.broker.connection_lost(connection, self._clock())
        self._note_end(connection)
        self.flush()

    def _note_end(self, connection: Connection) -> None:
        ending = connection.ending
        code = int(ReasonCode.UNSPECIFIED_ERROR if ending is None else ending.reason_code)
        by = "peer" if ending is not None and ending.by_peer else "server"
        self.endings[code, by] += 1
        log_gone(self.refusals, connection, code, by, self._clock().monotonic - connection.opened_at)

    # -- out ----------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is to be written, until nothing is: room in a socket lets more messages out of a queue."""
        broker = self.broker
        if self.group_commit is not None:
            self.group_commit.flush()
        else:
            while broker.dirty:
                for connection in broker.take_dirty():
                    self._send(connection)
        if any(broker.reports.news):
            self._take_reports()
        if broker.unfinished and not self._works:
            self._works = True
            self.turns.add(self._work)
        deadline = broker.next_deadline()
        if deadline is not None and deadline < self._alarm.latest:
            self._alarm.set(deadline)

    def _take_reports(self) -> None:
        broker = self.broker
        if self._verifiers is not None:
            for verification in broker.reports.take_verifications():
                self._verifiers.start(verification)
        log_reports(broker.reports, self.refusals, when_full=broker.limits.when_full)

    def _flush_soon(self, now: float) -> None:
        """When those that are ready to be read have been served: then one write carries what many of them caused. Not
        later than a turn, however many they are.
        """
        if not self._flushes_at:
            self._flushes_at = now + SLICE_S
            self._loop.call_soon(self._flush_now)
        elif now >= self._flushes_at:
            self._flushes_at = now + SLICE_S
            self.flush()

    def _flush_now(self) -> None:
        self._flushes_at = 0.0
        self.flush()

    def _send(self, connection: Connection) -> None:
        """What is in its outbox may go."""
        link = self._links.get(connection)
        if link is not None:
            try:
                link.flush()
            except Exception:  # noqa: BLE001 - our own defect; those behind it must not suffer from it
                self._give_up(connection)

    def _resume_all(self) -> None:
        for connection, link in tuple(self._links.items()):
            with contained(_FAILED, partial(self._abort, connection)):
                link.resume_reading()

    def _work(self) -> bool:
        """Let the broker go on with what was too much for one call, for a turn."""
        broker, ends = self.broker, time.monotonic() + SLICE_S
        with contained("the broker failed at its work"):
            while broker.has_work and not self._is_closing and time.monotonic() < ends:
                broker.work(self._clock())
                self.flush()
        self._works = broker.has_work and not self._is_closing
        return self._works

    def _arm(self) -> None:
        deadline = self.broker.next_deadline()
        if deadline is not None:
            self._alarm.set(deadline)

    def _tick(self) -> None:
        with contained("the broker failed in a tick"):
            self.broker.tick(self._clock())
        self.flush()

    # -- the end ------------------------------------------------------------------------------------------------------

    def replace_broker(self, broker: Broker, group_commit: GroupCommit | None = None) -> None:
        """Go on with another broker, which knows nobody here, when the connections have been ended."""
        self._former |= self._links
        self._links.clear()
        self.broker = broker
        self.group_commit = group_commit
        self._bind()
        self._alarm.cancel()
        self._begin()
        self._arm()

    def dismiss(self, reason: str, *, awaits: bool = False) -> None:
        """What waits to be durable is never sent. Say goodbye to all clients, and close. There is no goodbye before a
        session. ``awaits``: this server goes on, and expects them back.
        """
        links = tuple(self._links.items())
        for connection, link in links:
            is_told_why = connection.session is not None and not connection.outbox
            connection.discard()
            if is_told_why and connection.journal is not None:
                connection.disconnect(ReasonCode.SERVER_SHUTTING_DOWN, reason)
                connection.seal()
                connection.release()
                link.flush()
            else:
                link.abort()
        if awaits:
            self.broker.let_go((connection for connection, _ in links), self._clock())

    def give_up(self) -> None:
        """Nothing can be written any more."""
        self._is_closing = True
        self.dismiss("the server's disk failed")

    async def close(self, grace_s: float) -> None:
        """Say goodbye to all clients, wait up to ``grace_s`` for them to take it, and close their sockets."""
        self.broker.shut_down()
        self._is_closing = True
        self.flush()
        self._alarm.cancel()
        try:
            await asyncio.wait_for(self._all_gone.wait(), grace_s)
        except TimeoutError:
            for link in (*self._links.values(), *self._former.values()):
                link.abort()
            await self._all_gone.wait()
        self._alarm.cancel()
