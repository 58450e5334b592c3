"""The audit: it counts again, and finds what is broken inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.broker_driver import World
from support.broker_invariants import audit

from statestore_client.server.broker.session import Session
from statestore_client.server.broker.state import PendingDisconnect, State


def busy() -> World:
    """Clients that are here and away, with messages in flight and waiting, wills, retained messages and shares."""
    world = World(in_flight=2, connections_per_address=5)
    here = world.client("here", session_expiry=60)
    here.subscribe("t/#", "$share/g/t/1", qos=1)
    away = world.client("away", session_expiry=60)
    away.subscribe("t/+", qos=2, identifier=7)
    away.lose()
    sender = world.client("sender")
    for number in range(5):
        sender.publish(f"t/{number}", bytes(number * 10_000), 1, retain=number > 3)
    here.received()
    return world


def _session(state: State, client_id: str) -> Session:
    session = state.sessions.get(client_id)
    assert session is not None
    return session


def _count(state: State) -> None:
    state.clients += 1


def _hold(state: State) -> None:
    state.budget.total += 1


def _forget_a_subscription(state: State) -> None:
    del _session(state, "here").subscriptions["t/#"]


def _lose_a_queue_entry(state: State) -> None:
    _session(state, "away").outbound.waiting.items.pop()


def _end_quietly(state: State) -> None:
    _session(state, "away").left_at = None


def _swap_connections(state: State) -> None:
    here, sender = _session(state, "here"), _session(state, "sender")
    here.connection, sender.connection = sender.connection, here.connection


def _miscount_the_window(state: State) -> None:
    _session(state, "here").outbound.used -= 1


def _renumber(state: State) -> None:
    in_flight = _session(state, "here").outbound.in_flight
    in_flight[99] = in_flight.pop(next(iter(in_flight)))


def _retain_more(state: State) -> None:
    state.retained.bytes += 1


def _miscount_an_address(state: State) -> None:
    connection = _session(state, "here").connection
    assert connection is not None
    connection.counted_for = ("somebody", None)


def _leave_somebody_to_be_disconnected(state: State) -> None:
    state.pending_disconnects.append(PendingDisconnect(_session(state, "here"), 0x97, "x"))


def test_a_sound_broker_has_no_violations() -> None:
    """A sound broker has no violations, whatever is going on in it."""
    assert audit(busy().broker) == ()


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (_count, "clients: 3 noted, 2 counted"),
        (_hold, "bytes held for clients: "),
        (_forget_a_subscription, "subscriptions: 3 noted, 2 counted"),
        (_lose_a_queue_entry, "session 'away': queued bytes: "),
        (_end_quietly, "session 'away': it never expires although its client is away"),
        (_swap_connections, "session 'here': its connection has another session"),
        (_miscount_the_window, "session 'here': messages in flight on this connection: 1 noted, 2 counted"),
        (_renumber, "session 'here': a packet identifier is not that of its message"),
        (_retain_more, "retained bytes: "),
        (_miscount_an_address, "connections of users and addresses: "),
        (_leave_somebody_to_be_disconnected, "somebody is still to be disconnected"),
    ],
)
def test_what_is_broken_is_found(tamper: Callable[[State], None], found: str) -> None:
    """Each broken invariant is reported in words."""
    broker = busy().broker
    tamper(broker._state)
    assert any(text.startswith(found) for text in audit(broker)), audit(broker)
