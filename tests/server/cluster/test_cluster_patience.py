"""How long clients wait for the log before they are let go, and when an outage is said: by table."""

from __future__ import annotations

from collections.abc import Callable

from statestore_client.server.cluster.patience import ClientPatience, LogOutage

_LOOK_S = 0.1


def _let_go_at(is_heard: Callable[[float], bool], until_s: float, since: float = 0.0) -> list[float]:
    """When clients are let go that wait from ``since`` on for an answer, and come back at once."""
    patience = ClientPatience(0.0)
    let_go = []
    for step in range(1, round(until_s / _LOOK_S) + 1):
        now = step * _LOOK_S
        if patience.is_over(max(0.0, now - since), now, is_heard=is_heard(now)):
            let_go.append(round(now, 1))
            since = now
    return let_go


def test_a_log_that_is_lost_lets_clients_go_after_a_second() -> None:
    """Whoever stays nevertheless waits longer each time."""
    assert _let_go_at(lambda now: now < 0.7, 23.0) == [1.0, 3.0, 7.0, 12.0, 17.0, 22.0]


def test_a_log_that_is_heard_is_slow_and_not_lost() -> None:
    """As with disks that stall."""
    assert _let_go_at(lambda _now: True, 11.0) == [5.0, 10.0]


def test_an_election_lets_nobody_go() -> None:
    """The leader is lost, another one is heard half a second later, and answers soon."""
    assert _let_go_at(lambda now: not 1.0 < now < 1.5, 2.5, since=1.0) == []


def test_the_next_outage_begins_anew() -> None:
    """With what is heard of a leader in between."""
    assert _let_go_at(lambda now: 4.0 < now < 4.5, 9.0) == [1.0, 3.0, 4.5, 6.5]


def test_a_process_that_stood_still_reads_first() -> None:
    """Silence that it slept through is not the log's."""
    patience = ClientPatience(0.0)
    assert not patience.is_over(9.0, 9.0, is_heard=False)
    assert patience.is_over(9.1, 9.1, is_heard=False)


def _said_at(is_heard: Callable[[float], bool], until_s: float) -> list[tuple[float, float, bool]]:
    """When a log without a leader is said, for how long it has been so, and whether it is over."""
    outage, said = LogOutage(0.0), []
    for step in range(1, round(until_s / _LOOK_S) + 1):
        now = step * _LOOK_S
        news = outage.look(now, is_heard=is_heard(now))
        if news is not None:
            said.append((round(now, 1), round(news.lasted_s, 1), news.is_over))
    return said


def test_an_outage_is_said_soon_and_again() -> None:
    """And its end, with its length; the next one anew."""
    assert _said_at(lambda now: now < 1.0 or 25.0 < now < 26.0, 28.0) == [
        (2.4, 1.5, False),
        (12.4, 11.5, False),
        (22.4, 21.5, False),
        (25.1, 24.2, True),
        (27.4, 1.5, False),
    ]


def test_an_election_is_no_outage() -> None:
    """Nothing is said of its end either."""
    assert _said_at(lambda now: not 1.0 < now < 2.3, 5.0) == []


def test_a_process_that_stood_still_says_nothing_of_the_log() -> None:
    """It has not listened."""
    outage = LogOutage(0.0)
    assert outage.look(0.1, is_heard=True) is None
    assert outage.look(60.0, is_heard=False) is None
    assert outage.lasts_s == 0.0
    assert outage.look(60.1, is_heard=True) is None
