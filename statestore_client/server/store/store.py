"""The state machine: commands in, replies and changes out.

A command is checked in this order, and the first check that fails decides (a client that makes several mistakes at once
hears of the first):

1. the key has at least one byte                        ``the key length is zero``
2. a SET has a timestamp                                ``missing timestamp``
3. its timestamp is at most a minute ahead (*)          ``the request timestamp is too far in the future; ...``
4. its fencing token is at most a minute ahead (*)      ``the request fencing token timestamp is too far ...``
5. SET, DEL, VDEL pass the fence of the key             ``a fencing token is required ...``, ``... a lower version ...``
6. the condition of NX, NEX or VDEL holds               no error: the reply ``NotApplied``
7. the quotas allow it                                  ``the quota has been exceeded``

Checks 3 and 4 hold for every command that carries a timestamp or a token. (*) Of the
:class:`~statestore_client.server.store.durability.LocalClock`; what is not later than the last version that was given
out is never too far in the future. Invariant: versions are at most a minute ahead of the local clock. Invariant: a
command that fails any check changes neither keys, marks, expiries and observers nor the clock.

That a key expires is a step of its own, with a notification and a record: :meth:`StateStore.tick` takes it, and a SET
that needs the key or its room. For all other commands a key whose time has come is missing, and they change nothing.

Source: state store protocol, all of it. Section names stand at the methods.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from statestore_client.errors import (
    EmptyKeyError,
    FencingTokenClockSkewError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    MissingTimestampError,
    QuotaExceededError,
    RequestClockSkewError,
    ServerError,
)
from statestore_client.server.store.durability import (
    KEEP_ALL,
    Fence,
    KeyRecord,
    LocalClock,
    Persistence,
    StoreJournal,
    StoreRecovery,
)
from statestore_client.server.store.keyspace import (
    Change,
    Durability,
    Entry,
    Keyspace,
    Observers,
    Outcome,
    RequestContext,
    StoreLimits,
    StoreUsage,
    scan,
    scan_entries,
)
from statestore_client.server.timer_heap import TimerHeap
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Scan, Set, VDel
from statestore_client.wire.hot_value import hot_value
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.replies import (
    COUNT_0,
    COUNT_1,
    MISSING,
    NOT_APPLIED,
    OK,
    Entries,
    ErrorReply,
    Found,
    KeyEntry,
    Keys,
    Notification,
    Operation,
    Reply,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from statestore_client.server.journal import Journal, Row, StoredRecords, Timeline, WriteBatch
    from statestore_client.server.shares import Shares
    from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
    from statestore_client.wire.instant import Instant

# -- fencing -----------------------------------------------------------------------------------------------------------
#
# The fencing token algorithm.
#
# ========  =============  =============================================
# mark      request token  result
# ========  =============  =============================================
# none      none           accepted; the key stays unmarked
# none      T              accepted; the key is marked with T
# M         none           refused: a fencing token is required
# M         T < M          refused: a lower version than the mark
# M         T >= M         accepted; the key is marked with T
# ========  =============  =============================================
#
# SET stores the resulting mark. DEL and VDEL are checked the same way, and the mark disappears with the key. Source:
# state store protocol, "Fencing Token Algorithm".


def pass_fence(mark: HlcTimestamp | None, token: HlcTimestamp | None) -> HlcTimestamp | None:
    """The mark of the key after a request with ``token``. Raises a FencingError when the request must be refused."""
    if mark is None:
        return token
    if token is None:
        raise FencingTokenRequiredError
    if token is not mark and token < mark:
        raise FencingTokenTooOldError
    return token


# -- clocks of clients -------------------------------------------------------------------------------------------------
#
# How far the clocks of clients are ahead of the store's, as the timestamps of their requests tell.
#
# Only the future counts: a clock that is behind does no harm. And only a time that the store has given to nobody tells
# of its sender's clock: clients go on from the versions that they hear, so one whose clock is right repeats the time of
# another one's that is ahead.


#: What is less is no news: requests are refused from a minute on.
_NOTED_AHEAD_MS: Final = 10_000

#: What was seen longer ago than twice this is forgotten.
_SPAN_S: Final = 300.0

#: Kept until they are taken.
_MOST_NEWS: Final = 64


@hot_value
class ClockAhead:
    """This client's clock was ahead of the store's by so much."""

    client_id: str
    ahead_ms: int


class ClientClocks:
    """``news`` is for whoever takes it: what was noted since.

    Invariant: what :meth:`furthest_s` tells was seen within the last ``2 * _SPAN_S``, and all of the last ``_SPAN_S``
    is in it.
    """

    __slots__ = ("_ahead_ms", "_former_ms", "_span_ends", "news")

    def __init__(self) -> None:
        self.news: list[ClockAhead] = []
        self._ahead_ms = self._former_ms = 0
        self._span_ends = -math.inf

    def note(self, client_id: str, ahead_ms: int, now: float) -> None:
        """``now`` in monotonic seconds."""
        self._turn(now)
        self._ahead_ms = max(self._ahead_ms, ahead_ms)
        if len(self.news) < _MOST_NEWS:
            self.news.append(ClockAhead(client_id, ahead_ms))

    def furthest_s(self, now: float) -> float:
        """Of all clients; 0 if none was noted."""
        self._turn(now)
        return max(self._ahead_ms, self._former_ms) / 1000

    def _turn(self, now: float) -> None:
        if now < self._span_ends:
            return
        self._former_ms = self._ahead_ms if now < self._span_ends + _SPAN_S else 0
        self._ahead_ms = 0
        self._span_ends = now + _SPAN_S


# -- store -------------------------------------------------------------------------------------------------------------


#: "The state store rejects a __ts (and also a __ft) that is more than a minute ahead of the state store's local clock."
MAX_SKEW_MS: Final = 60_000

#: A tick looks at no more deadlines, so that a million keys with the same one do not stop everything else.
EXPIRIES_PER_TICK: Final = 1_000

#: The same for a SET that needs their room: it takes some milliseconds. Rarely is that not enough, for a large value in
#: place of many tiny keys, or if the key itself was due and ``CHANGES_AT_ONCE`` observers are to be told of that; then
#: the SET is refused, and ticks remove the others.
EXPIRIES_PER_SET: Final = 4_000

#: Neither goes on with the next key when so many observers are to be told.
CHANGES_AT_ONCE: Final = 5_000

_DELETED: Final = Notification(Operation.DELETE)

#: Looking a member up in its enumeration takes as long as a call.
_NOT_KEPT: Final = Durability.NOTHING
_DEFAULT_LIMITS: Final = StoreLimits()


#: The reply to a command, and the version that goes with it.
Answer: TypeAlias = "tuple[Reply, HlcTimestamp | None]"

#: Told of each command that was carried out or refused. It may look, and changes nothing.
StoreObserver: TypeAlias = "Callable[[StateStore, Command, RequestContext, Outcome], object]"


class StateStore:
    """One state store. Not thread safe: one owner calls it, and carries out what it returns in that order."""

    __slots__ = (
        "_changes",
        "_clock",
        "_dialect",
        "_expiries",
        "_handlers",
        "_keyspace",
        "_limits",
        "_local_clock",
        "_observer",
        "_observers",
        "_quota_refusals",
        "_recovery",
        "_survival",
        "clocks",
        "next_deadline",
    )

    def __init__(
        self,
        *,
        clock: HybridLogicalClock,
        limits: StoreLimits = _DEFAULT_LIMITS,
        dialect: Dialect = Dialect.SERVICE,
        journal: Journal | None = None,
        persistence: Persistence = KEEP_ALL,
        observer: StoreObserver | None = None,
    ) -> None:
        """Keys that ``persistence`` keeps, and the clock that versions come from, are written into the ``journal``."""
        self._observer = observer
        self._clock = clock
        self._local_clock = LocalClock()
        #: Of clients, against the local clock.
        self.clocks: Final = ClientClocks()
        self._survival = StoreJournal(journal, clock, self._local_clock, persistence)
        self._limits = limits
        self._dialect = dialect
        self._keyspace = Keyspace(limits)
        self._observers = Observers(limits)
        self._quota_refusals: defaultdict[str, int] = defaultdict(int)
        self._expiries: TimerHeap[tuple[float, bytes]] = TimerHeap(self._expires_then)
        #: When the next key expires, in monotonic seconds; None for never. It may turn out that none does. The heap's
        #: own method: it is asked after every request.
        self.next_deadline: Final = self._expiries.next_deadline
        self._recovery = StoreRecovery(self._keyspace, self._survival, self._expiries, clock, self._local_clock)
        self._changes: list[Change] = []  # of the call in progress; empty between calls
        self._handlers: dict[type, Callable[..., Answer]] = {
            Set: self._set,
            Get: self._get,
            Del: self._delete,
            VDel: self._delete_if_equal,
            KeyNotify: self._key_notify,
            Scan: self._scan,
        }

    def apply(self, command: Command, request: RequestContext) -> Outcome:
        """Carry out one command. Refusals are replies, too: nothing is raised."""
        survival = self._survival
        survival.is_kept = survival.keeps_all  # nothing is changed so far
        try:
            self._check(command, request)
            reply, version = self._handlers[type(command)](command, request)
        except ServerError as error:
            reply, version = ErrorReply(error.with_traceback(None)), None
        outcome = Outcome(reply, version, self._take_changes() if self._changes else (), survival.is_kept)
        if self._observer is not None:
            self._observer(self, command, request, outcome)
        return outcome

    def tick(self, now: Instant) -> tuple[Change, ...]:
        """Remove keys whose time has come, at most ``EXPIRIES_PER_TICK``; ``next_deadline`` tells if more are due."""
        self._local_clock.read(now)  # which gives versions to what expires
        for _ in range(EXPIRIES_PER_TICK):
            if not self._expire_one(now):
                break
        return self._take_changes()

    def client_disconnected(self, client_id: str) -> None:
        """Forget the observations of a client. ("KEYNOTIFY notification topics and lifecycle")"""
        self._observers.remove_client(client_id)

    @property
    def usage(self) -> StoreUsage:
        """What is stored. Expired keys count until they are removed."""
        keyspace, observers = self._keyspace, self._observers
        return StoreUsage(
            keys=len(keyspace),
            unlisted_keys=keyspace.unlisted,
            bytes=keyspace.bytes.total,
            observations=observers.number.total,
            observation_bytes=observers.bytes.total,
            limits=self._limits,
        )

    @property
    def shares(self) -> tuple[Shares, ...]:
        """What there is of everything that has a quota, by users; to be looked at only."""
        keyspace, observers = self._keyspace, self._observers
        return keyspace.keys, keyspace.bytes, observers.number, observers.bytes

    @property
    def quota_refusals(self) -> Mapping[str, int]:
        """How many commands were refused, by the name of the quota."""
        return self._quota_refusals

    def keys_from(self, start: bytes, *, inclusive: bool) -> Iterator[bytes]:
        """All keys from this one on, in byte order; the expired ones too. Do not change the store while iterating."""
        return self._keyspace.keys_from(start, inclusive=inclusive)

    @property
    def observers(self) -> Observers:
        """Which clients observe what, to be looked at only."""
        return self._observers

    # -- after a restart ----------------------------------------------------------------------------------------------

    def restore(self, storage: StoredRecords, timeline: Timeline) -> None:
        """Fill the empty store with what it wrote down in an earlier life. Raises DamagedRecordError.

        Keys whose time came meanwhile go the usual way: at the next tick, and nobody sees them before.
        """
        self._recovery.restore(storage, timeline)
        self._recovery.go_on(storage, timeline)

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """Follow the store of another server, which wrote this batch. Raises DamagedRecordError."""
        self._recovery.absorb(batch, timeline)

    def rows(self) -> Iterator[Row]:
        """What is written of each key. See :meth:`.StoreRecovery.rows`."""
        return self._recovery.rows()

    def go_on(self, storage: StoredRecords, timeline: Timeline) -> None:
        """After the last batch, in that server's place. ``storage`` has its clock. Raises DamagedRecordError."""
        self._recovery.go_on(storage, timeline)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _set(self, command: Set, request: RequestContext) -> Answer:
        """ "SET options", "Use the fencing tokens on SET requests"."""
        key, value, user, now = command.key, command.value, request.user, request.now
        survival, keyspace = self._survival, self._keyspace
        entry = keyspace.get(key)
        if entry is not None and entry.expires_at is not None and entry.expires_at <= now.monotonic:
            self._expire_before_set(key, now)
            entry = None
        fence = survival.mark_of(key, now.monotonic) if entry is None else entry.fence
        if fence is not None or request.fencing_token is not None:
            fence = pass_fence(fence, request.fencing_token)
        if entry is not None and command.condition is not None and not _condition_holds(command, entry):
            return NOT_APPLIED, entry.version
        if entry is None or entry.user != user or len(value) > len(entry.value):  # no quota refuses any other
            self._check_quota(command, entry, user, now)
        timestamp, clock = request.timestamp, self._clock
        version = clock.tick(now.wall_ms) if timestamp is None else clock.advance_past(timestamp, now.wall_ms)
        expires_at = None if command.expiry_ms is None else now.monotonic + command.expiry_ms / 1000
        kept = _NOT_KEPT
        if survival.is_durable:
            kept = survival.set(command, entry, KeyRecord(value, version, fence, expires_at, user))
        if entry is None:
            replaced = survival.take_mark(key, kept)
            keyspace.add(key, Entry(value, version, fence, expires_at, kept, user))
        else:
            keyspace.replace_value(key, entry, value, user)
            entry.version, entry.fence, entry.kept = version, fence, kept
            replaced, entry.expires_at = entry.expires_at, expires_at
        if replaced is not expires_at and replaced != expires_at:  # otherwise its item in the queue still holds
            self._reschedule(key, replaced, expires_at)
        if key in self._observers.by_key:
            self._notify(key, Notification(Operation.SET, command.value), version)
        return OK, version

    def _get(self, command: Get, request: RequestContext) -> Answer:
        """ "GET response". A missing key has no version: official SDKs take a version for existence."""
        entry = self.entry(command.key, request.now)
        return (MISSING, None) if entry is None else (Found(entry.value), entry.version)

    def _delete(self, command: Del, request: RequestContext) -> Answer:
        """ "DEL and VDEL response"."""
        entry = self.entry(command.key, request.now)
        if entry is None:
            return COUNT_0, None
        pass_fence(entry.fence, request.fencing_token)
        return COUNT_1, self._remove(command.key, entry, request)

    def _delete_if_equal(self, command: VDel, request: RequestContext) -> Answer:
        """ "VDEL options"."""
        entry = self.entry(command.key, request.now)
        if entry is None:
            return COUNT_0, None
        pass_fence(entry.fence, request.fencing_token)
        if entry.value != command.value:
            return NOT_APPLIED, entry.version
        return COUNT_1, self._remove(command.key, entry, request)

    def _key_notify(self, command: KeyNotify, request: RequestContext) -> Answer:
        """ "KEYNOTIFY request messages", "KEYNOTIFY response message"."""
        if command.stop:
            return (OK if self._observers.remove(request.client_id, command.key) else COUNT_0), None
        quota = self._observers.lacking(request.client_id, command.key, request.user)
        if quota is not None:
            raise self._exceeded(quota)
        self._observers.add(request.client_id, command.key, request.user)
        return OK, None

    def _exceeded(self, quota: str) -> QuotaExceededError:
        self._quota_refusals[quota] += 1
        most = getattr(self._limits, f"max_{quota.replace('-', '_')}")
        return QuotaExceededError(quota=f"{quota}: at most {most}; --max-{quota} raises that")

    def _scan(self, command: Scan, request: RequestContext) -> Answer:
        now = request.now.monotonic

        def is_live(key: bytes) -> bool:
            expires_at = self._expires_at(key)
            return expires_at is None or expires_at > now

        keyspace, pattern, limits = self._keyspace, command.pattern, self._limits.scan
        if not command.entries:
            keys, token = scan(keyspace, pattern, command.token, is_live=is_live, limits=limits)
            return Keys(keys, token), None
        keys, token = scan_entries(keyspace, pattern, command.token, is_live=is_live, limits=limits)
        return Entries(tuple([self._described(key, now) for key in keys]), token), None

    def _described(self, key: bytes, now: float) -> KeyEntry:
        """All that there is to say of a live key. Of its time, what is begun of a millisecond counts."""
        entry = self._keyspace.get(key)
        assert entry is not None  # noqa: S101 - the page was made of what is there
        expiry_ms = None if entry.expires_at is None else math.ceil(1000 * (entry.expires_at - now))
        observers = len(self._observers.by_key.get(key, ()))
        return KeyEntry(key, entry.value, entry.version, expiry_ms, entry.fence, observers)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _check(self, command: Command, request: RequestContext) -> None:
        """Checks 1 to 4: what needs no look at the keyspace. ("-ERR responses", "Clock skew")"""
        local_ms = self._local_clock.read(request.now)
        latest_ms = local_ms + MAX_SKEW_MS
        if not isinstance(command, Scan) and not command.key:
            raise EmptyKeyError
        timestamp, token = request.timestamp, request.fencing_token
        if timestamp is None:
            if isinstance(command, Set):
                raise MissingTimestampError
        elif timestamp.wall_ms > local_ms + _NOTED_AHEAD_MS:
            last = self._clock.last
            if timestamp.wall_ms > last.wall_ms:
                self.clocks.note(request.client_id, timestamp.wall_ms - local_ms, request.now.monotonic)
            if timestamp.wall_ms > latest_ms and timestamp > last:
                raise RequestClockSkewError
        if token is not None and token.wall_ms > latest_ms and token > self._clock.last:
            raise FencingTokenClockSkewError

    def entry(self, key: bytes, now: Instant) -> Entry | None:
        """What a GET would find, to be looked at only. A key whose time has come is missing, tick or no tick."""
        entry = self._keyspace.get(key)
        if entry is None or entry.expires_at is None or entry.expires_at > now.monotonic:
            return entry
        return None

    def _expire_before_set(self, key: bytes, now: Instant) -> None:
        """The key of a SET whose time has come goes now, and its observers hear of that before the SET."""
        self._expire(key, now)
        self._expiries.forget_one()

    def _next_version(self, request: RequestContext) -> HlcTimestamp:
        """Greater than the request's timestamp and all versions before. ("Versions as Hybrid Logical Clocks")"""
        if request.timestamp is None:
            return self._clock.tick(request.now.wall_ms)
        return self._clock.advance_past(request.timestamp, request.now.wall_ms)

    def _check_quota(self, command: Set, entry: Entry | None, user: str | None, now: Instant) -> None:
        """Expired keys make room before a SET is refused."""
        steps = 0
        while (quota := self._keyspace.lacking(command.key, command.value, entry, user)) is not None:
            # Invariant: the key of the command is not among them; _expire_before_set() has seen to it.
            if steps == EXPIRIES_PER_SET or not self._expire_one(now):
                raise self._exceeded(quota)
            steps += 1

    def _remove(self, key: bytes, entry: Entry, request: RequestContext) -> HlcTimestamp:
        """Delete a live key and return the version of the reply and the notifications.

        The document returns "this version", that of the deleted value. The service's dialect issues a new one, so that
        whoever orders what it hears by version sees the deletion after the SET.
        """
        version = entry.version if self._dialect is Dialect.DOCUMENT else self._next_version(request)
        self._keyspace.remove(key)
        if entry.expires_at is not None:
            self._expiries.forget_one()
        self._survival.removed(key, entry)
        self._notify(key, _DELETED, version)
        return version

    def _expire_one(self, now: Instant) -> bool:
        """Remove the next key that is due; False if there is none, or enough was done at once.

        The key may have got another deadline meanwhile: then this was a step without effect.
        """
        due = self._expiries.pop_due(now.monotonic) if len(self._changes) < CHANGES_AT_ONCE else None
        if due is None:
            return False
        (_, key), holds = due
        if holds:
            self._expire(key, now)
        return True

    def _expire(self, key: bytes, now: Instant) -> None:
        if self._keyspace.get(key) is None:
            self._survival.drop_mark(key)
            return
        entry = self._keyspace.remove(key)
        version = entry.version if self._dialect is Dialect.DOCUMENT else self._clock.tick(now.wall_ms)
        self._survival.removed(key, entry)
        self._notify(key, _DELETED, version)

    def _reschedule(self, key: bytes, replaced: float | None, expires_at: float | None) -> None:
        if replaced is not None:
            self._expiries.forget_one()
        if expires_at is not None:
            self._expiries.add((expires_at, key))

    def _expires_at(self, key: bytes) -> float | None:
        """Of a key, or of the mark that one has left."""
        found: Entry | Fence | None = self._keyspace.get(key) or self._survival.marks.get(key)
        return None if found is None else found.expires_at

    def _expires_then(self, item: tuple[float, bytes]) -> bool:
        return self._expires_at(item[1]) == item[0]

    def _notify(self, key: bytes, notification: Notification, version: HlcTimestamp) -> None:
        self._changes += [Change(client_id, key, notification, version) for client_id in self._observers.of(key)]

    def _take_changes(self) -> tuple[Change, ...]:
        if not self._changes:
            return ()
        changes = tuple(self._changes)
        self._changes.clear()
        return changes


