"""One key that this site keeps alive: what it says, its back-off, and whether another site persists it as well."""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from statestore_client.wire.kvstore.value import Value

__all__ = ["CALM_S", "CONTEST_ROUNDS", "KeyContested", "KeyLost", "OwnEvent", "OwnKey"]

_FIRST_BACKOFF_MS: Final = 64
_LAST_BACKOFF_MS: Final = 8192
#: So often a key is overridden before it is contested.
CONTEST_ROUNDS: Final = 3
#: A key that is not overridden for this long is contested no more: several of the slowest rounds.
CALM_S: Final = 30.0


@attrs.frozen
class KeyLost:
    """Another site has overridden a key that was ``set`` here, or has used up its versions: it is refreshed no more."""

    key: str
    originator: str
    version: int


@attrs.frozen
class KeyContested:
    """Another site persists the same key: WARNING. One of the two must stop."""

    key: str
    originator: str


OwnEvent: TypeAlias = KeyLost | KeyContested


@attrs.define(eq=False)
class OwnKey:
    """``entry`` is what this site says; what is stored may be another one for a moment."""

    entry: Value
    is_persisted: bool
    backoff_ms: int = 0
    #: When it was last advertised after a wait.
    advertised_at: float = float("-inf")
    #: Overrides without a calm in between, and the last one.
    rounds: int = 0
    overridden_at: float = float("-inf")
    _is_early: bool = False

    @property
    def retry_at(self) -> float:
        """It is not advertised again before."""
        return self.advertised_at + self.backoff_ms / 1000

    @property
    def is_contested(self) -> bool:
        """Another site persists it as well."""
        return self.rounds >= CONTEST_ROUNDS

    def waits(self, now: float) -> float:
        """It is to be advertised: from when it may be."""
        self._is_early = now < self.retry_at
        return max(now, self.retry_at)

    def advertised(self, now: float) -> None:
        """The back-off doubles if the wish came before it was over, and else begins anew."""
        if not self.is_contested:
            self.backoff_ms = min(2 * self.backoff_ms, _LAST_BACKOFF_MS) if self._is_early else _FIRST_BACKOFF_MS
        self.advertised_at = now

    def overridden(self, now: float) -> bool:
        """Another entry won. Returns whether the key has become contested by that."""
        self.rounds = self.rounds + 1 if now - self.overridden_at < CALM_S else 1
        self.overridden_at = now
        if self.is_contested:
            self.backoff_ms = _LAST_BACKOFF_MS
        return self.rounds == CONTEST_ROUNDS

    def look_for_calm(self, now: float) -> None:
        """Whether the contest is over."""
        if self.is_contested and now - self.overridden_at >= CALM_S:
            self.rounds, self.backoff_ms = 0, 0
