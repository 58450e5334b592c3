"""Which filters a session has, and which are asked for."""

from __future__ import annotations

from statestore_client.core.actions import Action, Subscribe
from statestore_client.core.subscriptions import Subscriptions
from statestore_client.errors import NotAuthorizedError, TransportError
from statestore_client.wire.messages import Subscribed


def test_only_what_is_missing_is_asked_for() -> None:
    """Filters that the session has, and those whose answer is still to come, are not asked for again."""
    actions: list[Action] = []
    subscriptions = Subscriptions(actions)
    subscriptions.ask("a")
    subscriptions.ask("a", "b")
    subscriptions.answered(Subscribed(1, (1,)))
    subscriptions.ask("a", "b", "c")
    assert actions == [Subscribe(1, ("a",)), Subscribe(2, ("b",)), Subscribe(3, ("c",))]
    assert "a" in subscriptions
    assert "b" not in subscriptions


def test_a_suback_grants_and_refuses() -> None:
    """Each filter has a reason code, 0x87 for "not authorized"; a filter without one is neither granted nor refused."""
    subscriptions = Subscriptions([])
    subscriptions.ask("a", "b", "c", "d")
    granted, refused = subscriptions.answered(Subscribed(1, (0, 0x87, 0x97)))
    assert granted == {"a"}
    assert [type(refused[name]) for name in "bc"] == [NotAuthorizedError, TransportError]
    assert "0x97" in str(refused["c"])
    assert [name in subscriptions for name in "abcd"] == [True, False, False, False]
    assert subscriptions.answered(Subscribed(1, (0, 0, 0, 0))) == (set(), {})


def test_a_lost_connection_takes_the_questions_and_a_lost_session_the_answers() -> None:
    """After a lost connection what was granted stays and what was asked for is asked for again; a lost session loses
    both."""
    actions: list[Action] = []
    subscriptions = Subscriptions(actions)
    subscriptions.ask("a")
    subscriptions.answered(Subscribed(1, (1,)))
    subscriptions.ask("b")
    subscriptions.disconnected()
    assert subscriptions.answered(Subscribed(2, (1,))) == (set(), {})
    subscriptions.ask("a", "b")
    assert actions[-1] == Subscribe(3, ("b",))
    subscriptions.session_lost()
    subscriptions.ask("a")
    assert actions[-1] == Subscribe(4, ("a",))
