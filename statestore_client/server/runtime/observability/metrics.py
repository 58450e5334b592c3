"""The server's figures for Prometheus, in its text format (version 0.0.4)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.service.service import StateStoreService

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: What the names of the broker's counters do not tell.
_HELP: Final = {
    "refused_messages": "Messages of clients that were refused.",
    "dropped_qos0": "QoS 0 messages for a subscriber whose queue was full.",
    "dropped_full": "QoS 1 and 2 messages that a subscriber lost because its queue was full.",
    "ended_full": "Sessions that ended because their queue was full.",
    "dropped_unowned": "Replies for a subscriber whose queue was full.",
    "held_connects": "CONNECTs of client ids that keep stealing their session.",
    "evicted_sessions": "Sessions that were ended early, to make room.",
}
#: Of the broker's counters, those that are not totals.
_GAUGES: Final = frozenset(("most_clients",))


@attrs.frozen(eq=False)
class Metrics:
    """Renders. ``version`` tells the package's."""

    driver: BrokerDriver
    service: Callable[[], StateStoreService]
    version: Callable[[], str]

    def render(self) -> bytes:
        """All of them, now: about two hundred lines."""
        return "\n".join((*self._broker(), *self._counters(), *self._store(), *_process(), "")).encode()

    def _broker(self) -> Iterable[str]:
        driver = self.driver
        usage = driver.broker.usage
        yield from _metric("build_info", "The version.", {f'version="{self.version()}"': 1})
        yield from _metric("uptime_seconds", "Since the start.", driver.uptime_s)
        for name, text, value in (
            ("sockets", "Open connections, those in a handshake and before CONNECT too.", len(driver.peers)),
            (
                "unauthenticated_sockets",
                "Of those, whose clients are not known yet.",
                driver.peers.unauthenticated.count,
            ),
            ("clients", "Connected clients.", usage.clients),
            ("losing_clients", "Clients that have yet to be told what they lost.", usage.losing_clients),
            ("sessions", "Sessions, those of absent clients too.", usage.sessions),
            ("subscriptions", "Subscriptions of all sessions.", usage.subscriptions),
            ("retained_messages", "Retained messages.", usage.retained_messages),
            ("retained_bytes", "Bytes of retained messages.", usage.retained_bytes),
            ("held_bytes", "Bytes that wait for clients, or are in flight.", usage.held_bytes),
            ("unfinished_bytes", "Bytes of packets that are not complete or not carried out.", driver.unfinished_bytes),
        ):
            yield from _metric(name, text, value)
        codes = {f'code="{code:#04x}",by="{by}"': count for (code, by), count in sorted(driver.endings.items())}
        yield from _metric("disconnects_total", "Ended connections by reason code and side.", codes, kind="counter")

    def _counters(self) -> Iterable[str]:
        counters = self.driver.broker.counters
        for field in attrs.fields(type(counters)):
            text = _HELP.get(field.name, f"{field.name.replace('_', ' ').capitalize()}.")
            if field.name in _GAUGES:
                yield from _metric(field.name, text, getattr(counters, field.name))
            else:
                yield from _metric(f"{field.name}_total", text, getattr(counters, field.name), kind="counter")

    def _store(self) -> Iterable[str]:
        service = self.service()
        usage, counters = service.usage, service.counters
        yield from _metric("store_keys", "Keys in the state store.", usage.keys)
        yield from _metric("store_bytes", "Bytes in the state store, as the quota counts them.", usage.bytes)
        yield from _metric("store_observations", "Keys that clients watch.", usage.observations)
        for group, label in (("requests", "command"), ("refusals", "error")):
            values = {
                f'{label}="{name.partition(".")[2].lower()}"': count
                for name, count in sorted(counters.items())
                if name.startswith(f"{group}.")
            }
            yield from _metric(f"store_{group}_total", f"State store {group}.", values, kind="counter")
        notifications = counters.get("notifications", 0)
        yield from _metric("store_notifications_total", "Notifications to watchers.", notifications, kind="counter")


def _metric(
    name: str, text: str, value: float | Mapping[str, float], *, kind: str = "gauge", prefix: str = "statestore_"
) -> Iterable[str]:
    yield f"# HELP {prefix}{name} {text}"
    yield f"# TYPE {prefix}{name} {kind}"
    if isinstance(value, (int, float)):
        yield f"{prefix}{name} {value}"
        return
    for labels, number in value.items():
        yield f"{prefix}{name}{{{labels}}} {number}"


def _process() -> Iterable[str]:
    """Where the system tells it: the memory that the process occupies."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = re.split(rb"\s", file.read())[1]
    except (OSError, IndexError):
        return
    resident = int(pages) * os.sysconf("SC_PAGE_SIZE")
    yield from _metric("process_resident_memory_bytes", "Resident memory.", resident, prefix="")
