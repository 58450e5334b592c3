"""``statestore top``: what the monitor of a server shows, in a terminal."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import attrs
import click
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from raft_client._common import exits
from raft_client._common.command_line import print_json
from raft_client._common.standard_streams import ends_with_reader
from statestore_client.cli.monitor import Message, MonitorAddress, monitor_address, open_feed
from statestore_client.errors import TransportError

_AGAIN_S: Final = 1.0
_LOCKS: Final = 20
_REFUSALS: Final = 8

#: What a summary says: totals per second, and values of now.
_RATES: Final = {
    "requests": "statestore_store_requests_total",
    "refused": "statestore_store_refusals_total",
    "received": "statestore_received_messages_total",
    "sent": "statestore_sent_messages_total",
}
_NOW: Final = {
    "clients": "statestore_clients",
    "sessions": "statestore_sessions",
    "keys": "statestore_store_keys",
    "watched": "statestore_store_observations",
    "held_bytes": "statestore_held_bytes",
    "memory_bytes": "process_resident_memory_bytes",
}
#: Of a store that is hosted on a broker.
_OF_HOST: Final = ("connected", "lag_seconds", "in_flight", "open_requests", "waiting_requests")


@attrs.define(eq=False)
class MonitorSummary:
    """Messages of a monitor, folded into what is known now."""

    server: dict[str, Any] = attrs.Factory(dict)
    now: int = 0
    figures: dict[str, float] = attrs.Factory(dict)
    latency: dict[str, float] = attrs.Factory(dict)
    _locks: dict[int, dict[str, Any]] = attrs.Factory(dict)
    _refusals: deque[dict[str, Any]] = attrs.field(factory=lambda: deque(maxlen=100))
    _totals: dict[str, float] = attrs.Factory(dict)
    #: When they were.
    _counted_at: int = 0
    _rates: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys(_RATES, 0.0))

    def take(self, kind: str, message: dict[str, Any]) -> None:
        """One more of them."""
        if kind == "hello":
            self.server, self.figures = message["server"], {}
            self._locks, self._totals, self._rates = {}, {}, dict.fromkeys(_RATES, 0.0)
            self._refusals.clear()
        self.now = message["now"]
        self.figures |= message["figures"]
        for name in message.get("gone", ()):
            self.figures.pop(name, None)
        self.latency = message["latency"] or {}
        for lock in message["locks"]:
            holdings = lock["holdings"][-1:] or self._locks.get(lock["number"], lock)["holdings"]
            self._locks[lock["number"]] = lock | {"holdings": holdings}
        self._refusals.extend(message["refusals"])
        # What a hello has was counted at the tick before.
        self._count(message["history"][-1]["at"] if message.get("history") else self.now)

    def _count(self, at: int) -> None:
        seconds, self._counted_at = (at - self._counted_at) / 1000, at
        totals = {name: self._sum(figure) for name, figure in _RATES.items()}
        if self._totals and seconds > 0:
            self._rates = {name: max(0.0, total - self._totals[name]) / seconds for name, total in totals.items()}
        self._totals = totals

    def _sum(self, figure: str) -> float:
        """Over all labels."""
        return sum(value for name, value in self.figures.items() if name.partition("{")[0] == figure)

    def encoded(self) -> dict[str, Any]:
        """For JSON. Times are milliseconds since the Unix epoch."""
        return {
            "now": self.now,
            "server": self.server,
            "per_second": {name: round(rate, 1) for name, rate in self._rates.items()},
            "log": self._log(),
            "broker": self._broker(),
            **{name: int(self._sum(figure)) for name, figure in _NOW.items()},
            "latency_ms": self.latency,
            "locks": [self._lock(lock) for lock in self._locks.values()],
            "refusals": list(self._refusals),
        }

    def _log(self) -> dict[str, Any] | None:
        """Of a server that shares a log with others: what it is, and which one is active."""
        role = self._label("statestore_log_role")
        if role is None:
            return None
        return {
            "role": role,
            "active": self._label("statestore_log_active"),
            "epoch": int(self.figures.get("statestore_log_epoch", 0)),
            "leaderless_s": self.figures.get("statestore_log_leaderless_seconds", 0.0),
        }

    def _broker(self) -> dict[str, Any] | None:
        """Of a store that is hosted on a broker: how it does as that one's client."""
        if not self.server.get("is_hosted"):
            return None
        figures = {name: self.figures.get(f"statestore_host_{name}", 0) for name in _OF_HOST}
        is_standby = self._label("statestore_log_role") not in (None, "active")
        return {
            "address": " ".join(self.server.get("urls", ())),
            "state": "connected" if figures["connected"] else "not needed" if is_standby else "away",
            "lag_s": round(figures["lag_seconds"], 3),
            **{name: int(figures[name]) for name in ("in_flight", "open_requests", "waiting_requests")},
        }

    def _label(self, figure: str) -> str | None:
        """The label of this figure that has the value 1."""
        found = (name for name, value in self.figures.items() if value == 1 and name.startswith(f"{figure}{{"))
        return next((name.partition('"')[2].removesuffix('"}') for name in found), None)

    def _lock(self, lock: dict[str, Any]) -> dict[str, Any]:
        last = lock["holdings"][-1] if lock["holdings"] else None
        held = last is not None and last["ended"] is None and last["until"] > self.now
        names = ("holder", "client", "token", "began", "until", "renewals", "writes", "gone")
        return {"key": lock["key"], "is_held": held, "waiting": [each["holder"] for each in lock["waiting"]]} | (
            {name: last[name] for name in names} if held and last is not None else {}
        )


