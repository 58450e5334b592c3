"""The lock timeline of a real state store: at every moment it says what the store says."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from statestore_client.server.runtime.monitor.tap import Tap
from statestore_client.server.store import RequestContext, StateStore
from statestore_client.wire.commands import Command, Condition, Del, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.replies import ErrorReply

LOCKS = (b"lock/1", b"lock/2")
HOLDERS = (b"a", b"b", b"c")
STATE = b"state"
START_MS = 1_700_000_000_000

_lock, _holder = st.sampled_from(LOCKS), st.sampled_from(HOLDERS)
_steps = st.one_of(
    st.tuples(st.just("claim"), _lock, _holder),
    st.tuples(st.just("claim"), _lock, _holder),
    st.tuples(st.just("release"), _lock, _holder),
    st.tuples(st.just("delete"), _lock, _holder),
    st.tuples(st.just("overwrite"), _lock, _holder),
    st.tuples(st.just("write"), _lock, _holder),
    st.tuples(st.just("wait"), st.sampled_from((125, 250, 875, 1_000, 5_000))),
)


class World:
    """A store with a tap, and a naive list of what was granted and refused."""

    def __init__(self) -> None:
        self.tap = Tap(None)
        self.store = StateStore(clock=HybridLogicalClock("StateStore", guard=nullcontext()), observer=self.tap.observe)
        self.now_ms = START_MS
        self.tokens: dict[tuple[bytes, bytes], HlcTimestamp] = {}  # the first version of the last holding
        self.refused = 0

    @property
    def now(self) -> Instant:
        return Instant((self.now_ms - START_MS) / 1000, self.now_ms)  # steps of an eighth of a second: exact

    def apply(self, holder: bytes, command: Command, token: HlcTimestamp | None = None) -> Any:
        stamp = HlcTimestamp(self.now_ms, 0, holder.decode())
        return self.store.apply(command, RequestContext(holder.decode(), stamp, token, self.now))

    def claim(self, lock: bytes, holder: bytes) -> None:
        before = self.store.entry(lock, self.now)
        outcome = self.apply(holder, Set(lock, holder, Condition.NEX, 1_000))
        if outcome.version is not None and (before is None or before.expires_at is None):
            self.tokens[lock, holder] = outcome.version

    def write(self, lock: bytes, holder: bytes) -> None:
        """With the token of its last holding, which may be an old one."""
        outcome = self.apply(holder, Set(STATE, holder), self.tokens.get((lock, holder)))
        self.refused += isinstance(outcome.reply, ErrorReply)

    def step(self, step: tuple[Any, ...]) -> None:
        match step:
            case "claim", lock, holder:
                if (entry := self.store.entry(lock, self.now)) is None or entry.expires_at is not None:
                    self.claim(lock, holder)
            case "release", lock, holder:
                self.apply(holder, VDel(lock, holder))
            case "delete", lock, holder:
                self.apply(holder, Del(lock))
            case "overwrite", lock, holder:
                self.apply(holder, Set(lock, b"no holder"))
                self.apply(holder, Del(lock))
            case "write", lock, holder:
                self.write(lock, holder)
            case "wait", milliseconds:
                self.now_ms += milliseconds
                self.store.tick(self.now)

    def held(self) -> dict[str, tuple[str, str]]:
        """By the store: who holds which lock, with which token."""
        found = {}
        for lock in LOCKS:
            entry = self.store.entry(lock, self.now)
            if entry is not None:
                found[lock.decode()] = (entry.value.decode(), str(self.tokens[lock, entry.value]))
        return found

    def told(self) -> dict[str, tuple[str, str]]:
        """By the timeline."""
        self.tap.tick(self.now_ms)
        locks = self.tap.timeline.all()["locks"]
        last = {lock["key"]: lock["holdings"][-1] for lock in locks if lock["holdings"]}
        return {key: (each["holder"], each["token"]) for key, each in last.items() if each["ended"] is None}


@settings(max_examples=150, deadline=None)
@given(st.lists(_steps, max_size=60))
def test_the_timeline_says_what_the_store_says(steps: list[tuple[Any, ...]]) -> None:
    """After each step the timeline names the holder and the token that the store has; holdings follow each other in
    order and never overlap; each refused write is there once."""
    world = World()
    for step in steps:
        world.step(step)
        assert world.told() == world.held()
    everything = world.tap.timeline.all()
    assert len(everything["refusals"]) == world.refused
    for lock in everything["locks"]:
        for before, after in zip(lock["holdings"], lock["holdings"][1:], strict=False):
            assert before["began"] <= before["ended"] <= after["began"]
            assert before["token"] < after["token"]


def test_a_refusal_names_token_and_mark() -> None:
    """A late write of the first holder is refused: the timeline says which token is older than which, and why."""
    world = World()
    world.claim(LOCKS[0], b"a")
    world.write(LOCKS[0], b"a")
    world.step(("wait", 1_000))
    world.claim(LOCKS[0], b"b")
    world.write(LOCKS[0], b"b")
    world.write(LOCKS[0], b"a")
    world.apply(b"c", Set(STATE, b"c"))
    late, without = world.tap.timeline.all()["refusals"]
    assert (late["client"], late["action"], late["key"], late["why"]) == ("a", "SET", "state", "older token")
    assert (late["holding"][:2], late["marked_by"][:2]) == (("lock/1", "a"), ("lock/1", "b"))
    assert late["token"] < late["mark"]
    assert (without["client"], without["why"], without["token"]) == ("c", "no token", None)
