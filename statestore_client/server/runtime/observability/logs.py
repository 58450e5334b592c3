"""The server's log: one line per event, never a payload or a password. Topics and keys only if refused."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker.quotas import network_of
from statestore_client.server.runtime.fairness import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from statestore_client.server.broker import Connection
    from statestore_client.server.broker.reports import Reports

LOGGER: Final = logging.getLogger("statestore_client.server")
#: Logs which server is active, and whether the log has a leader. It is a logger of its own, because operators read it
#: after an outage without the connections of clients.
CLUSTER_LOGGER: Final = logging.getLogger("statestore_client.server.cluster")

#: Characters of a field that strangers fill. Names and topics of MQTT may have 65,535 bytes.
LONGEST: Final = 200


def shortened(fields: Mapping[str, object]) -> dict[str, Any]:
    """The same with texts of at most ``LONGEST`` characters."""
    return {
        name: f"{value[:LONGEST]}..." if isinstance(value, str) and len(value) > LONGEST else value
        for name, value in fields.items()
    }


@contextmanager
def contained(what: str, then: Callable[[], object] | None = None) -> Iterator[None]:
    """Log a defect of our own in the body of the ``with`` statement, call ``then``, and go on: other clients, and what
    comes behind it, must not suffer from it.
    """
    try:
        yield
    except Exception:
        LOGGER.exception(what)
        if then is not None:
            then()


def log_event(
    level: int, event: str, *, error: BaseException | None = None, logger: logging.Logger = LOGGER, **fields: object
) -> None:
    """Log ``event name=value ...``; the fields are also on the record, as ``record.fields``, for structured handlers.
    The traceback of an ``error`` follows.

    Values are written with ``repr``: client identifiers come from strangers and may hold line breaks.
    """
    if logger.isEnabledFor(level):
        text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        logger.log(level, "%s", text, exc_info=error, extra={"event": event, "fields": fields})


class JsonLines(logging.Formatter):
    """One JSON object per line: ``time`` (UTC), ``level``, ``event`` and the event's fields.

    A record that is not such an event has ``event`` "log", ``logger`` and ``message``. Only ASCII is not escaped: what
    strangers send stays on its line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """As a string without line breaks."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= {"event": getattr(record, "event", "log"), **fields}
        else:
            line |= {"event": "log", "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


# -- connection log ----------------------------------------------------------------------------------------------------
#
# Clients in the log: who came, who is gone, and who was refused.


#: Connections that end with one of these have asked for what they may not have, or for too much.
_REFUSALS: Final = frozenset(
    {
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.SERVER_BUSY,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
        ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
    }
)


def log_connected(connection: Connection) -> None:
    """It has a session."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    session = connection.session
    if session is not None:
        log_event(
            logging.INFO,
            "connected",
            **shortened({"client": session.client_id, "user": session.user}),
            peer=connection.peer,
            version=connection.version,
            silence_s=connection.silence_s,
            expiry_s=session.expiry_s,
        )


def log_gone(refusals: RefusalLog, connection: Connection, code: int, by: str, after_s: float) -> None:
    """It has ended with this reason code, by the ``peer`` or the ``server``, this many seconds after it was accepted.

    A refusal is a warning. The user is whom the client has proved to be: some write a token where the name belongs, and
    so what was not proved is not logged.
    """
    is_refusal = by == "server" and (connection.was_refused or code in _REFUSALS)
    if not (is_refusal or LOGGER.isEnabledFor(logging.INFO)):
        return
    session, ending = connection.session, connection.ending
    event = "refused" if connection.was_refused else "disconnected"
    fields: dict[str, Any] = {
        "client": connection.client_id if session is None else session.client_id,
        "user": None if session is None else session.user,
        "code": f"{code:#04x}",
        "reason": "" if ending is None else ending.reason,
        "by": by,
        "after_s": round(after_s, 3),
    }
    if is_refusal:
        refusals.line(event, connection.peer, **fields)
    else:
        log_event(logging.INFO, event, peer=connection.peer, **shortened(fields))


# -- refusal log -------------------------------------------------------------------------------------------------------
#
# What the server refused, as warnings, and no more of them than somebody can read.
#
# Each peer has lines of its own, so that one that tries in a loop hides nobody else, and all together have a bound, so
# that many addresses cannot fill the disk either. What was left out is counted, and told with a later line.


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

    def seldom(
        self, event: str, peer: str | None, client: str, *, level: int = logging.INFO, more: int = 0, **fields: object
    ) -> None:
        """The same about a mistake of a client that harms nobody else: one line in a minute."""
        who = f"client {client[:LONGEST]}"
        self._line(self._clients, who, event, peer, level, None, more, {"client": client, **fields})

    def clock_ahead(self, peer: str | None, client: str, ahead_s: float, user: str | None = None) -> None:
        """A client's clock is ahead of the store's: from a minute on its requests are refused."""
        event, ahead_s = "a client's clock is ahead", round(ahead_s, 1)
        self.seldom(event, peer, client, level=logging.WARNING, user=user, ahead_s=ahead_s)

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


# -- report log --------------------------------------------------------------------------------------------------------
#
# What a broker reports, in the log: requests that were refused, queues that overflow, faults of the application.


def log_reports(reports: Reports, refusals: RefusalLog, *, when_full: str) -> None:
    """Take and log all that there is, but for credentials to be verified."""
    for denial in reports.take_denials():
        if denial.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR:
            refusals.seldom(
                "request dropped",
                denial.peer,
                denial.client_id,
                user=denial.user,
                reason=denial.what,
                more=denial.more,
            )
            continue
        refusals.line(
            "no room" if denial.reason_code == ReasonCode.QUOTA_EXCEEDED else "not authorized",
            denial.peer,
            client=denial.client_id,
            user=denial.user,
            action=denial.action,
            what=denial.what,
            more=denial.more,
        )
    for overflow in reports.take_overflows():
        who = overflow.session
        refusals.line(
            "queue full",
            None if who.connection is None else who.connection.peer,
            client=who.client_id,
            user=who.user,
            is_connected=who.connection is not None,
            dropped=overflow.dropped,
            since=overflow.since,
            when_full=when_full,
        )
    for clock in reports.take_clocks():
        refusals.clock_ahead(clock.peer, clock.client_id, clock.ahead_s, user=clock.user)
    for fault in reports.take_faults():
        refusals.line("the application failed", None, level=logging.ERROR, error=fault)
