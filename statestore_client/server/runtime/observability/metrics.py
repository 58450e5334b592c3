"""The server's figures for Prometheus, in its text format (version 0.0.4)."""

from __future__ import annotations

import json
import os
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client._common.http_server import HttpResponse
from statestore_client.clocks import monotonic
from statestore_client.server.cluster.interface import Role
from statestore_client.server.kvstore.peers import PeerState
from statestore_client.server.kvstore.site import figures_of
from statestore_client.server.shares import PER_USER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from raft_client._common.http_server import HttpRequest
    from statestore_client.server.broker import Broker
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.replication.replicated_server import ReplicatedServer
    from statestore_client.server.runtime.sites import SiteBridge, SitePeering
    from statestore_client.server.runtime.transport.tls import TlsFiles
    from statestore_client.server.service.service import StateStoreService

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: What the names of the broker's counters do not tell.
_HELP: Final = {
    "refused_messages": "Messages of clients that were refused.",
    "dropped_qos0": "QoS 0 messages for a subscriber whose queue was full.",
    "dropped_full": "QoS 1 and 2 messages that a subscriber lost because its queue was full.",
    "dropped_forbidden": "Messages that waited for a subscriber when it lost the right to their topic.",
    "ended_full": "Sessions that ended because their queue was full.",
    "dropped_unowned": "Replies for a subscriber whose queue was full.",
    "held_connects": "CONNECTs of client ids that keep stealing their session.",
    "evicted_sessions": "Sessions that were ended early, to make room.",
}
#: The counters of the state store.
_STORE_HELP: Final = {
    "requests": "State store requests.",
    "refusals": "State store refusals.",
    "dropped": "Requests without a response topic, or whose answer no client waits for.",
    "notifications": "Notifications to watchers.",
    "bad_requests": "Requests without QoS 1 or correlation data.",
    "kicked": "Clients that were disconnected for a request: its topic or its response topic is not theirs.",
    "redelivered": "Requests that came again and got their first answer.",
}
#: Of the broker's counters, those that are not totals.
_GAUGES: Final = frozenset(("most_clients",))
#: Of a site's figures those that are not totals.
_SITE_GAUGES: Final = {
    "synced": "1 once the syncs of the start are over: with another site, or because none could be reached in time.",
    "keys": "Keys of the KvStore.",
    "expiring_keys": "Of those, the ones with a time to live.",
    "bytes": "Of keys, originators and values.",
    "full": "1 if something that another site has sent had no room, within the last five minutes.",
    "own_keys": "Of the keys, the ones that this site keeps alive.",
    "contested_keys": "Of those, the ones that another site keeps alive, too.",
}


