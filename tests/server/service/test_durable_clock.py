"""Clocks over restarts: the store and its answers on a machine whose wall clock jumps, against the true time.

The test alone knows the true time. It is what a lock's holder measures with its own monotonic clock.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.durable_broker import MemoryStorage
from support.schedules import scaled

from statestore_client.errors import FencingTokenTooOldError, RequestClockSkewError
from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.broker import ReportClock, Route
from statestore_client.server.journal import Journal
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import Outcome, RequestContext, StateStore
from statestore_client.wire.commands import Command, Condition, Get, Set
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC
from statestore_client.wire.replies import MISSING, OK, ErrorReply, Found, NotApplied

_WALL_MS = 1_700_000_000_000
_MINUTE_MS = 60_000
_ANSWERS_MS = 300_000
#: Deadlines are rounded up to a millisecond on their way to the disk.
_ROUNDING_MS = 2

DURATIONS_MS = st.sampled_from([0, 1, 7, 500, 3_000, 20_000, 61_000, 3_600_000])
STEPS_MS = st.sampled_from([-3_600_000, -61_000, -30_000, -1, 1, 30_000, 3_600_000])
LEASES_MS = st.sampled_from([100, 6_000, 30_000, 3_600_000])


class ClockMachine(RuleBasedStateMachine):
    """What the server did, in plain lists, beside the server itself."""

    def __init__(self) -> None:
        super().__init__()
        self.true_ms = 0
        self.wall_ahead_ms = 0
        self.boot, self.booted_at_ms = 1, -5_000
        self.storage = MemoryStorage()
        # The naive second implementation: log time, and how far the local clock is ahead of it.
        self.log_ms = self.committed_log_ms = 0
        self.local_ahead_ms: int | None = None
        self.committed_local_ahead_ms: int | None = None
        self.versions: list[HlcTimestamp] = []
        self.holder: tuple[bytes, int] = (b"nobody", 0)  # and the true time up to which it may rely on the lock
        self.doubt_ms = 0  # of restarts since then
        self.asked: dict[bytes, int] = {}  # correlation data, and the true time of the answer
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.boot or None)
        self.journal.resume(self.storage, self.now)
        clock = HybridLogicalClock("StateStore", guard=threading.Lock())
        self.store = StateStore(clock=clock, journal=self.journal)
        self.service = StateStoreService(self.store, token_key=bytes(TOKEN_KEY_BYTES), journal=self.journal)
        self.service.restore(self.storage, self.journal.timeline)
        self.local_ahead_ms = self.committed_local_ahead_ms
        self.commit()

    # -- clocks

    @property
    def wall_ms(self) -> int:
        return _WALL_MS + self.true_ms + self.wall_ahead_ms

    @property
    def now(self) -> Instant:
        return Instant((self.true_ms - self.booted_at_ms) / 1000, self.wall_ms)

    def look(self) -> int:
        """What the local clock is to say, now that somebody looks at it."""
        ahead_ms = self.wall_ms - self.log_ms
        self.local_ahead_ms = ahead_ms if self.local_ahead_ms is None else max(self.local_ahead_ms, ahead_ms)
        return min(self.log_ms + self.local_ahead_ms, self.wall_ms + 86_400_000)

    def commit(self) -> None:
        if self.journal:
            self.storage.append(self.journal.cut(self.now), lambda _error: None)
            self.committed_log_ms = self.log_ms

    def apply(self, command: Command, stamp: HlcTimestamp | None, token: HlcTimestamp | None = None) -> Outcome:
        """A command whose answer is on the disk when it is heard."""
        self.look()
        outcome = self.store.apply(command, RequestContext("c", stamp, token, self.now))
        if isinstance(command, Set) and outcome.reply is OK:
            assert outcome.version is not None
            assert stamp is None or outcome.version > stamp
            assert not self.versions or outcome.version > self.versions[-1]
            self.versions.append(outcome.version)
            self.committed_local_ahead_ms = self.local_ahead_ms
        self.commit()
        return outcome

    def right(self) -> HlcTimestamp:
        """The timestamp of a client whose clock is right."""
        return HlcTimestamp(_WALL_MS + self.true_ms, 0, "right")

    # -- rules

    @rule(duration_ms=DURATIONS_MS)
    def time_passes(self, duration_ms: int) -> None:
        self.true_ms += duration_ms
        self.log_ms += duration_ms

    @rule(step_ms=STEPS_MS)
    def the_wall_clock_is_set(self, step_ms: int) -> None:
        self.wall_ahead_ms += step_ms

    @rule()
    def tick(self) -> None:
        self.look()
        self.store.tick(self.now)
        if self.journal:
            self.committed_local_ahead_ms = self.local_ahead_ms
        self.commit()

    @rule()
    def a_minute_is_over(self) -> None:
        self.journal.note_time(self.now)
        self.commit()

    @rule(away_ms=DURATIONS_MS)
    def the_process_is_killed_and_started(self, away_ms: int) -> None:
        if not self.boot:  # a system that does not name its starts
            self.in_doubt(away_ms)
        else:
            self.true_ms += away_ms
            self.log_ms += away_ms
        self.start()

    @rule(away_ms=DURATIONS_MS, step_ms=STEPS_MS, has_name=st.booleans())
    def the_machine_is_restarted(self, away_ms: int, step_ms: int, *, has_name: bool) -> None:
        self.in_doubt(away_ms)
        self.wall_ahead_ms += step_ms
        self.boot = self.true_ms + 2 if has_name else 0
        self.booted_at_ms = self.true_ms - 100
        self.start()

    def in_doubt(self, away_ms: int) -> None:
        self.doubt_ms += away_ms + self.log_ms - self.committed_log_ms
        self.true_ms += away_ms
        self.log_ms = self.committed_log_ms

    @rule(name=st.sampled_from([b"one", b"two"]), lease_ms=LEASES_MS)
    def lock(self, name: bytes, lease_ms: int) -> None:
        """Nobody is granted the lock while another one may rely on it; everybody is when it is over, doubt apart."""
        stamp = HlcTimestamp(min(_WALL_MS + self.true_ms, self.look()), 0, "c")
        reply = self.apply(Set(b"lock", name, Condition.NEX, expiry_ms=lease_ms), stamp).reply
        holder, until_ms = self.holder
        if reply is OK:
            assert name == holder or self.true_ms >= until_ms, f"{name!r} has the lock, {holder!r} relies on it"
            self.holder, self.doubt_ms = (name, self.true_ms + lease_ms), 0
        else:
            assert isinstance(reply, NotApplied)
            assert self.true_ms < until_ms + self.doubt_ms + _ROUNDING_MS

    @rule()
    def look_at_the_lock(self) -> None:
        holder, until_ms = self.holder
        reply = self.apply(Get(b"lock"), None).reply
        if self.true_ms < until_ms:
            assert reply == Found(holder)
        elif self.true_ms >= until_ms + self.doubt_ms + _ROUNDING_MS:
            assert reply is MISSING

    @rule(ahead_ms=st.sampled_from([0, 59_999, _MINUTE_MS]), counter=st.sampled_from([0, 2**31 - 1, 2**64 - 1]))
    def a_client_far_ahead_writes(self, ahead_ms: int, counter: int) -> None:
        """As far ahead as it gets; it never gets the versions more than a minute from the local clock."""
        stamp = HlcTimestamp(self.look() + ahead_ms, counter, "ahead")
        assert self.apply(Set(b"ahead", b""), stamp).reply is OK

    @precondition(lambda self: self.versions)
    @rule(ahead_ms=st.sampled_from([1, 59_999, _MINUTE_MS]))
    def a_client_goes_on_from_a_version(self, ahead_ms: int) -> None:
        """Nearly a minute ahead of what the server gave it last, again and again: the minute is no ladder."""
        stamp = HlcTimestamp(self.versions[-1].wall_ms + ahead_ms, 0, "ladder")
        reply = self.apply(Set(b"ladder", b""), stamp).reply
        if stamp.wall_ms <= self.look() + _MINUTE_MS:
            assert reply is OK
        else:
            assert isinstance(reply, ErrorReply)
            assert type(reply.error) is RequestClockSkewError

    @rule()
    def a_client_whose_clock_is_right_writes(self) -> None:
        """It is served wherever the local clock has gone on, with a wall clock set back by hours. Only if the machine
        was away, and has a slow clock since, nobody can know, unless a version that it gave out is as late.
        """
        was_given = bool(self.versions) and self.right() <= self.versions[-1]
        is_known = was_given or _WALL_MS + self.true_ms <= self.look() + _MINUTE_MS
        reply = self.apply(Set(b"right", b""), self.right()).reply
        assert (reply is OK) == is_known

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def a_token_is_used(self, data: st.DataObject) -> None:
        """Any version that was ever given out, as a token and as a timestamp."""
        token = data.draw(st.sampled_from(self.versions))
        reply = self.apply(Set(b"guarded", b""), token, token).reply
        assert reply is OK or (isinstance(reply, ErrorReply) and type(reply.error) is FencingTokenTooOldError)

    @precondition(lambda self: self.versions)
    @rule()
    def the_newest_token_is_used(self) -> None:
        token = self.versions[-1]
        assert self.apply(Set(b"guarded", b""), token, token).reply is OK

    @rule(number=st.integers(0, 2))
    def a_request_comes_again(self, number: int) -> None:
        """For five minutes it gets the answer that it got: SET NX of a key that is there by then."""
        correlation, until_ms = b"%d" % number, self.asked.get(b"%d" % number, -_ANSWERS_MS - 1) + _ANSWERS_MS
        is_first = correlation not in self.asked
        if is_first:
            self.look()  # a remembered answer does not
        if is_first or self.true_ms <= until_ms:
            assert self.ask(Set(b"once-" + correlation, b"", Condition.NX), correlation).payload == b"+OK\r\n"
        if is_first:
            self.asked[correlation] = self.true_ms
            self.committed_local_ahead_ms = self.local_ahead_ms

    def ask(self, command: Command, correlation: bytes) -> Publish:
        properties: Any = PublishProperties(
            response_topic="clients/c/r", correlation_data=correlation, user_properties=(("__ts", "1:0:c"),)
        )
        request = Publish(COMMAND_TOPIC, command.encode(), 1, packet_id=1, properties=properties)
        effect, *reports = self.service.handle("c", request, self.now)
        assert all(isinstance(report, ReportClock) for report in reports)
        self.commit()
        assert isinstance(effect, Route)
        version = dict(effect.message.properties.user_properties).get("__ts")
        if version is not None and (not self.versions or HlcTimestamp.parse(version) > self.versions[-1]):
            self.versions.append(HlcTimestamp.parse(version))
        return effect.message

    # -- what always holds

    @invariant()
    def versions_are_near_the_local_clock(self) -> None:
        """The upper bound, whatever clients send: a minute, and a millisecond for a counter that was full. What was
        given out before the wall clock went back by more than a day stays where it is.
        """
        if self.versions and self.local_ahead_ms is not None:
            assert self.versions[-1].wall_ms <= self.log_ms + self.local_ahead_ms + _MINUTE_MS + 1


def test_a_timestamp_that_is_not_later_than_the_last_version_is_never_too_far_ahead() -> None:
    """A counter that is full takes the version a millisecond further than the minute, and others may follow it."""
    machine = ClockMachine()
    machine.the_wall_clock_is_set(step_ms=-30_000)
    machine.the_wall_clock_is_set(step_ms=-1)
    machine.the_machine_is_restarted(away_ms=0, has_name=False, step_ms=-30_000)
    machine.a_client_far_ahead_writes(ahead_ms=_MINUTE_MS, counter=2**31 - 1)
    machine.the_newest_token_is_used()
    machine.a_client_whose_clock_is_right_writes()


TestClockMachine = pytest.mark.scaled(ClockMachine.TestCase)
TestClockMachine.settings = settings(
    max_examples=max(50, scaled(300, 3000)), stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
