"""What the server refused, as warnings, and no more of them than somebody can read.

Each peer has lines of its own, so that one that tries in a loop hides nobody else, and all together have a bound, so
that many addresses cannot fill the disk either. What was left out is counted, and told with a later line.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from statestore_client.server.broker.quotas import network_of
from statestore_client.server.runtime.observability.event_log import LONGEST, log_event, shortened
from statestore_client.server.runtime.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RefusalLog"]

#: Lines about one peer at once, and the seconds after which it has one more.
_LINES: Final = 10
_PAUSE_S: Final = 10.0

#: Seconds between two lines about the same mistake of a client.
_CLIENT_PAUSE_S: Final = 60.0

#: The same for all peers together. A line has a few hundred bytes: 10 MB in an hour at the worst.
_ALL_LINES: Final = 100
_ALL_PAUSE_S: Final = 0.1

#: Peers of which some lines were left out, and that are remembered.
_MOST: Final = 1_000

_EVERYBODY: Final = ""


class RefusalLog:
    """Belongs to one event loop. ``now`` gives monotonic seconds.

    A line has ``left_out=n`` for the lines about its peer that were left out before it, and ``left_out_of_others=n``
    for those about peers that are not remembered any more.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._peers = Throttle(_LINES, _PAUSE_S)
        self._clients = Throttle(1, _CLIENT_PAUSE_S)
        self._all = Throttle(_ALL_LINES, _ALL_PAUSE_S)
        self._left_out: OrderedDict[str, int] = OrderedDict()
        self._left_out_of_others = 0

    def line(
        self,
        event: str,
        peer: str | None,
        *,
        level: int = logging.WARNING,
        error: BaseException | None = None,
        more: int = 0,
        **fields: object,
    ) -> None:
        """``peer`` is ``address:port``, or None if nobody is to blame, as for what our own defect refuses. With its
        traceback, if there is an ``error``. ``more`` lines like this one are left out in any case.
        """
        who = "" if peer is None else network_of(peer) or "unknown"
        self._line(self._peers, who, event, peer, level, error, more, fields)

    def seldom(self, event: str, peer: str | None, client: str, *, more: int = 0, **fields: object) -> None:
        """The same about a mistake of a client that harms nobody else: at INFO, one line in a minute."""
        who = f"client {client[:LONGEST]}"
        self._line(self._clients, who, event, peer, logging.INFO, None, more, {"client": client, **fields})

    def _line(
        self,
        throttle: Throttle,
        who: str,
        event: str,
        peer: str | None,
        level: int,
        error: BaseException | None,
        more: int,
        fields: dict[str, object],
    ) -> None:
        now = self._now()
        if throttle.is_used_up(who, now) or self._all.is_used_up(_EVERYBODY, now):
            self._leave_out(who, more + 1)
            return
        throttle.used(who, now)
        self._all.used(_EVERYBODY, now)
        known = shortened(fields)
        if peer is not None:
            known["peer"] = peer
        if left_out := self._left_out.pop(who, 0):
            known["left_out"] = left_out
        if self._left_out_of_others:
            known["left_out_of_others"], self._left_out_of_others = self._left_out_of_others, 0
        log_event(level, event, error=error, **known)
        self._leave_out(who, more)

    def _leave_out(self, who: str, count: int) -> None:
        if not count:
            return
        self._left_out[who] = self._left_out.pop(who, 0) + count
        if len(self._left_out) > _MOST:
            self._left_out_of_others += self._left_out.popitem(last=False)[1]