@attrs.frozen(eq=False)
class Metrics:
    """Renders. ``version`` tells the package's."""

    driver: BrokerDriver
    service: Callable[[], StateStoreService]
    version: Callable[[], str]
    site: Callable[[], SitePeering | None]
    bridge: Callable[[], SiteBridge | None]
    replication: ReplicatedServer[Broker] | None = None
    tls: TlsFiles | None = None

    def render(self) -> bytes:
        """All of them, now: about two hundred lines. Those of a peer in this process, a second old at most."""
        figures = "\n".join(
            (
                *self._broker(),
                *self._counters(),
                *store_figures(self.service(), self.driver.now),
                *self._quotas(),
                *self._site(),
                *self._bridge(),
                *([] if self.replication is None else log_figures(self.replication)),
                *self._tls(),
                *process_figures(),
                "",
            )
        ).encode()
        peer = None if self.replication is None else self.replication.peer
        return figures if peer is None else figures + peer.figures

    def _broker(self) -> Iterable[str]:
        driver = self.driver
        usage = driver.broker.usage
        yield from metric("build_info", "The version.", {f'version="{self.version()}"': 1})
        yield from metric("uptime_seconds", "Since the start.", driver.uptime_s)
        for name, text, value in (
            ("sockets", "Open connections, those in a handshake and before CONNECT too.", len(driver.peers)),
            (
                "unauthenticated_sockets",
                "Of those, whose clients are not known yet.",
                driver.peers.unauthenticated.count,
            ),
            ("clients", "Connected clients.", usage.clients),
            ("losing_clients", "Clients that lost messages and do not know it yet.", usage.losing_clients),
            ("sessions", "Sessions, those of absent clients too.", usage.sessions),
            ("subscriptions", "Subscriptions of all sessions.", usage.subscriptions),
            ("retained_messages", "Retained messages.", usage.retained_messages),
            ("retained_bytes", "Bytes of retained messages.", usage.retained_bytes),
            ("max_retained_bytes", "As many of those are allowed.", driver.broker.limits.retained_bytes),
            ("held_bytes", "Bytes that wait for clients, or are in flight.", usage.held_bytes),
            ("max_held_bytes", "As many of those are allowed.", driver.broker.limits.held_bytes),
            ("unfinished_bytes", "Bytes of packets that are not complete or not carried out.", driver.unfinished_bytes),
        ):
            yield from metric(name, text, value)
        codes = {f'code="{code:#04x}",by="{by}"': count for (code, by), count in sorted(driver.endings.items())}
        yield from metric("disconnects_total", "Ended connections by reason code and side.", codes, kind="counter")

    def _counters(self) -> Iterable[str]:
        counters = self.driver.broker.counters
        for field in attrs.fields(type(counters)):
            text = _HELP.get(field.name, f"{field.name.replace('_', ' ').capitalize()}.")
            if field.name in _GAUGES:
                yield from metric(field.name, text, getattr(counters, field.name))
            else:
                yield from metric(f"{field.name}_total", text, getattr(counters, field.name), kind="counter")

    def _quotas(self) -> Iterable[str]:
        """By their names in errors and options. Who has most is not said: everybody may read this page."""
        broker, service = self.driver.broker, self.service()
        shares = (*broker.shares, *service.shares)
        refusals = dict.fromkeys((name for share in shares for name in (share.name, share.name + PER_USER)), 0)
        refusals |= {**broker.quota_refusals, **service.quota_refusals}
        for name, text, values in (
            ("used", "What clients use of it.", {share.name: share.total for share in shares}),
            ("limit", "What all may use, and an eighth more those who have little.", {s.name: s.limit for s in shares}),
            ("limit_per_user", "What one user may; 0 for all of it.", {s.name: s.limit_per_user for s in shares}),
            ("largest_user", "What the user has who has most.", {share.name: share.largest for share in shares}),
            ("refusals_total", "What was refused because of it.", refusals),
        ):
            labelled = {f'quota="{quota}"': value for quota, value in values.items()}
            yield from metric(f"quota_{name}", text, labelled, kind="counter" if values is refusals else "gauge")

    def _site(self) -> Iterable[str]:
        """Of each area; nothing if the server is not a site."""
        peering = self.site()
        if peering is None:
            return
        figures = figures_of(peering.site, monotonic())
        for name in next(iter(figures.values())):
            if name.startswith("peers"):
                continue
            values = {f'area="{_quoted(area)}"': found[name] for area, found in figures.items()}
            if name in _SITE_GAUGES:
                yield from metric(f"site_{name}", _SITE_GAUGES[name], values)
            else:
                text = f"{name.replace('_', ' ').capitalize()} of the KvStore."
                yield from metric(f"site_{name}_total", text, values, kind="counter")
        peers = {
            f'area="{_quoted(area)}",state="{state.name.lower()}"': found[f"peers_{state.name.lower()}"]
            for area, found in figures.items()
            for state in PeerState
        }
        yield from metric("site_peers", "Other sites.", peers)
        dialled = [link for link in peering.site.members.links if link.is_dialled]
        yield from metric(
            "site_unreached_addresses",
            "Addresses that are dialled, and where no site has let this one in since its start.",
            sum(link.last_name is None for link in dialled),
        )
        yield from metric(
            "site_refused_hellos_total",
            "Hellos that this site or another one has refused.",
            peering.refused,
            kind="counter",
        )
        yield from metric(
            "site_refused_handshakes_total",
            "Connections that ended without the right keys.",
            peering.refused_handshakes,
            kind="counter",
        )
        yield from metric(
            "site_dropped_messages_total", "Messages that were not carried.", peering.dropped, kind="counter"
        )

    def _bridge(self) -> Iterable[str]:
        """Nothing if no keys cross."""
        driver = self.bridge()
        if driver is None:
            return
        exports, imports = driver.bridge.exports, driver.bridge.imports
        for name, text, value in (
            ("exported_keys", "Keys of the state store that cross to other sites.", len(exports)),
            ("imported_keys", "Keys of other sites in the state store.", len(imports)),
            ("imported_bytes", "What they take of the quota.", imports.used_bytes),
            ("unimported_keys", "Keys of other sites that are missing, as a quota is used up.", imports.without_room),
            ("waiting_keys", "Keys that have changed and were not looked at since.", driver.bridge.waiting),
        ):
            yield from metric(f"site_bridge_{name}", text, value)
        refused = {f'reason="{reason}"': number for reason, number in exports.refused.items()}
        yield from metric(
            "site_bridge_unexported_keys", "Chosen keys that do not cross, by what does not fit.", refused
        )

    def _tls(self) -> Iterable[str]:
        """Nothing for a server without TLS, or whose context the program has made."""
        if self.tls is not None and self.tls.ends:
            ends = {f'of="{what}"': round(end_s) for what, end_s in self.tls.ends.items()}
            yield from metric("certificate_not_after_seconds", "When they expire, in seconds since 1970.", ends)


