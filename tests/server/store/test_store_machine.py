"""The whole store against a naive second implementation, under any schedule."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from store_driver import NEX, NX, Driver
from support.schedules import scaled

from statestore_client.server.store import Outcome, StoreLimits
from statestore_client.server.store.keyspace import KEY_OVERHEAD_BYTES, OBSERVATION_OVERHEAD_BYTES
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.instant import Instant
from statestore_client.wire.replies import Count, ErrorReply, Found, Keys, NotApplied, NotFound, Ok, Operation

if TYPE_CHECKING:
    from statestore_client.server.store import Change
    from statestore_client.wire.commands import Condition

KEYS = st.sampled_from([b"a", b"a", b"b", b"b", b"c", b"c", b"d", b""])
VALUES = st.sampled_from([b"", b"1", b"2", b"x" * 200])
CLIENTS = st.sampled_from(["alice", "bob"])
USERS = st.sampled_from([None, "ann", "ben"])
USER_OF = {"alice": "ann", "bob": None}
OFFSETS_MS = st.sampled_from([0, 0, 0, 0, -1, 1, -100_000, 60_000, 60_001])
PARTS = st.tuples(OFFSETS_MS, st.integers(0, 2), st.sampled_from(["CLIENT", "StateStore"]))
STAMPS = st.one_of(PARTS, PARTS, PARTS, st.none())
EXPIRIES = st.sampled_from([None, None, 1, 500, 1_000])
MAX_KEYS, MAX_BYTES = 3, 1_300
MAX_USER_KEYS, MAX_USER_BYTES = 2, 800
MAX_OBSERVATIONS, MAX_USER_OBSERVATIONS = 3, 2


class Oracle:
    """What the document says, written as plainly as possible: a dictionary that is walked through for everything."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[str, Any]] = {}
        self.observed: list[tuple[str, bytes]] = []
        self.told: list[tuple[str, bytes, str, bytes | None]] = []
        self.looks: list[Instant] = []  # at the clocks

    def looks_at(self, now: Instant) -> None:
        self.looks.append(now)

    def local_ms(self) -> int:
        """Of all that the wall clock ever said, each with the time since: the greatest, but no day ahead of it now."""
        now = self.looks[-1]
        said = [look.wall_ms + round((now.monotonic - look.monotonic) * 1000) for look in self.looks]
        return min(max(said), now.wall_ms + 86_400_000)

    def live(self, key: bytes, now: float) -> dict[str, Any] | None:
        row = self.rows.get(key)
        return None if row is None or (row["dies"] is not None and row["dies"] <= now) else row

    def tell(self, key: bytes, word: str, value: bytes | None) -> None:
        self.told += [(client, key, word, value) for client, observed in self.observed if observed == key]

    def used_bytes(self) -> int:
        return size(self.rows)

    def lacks(self, key: bytes, value: bytes, user: str | None) -> bool:
        """Whether there would be more than before, and too much, of all or of the user."""
        after = {**self.rows, key: {"value": value, "user": user}}
        theirs, theirs_after = of_user(self.rows, user), of_user(after, user)
        return (
            len(after) > max(MAX_KEYS, len(self.rows))
            or size(after) > max(MAX_BYTES, size(self.rows))
            or (user is not None and len(theirs_after) > max(MAX_USER_KEYS, len(theirs)))
            or (user is not None and size(theirs_after) > max(MAX_USER_BYTES, size(theirs)))
        )

    def common(
        self, key: bytes, ts: HlcTimestamp | None, ft: HlcTimestamp | None, last: HlcTimestamp, *, is_set: bool
    ) -> str:
        latest_ms = self.local_ms() + 60_000
        if key == b"":
            return "EmptyKeyError"
        if is_set and ts is None:
            return "MissingTimestampError"
        if ts is not None and ts.wall_ms > latest_ms and ts > last:
            return "RequestClockSkewError"
        if ft is not None and ft.wall_ms > latest_ms and ft > last:
            return "FencingTokenClockSkewError"
        return ""

    def fence(self, key: bytes, ft: HlcTimestamp | None) -> str:
        mark = self.rows[key]["mark"] if key in self.rows else None
        if mark is None:
            return ""
        if ft is None:
            return "FencingTokenRequiredError"
        return "FencingTokenTooOldError" if (ft.wall_ms, ft.counter, ft.node_id) < mark else ""


def of_user(rows: dict[bytes, dict[str, Any]], user: str | None) -> dict[bytes, dict[str, Any]]:
    return {key: row for key, row in rows.items() if row["user"] == user}


def size(rows: dict[bytes, dict[str, Any]]) -> int:
    return sum(len(key) + len(row["value"]) + KEY_OVERHEAD_BYTES for key, row in rows.items())


