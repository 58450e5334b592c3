"""Output commit: what is said to a client waits until what it depends on is durable.

The broker writes into ``staged``. The runtime takes a cut of the journal and seals what is staged at that moment; when
the cut is durable, it releases that into the outbox. So an acknowledgement, a reply or a delivery never goes out before
the records that were made before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.broker.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.server.journal import Journal

__all__ = ["OutputCommitConnection"]


@attrs.define(eq=False)
class OutputCommitConnection(Connection):
    """A connection of a broker with a journal.

    Invariant: ``outbox_bytes`` counts what is staged, sealed and in the outbox; bytes go this way and keep their order.
    """

    outbox_bytes: int = 0  # the base class's: this one counts it, too
    journal: Journal = attrs.field(kw_only=True, repr=False)
    staged: list[bytes | memoryview] = attrs.field(factory=list, init=False, repr=False)
    sealed: list[bytes | memoryview] = attrs.field(factory=list, init=False, repr=False)

    @property
    def is_held(self) -> bool:
        """Also while the disk is behind: whoever goes on sending would fill the memory."""
        return self.journal.is_full or self.pending > 0 or (self.verification is not None and self.session is None)

    def write(self, frame: bytes | memoryview) -> None:
        if self.ending is not None:
            return
        staged = self.staged
        if not staged:
            self._dirty.append(self)
        staged.append(frame)
        self.outbox_bytes += len(frame)

    def seal(self) -> None:
        """All that is staged waits for the cut that is taken now. What was sealed before has been released."""
        self.sealed, self.staged = self.staged, self.sealed

    def release(self) -> None:
        """The cut is durable."""
        self.outbox.extend(self.sealed)
        self.sealed.clear()

    def pieces(self) -> Iterable[bytes | memoryview]:
        return (*self.outbox, *self.sealed, *self.staged)

    def take(self) -> bytes:
        outbox = self.outbox
        data = b"".join(outbox)
        self._let_go(outbox)
        outbox.clear()
        self.outbox_bytes -= len(data)
        return data

    def discard(self) -> None:
        for pieces in (self.staged, self.sealed):
            self._let_go(pieces)
            pieces.clear()
        super().discard()