def _condition_holds(command: Set, entry: Entry) -> bool:
    """Of a command that has one, for a key that exists; for any other every condition holds."""
    if command.condition is Condition.NX:
        return False
    return entry.value == (command.value if command.expected is None else command.expected)


# -- site store --------------------------------------------------------------------------------------------------------
#
# The store of a server whose keys cross to other sites: it tells what changes, and takes what other sites have.
#
# What another site has is an *import*: a key that no command of a client has set. It has no expiry, no mark and no user
# here, and nothing of it is on the disk: after a restart it comes again from the other sites. Clients read, scan and
# observe it as any key. Refusing their writes is the service's part.


#: Imports come and go for nobody in particular.
_NOBODY: Final = ""
_NOBODYS: Final = None


class SiteStore(StateStore):
    """``on_change(key, entry)`` hears of each SET that was applied, and of each key that was deleted: None. It must not
    change the store. A key that may expire has been heard of when it got its expiry, and is not heard of again.
    """

    __slots__ = ("on_change",)

    def __init__(self, **options: Any) -> None:
        """``options`` are those of :class:`StateStore`."""
        super().__init__(**options)
        self.on_change: Callable[[bytes, Entry | None], object] = _ignore

    # -- imports -------------------------------------------------------------------------------------------------------

    def put_import(self, key: bytes, value: bytes, now: Instant) -> bool:
        """Another site has this value. False, and nothing has changed, if the quota does not allow it.

        A value that a client has set under this key, before the server became a site, is replaced, also on the disk.
        Call :meth:`take_changes` after some of these.
        """
        self._local_clock.read(now)
        entry = self._keyspace.get(key)
        try:
            self._check_quota(Set(key, value), entry, _NOBODYS, now)
        except QuotaExceededError:
            return False
        version = self._clock.tick(now.wall_ms)
        if entry is None:
            entry = Entry(value, version, None, None, Durability.NOTHING)
            replaced = self._survival.take_mark(key, Durability.NOTHING)
            self._keyspace.add(key, entry)
        else:
            replaced = entry.expires_at
        self._survival.removed(key, entry)  # nothing is kept of it, but its version never comes again
        self._keyspace.replace_value(key, entry, value, _NOBODYS)
        entry.version, entry.fence, entry.expires_at, entry.kept = version, None, None, Durability.NOTHING
        self._reschedule(key, replaced, None)
        self._notify(key, Notification(Operation.SET, value), version)
        return True

    def drop_import(self, key: bytes, now: Instant) -> None:
        """The other site has it no longer. Call :meth:`take_changes` after some of these."""
        entry = self._keyspace.get(key)
        if entry is not None:
            self._local_clock.read(now)
            self._remove(key, entry, RequestContext(_NOBODY, None, None, now))

    def take_changes(self) -> tuple[Change, ...]:
        """What observers are to be told of the imports since the last call."""
        return self._take_changes()

    # -- what changes --------------------------------------------------------------------------------------------------

    def _set(self, command: Set, request: RequestContext) -> Answer:
        answer = super()._set(command, request)
        if answer[0] is OK:
            self.on_change(command.key, self._keyspace.get(command.key))
        return answer

    def _remove(self, key: bytes, entry: Entry, request: RequestContext) -> HlcTimestamp:
        version = super()._remove(key, entry, request)
        self.on_change(key, None)
        return version


def _ignore(key: bytes, entry: Entry | None) -> None:
    """Nobody wants to know."""