def store_figures(service: StateStoreService, now: float) -> Iterable[str]:
    """Of the store, wherever it is. ``now`` in monotonic seconds of the clock that its requests have."""
    usage, counters = service.usage, service.counters
    yield from metric("store_keys", "Keys in the state store.", usage.keys)
    text = "Of those, the ones that are not UTF-8: no listing has them."
    yield from metric("store_unlisted_keys", text, usage.unlisted_keys)
    yield from metric("store_bytes", "Bytes in the state store, as the quota counts them.", usage.bytes)
    yield from metric("store_max_keys", "As many keys are allowed.", usage.limits.max_keys)
    yield from metric("store_max_bytes", "As many bytes are allowed.", usage.limits.max_bytes)
    yield from metric("store_observations", "Keys that clients watch.", usage.observations)
    text = "How far the clocks of clients were ahead lately; 0 up to 10."
    yield from metric("store_client_clock_ahead_seconds", text, service.clock_ahead_s(now))
    for group, label in (("requests", "command"), ("refusals", "error"), ("dropped", "reason")):
        values = {
            f'{label}="{name.partition(".")[2].lower()}"': count
            for name, count in sorted(counters.items())
            if name.startswith(f"{group}.")
        }
        yield from metric(f"store_{group}_total", _STORE_HELP[group], values, kind="counter")
    for name in ("notifications", "bad_requests", "kicked", "redelivered"):
        yield from metric(f"store_{name}_total", _STORE_HELP[name], counters.get(name, 0), kind="counter")


def log_figures(lives: ReplicatedServer[Any]) -> Iterable[str]:
    """Of a server that shares a log."""
    roles = {f'role="{role.value}"': int(role is lives.role) for role in Role}
    yield from metric("log_role", "Role of this server among the servers of its log.", roles)
    active = lives.active[1]
    label = {f'id="{_quoted(active)}"': 1} if active else {}
    yield from metric("log_active", "The server that is active, as far as this one knows.", label)
    for name, text, value in (
        ("epoch", "How often another server has become the active one.", lives.epoch),
        ("index", "Of the last entry that was read.", lives.index),
        ("silence_seconds", "How long clients have waited for the log to answer.", lives.silent_s),
        ("leaderless_seconds", "How long the log has had no leader; 0 up to 1.5.", lives.leaderless_s),
        ("clock_ahead_seconds", "Of this server's wall clock against the active one's.", lives.skew.ahead_s),
        (
            "passed_on_clients",
            "Clients here that another server serves, or that wait.",
            lives.router.proxied,
        ),
        ("listening_servers", "Other servers that listen whether this one lives.", len(lives.listeners)),
    ):
        yield from metric(f"log_{name}", text, value)


def _quoted(label: str) -> str:
    """As the text format wants the value of a label."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def metric(
    name: str, text: str, value: float | Mapping[str, float], *, kind: str = "gauge", prefix: str = "statestore_"
) -> Iterable[str]:
    """The lines of one, with a value for each label if there are several."""
    yield f"# HELP {prefix}{name} {text}"
    yield f"# TYPE {prefix}{name} {kind}"
    if isinstance(value, (int, float)):
        yield f"{prefix}{name} {value}"
        return
    for labels, number in value.items():
        yield f"{prefix}{name}{{{labels}}} {number}"


def process_figures() -> Iterable[str]:
    """Where the system tells it: the memory that the process occupies."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = re.split(rb"\s", file.read())[1]
    except (OSError, IndexError):
        return
    resident = int(pages) * os.sysconf("SC_PAGE_SIZE")
    yield from metric("process_resident_memory_bytes", "Resident memory.", resident, prefix="")


# -- metrics pages -----------------------------------------------------------------------------------------------------
#
# Four pages: ``/metrics`` for Prometheus, ``/ready`` for load balancers, ``/health`` for what restarts servers, and
# ``/info`` for people who want to know what runs here.


#: An answer is as good as new for this long: asking all the time costs little.
_FRESH_S: Final = 0.05


class MetricsPages:
    """Answers requests; see :class:`~.http_endpoint.HttpEndpoint`."""

    def __init__(
        self, render: Callable[[], bytes], why_not_ready: Callable[[], str], inform: Callable[[], dict[str, Any]]
    ) -> None:
        """``why_not_ready``: why clients had better go elsewhere, in words; nothing if they had not. ``inform`` says
        what the server is (:mod:`.information`).
        """
        self._render = render
        self._why_not_ready = why_not_ready
        self._inform = inform
        self._page = b""
        self._rendered_at = float("-inf")

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """What is at this path."""
        match request.path:
            case "/metrics":
                return _page(HTTPStatus.OK, self._figures())
            case "/health":  # that there is an answer is what it says
                return _page(HTTPStatus.OK, f"{self._why_not_ready() or 'ready'}\n".encode())
            case "/ready":
                why_not = self._why_not_ready()
                status = HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK
                return _page(status, f"{why_not or 'ready'}\n".encode())
            case "/info":
                return HttpResponse(json.dumps(self._inform()).encode() + b"\n", content_type="application/json")
            case _:
                return _page(HTTPStatus.NOT_FOUND, b"There are /metrics, /health, /ready and /info\n")

    def _figures(self) -> bytes:
        """A moment old at most."""
        now = monotonic()
        if now - self._rendered_at > _FRESH_S:
            self._page, self._rendered_at = self._render(), now
        return self._page


def _page(status: HTTPStatus, body: bytes = b"") -> HttpResponse:
    return HttpResponse(body, status, CONTENT_TYPE)