@click.command("top")
@monitor_address
@click.option("--once", is_flag=True, help="Print it once, after two seconds.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object per line: with --once, one.")
def top(*, address: MonitorAddress | None, once: bool, json_output: bool) -> int:
    """Show a server's figures, locks and refused writes. They come from its monitor.

    URL is the one that statestore serve --monitor-port prints, http://host:port.
    """
    if address is None:
        raise click.UsageError("give the URL of a monitor: http://host:port, as statestore serve --monitor-port prints")
    summary = MonitorSummary()
    if once:
        with open_feed(address) as messages:
            for _, message in zip(range(3), messages, strict=False):  # rates take two ticks
                summary.take(*message)
        if not summary.now:
            raise TransportError(f"the monitor at {address.url} has said nothing")
        _print(summary, json_output=json_output)
    elif json_output:
        with ends_with_reader():
            _follow(address, lambda message: _printed(summary, message))
    else:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            _follow(address, lambda message: live.update(_shown(summary, message), refresh=True))
    return exits.DONE


def _follow(address: MonitorAddress, show: Any) -> None:
    """For ever, over restarts of the server."""
    is_known = False
    while True:
        try:
            with open_feed(address) as messages:
                for message in messages:
                    is_known = True
                    show(message)
        except TransportError as error:
            if error.fatal or not is_known:
                raise
        time.sleep(_AGAIN_S)


def _printed(summary: MonitorSummary, message: Message) -> None:
    summary.take(*message)
    if message[0] != "hello":  # rates take a tick
        print_json(summary.encoded())


def _print(summary: MonitorSummary, *, json_output: bool) -> None:
    if json_output:
        print_json(summary.encoded())
    else:
        Console().print(rendered(summary))


def _shown(summary: MonitorSummary, message: Message) -> Group:
    summary.take(*message)
    return rendered(summary)


def rendered(summary: MonitorSummary) -> Group:
    """For a terminal. What peers have sent is text, and no markup."""
    found = summary.encoded()
    rates = found["per_second"]
    urls = " ".join(found["server"].get("urls", ()))
    head = Text(f"{urls}  version {found['server'].get('version', '?')}  {_clock(summary.now)}", style="bold")
    head.append(_role(found["log"]), style="bold")
    latency = found["latency_ms"]
    figures = Text(
        f"requests {rates['requests']:.0f}/s  refused {rates['refused']:.0f}/s  in the store "
        f"{latency.get('p50', 0):.2f} ms, p99 {latency.get('p99', 0):.2f} ms\n"
        f"{_clients(found)}  keys {found['keys']}  watched {found['watched']}\n"
        f"{_behind(found)}  memory {found['memory_bytes'] // 1024**2} MiB  timer late {latency.get('late', 0):.1f} ms\n"
    )
    return Group(head, figures, _locks(summary.now, found["locks"]), _refusals(found["refusals"]))


def _clients(found: dict[str, Any]) -> str:
    """Who comes here; or what this is to the broker to which they come."""
    rates, broker = found["per_second"], found["broker"]
    if broker is None:
        messages = f"messages {rates['received']:.0f}/s in, {rates['sent']:.0f}/s out"
        return f"{messages}  clients {found['clients']}  sessions {found['sessions']}"
    return f"client of that broker: {broker['state']}, {1000 * broker['lag_s']:.0f} ms behind"


def _behind(found: dict[str, Any]) -> str:
    broker = found["broker"]
    if broker is None:
        return f"waiting for clients {found['held_bytes']} B"
    waiting = f", {broker['waiting_requests']} of them wait for room" if broker["waiting_requests"] else ""
    return f"open requests {broker['open_requests']}{waiting}  in flight {broker['in_flight']}"


def _role(log: dict[str, Any] | None) -> str:
    """A line about a server that shares a log; its clients, keys and locks are those of the active one."""
    if log is None:
        return ""
    who = f"; active: {log['active'] or 'no server'}" if log["role"] != "active" else ""
    leaderless = f"; the log has had no leader for {log['leaderless_s']:.0f} s" if log["leaderless_s"] else ""
    return f"\n{log['role']} in epoch {log['epoch']}{who}{leaderless}"


def _locks(now: int, locks: list[dict[str, Any]]) -> Table:
    table = Table("Lock", "Holder", "Fencing token", Column("Held", justify="right"), "Waiting", box=None, expand=True)
    for lock in sorted(locks, key=lambda lock: (not lock["is_held"], lock["key"]))[:_LOCKS]:
        held = [lock["holder"], lock["token"], f"{(now - lock['began']) / 1000:.0f} s"] if lock["is_held"] else ["free"]
        table.add_row(*map(escape, [lock["key"], *held, *[""] * (3 - len(held)), ", ".join(lock["waiting"])]))
    return table


def _refusals(refusals: list[dict[str, Any]]) -> Table:
    table = Table("Refused", "Client", "What", "Why", box=None, expand=True)
    for each in reversed(refusals[-_REFUSALS:]):
        owner = f" of {each['holding'][1]}" if each["holding"] else ""
        marked = f", behind {each['marked_by'][1]}" if each["marked_by"] else ""
        what = f"{each['action']} {each['key']}"
        table.add_row(_clock(each["at"]), *map(escape, (each["client"], what, f"{each['why']}{owner}{marked}")))
    return table


def _clock(now_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(now_ms / 1000))
