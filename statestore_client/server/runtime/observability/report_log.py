"""What a broker reports, in the log: requests that were refused, queues that overflow, faults of the application."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from statestore_client.mqtt.packets import ReasonCode

if TYPE_CHECKING:
    from statestore_client.server.broker.reports import Reports
    from statestore_client.server.runtime.observability.refusal_log import RefusalLog

__all__ = ["log_reports"]


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
    for fault in reports.take_faults():
        refusals.line("the application failed", None, level=logging.ERROR, error=fault)
