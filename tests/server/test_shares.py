"""What users share: nobody uses up what is there for the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statestore_client.server.shares import PER_USER, Shares


def take(shares: Shares, user: str | None, amount: int = 1) -> str | None:
    """Add it if it is allowed; the name of the quota that it lacks."""
    quota = shares.lacking(user, amount, amount)
    if quota is None:
        shares.add(user, amount)
    return quota


def fill(shares: Shares, user: str | None) -> int:
    """As much as this user gets."""
    count = 0
    while take(shares, user) is None:
        count += 1
    return count


def test_who_has_much_gets_no_more_than_the_limit() -> None:
    """The limit is there for anybody; an eighth more for users who have a 64th of it at most; then nothing is left."""
    shares = Shares("things", 640)
    assert fill(shares, "greedy") == 640
    assert take(shares, "greedy") == "things"
    assert fill(shares, "modest") == 10
    assert fill(shares, None) == 10
    assert [fill(shares, f"user {number}") for number in range(8)] == [10] * 6 + [0] * 2
    assert shares.total == 720


def test_clients_without_a_user_are_one_user_without_a_quota_of_its_own() -> None:
    """They have no quota per user, and leave the others what is beyond the limit."""
    shares = Shares("things", 64, 10)
    assert fill(shares, "a") == 10
    assert take(shares, "a") == "things" + PER_USER
    assert fill(shares, None) == 54
    assert take(shares, None) == "things"
    assert take(shares, "b") is None


def test_what_is_not_more_is_never_refused() -> None:
    """With a limit that is lower now, things may still become fewer, stay, and be given to somebody who has room."""
    shares = Shares("things", 4, 2)
    shares.add("a", 3)
    shares.add("b", 3)
    assert shares.lacking("a", 0, 0) is None
    assert shares.lacking("a", -1, -1) is None
    assert shares.lacking("c", 0, 1) is None
    assert shares.lacking("b", 0, 1) == "things" + PER_USER
    assert shares.lacking("a", 1, 1) == "things" + PER_USER


@given(st.integers(0, 200), st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(1, 9))))
def test_users_never_have_more_than_there_is(limit: int, wishes: list[tuple[str | None, int]]) -> None:
    """Whatever is asked for, the total is that of the users and has its bound; the largest is known; all can go."""
    shares = Shares("things", limit)
    has: dict[str | None, int] = {}
    for user, amount in wishes:
        if take(shares, user, amount) is None:
            has[user] = has.get(user, 0) + amount
    assert shares.total == sum(has.values()) <= limit + limit // 8
    assert shares.largest == max(has.values(), default=0)
    assert not [*shares.violations()]
    for user, amount in has.items():
        shares.add(user, -amount)
        assert shares.of(user) == 0
    assert (shares.total, shares.largest, shares._of) == (0, 0, {})
