"""One key that this site keeps alive: what it says, its back-off, and whether another site persists it as well."""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from statestore_client.wire.kvstore.value import Value

__all__ = [
    "CALM_S", "CONTEST_ROUNDS", "SLOWEST_MS", "KeyContested", "KeyLost", "OwnEvent", "OwnKey", "OwnNameInUse",
]  # fmt: skip

#: After the first override, and doubled with the next one.
_FIRST_BACKOFF_MS: Final = 64
#: The pace of a key that is contested, or that finds no room.
SLOWEST_MS: Final = 8192
#: So often a key is overridden before it is contested.
CONTEST_ROUNDS: Final = 3
#: Entries of the own name that a former process can hardly have said: the first may be of one whose clock was ahead.
_NAMESAKE_ANSWERS: Final = 2
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


@attrs.frozen
class OwnNameInUse:
    """Another living site has the name of this one, and keeps this key alive, too: WARNING. Rename one of them."""

    key: str


OwnEvent: TypeAlias = KeyLost | KeyContested | OwnNameInUse


@attrs.define(eq=False)
class OwnKey:
    """``entry`` is what this site says; what is stored may be another one for a moment."""

    entry: Value
    is_persisted: bool
    #: When it was last advertised after a wait.
    advertised_at: float = float("-inf")
    #: Overrides without a calm in between, and the last one.
    rounds: int = 0
    overridden_at: float = float("-inf")
    #: Answers of another site of this name.
    namesakes: int = 0

    @property
    def backoff_ms(self) -> int:
        """It is advertised so far apart, at least. New values of this site alone need no back-off."""
        if self.is_contested:
            return SLOWEST_MS
        return _FIRST_BACKOFF_MS << self.rounds - 1 if self.rounds else 0

    @property
    def is_contested(self) -> bool:
        """Another site persists it as well."""
        return self.rounds >= CONTEST_ROUNDS

    def waits(self, now: float) -> float:
        """It is to be advertised: from when it may be."""
        return max(now, self.advertised_at + self.backoff_ms / 1000)

    def overridden(self, now: float) -> bool:
        """Another entry won. Returns whether the key has become contested by that."""
        self.rounds = self.rounds + 1 if now - self.overridden_at < CALM_S else 1
        self.overridden_at = now
        return self.rounds == CONTEST_ROUNDS

    def namesake_answers(self) -> bool:
        """Another process of this name has said something newer. Returns whether that shows for the first time."""
        self.namesakes += 1
        return self.namesakes == _NAMESAKE_ANSWERS

    def calm(self) -> None:
        """The defence is over."""
        self.rounds = 0
