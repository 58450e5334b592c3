"""From one life of a replicated server to the next: it follows, serves, is deposed, and follows again."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from statestore_client.clocks import monotonic
from statestore_client.errors import ReplicatedLogError, StateStoreError
from statestore_client.server.cluster import entries
from statestore_client.server.cluster.clock_skew import ClockSkew
from statestore_client.server.cluster.entries import Life
from statestore_client.server.cluster.interface import Role
from statestore_client.server.cluster.patience import ClientPatience, LogOutage
from statestore_client.server.journal import Journal
from statestore_client.server.runtime.clock import ElapsedClock
from statestore_client.server.runtime.observability.logs import CLUSTER_LOGGER, log_event
from statestore_client.server.runtime.replication.client_router import ClientRouter
from statestore_client.server.runtime.replication.internal import ClusterSecret, InternalListener, Sockets
from statestore_client.server.runtime.replication.liveness import HeartbeatListener, HeartbeatThread
from statestore_client.server.runtime.replication.log_link import LogLink
from statestore_client.server.runtime.replication.own_peer import LogPeers, OwnPeer
from statestore_client.server.runtime.replication.replica import LogReplica
from statestore_client.server.runtime.storage.group_commit import GroupCommit
from statestore_client.server.runtime.storage.standby import Machine, Standby

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from statestore_client.server.journal import Timeline, WriteBatch
    from statestore_client.server.runtime.replication.settings import ReplicaSettings
    from statestore_client.server.runtime.storage.standby import StateRows
    from statestore_client.server.service.service import StateStoreService

_INCARNATION_BITS: Final = 64
#: A handed-over epoch comes back within a commit.
_HAND_OVER_S: Final = 2.0
_LOOK_S: Final = 0.1
#: A standby that has not listened for longer is gone; it dials again at once when a connection ends.
_STANDBY_GONE_S: Final = 1.0

_LEADERLESS: Final = "the replicated log has no leader"

_log_change = partial(log_event, logger=CLUSTER_LOGGER)


class ReplicatedMachine(Machine, Protocol):
    """Stands between the store and its clients: a broker, or the host of a store on another one."""

    @property
    def state_bytes(self) -> int:
        """Roughly, what its rows come to."""


M = TypeVar("M", bound=ReplicatedMachine)
M_contra = TypeVar("M_contra", bound=ReplicatedMachine, contravariant=True)


class ReplicatedDriver(Sockets, Protocol[M_contra]):
    """Between the network and the machine."""

    def __len__(self) -> int:
        """How many clients are connected."""

    def replace_broker(self, broker: M_contra, group_commit: GroupCommit | None = None) -> None:
        """Go on with another machine, which knows nobody."""

    def dismiss(self, reason: str, *, awaits: bool = False) -> None:
        """End all connections; what waits to be said never is. ``awaits``: this server goes on."""

    def flush(self) -> None:
        """Say what may be said."""


class ReplicatedServerOwner(Protocol[M]):
    """The server around it, which has the machine and the sockets."""

    def build_state(self, journal: Journal | None) -> tuple[StateStoreService, M]:
        """Empty ones, which write into the journal."""

    def on_active(self, service: StateStoreService, broker: M) -> None:
        """This server is active, with these."""

    def on_inactive(self) -> None:
        """It is not any more."""

    def on_fatal_error(self, error: StateStoreError) -> None:
        """The owner of the server is to stop it."""


class ReplicatedServer(Generic[M]):
    """Of one replicated server. Belongs to the event loop."""

    def __init__(self, settings: ReplicaSettings, owner: ReplicatedServerOwner[M]) -> None:
        self._settings = settings
        self._owner = owner
        #: What the machines go by. It is put right when this server takes over.
        self.clock: ElapsedClock = ElapsedClock()
        self._elapsed = ElapsedClock()
        self._patience = ClientPatience(self._elapsed().monotonic)
        self._outage = LogOutage(self._elapsed().monotonic)
        #: Of the wall clocks of this server and of the one that writes into the log.
        self.skew: ClockSkew = ClockSkew()
        self._is_hindered = False
        self._standbys: dict[str, float] = {}  # those that listen to this server, and when each was seen last
        self._secret = ClusterSecret(settings.key)
        self.router: ClientRouter = ClientRouter(settings.id, self._secret)
        self._pulse = HeartbeatThread(self._may_pulse, self._listener_came)
        self.commands: OperatorCommands = OperatorCommands(self)
        self._internal_listener = InternalListener(
            settings.id, self.router, self._secret, self._pulse.add, self.commands.carry_out
        )
        self.log_peers: LogPeers = LogPeers(settings.raft)
        #: If it runs one in its process.
        self.peer: OwnPeer | None = (
            None if settings.peer is None else OwnPeer(settings.peer, settings.cluster, self.failed)
        )
        self._driver: ReplicatedDriver[M] | None = None
        self._url = ""
        self._replica: LogReplica | None = None
        self._journal = Journal()
        self._machines: tuple[StateStoreService, M] | None = None  # of this life
        self._standby: Standby | None = None
        self._rows: StateRows | None = None
        self._wants_snapshot = False
        self._group_commit: GroupCommit | None = None
        self._listener: HeartbeatListener | None = None
        self._former: set[asyncio.Task[None]] = set()
        self._active: tuple[int, Life | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._is_known = asyncio.Event()
        self._failure: StateStoreError | None = None
        self._is_over = False

    async def open(self, driver: ReplicatedDriver[M]) -> None:
        """Let the others in, and begin to follow. Raises OSError, and what the own peer raises."""
        settings = self._settings
        if self.peer is not None:
            await self.peer.start()
        self._driver = driver
        self.router.bind(driver)
        port = await self._internal_listener.open(settings.internal_host, settings.internal_port)
        host = f"[{settings.internal_host}]" if ":" in settings.internal_host else settings.internal_host
        self._url = self._internal_listener.address = settings.internal_address or f"{host}:{port}"
        self._pulse.start()
        self._look()
        self._begin_life()

    async def wait_until_known(self) -> None:
        """Until this server has read the log, and knows who is active: before, a client is better off elsewhere. Raises
        ReplicatedLogError and its like.
        """
        await self._is_known.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def id(self) -> str:
        """This server's."""
        return self._settings.id

    @property
    def active(self) -> tuple[int, str]:
        """The newest epoch, and the id of the server that is active in it, or nothing."""
        epoch, owner = self._active or (0, None)
        return max(epoch, self.epoch), "" if owner is None else owner.id

    @property
    def clients(self) -> int:
        """How many are connected here, and not passed on."""
        return 0 if self._driver is None else len(self._driver)

    @property
    def secrets(self) -> list[str]:
        """The fingerprints of those that it accepts; the first one is what it proves to others."""
        return self._secret.fingerprints

    @property
    def url(self) -> str:
        """Where the others come in, as ``host:port``."""
        return self._url

    @property
    def replica(self) -> LogReplica | None:
        """The present life; None before it has begun to read the log."""
        return self._replica

    @property
    def role(self) -> Role:
        return Role.STANDBY if self._replica is None else self._replica.role

    @property
    def epoch(self) -> int:
        return 0 if self._replica is None else self._replica.epoch

    @property
    def index(self) -> int:
        """Of the last entry that was read."""
        return 0 if self._replica is None else self._replica.index

    @property
    def silent_s(self) -> float:
        """How long clients have been waiting for the log."""
        return 0.0 if self._replica is None else self._replica.silent_s

    @property
    def leaderless_s(self) -> float:
        """How long the log has had no leader; 0 while that is no outage."""
        return self._outage.lasts_s

    @property
    def listeners(self) -> list[str]:
        """The ids of the servers that listen whether this one lives."""
        return self._pulse.listeners

    @property
    def formats(self) -> dict[str, int]:
        """By id, the newest formats of records that they know."""
        return self._pulse.formats

    @property
    def format(self) -> int:
        """Of the records in the log; 0 until the first server has begun."""
        return 0 if self._replica is None else self._replica.format

    @property
    def is_ready(self) -> bool:
        """Whether it is active, or could be at once."""
        return self._replica is not None and self._replica.is_ready

    @property
    def why_not_ready(self) -> str:
        """Why a load balancer had better send clients elsewhere, in words for people; nothing if it had not."""
        leaderless = _LEADERLESS if self.leaderless_s else ""
        if self.role is Role.ACTIVE:
            return leaderless
        why = leaderless or ("" if self.active[1] else "no server is active")
        return f"stands by: {why}" if why else "stands by"

    @property
    def holds_lease(self) -> bool:
        """Whether it is active, and known to be."""
        return self._replica is not None and self._replica.holds_lease(self._replica.sent())

    def confirm_lease(self) -> bool:
        """The same. If that is not known, the log is asked, and the driver is called when it has answered."""
        replica = self._replica
        if replica is None or self.holds_lease:
            return replica is not None
        replica.renew_lease(replica.sent())
        return False

    @property
    def store_id(self) -> str:
        """The name of the store that is in the log, as far as it is read."""
        return "" if self._machines is None else self._machines[0].store_id

    def promote(self) -> bool:
        """Be the active server, whatever the present one does. Returns False if this one is not ready, or active."""
        return self._replica is not None and self._replica.promote()

    def _look(self) -> None:
        """Whether clients wait in vain, whether the log has a leader, and whether it is too long."""
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        replica, driver, now = self._replica, self._driver, self._elapsed().monotonic
        if replica is None or driver is None:
            return
        self._note_outage(replica, now)
        self._note_standbys(now)
        self._note_clocks()
        if self._patience.is_over(replica.silent_s, now, is_heard=replica.is_log_heard):
            _log_change(logging.WARNING, "the replicated log does not answer", clients=len(driver))
            driver.dismiss("the replicated log cannot be reached", awaits=True)
            replica.wait_anew()
        if self._wants_snapshot or replica.is_snapshot_wanted(self._state_bytes()):
            self._begin_snapshot()

    def _note_outage(self, replica: LogReplica, now: float) -> None:
        news = self._outage.look(now, is_heard=replica.is_log_heard)
        was_hindered, self._is_hindered = self._is_hindered, self.leaderless_s > 0.0
        if was_hindered is not self._is_hindered:
            self.router.hinder(f"{_LEADERLESS}, so no server is active" if self._is_hindered else "")
        if news is None:
            return
        lasted_s = round(news.lasted_s, 1)
        if news.is_over:
            _log_change(logging.INFO, "the replicated log has a leader again", after_s=lasted_s)
        else:
            epoch, active = self.active
            _log_change(logging.WARNING, _LEADERLESS, for_s=lasted_s, epoch=epoch, active=active)

    def _note_standbys(self, now: float) -> None:
        """Of the active server: who would take over."""
        for server_id in self._pulse.listeners if self.role is Role.ACTIVE else ():
            if server_id not in self._standbys:
                _log_change(logging.INFO, "a standby listens", id=server_id)
            self._standbys[server_id] = now
        for server_id, seen_at in [*self._standbys.items()]:
            if now - seen_at > _STANDBY_GONE_S:
                del self._standbys[server_id]
                _log_change(logging.WARNING, "a standby is gone", id=server_id, others=len(self._standbys))

    def _note_clocks(self) -> None:
        news = self.skew.look(monotonic())
        if news is None:
            return
        if news.ahead_s:
            direction = "ahead_s" if news.ahead_s > 0 else "behind_s"
            off: dict[str, Any] = {direction: round(abs(news.ahead_s), 1)}
            _log_change(logging.WARNING, "the clock differs from the active server's", active=self.active[1], **off)
        else:
            _log_change(logging.INFO, "the clock agrees with the active server's")

    def _state_bytes(self) -> int:
        """Roughly, what all rows come to."""
        if self._machines is None:
            return 0
        service, broker = self._machines
        return service.usage.bytes + broker.state_bytes

    def _begin_snapshot(self) -> None:
        """Now, or as soon as no batch is on its way."""
        replica, rows = self._replica, self._rows
        if replica is not None and rows is not None:
            self._wants_snapshot = not replica.begin_snapshot(rows.in_turn())

    def _listener_came(self) -> None:
        """Another server listens: perhaps it has begun after the last entry of this one."""
        if self._replica is not None:
            self._replica.listener_came()

    def _may_pulse(self) -> int | None:
        replica = self._replica
        return replica.epoch if replica is not None and replica.may_pulse else None

    # -- a life -------------------------------------------------------------------------------------------------------

    def _begin_life(self) -> None:
        """With nothing, and an incarnation that no other life has."""
        self._beginning = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        link = LogLink(self._settings, self.skew)
        try:
            base = await link.find_base()
            self._journal = Journal()
            service, broker = self._owner.build_state(self._journal)
            self._standby = Standby(self._journal, service, broker, self._elapsed())
            self._rows = self._standby.rows
            self._machines = service, broker
            life = Life(self._settings.id, secrets.randbits(_INCARNATION_BITS))
            waits = self._settings.awaits_import
            self._replica = LogReplica(life, self._url, self, self._elapsed, link, base, awaits_import=waits)
            self._replica.open()
        except Exception as error:  # noqa: BLE001 - without the log this server is of no use
            await link.close()
            self.failed(error)
        except asyncio.CancelledError:
            await link.close()
            raise

    def log_trimmed(self) -> None:
        _log_change(logging.WARNING, "the log was trimmed", reason="this server has fallen behind; it begins again")
        self._end_life()
        if not self._is_over:
            self._begin_life()

    def replicated(self, batch: WriteBatch) -> None:
        if self._standby is not None:
            self._standby.absorb(batch)

    def caught_up(self) -> None:
        if self._replica is not None and self._replica.awaits_import:
            _log_change(logging.WARNING, "nobody is active before an import into the log is complete")
        self._is_known.set()

    def appending(self, batch: WriteBatch) -> None:
        if self._rows is not None:
            self._rows.appended(batch)

    def written(self) -> None:
        if self._rows is not None:
            self._rows.written()
        if self._wants_snapshot:
            self._begin_snapshot()  # in this moment no batch is on its way

    def settled(self) -> None:
        if self._standby is not None:
            self._standby.settle()

    def owner_changed(self, epoch: int, owner: Life | None, url: str) -> None:
        is_own = self._replica is not None and owner == self._replica.life
        address = None if owner is None or is_own else url or None  # an import serves nobody
        self._listen_to(address)
        if self._active == (epoch, owner):
            return  # an earlier life has said so
        self._active = (epoch, owner)
        if owner is None:
            if self.role is not Role.DEPOSED:  # it has handed over itself, and says so
                _log_change(logging.INFO, "no server is active", epoch=epoch, **self._change())
        elif not is_own:
            _log_change(logging.INFO, "active server", epoch=epoch, id=owner.id, url=address or "", **self._change())
        self.router.shut(address)

    def _change(self) -> dict[str, Any]:
        return {} if self._replica is None else self._replica.change

    def _listen_to(self, url: str | None) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        if url is not None and self._replica is not None:
            self._listener = HeartbeatListener(url, self._settings.id, self._secret, self._replica, self.router.doubt)

    def promoted(self, epoch: int, timeline: Timeline) -> None:
        replica, driver, standby, machines = self._replica, self._driver, self._standby, self._machines
        if replica is None or driver is None or standby is None or machines is None:
            raise RuntimeError("a life that has not begun")
        self._standby = None
        self.clock.ahead_s = standby.take_over(timeline, self._elapsed())
        loop = asyncio.get_running_loop()
        self._group_commit = GroupCommit(self._journal, replica, self.clock, loop, self.failed, replica)
        service, broker = machines
        driver.replace_broker(broker, self._group_commit)
        self._owner.on_active(service, broker)
        _log_change(logging.INFO, "promoted", epoch=epoch, index=replica.index, **replica.change)
        self.router.open()
        driver.flush()  # what was due while nobody was active

    def deposed(self, epoch: int) -> None:
        if self._journal.is_draining:
            _log_change(logging.INFO, "handed over", epoch=epoch)
        else:
            _log_change(logging.WARNING, "deposed", epoch=epoch)
        self._end_life()
        if not self._is_over:
            self._begin_life()

    def _end_life(self) -> None:
        """Nothing of it is said any more."""
        replica, self._replica = self._replica, None
        self._standby = self._machines = self._rows = None
        self._wants_snapshot = False
        self._standbys.clear()
        self._pulse.part()
        try:
            if self._group_commit is not None:
                self._group_commit.close()
                self._group_commit = None
                self._owner.on_inactive()
                if self._driver is not None:
                    self._driver.dismiss("another server is active")
                    self._driver.replace_broker(self._owner.build_state(None)[1])
        finally:  # also after a defect: the client of the log has sockets
            if replica is not None:
                task = asyncio.get_running_loop().create_task(replica.close())
                self._former.add(task)
                task.add_done_callback(self._former.discard)

    def lease_renewed(self) -> None:
        if self._driver is not None and self._group_commit is not None:
            self._driver.flush()

    def failed(self, error: Exception) -> None:
        """The log cannot be read."""
        if self._is_over:
            return
        if not isinstance(error, StateStoreError):
            error = ReplicatedLogError(f"the replicated log cannot be used: {error}")
        self._failure = error
        self._is_known.set()
        self._owner.on_fatal_error(error)

    # -- by people ----------------------------------------------------------------------------------------------------

    def want_snapshot(self) -> bool:
        """Begin one as soon as it can be. Returns False if this server has not read the log."""
        self._wants_snapshot = self.is_ready
        return self._wants_snapshot

    # -- the end ------------------------------------------------------------------------------------------------------

    async def hand_over(self, next_id: str = "") -> bool:
        """If this server is active: let another one be, at once, when all that waits is said. Without an id it is one
        that listens. Returns whether it was done; a server that could not even begin goes on as before.
        """
        replica, group_commit = self._replica, self._group_commit
        if replica is None or group_commit is None or replica.role is not Role.ACTIVE:
            return False
        self.router.shut(None)
        self._journal.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_HAND_OVER_S):
                await group_commit.wait_idle()
        is_done = await replica.hand_over(next_id or next(reversed(self._pulse.listeners), ""), _HAND_OVER_S)
        if self._replica is replica and not (is_done or replica.is_handing_over):
            self._journal.is_draining = False
            self.router.open()
            group_commit.resume()
        return is_done

    async def close(self) -> None:
        """Let another server be the active one, if this one is. Safe to call twice."""
        self._is_over = True
        await self.hand_over()
        await self._internal_listener.close()
        self.router.close()
        self._listen_to(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        self._end_life()
        await asyncio.gather(*self._former, return_exceptions=True)
        self._pulse.close()
        await self.log_peers.close()
        if self.peer is not None:
            await self.peer.stop()


# -- what people ask for -----------------------------------------------------------------------------------------------
#
# What people ask a replicated server for: ``statestore ha``.


#: An entry comes back within a commit.
_FORMAT_S: Final = 2.0
_NO_LEADER: Final = (
    "the log has no leader that this server can reach, so nothing is acknowledged: more than half of the log's peers"
    " must run, and reach each other"
)


class OperatorCommands:
    """Each is carried out, or answered with the reason why not."""

    def __init__(self, lives: ReplicatedServer[Any]) -> None:
        self._lives = lives
        self._actions: dict[str, Callable[[str], Awaitable[str]]] = {
            "promote": self._promote,
            "hand-over": self._hand_over,
            "snapshot": self._snapshot,
            "trim": self._trim,
            "format": self._format,
        }

    async def carry_out(self, purpose: str, argument: str) -> dict[str, object]:
        """``status``, or one of the others. Returns what the server is then."""
        action = self._actions.get(purpose)
        reason = "" if action is None else await action(argument)
        replica = self._lives.replica
        has_leader, warning = (False, "") if replica is None else await replica.look_at_members()
        if not has_leader:
            warning = _NO_LEADER
        return {
            "done": not reason,
            "reason": reason,
            **self.status(),
            "log_has_leader": has_leader,
            "warning": warning,
        }

    def status(self) -> dict[str, object]:
        """What this server is, and what it knows of the others."""
        lives, replica = self._lives, self._lives.replica
        epoch, active = lives.active
        return {
            "id": lives.id,
            "internal": lives.url,
            "role": lives.role.value,
            "epoch": epoch,
            "active": active,
            "ready": lives.is_ready,
            "awaits_import": replica is not None and replica.awaits_import,
            "format": lives.format,
            "index": lives.index,
            "base": 0 if replica is None else replica.base,
            "log_bytes": 0 if replica is None else replica.log_bytes,
            "silence_s": round(lives.silent_s, 3),
            "clients": lives.clients,
            "passed_on": lives.router.proxied,
            "listeners": lives.listeners,
            "secrets": lives.secrets,
        }

    async def _promote(self, _argument: str) -> str:
        is_done = self._lives.promote()
        _log_change(logging.WARNING, "promotion was asked for", done=is_done)
        return "" if is_done else self._why_not("it is active already" if self._is_active else "")

    async def _hand_over(self, next_id: str) -> str:
        if not self._is_active:
            return self._why_not(self._not_active)
        return "" if await self._lives.hand_over(next_id) else "the log did not take it in time"

    async def _snapshot(self, _argument: str) -> str:
        return "" if self._lives.want_snapshot() else self._why_not()

    async def _trim(self, _argument: str) -> str:
        replica = self._lives.replica
        return self._why_not() if replica is None else await replica.trim()

    async def _format(self, argument: str) -> str:
        """Only the active server can: it knows which others there are, and what they know."""
        lives, has, replica = self._lives, self._lives.format, self._lives.replica
        wanted = int(argument) if argument.isdecimal() else 0
        if replica is None or not self._is_active:
            return self._why_not(self._not_active)
        behind = [server_id for server_id, known in lives.formats.items() if known < wanted]
        if wanted > entries.FORMAT:
            return f"it knows formats up to {entries.FORMAT}: upgrade it first"
        if behind:
            return f"{', '.join(behind)} would stop, because of not knowing format {wanted}: upgrade all servers first"
        if wanted < has:
            return f"the log has format {has}, and formats never go back"
        is_done = wanted == has or await replica.raise_format(wanted, _FORMAT_S)
        return "" if is_done else "the log did not take it in time"

    @property
    def _is_active(self) -> bool:
        return self._lives.role is Role.ACTIVE

    @property
    def _not_active(self) -> str:
        return f"it is not active: ask {self._lives.active[1] or 'the server that is'}"

    def _why_not(self, otherwise: str = "") -> str:
        replica = self._lives.replica
        if replica is not None and replica.awaits_import:
            return "an import into the log is not complete"
        return otherwise or "it has not read the log to its end"
