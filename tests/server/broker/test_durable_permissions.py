"""What clients of a standby's sessions may do: asked while it follows, and again if the rules have changed."""

from __future__ import annotations

import random

from support.broker_driver import Allowed
from support.broker_invariants import audit
from support.durable_broker import BOOT, DAY, DurableWorld
from support.durable_store import batch_of

from statestore_client.server.broker import Admitted, Broker
from statestore_client.server.broker.admission import Credentials
from statestore_client.server.journal import Journal, Stream


class _Rules:
    """Of each server. ``asked`` counts how often."""

    def __init__(self) -> None:
        self.rules = {"user": frozenset(("t/1", "t/2")), "other": frozenset(("t/1",))}
        self.asked = 0

    def authenticate(self, credentials: Credentials) -> Admitted:
        del credentials
        return Admitted("user")

    def permissions(self, user: str | None, client_id: str) -> Allowed:
        del client_id
        self.asked += 1
        return Allowed(self.rules[user or ""])

    def become_strict(self) -> None:
        self.rules = {"user": frozenset(("t/1",))}


class _Standby:
    """It follows a server with clients that have subscribed, and goes by rules of its own."""

    def __init__(self) -> None:
        self.world = DurableWorld(gatekeeper=_Rules())
        self.rules = _Rules()
        self.journal = Journal(BOOT)
        self.journal.follow(self.world.now)
        self.broker = Broker(random=random.Random(7), gatekeeper=self.rules, journal=self.journal)

    def follow(self) -> None:
        for name in ("a", "b"):
            self.world.client(name, session_expiry=DAY).subscribe("t/1", "t/2", qos=1)
        self.world.work()
        for batch in self.world.storage.batches:
            self.broker.absorb(batch, self.journal.timeline)

    def take_over(self) -> dict[str, list[str]]:
        """The filters of each client, and what is written at once."""
        self.rules.asked = 0
        self.broker.restore(self.world.storage, self.world.now, is_warm=True)
        assert audit(self.broker) == ()
        self.world.storage.append(self.journal.cut(self.world.now), lambda _error: None)
        written = sorted(str(name).partition(" ")[2] for name in self.world.storage.streams[Stream.SUBSCRIPTIONS])
        filters = {view.client_id: [*view.subscriptions] for view in self.broker.sessions()}
        assert written == sorted(name for names in filters.values() for name in names)
        return filters


def test_nobody_is_asked_again_under_the_same_rules() -> None:
    """A standby asks for each session as it comes, so that taking over asks nobody."""
    standby = _Standby()
    standby.follow()
    assert standby.rules.asked == 2
    assert standby.take_over() == {"a": ["t/1", "t/2"], "b": ["t/1", "t/2"]}
    assert standby.rules.asked == 0


def test_rules_that_have_changed_count_at_the_take_over() -> None:
    """Subscriptions that are not permitted any more end, and their records go."""
    standby = _Standby()
    standby.follow()
    standby.rules.become_strict()
    assert standby.take_over() == {"a": ["t/1"], "b": ["t/1"]}


def test_rules_that_differ_from_those_of_the_active_server_count() -> None:
    """What a standby's own rules do not permit is kept while it follows, and ends when it takes over: until then it
    writes nothing."""
    standby = _Standby()
    standby.rules.become_strict()
    standby.follow()
    assert {view.client_id: len(view.subscriptions) for view in standby.broker.sessions()} == {"a": 2, "b": 2}
    assert not standby.journal
    assert standby.take_over() == {"a": ["t/1"], "b": ["t/1"]}


def test_a_session_of_another_user_has_the_rights_of_that_user() -> None:
    """The record of a session may name another user than before."""
    standby = _Standby()
    standby.follow()
    batch = batch_of(Stream.SESSIONS, ("a", (1, DAY, "other", None, None, None)))
    standby.broker.absorb(batch, standby.journal.timeline)
    assert standby.take_over() == {"b": ["t/1", "t/2"], "a": ["t/1"]}
