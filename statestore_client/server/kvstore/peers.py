"""A peer's state as a table, how long to wait after errors, and how many syncs run at once.

===========  ========  ========  ==============  =========  ======================
state        PEER_ADD  PEER_DEL  SYNC_RESP_RCVD  API_ERROR  INCONSISTENCY_DETECTED
===========  ========  ========  ==============  =========  ======================
IDLE         SYNCING   -         -               IDLE       IDLE
SYNCING      -         -         INITIALIZED     IDLE       IDLE
INITIALIZED  -         -         INITIALIZED     IDLE       IDLE
===========  ========  ========  ==============  =========  ======================

PEER_ADD is what the scheduler makes of an idle peer when its turn has come. A peer that is removed takes its state with
it, so PEER_DEL is in no row.

Source: KvStore, "Initial Full Sync"; facts §3.2, §3.3.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.server.kvstore.area_store import AreaLimits, AreaSummary

if TYPE_CHECKING:
    from random import Random

FIRST_WAIT_S: Final = 4.0
LONGEST_WAIT_S: Final = 256.0
#: A wait is shorter by up to this part of itself, so that peers of a site that was started again do not return at once.
_JITTER: Final = 0.25
_FIRST_SYNCS: Final = 2
_MOST_SYNCS: Final = 32


class PeerState(IntEnum):
    """The numbers are those of the document's interface."""

    IDLE = 0
    SYNCING = 1
    INITIALIZED = 2


class PeerEvent(Enum):
    """What moves a peer from state to state."""

    PEER_ADD = "its turn to sync has come"
    PEER_DEL = "it is removed"
    SYNC_RESP_RCVD = "the last response of a sync is there"
    API_ERROR = "a request failed, or there is no connection"
    INCONSISTENCY_DETECTED = "it sent an update of a TTL that does not fit"


TRANSITIONS: Final = {
    (PeerState.IDLE, PeerEvent.PEER_ADD): PeerState.SYNCING,
    (PeerState.IDLE, PeerEvent.API_ERROR): PeerState.IDLE,
    (PeerState.IDLE, PeerEvent.INCONSISTENCY_DETECTED): PeerState.IDLE,
    (PeerState.SYNCING, PeerEvent.SYNC_RESP_RCVD): PeerState.INITIALIZED,
    (PeerState.SYNCING, PeerEvent.API_ERROR): PeerState.IDLE,
    (PeerState.SYNCING, PeerEvent.INCONSISTENCY_DETECTED): PeerState.IDLE,
    (PeerState.INITIALIZED, PeerEvent.SYNC_RESP_RCVD): PeerState.INITIALIZED,
    (PeerState.INITIALIZED, PeerEvent.API_ERROR): PeerState.IDLE,
    (PeerState.INITIALIZED, PeerEvent.INCONSISTENCY_DETECTED): PeerState.IDLE,
}


@attrs.define(eq=False)
class PeerStatus:
    """State, since when, and how often it was won and lost: a peer that never failed has 0 ``flaps``."""

    since: float
    state: PeerState = PeerState.IDLE
    flaps: int = -1

    def happens(self, event: PeerEvent, now: float) -> bool:
        """Move on. Whether the state is another one. Raises KeyError for what the table has not."""
        after = TRANSITIONS[self.state, event]
        if after is self.state:
            return False
        self.flaps += PeerState.INITIALIZED in (self.state, after)
        self.state, self.since = after, now
        return True


@attrs.frozen
class SyncWaits:
    """How long a peer is left alone after the first error, and at most, in seconds."""

    first_s: float = FIRST_WAIT_S
    longest_s: float = LONGEST_WAIT_S


DEFAULT_WAITS: Final = SyncWaits()


@attrs.define(eq=False)
class SyncBackoff:
    """4 s after the first error, twice as long after each further one, at most 256 s, if ``waits`` does not say
    otherwise. A success begins anew.
    """

    waits: SyncWaits = DEFAULT_WAITS
    errors: int = 0
    _retry_at: float = 0.0
    _failed_at: float = float("-inf")

    def fail(self, now: float, random: Random) -> None:
        """A request failed."""
        wait = min(self.waits.first_s * 2 ** min(self.errors, 16), self.waits.longest_s)
        self.errors += 1
        self._failed_at = now
        self._retry_at = now + wait * (1.0 - _JITTER * random.random())

    def excuse(self, heard_at: float) -> None:
        """The line is dead, on which nothing came since ``heard_at``: a first error after that was its own, and the
        peer is tried as soon as there is another line. Further ones may come of a line that is too slow for a sync.
        """
        if self.errors == 1 and self._failed_at > heard_at:
            self._retry_at = 0.0

    def succeed(self) -> None:
        """All that was missed is there, or the peer was started again."""
        self.errors = 0
        self._retry_at = 0.0

    @property
    def retry_at(self) -> float:
        """Monotonic seconds; in the past if nothing has to be waited for."""
        return self._retry_at


@attrs.define(eq=False)
class SyncSlots:
    """How many syncs a site has begun and not ended, in all its areas: two at first, twice as many after each one that
    succeeds, at most 32. Those that last long do not count.
    """

    limit: int = _FIRST_SYNCS
    running: int = 0

    @property
    def has_room(self) -> bool:
        """Whether another one may begin."""
        return self.running < self.limit

    def succeed(self) -> None:
        """A sync has brought all that was missed."""
        self.limit = min(_MOST_SYNCS, 2 * self.limit)


# -- events ------------------------------------------------------------------------------------------------------------
#
# What a site tells the program that runs it. Only PeerWanted has to be acted upon.


#: The address that was dialled, or the route of a connection that another site has opened.
LinkId: TypeAlias = str | bytes


@attrs.frozen
class PeerChanged:
    """A peer of an area went from state to state; None: it was not there before, or is gone."""

    area: str
    peer: str
    before: PeerState | None
    after: PeerState | None


@attrs.frozen
class HelloRefused:
    """A connection with this name was refused, by this side or by the other one. ``reason``: see ``RefusalReason``."""

    link: object
    name: str
    reason: int
    text: str


@attrs.frozen
class NameInUse:
    """Two living sites have one name: WARNING. One of them must be given another."""

    name: str


@attrs.frozen
class AreaFull:
    """An area has no room for what a peer has sent: WARNING. Told again after some minutes without such a case."""

    area: str
    holds: AreaSummary
    limits: AreaLimits


@attrs.frozen
class MalformedMessage:
    """What came on a connection is not of this protocol; it changed nothing."""

    link: object
    error: str


@attrs.frozen
class Synced:
    """The initial syncs are over: with these ``peers``, none if no other site could be reached in time. Sent once."""

    peers: tuple[str, ...] = ()


@attrs.frozen
class PeerRequested:
    """A client asks the site to dial an address, or to hang up: do it, and answer request ``id`` on ``link``."""

    link: LinkId
    id: int
    url: str
    is_wanted: bool


SiteEvent: TypeAlias = PeerChanged | HelloRefused | NameInUse | AreaFull | MalformedMessage | Synced | PeerRequested
