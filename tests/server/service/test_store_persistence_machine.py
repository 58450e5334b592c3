"""What of the keys survives, under any program: crashes and restarts against an oracle."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_life import WALL_MS, living, refusal

from statestore_client.errors import FencingTokenRequiredError, FencingTokenTooOldError
from statestore_client.server.journal import Stream
from statestore_client.server.store import Persistence
from statestore_client.wire.commands import Condition, Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import COUNT_0, COUNT_1, MISSING, OK, Found


@attrs.frozen
class _State:
    """Of one key: what a client sees, and what is left of it after a crash."""

    value: bytes | None = None
    is_kept: bool = False
    mark: HlcTimestamp | None = None
    dies: float | None = None

    def is_over(self, now: float) -> bool:
        return self.dies is not None and self.dies <= now

    def after_crash(self, now: float) -> _State:
        if self.is_over(now):
            return _State()
        return self if self.is_kept else _State(None, False, self.mark, self.dies)


_KEYS = (b"a", b"b", b"plant/c")
_LONG_AGO_MS = WALL_MS - 86_400_000  # whatever happens to the wall clock, no token is in the future
_TOKENS = (None, *(HlcTimestamp(_LONG_AGO_MS, counter, "a") for counter in (6, 7, 9)))


class Persisting(RuleBasedStateMachine):
    """The oracle knows what clients were told: after a crash a key is as it was last told, without what is not kept.

    So nothing that was kept and answered is missing, no older value of any key comes back, no mark goes back, and no
    version does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[bytes, _State] = dict.fromkeys(_KEYS, _State())
        self.told = dict(self.now)
        self.versions: list[HlcTimestamp] = []  # that were told
        self.untold: list[HlcTimestamp] = []
        self.number = 0

    @initialize(words=st.sampled_from(["all", "asked", "none", "plant/*", ("asked", "plant/*")]))
    def start(self, words: Any) -> None:
        self.life = living(Persistence.of(words))

    def _tell(self) -> None:
        """What waits for nothing goes out, and with it all that came before."""
        if not self.life.journal.is_urgent:
            self.told = dict(self.now)
            self.versions += self.untold
            self.untold.clear()

    def _live(self, key: bytes) -> _State:
        state = self.now[key]
        return _State() if state.is_over(self.life.monotonic) else state

    @rule(
        key=st.sampled_from(_KEYS),
        token=st.sampled_from(_TOKENS),
        persist=st.booleans(),
        expiry_ms=st.sampled_from([None, None, None, 700, 1900]),
        condition=st.sampled_from([None, None, Condition.NX]),
    )
    def set(
        self, key: bytes, token: HlcTimestamp | None, persist: bool, expiry_ms: int | None, condition: Condition | None
    ) -> None:
        self.number += 1
        data = b"%d" % self.number
        command = Set(key, data, condition, expiry_ms, persist=persist)
        before = self._live(key)
        outcome = self.life.begin(command, token)
        if before.mark is not None and (token is None or token < before.mark):
            assert refusal(outcome.reply) in (FencingTokenRequiredError, FencingTokenTooOldError)
        elif condition is not None and before.value is not None:
            assert outcome.reply is not OK
        else:
            assert outcome.reply is OK
            assert outcome.version is not None
            assert all(outcome.version > version for version in (*self.versions[-1:], *self.untold[-1:]))
            self.untold.append(outcome.version)
            dies = None if expiry_ms is None else self.life.monotonic + expiry_ms / 1000
            self.now[key] = _State(data, self.life.persistence.keeps(command), token, dies)
        self._tell()

    @rule(key=st.sampled_from(_KEYS), token=st.sampled_from(_TOKENS))
    def delete(self, key: bytes, token: HlcTimestamp | None) -> None:
        before = self._live(key)
        outcome = self.life.begin(Del(key), token)
        if before.value is None:
            assert outcome.reply is COUNT_0
        elif before.mark is not None and (token is None or token < before.mark):
            assert refusal(outcome.reply) is not None
        else:
            assert outcome.reply is COUNT_1
            self.now[key] = _State()
        self._tell()

    @rule()
    def commit(self) -> None:
        self.life.commit()
        self._tell()

    @rule(seconds=st.sampled_from([0.05, 0.5, 1.25]))
    def sleep(self, seconds: float) -> None:
        self.life.advance(seconds)
        self.life.store.tick(self.life.now)
        self._tell()

    @rule(away_s=st.sampled_from([0.0, 0.5]), step_s=st.sampled_from([-30.0, 0.0]))
    def crash(self, away_s: float, step_s: float) -> None:
        self.life = self.life.next(after_s=away_s, step_s=step_s)
        self.untold.clear()
        self.now = {key: state.after_crash(self.life.monotonic) for key, state in self.told.items()}
        self.told = dict(self.now)

    @invariant()
    def keys_are_what_they_are(self) -> None:
        if hasattr(self, "life"):
            for key in _KEYS:
                reply = self.life.begin(Get(key)).reply
                state = self._live(key)
                assert reply is MISSING if state.value is None else reply == Found(state.value)

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.commit()
            self.told = dict(self.now)
            self.crash(0.0, 0.0)
            self.keys_are_what_they_are()
            records = self.life.storage.count().get(Stream.KEYS.value, 0)
            assert records <= sum(state.value is not None or state.mark is not None for state in self.now.values()) + 3


TestPersisting = Persisting.TestCase
TestPersisting.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
