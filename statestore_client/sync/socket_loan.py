"""Which thread waits for what comes in on a connection's socket: the network thread, or a caller that has borrowed it.

A calling thread that waits for an answer reads for itself, if nobody else does: two thread switches cost more than the
rest of a request. Between the calls of a loop the socket stays lent and nobody reads (*parked*), for a few milliseconds
at most, and only while there is nobody else whom something that comes in could be for.

A loan ends by itself: a signal may keep a thread from giving the socket back.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import threading
from collections.abc import Callable, Collection
from typing import Final

from statestore_client.clocks import monotonic
from statestore_client.core.actions import ConnectionState, Remark, StateChanged
from statestore_client.mqtt.driver import SyncDriver
from statestore_client.shell import BaseLink
from statestore_client.sync.primitives import InputPoller

#: Calls that follow each other within this time (seconds) are a loop.
_TIGHT_LOOP_S: Final = 0.002
#: How long (seconds) the socket is lent without a sign of life from the thread that has it.
_LOAN_S: Final = 0.5
#: How long (seconds) it stays lent between two calls of a loop: to give it back and take it again would cost more than
#: to send a request.
_PARK_S: Final = 0.005


class SocketLoan:
    """The socket of one client's connection. Used inside the link's section.

    :param to_tell: state changes that the network thread has still to tell.
    :param waiting: those whom calling threads wait for.
    :param wake: wakes the network thread.
    """

    __slots__ = (
        "_ends_at", "_lent", "_link", "_returned_at", "_thread", "_to_tell", "_waiting", "_wake", "_watched",
        "looked_after_at", "poller", "reader", "selector",
    )  # fmt: skip

    def __init__(
        self,
        link: BaseLink[SyncDriver],
        to_tell: Collection[StateChanged | Remark],
        waiting: Collection[object],
        wake: Callable[[], None],
    ) -> None:
        self._link = link
        self._to_tell = to_tell
        self._waiting = waiting
        self._wake = wake
        #: The network thread's, while it runs.
        self.selector: selectors.BaseSelector | None = None
        #: When the network thread wakes up by itself (monotonic seconds).
        self.looked_after_at: float = 0.0
        #: The waiter of the call whose thread reads, from :meth:`take` to :meth:`give_back`.
        self.reader: object | None = None
        #: What that thread sleeps on, outside the section.
        self.poller: InputPoller = InputPoller()
        self._lent: tuple[SyncDriver, int] | None = None  # with its descriptor; without a reader, it is parked
        self._ends_at = 0.0
        self._thread = 0  # of the reader
        self._returned_at = 0.0  # when a reader last gave it back
        self._watched: tuple[SyncDriver, int, int] | None = None  # what the selector waits for

    # -- the network thread --------------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        """Whether the network thread waits for the socket."""
        return self._watched is not None

    def lasts(self) -> bool:
        """Whether the socket is still lent, and somebody was heard of in time; otherwise the loan is over now."""
        if self._lent is not None and monotonic() >= self._ends_at:
            self._lent = None
        return self._lent is not None

    @property
    def is_lent(self) -> bool:
        """Whether the network thread leaves the socket to the callers."""
        return self._lent is not None

    def next_look(self, moment: float) -> float:
        """When the network thread has to see if a loop of calls has ended (monotonic seconds)."""
        is_loop = self._lent is not None and moment - self._returned_at < 2 * _PARK_S
        return moment + _PARK_S if is_loop else math.inf

    def watch(self) -> None:
        """Let the network thread wait for the driver's socket, and for no other, unless it is lent.

        Descriptor numbers are reused: the driver itself tells old from new.
        """
        selector, driver = self.selector, self._link.driver
        if self._lent is not None or selector is None:
            return
        fileno = None if driver is None else driver.fileno()
        wanted = None
        if driver is not None and fileno is not None and fileno >= 0:
            wanted = (driver, fileno, selectors.EVENT_READ | (selectors.EVENT_WRITE if driver.wants_write else 0))
        if wanted == self._watched:
            return
        self._unwatch(selector)
        if wanted is not None:
            try:
                selector.register(wanted[1], wanted[2])
            except KeyError:  # a signal interrupted a thread here once before
                with contextlib.suppress(KeyError, OSError, ValueError):
                    selector.unregister(wanted[1])
                selector.register(wanted[1], wanted[2])
            self._watched = wanted

    def _unwatch(self, selector: selectors.BaseSelector) -> None:
        if self._watched is not None:
            with contextlib.suppress(KeyError, OSError, ValueError):
                selector.unregister(self._watched[1])
        self._watched = None

    # -- a calling thread ----------------------------------------------------------------------------------------------

    def take(self, reader: object) -> None:
        """Lend the socket to the thread of a call, if it can be had; before the request leaves.

        Later, the answer would wake the network thread.
        """
        is_free = self.reader is None or self._thread == threading.get_ident()  # a handler of a signal reads for both
        if not (is_free and self._is_to_be_had()):
            return
        self._ends_at = monotonic() + _LOAN_S
        self.reader = reader
        self._thread = threading.get_ident()

    def _is_to_be_had(self) -> bool:
        if self._lent is not None:
            if self._is_quiet(self._lent[0]):
                return True
            self.end()
            return False
        if self.selector is None or self._watched is None:
            return False
        driver, fileno, events = self._watched
        if not self._is_quiet(driver) or events != selectors.EVENT_READ:
            return False
        self._lent = (driver, fileno)
        self._watched = None
        with contextlib.suppress(KeyError):  # interrupted here once before
            self.selector.unregister(fileno)
        return True

    def lent_to(self, reader: object) -> int | None:
        """The descriptor that this reader has borrowed, if it is this one. May be asked outside the section."""
        lent = self._lent  # read once: the network thread may end the loan meanwhile
        return None if lent is None or self.reader is not reader else lent[1]

    def renew(self, reader: object) -> bool:
        """The reader is alive. Whether it has the socket still, and may read.

        Not after a signal handler's call that has read for both: another thread may have borrowed the socket since.
        """
        if self.reader is not reader or self._lent is None or self._lent[0] is not self._link.driver:
            return False
        self._ends_at = monotonic() + _LOAN_S
        return True

    def may_go_on(self) -> bool:
        """Whether the reader may read more: not if there is something that the network thread has to see to."""
        if self._lent is None:
            return False
        driver, fileno = self._lent
        return driver.fileno() == fileno and self._is_quiet(driver)

    def give_back(self) -> None:
        """The network thread reads again, at once or if the calling thread does not come back soon."""
        self.reader = None
        if self._lent is None:
            return
        moment = monotonic()
        is_loop = moment - self._returned_at <= _TIGHT_LOOP_S
        self._returned_at = moment
        if is_loop and self._may_park():
            self._ends_at = moment + _PARK_S
            if self.looked_after_at > moment + 2 * _PARK_S:
                self._wake()  # it sleeps for too long to see that the loop has ended
            return
        if self._link.output.unflushed_acks and not is_loop:
            self._link.output.flush()  # in a loop, they go out with the next call
        self.end()

    def end_parking(self) -> None:
        """The network thread reads again, if nobody does."""
        if self._lent is not None and self.reader is None:
            self.end()

    def end(self) -> None:
        """The network thread reads again."""
        self._lent = None
        self.watch()
        link = self._link
        if (
            self._to_tell
            or link.driver is None
            or link.driver.wants_write
            or link.machine.state is ConnectionState.CLOSED
            or link.machine.request_table.absence.deadline < self.looked_after_at
        ):
            self._wake()

    def forget(self) -> None:
        """A signal stopped a change half-way: nobody waits for this socket any longer."""
        self._lent = None
        if self.selector is not None:
            self._unwatch(self.selector)

    def _may_park(self) -> bool:
        """Whether nobody misses what comes in before the next call: no other caller, no watch, nothing to see to."""
        machine = self._link.machine
        return (
            self.may_go_on()
            and len(self._waiting) <= 1  # the caller who gives it back
            and not machine.is_watching
            and machine.state is ConnectionState.CONNECTED
        )

    def _is_quiet(self, driver: SyncDriver) -> bool:
        """Whether nothing but reading from this driver is to be done."""
        return driver is self._link.driver and not driver.wants_write and not self._to_tell
