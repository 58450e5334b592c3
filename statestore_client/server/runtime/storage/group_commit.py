"""Output commit and group commit: what the broker says waits until what it has written down is durable.

With a replicated log, what is durable may be said only if this server is known to have been the active one when it was
decided, or later (:class:`LeadershipLease`); otherwise it waits until that is known.

One batch is on its way to the disk at a time. What happens meanwhile goes into the next one, however much it is: so the
slower the disk, the larger the batches, and the rate of messages hardly depends on it. When nothing has to be written,
nothing waits; nor does anything while a batch is on its way that nobody has to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from statestore_client.server.monitor import Latencies

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from statestore_client.server.journal import BatchStorage, Journal
    from statestore_client.server.runtime.clock import Clock

#: What nobody waits for is written together with something else, or after this time, in seconds.
_LAZY_WRITE_S: Final = 0.05

#: How often the time is written down at least, in seconds. If the machine is restarted, the time since then is unknown.
_TIME_S: Final = 60.0


class LeadershipLease(Protocol):
    """Whether something may be said to clients, at this moment. It was decided when :meth:`sent` was ``since``."""

    def sent(self) -> int:
        """How many entries have been sent so far: what is decided now is confirmed by the next one, or a later one."""

    def holds_lease(self, since: int) -> bool:
        """By the clock, read now."""

    def renew_lease(self, since: int) -> None:
        """There is something to be said. :meth:`GroupCommit.flush` is called when it may be."""


class Speaker(Protocol):
    """Says what waits for the disk: a connection of the broker, or the host of a store on another one."""

    def seal(self) -> None:
        """What it has said so far waits for the cut that is taken now."""

    def release(self) -> None:
        """The cut is durable."""


S = TypeVar("S", bound=Speaker)
S_co = TypeVar("S_co", bound=Speaker, covariant=True)


class Speakers(Protocol[S_co]):
    """Knows who has said something: the broker, or a host."""

    @property
    def dirty(self) -> object:
        """True if somebody has."""

    def take_dirty(self) -> Iterable[S_co]:
        """Those, until they say something again."""


class _Always:
    """A data directory has one server."""

    def sent(self) -> int:
        return 0

    def holds_lease(self, since: int) -> bool:  # noqa: ARG002 - a lease of a log has moments
        return True

    def renew_lease(self, since: int) -> None:
        pass


class GroupCommit:
    """Between the broker's connections and their links. Belongs to the thread of the event loop.

    Invariant: a connection's bytes are released in the order in which they were staged, and none before the batch that
    was cut when they were sealed. What waits for the right to speak goes with a batch that others wait for: this
    confirms it as well.
    """

    def __init__(
        self,
        journal: Journal,
        storage: BatchStorage,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[Exception], None],
        right: LeadershipLease | None = None,
    ) -> None:
        """``failed`` is told once that nothing can be written any more. Without a ``right`` it may always speak."""
        self._journal = journal
        self._storage = storage
        self._clock = clock
        self._loop = loop
        self._failed = failed
        self._right = right or _Always()
        self._silent: list[Any] = []  # what they say is durable, and waits for the right
        self._silent_since = 0  # of the newest of that
        self._broker: Speakers[Any] | None = None
        self._send: Callable[[Any], None] = _nowhere
        self._go_on: Callable[[], None] = _nothing
        self._sealed: list[Any] = []
        self._sealed_since = 0
        #: How long batches took to become durable, in seconds.
        self.times: Latencies = Latencies()
        self._cut_at = 0.0
        self._is_writing = False
        self._is_awaited = False  # whether what is said depends on the batch that is on its way
        self._is_scheduled = False
        self._is_over = False
        self._resting: set[asyncio.Future[None]] = set()  # those who wait for that
        self._timer: asyncio.TimerHandle | None = None
        self._time_timer = loop.call_later(_TIME_S, self._note_time)

    def bind(self, broker: Speakers[S], send: Callable[[S], None], go_on: Callable[[], None]) -> None:
        """``send`` writes what is in a connection's outbox; ``go_on``: clients that were held may be read again."""
        self._broker, self._send, self._go_on = broker, send, go_on

    @property
    def is_idle(self) -> bool:
        """Whether all is written, and nothing waits."""
        return not (self._is_writing or self._is_scheduled or self._silent or self._journal)

    async def wait_idle(self) -> None:
        """Until it is, or it is closed. Any number of tasks may wait."""
        while not (self.is_idle or self._is_over):
            rest = self._loop.create_future()
            self._resting.add(rest)
            try:
                self.flush()
                await rest
            finally:
                self._resting.discard(rest)

    def flush(self) -> None:
        """Write and send what there is, now or soon."""
        if self._is_scheduled or self._is_over or self._broker is None or (self._is_writing and self._is_awaited):
            return  # it will be looked at afterwards
        journal, broker = self._journal, self._broker
        if self._silent or (broker.dirty and not journal.is_urgent):
            self._release_free(broker)
        if self._is_writing:
            return
        if journal.is_urgent or (journal.waiting_bytes >= journal.most_bytes and journal):
            # Soon: after what has come in on other connections in the same moment.
            self._is_scheduled = True
            self._loop.call_soon(self._write)
        elif self._timer is None and journal:
            self._timer = self._loop.call_later(_LAZY_WRITE_S, self._write_lazily)

    def _write_lazily(self) -> None:
        self._timer = None
        if not (self._is_writing or self._is_scheduled or self._silent):
            self._write()

    def _note_time(self) -> None:
        self._journal.note_time(self._clock())
        self.flush()
        self._time_timer = self._loop.call_later(_TIME_S, self._note_time)

    def resume(self) -> None:
        """Clients that were held may be read again."""
        if not self._journal.is_full:
            self._go_on()

    def close(self) -> None:
        """Nothing is written or sent any more."""
        self._is_over = True
        self._time_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def _seal(self, broker: Speakers[S]) -> list[S]:
        sealed = [*dict.fromkeys(broker.take_dirty())]
        for connection in sealed:
            connection.seal()
        return sealed

    def _release_free(self, broker: Speakers[Any]) -> None:
        """Send what depends on nothing that is still to be written."""
        if self._silent:
            self._release([], self._silent_since)
        while broker.dirty and not (self._silent or self._journal.is_urgent):
            self._release(self._seal(broker), self._right.sent())

    def _release(self, connections: list[Any], since: int) -> None:
        if self._silent:
            connections, self._silent = self._silent + connections, []
            since = max(since, self._silent_since)
        if not connections:
            return
        if not self._right.holds_lease(since):
            self._silent, self._silent_since = connections, since
            self._right.renew_lease(since)
            return
        for connection in connections:
            connection.release()
            self._send(connection)
        if self._resting:
            self._wake()

    def _wake(self) -> None:
        for rest in self._resting:
            if not rest.done():
                rest.set_result(None)

    def _write(self) -> None:
        self._is_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._broker is None or self._is_over:
            return
        self._release_free(self._broker)
        if self._silent and not self._journal:
            return  # the next flush goes on
        self._is_awaited = self._journal.is_urgent or bool(self._silent)
        silent, self._silent = self._silent, []
        self._sealed = list(dict.fromkeys(silent + self._seal(self._broker)))
        self._sealed_since = self._right.sent()
        if not self._journal:
            self._written(None)
            return
        was_full = self._journal.is_full
        self._is_writing = True
        now = self._clock()
        self._cut_at = now.monotonic
        self._storage.append(self._journal.cut(now), self._done)
        if was_full:
            self._go_on()

    def _done(self, error: Exception | None) -> None:
        """In the thread of the disk."""
        self._loop.call_soon_threadsafe(self._written, error)

    def _written(self, error: Exception | None) -> None:
        self._is_writing = False
        if self._is_over:
            return
        if error is not None:
            self._is_over = True  # what depends on it is never sent
            self._failed(error)
            return
        if self._cut_at:
            self.times.add(self._clock().monotonic - self._cut_at)
            self._cut_at = 0.0
        sealed, self._sealed = self._sealed, []
        self._release(sealed, self._sealed_since)
        self.flush()
        if self._resting:
            self._wake()


def _nowhere(connection: object) -> None:
    del connection


def _nothing() -> None:
    pass
