"""``$SYS``: the broker's own figures as retained messages, under the names that mosquitto made usual.

They cost nothing while nobody listens: the first subscription to a filter that begins with ``$SYS`` makes them, then
they are renewed at intervals, and when the last such subscription has gone they disappear. Only what has changed is
published, with QoS 0: no queue of somebody who is away grows by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import Publish
from statestore_client.server.broker.retained import OWN
from statestore_client.server.broker.topic_tree import share_of

if TYPE_CHECKING:
    from statestore_client.server.broker.router import EffectRunner
    from statestore_client.server.broker.scheduling import Timer
    from statestore_client.server.broker.state import State
    from statestore_client.wire.instant import Instant

_FIGURES: Final[dict[str, Callable[[State, Instant], int | str]]] = {
    "version": lambda state, _: f"statestore {state.version()}".strip(),
    "uptime": lambda state, now: f"{max(0, int(now.monotonic - state.started_at))} seconds",
    "clients/connected": lambda state, _: state.clients,
    "clients/disconnected": lambda state, _: len(state.sessions) - state.clients,
    "clients/total": lambda state, _: len(state.sessions),
    "clients/maximum": lambda state, _: state.counters.most_clients,
    "clients/refused": lambda state, _: state.counters.refused_connects,
    "publish/messages/received": lambda state, _: state.counters.received_messages,
    "publish/messages/sent": lambda state, _: state.counters.sent_messages,
    "publish/messages/dropped": lambda state, _: state.counters.dropped,
    "bytes/received": lambda state, _: state.counters.received_bytes,
    "bytes/sent": lambda state, _: state.counters.sent_bytes,
    "retained messages/count": lambda state, _: len(state.retained),
    "subscriptions/count": lambda state, _: state.subscriptions.count,
    "store/messages/bytes": lambda state, _: state.budget.total,
}


@attrs.define(eq=False)
class SysTopics:
    """Publishes while somebody listens. Invariant: the timer is set exactly then."""

    _state: State
    _effects: EffectRunner
    _timer: Timer | None = None
    _last: dict[str, str] = attrs.Factory(dict)

    def subscribed(self, topic_filter: str, now: Instant) -> None:
        """A subscription was made; if it is about these, they have to be there."""
        if self._timer is None and self._state.limits.sys_interval_s and share_of(topic_filter)[1].startswith("$SYS"):
            self._renew(now)

    def restored(self, now: Instant) -> None:
        """The subscriptions of an earlier life are here."""
        if self._state.limits.sys_interval_s and self._has_listeners():
            self._renew(now)

    def _has_listeners(self) -> bool:
        return any(self._state.subscriptions.match(f"{OWN}{name}") for name in _FIGURES)

    def _renew(self, now: Instant) -> None:
        state, last = self._state, self._last
        for name, figure in _FIGURES.items():
            text = str(figure(state, now))
            if last.get(name) != text:
                last[name] = text
                self._effects.send(Publish(f"{OWN}{name}", text.encode(), retain=True), "", now)
        self._timer = state.timers.add(now.monotonic + state.limits.sys_interval_s, self._look)

    def _look(self, now: Instant) -> None:
        self._timer = None
        if self._has_listeners():
            self._renew(now)
            return
        self._last.clear()
        for name in _FIGURES:
            self._state.retained.discard(f"{OWN}{name}")