class StoreMachine(RuleBasedStateMachine):
    """Every rule does the same to both and compares the replies; notifications are compared as they come."""

    def __init__(self) -> None:
        super().__init__()
        limits = StoreLimits(
            max_keys=MAX_KEYS,
            max_bytes=MAX_BYTES,
            max_keys_per_user=MAX_USER_KEYS,
            max_bytes_per_user=MAX_USER_BYTES,
            max_observations=MAX_OBSERVATIONS,
            max_observations_per_user=MAX_USER_OBSERVATIONS,
        )
        self.driver = Driver(limits=limits)
        self.oracle = Oracle()
        self.told: list[tuple[str, bytes, str, bytes | None]] = []
        self.versions: list[HlcTimestamp] = []
        self.tokens: list[HlcTimestamp] = []

    # -- helpers

    def stamp(self, parts: tuple[int, int, str] | None) -> HlcTimestamp | None:
        return None if parts is None else self.driver.stamp(*parts)

    def token(self, data: st.DataObject) -> HlcTimestamp | None:
        """None, a version seen before, or anything."""
        kind = data.draw(st.sampled_from(["none", "none", "version", "any"]))
        if kind == "version" and self.tokens:
            return data.draw(st.sampled_from(self.tokens))
        return self.stamp(data.draw(STAMPS)) if kind == "any" else None

    def hear(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            notification = change.notification
            self.told.append((change.client_id, change.key, notification.operation.value, notification.value))
            if notification.operation is Operation.DELETE and change.version not in self.versions:
                self.versions.append(change.version)

    def finish(self, outcome: Outcome) -> str:
        """What the reply is, in a word."""
        self.hear(outcome.changes)
        reply = outcome.reply
        if isinstance(reply, ErrorReply):
            assert outcome.version is None
            assert outcome.reply == reply
            return type(reply.error).__name__
        match reply:
            case Ok():
                return "OK"
            case NotApplied():
                return "NOT APPLIED"
            case NotFound():
                assert outcome.version is None
                return "MISSING"
            case Found(value=value):
                return f"FOUND {value!r}"
            case Count(count=count):
                return f"COUNT {count}"
            case Keys(keys=keys):
                return f"KEYS {keys!r}"

    def issued(self, version: HlcTimestamp | None, ts: HlcTimestamp | None) -> HlcTimestamp:
        """A new version exceeds its request and all before it."""
        assert version is not None
        assert ts is None or version > ts
        assert all(version > earlier for earlier in self.versions if earlier is not version)
        self.versions.append(version)
        self.tokens.append(version)
        return version

    # -- rules

    @rule(
        key=KEYS,
        value=VALUES,
        condition=st.sampled_from([None, NX, NEX]),
        expiry_ms=EXPIRIES,
        ts=STAMPS,
        user=USERS,
        d=st.data(),
    )
    def set(
        self,
        key: bytes,
        value: bytes,
        condition: Condition | None,
        expiry_ms: int | None,
        ts: tuple[int, int, str] | None,
        user: str | None,
        d: st.DataObject,
    ) -> None:
        oracle, driver = self.oracle, self.driver
        timestamp, ft = self.stamp(ts), self.token(d)
        oracle.looks_at(driver.now)
        expected = oracle.common(key, timestamp, ft, driver.clock.last, is_set=True)
        if not expected:
            self.expire_one(key)
            row = oracle.rows.get(key)
            expected = oracle.fence(key, ft)
            if not expected and row and (condition is NX or (condition is NEX and row["value"] != value)):
                expected = "NOT APPLIED"
            if not expected:
                expected = self.expected_of_quota(key, value, user)
        outcome = driver.set(key, value, condition, expiry_ms=expiry_ms, ts=timestamp, ft=ft, user=user)
        assert self.finish(outcome) == expected
        if expected == "OK":
            dies = None if expiry_ms is None else driver.monotonic + expiry_ms / 1000
            version = self.issued(outcome.version, timestamp)
            mark = None if ft is None else (ft.wall_ms, ft.counter, ft.node_id)
            oracle.rows[key] = {"value": value, "dies": dies, "mark": mark, "version": version, "user": user}
            oracle.tell(key, "SET", value)
        elif expected == "NOT APPLIED":
            assert outcome.version == oracle.rows[key]["version"]

    def expected_of_quota(self, key: bytes, value: bytes, user: str | None) -> str:
        """Oldest deadlines go first until the SET fits; expired keys may stay only while it does."""
        while self.oracle.lacks(key, value, user):
            now, rows = self.driver.monotonic, self.oracle.rows.items()
            dead = [(other["dies"], k) for k, other in rows if other["dies"] and other["dies"] <= now]
            if not dead:
                return "QuotaExceededError"
            self.expire_one(min(dead)[1])
        return "OK"

    def expire_one(self, key: bytes) -> None:
        row = self.oracle.rows.get(key)
        if row and row["dies"] is not None and row["dies"] <= self.driver.monotonic:
            del self.oracle.rows[key]
            self.oracle.tell(key, "DELETE", None)

    @rule(key=KEYS, ts=STAMPS)
    def get(self, key: bytes, ts: tuple[int, int, str] | None) -> None:
        timestamp = self.stamp(ts)
        self.oracle.looks_at(self.driver.now)
        expected = self.oracle.common(key, timestamp, None, self.driver.clock.last, is_set=False)
        if not expected:
            row = self.oracle.live(key, self.driver.monotonic)
            expected = f"FOUND {row['value']!r}" if row else "MISSING"
        outcome = self.driver.get(key, ts=timestamp)
        assert self.finish(outcome) == expected
        if expected.startswith("FOUND"):
            assert outcome.version == self.oracle.rows[key]["version"]

    @rule(key=KEYS, value=st.none() | VALUES, ts=STAMPS, d=st.data())
    def delete(self, key: bytes, value: bytes | None, ts: tuple[int, int, str] | None, d: st.DataObject) -> None:
        oracle, driver = self.oracle, self.driver
        timestamp, ft = self.stamp(ts), self.token(d)
        oracle.looks_at(driver.now)
        expected = oracle.common(key, timestamp, ft, driver.clock.last, is_set=False)
        row = oracle.live(key, driver.monotonic)
        if not expected and row is not None:
            expected = oracle.fence(key, ft)
        if not expected:
            matches = row is not None and value in (None, row["value"])
            expected = "COUNT 0" if row is None else "COUNT 1" if matches else "NOT APPLIED"
        outcome = (
            driver.delete(key, ts=timestamp, ft=ft) if value is None else driver.vdel(key, value, ts=timestamp, ft=ft)
        )
        changes = self.finish(outcome)
        assert changes == expected
        if expected == "COUNT 1":
            del oracle.rows[key]
            oracle.tell(key, "DELETE", None)
            assert outcome.version is not None
            assert timestamp is None or outcome.version > timestamp
        elif expected == "NOT APPLIED":
            assert outcome.version == oracle.rows[key]["version"]

    @rule(key=KEYS, client=CLIENTS, stop=st.booleans())
    def notify(self, key: bytes, client: str, *, stop: bool) -> None:
        oracle = self.oracle
        if key:
            oracle.looks_at(self.driver.now)
        known = (client, key) in oracle.observed
        user = USER_OF[client]
        theirs = sum(other == client for other, _ in oracle.observed)
        fits = len(oracle.observed) < MAX_OBSERVATIONS and (user is None or theirs < MAX_USER_OBSERVATIONS)
        expected = "EmptyKeyError" if not key else "OK"
        if key and stop:
            expected = "OK" if known else "COUNT 0"
        elif key and not known and not fits:
            expected = "QuotaExceededError"
        assert self.finish(self.driver.notify(key, client=client, stop=stop, user=user)) == expected
        if expected == "OK" and stop:
            oracle.observed.remove((client, key))
        elif expected == "OK" and not known:
            oracle.observed.append((client, key))

    @rule(client=CLIENTS)
    def disconnect(self, client: str) -> None:
        self.driver.store.client_disconnected(client)
        self.oracle.observed = [pair for pair in self.oracle.observed if pair[0] != client]

    @rule()
    def scan(self) -> None:
        self.oracle.looks_at(self.driver.now)
        now = self.driver.monotonic
        live = sorted(key for key, row in self.oracle.rows.items() if row["dies"] is None or row["dies"] > now)
        assert self.finish(self.driver.scan(b"*")) == f"KEYS {tuple(live)!r}"

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.4, 0.5, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.advance(seconds)

    @rule(jump_ms=st.sampled_from([-90_000_000, -3_600_000, -60_001, -1, 1, 60_001, 3_600_000, 90_000_000]))
    def the_wall_clock_jumps(self, jump_ms: int) -> None:
        self.driver.wall_ms += jump_ms

    @precondition(lambda self: self.oracle.rows)
    @rule()
    def tick(self) -> None:
        self.oracle.looks_at(self.driver.now)
        dead = sorted((row["dies"], key) for key, row in self.oracle.rows.items() if row["dies"] is not None)
        for _, key in dead:
            self.expire_one(key)
        self.hear(self.driver.tick())

    # -- what always holds

    @invariant()
    def notifications_agree(self) -> None:
        assert self.told == self.oracle.told

    @invariant()
    def usage_agrees(self) -> None:
        usage = self.driver.store.usage
        assert usage.keys == len(self.oracle.rows) <= MAX_KEYS
        assert usage.bytes == self.oracle.used_bytes()
        assert usage.observations == len(self.oracle.observed) <= MAX_OBSERVATIONS
        keys = (len(key) + OBSERVATION_OVERHEAD_BYTES for _, key in self.oracle.observed)
        assert usage.observation_bytes == sum(keys)
        assert [*chain.from_iterable(share.violations() for share in self.driver.store.shares)] == []

    @invariant()
    def the_next_deadline_is_known(self) -> None:
        deadlines = [row["dies"] for row in self.oracle.rows.values() if row["dies"] is not None]
        assert self.driver.store.next_deadline() == min(deadlines, default=None)


TestStoreMachine = pytest.mark.scaled(StoreMachine.TestCase)
TestStoreMachine.settings = settings(
    max_examples=max(40, scaled(200, 2000)), stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)
