"""What one life of a replicated server tells its program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from statestore_client.server.cluster.entries import Life
    from statestore_client.server.journal import Timeline, WriteBatch

__all__ = ["LifeOwner"]


class LifeOwner(Protocol):
    """What a life tells. It may be closed from inside any of these."""

    def replicated(self, batch: WriteBatch) -> None:
        """A standby's machines have these rows from now on."""

    def settled(self) -> None:
        """All rows of a snapshot are here."""

    def log_trimmed(self) -> None:
        """This life has fallen behind: another one has to begin after the newest snapshot."""

    def caught_up(self) -> None:
        """All that there was has been read."""

    def appending(self, batch: WriteBatch) -> None:
        """The active server writes this batch."""

    def written(self) -> None:
        """It is in the log. What it answers is said next."""

    def owner_changed(self, epoch: int, owner: Life | None, url: str) -> None:
        """Another server is active, or none. What was so before this life had caught up is not told."""

    def promoted(self, epoch: int, timeline: Timeline) -> None:
        """This one is."""

    def deposed(self, epoch: int) -> None:
        """This life is over."""

    def may_speak_again(self) -> None:
        """Or so it may be: something came back from the log."""

    def failed(self, error: Exception) -> None:
        """The server cannot go on."""
