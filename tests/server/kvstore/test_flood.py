"""Floods: the path, split horizon, and the rate limit with its merged publications."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from site_pair import AREA, OneSite

from statestore_client.server.kvstore.floods import FloodLimiter, FloodRate
from statestore_client.wire.kvstore.codec import encode
from statestore_client.wire.kvstore.messages import Flood
from statestore_client.wire.kvstore.value import Value


def three(rate: FloodRate | None = None) -> OneSite:
    """Bonn with three peers, all INITIALIZED."""
    one = OneSite("bonn", rate=rate)
    one.wait(0.0)
    for name in ("oslo", "rome", "york"):
        one.sync_with(name, link=name)
    one.site.output.clear()
    return one


def floods(one: OneSite) -> dict[str, list[tuple[tuple[str, ...], set[str]]]]:
    """SitePeer -> path and keys of each flood that it was sent."""
    output = list(one.site.output)
    found = {}
    for name in ("oslo", "rome", "york"):
        one.site.output = list(output)
        sent = [m for m in one.said(name) if isinstance(m, Flood)]
        assert all(m.area == AREA for m in sent)
        found[name] = [(m.path, set(m.entries)) for m in sent]
    return {name: sent for name, sent in found.items() if sent}


def of(names: tuple[str, ...], flood: tuple[tuple[str, ...], set[str]]) -> dict[str, list[Any]]:
    """Each of these was sent this one."""
    return {name: [flood] for name in names}


def everyone(flood: tuple[tuple[str, ...], set[str]]) -> dict[str, list[Any]]:
    """All three."""
    return of(("oslo", "rome", "york"), flood)


def pass_a_second(one: OneSite) -> None:
    """What was sent before does not count."""
    one.site.output.clear()
    one.now += 1.0
    one.site.tick(one.now)


def test_what_begins_here_goes_to_all_with_this_site_as_the_path() -> None:
    """A key that is set here: the path is the own name."""
    one = three()
    one.set("k")
    assert floods(one) == everyone((("bonn",), {"k"}))


def test_the_path_grows_and_nobody_in_it_is_sent_the_update() -> None:
    """An update that came through Oslo and Rome goes to York only."""
    one = three()
    one.site.receive("rome", _flood(1, ("oslo", "rome"), "k"), one.now)
    assert floods(one) == {"york": [(("oslo", "rome", "bonn"), {"k"})]}


def test_what_is_known_is_not_sent_on() -> None:
    """The second way on which an update comes ends here."""
    one = three()
    one.site.receive("rome", _flood(1, ("oslo", "rome"), "k"), one.now)
    one.site.output.clear()
    one.site.receive("york", _flood(1, ("oslo", "york"), "k"), one.now)
    assert floods(one) == {}
    assert one.replica.counters.redundant_publications == 1


def test_a_limit_lets_a_burst_go_and_merges_what_comes_then() -> None:
    """One token for a publication; keys that wait go once, with area and path, when there is a token."""
    one = three(FloodRate(1, 2))
    for n in range(4):
        one.set("k", b"x", n + 1)
    assert [len(sent) for sent in floods(one).values()] == [2, 2, 2]
    one.set("other")
    pass_a_second(one)
    assert floods(one) == everyone((("bonn",), {"k", "other"}))


def test_merged_updates_keep_their_paths() -> None:
    """Updates of different paths wait apart, so that nobody is left out who is in the path of another one."""
    one = three(FloodRate(1, 1))
    one.set("spends the token")
    one.site.output.clear()
    one.site.receive("rome", _flood(1, ("rome",), "from rome"), one.now)
    one.site.receive("york", _flood(1, ("york",), "from york"), one.now)
    assert floods(one) == {}
    pass_a_second(one)
    assert floods(one) == of(("oslo", "york"), (("rome", "bonn"), {"from rome"}))
    pass_a_second(one)
    assert floods(one) == of(("oslo", "rome"), (("york", "bonn"), {"from york"}))


def _flood(number: int, path: tuple[str, ...], key: str) -> bytes:
    return encode(Flood(number, AREA, path, {key: Value(1, path[0], b"x")}))


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["x", "y", "z"]), st.integers(0, 3)), max_size=40))
def test_no_key_is_lost_or_waits_twice(updates: list[tuple[str, str, int]]) -> None:
    """Each key that had to wait leaves once, under the path of its latest update; the rate is kept."""
    limiter = FloodLimiter(FloodRate(1, 2))
    now, left, waiting = 0.0, 0, dict[str, tuple[str, ...]]()
    value = Value(1, "x", b"")
    for key, site, pause in updates:
        now += pause / 4
        if limiter.admit({key: value}, (site,), now):
            left += 1
            assert not waiting
        else:
            waiting[key] = (site,)
        for path, keys in limiter.due(now):
            left += 1
            for due in keys:
                assert waiting.pop(due) == path
        assert left <= 2 + now
        assert (limiter.next_deadline(now) is not None) == bool(waiting)
    for second in range(1, 20):
        for path, keys in limiter.due(now + second):
            for due in keys:
                assert waiting.pop(due) == path
    assert not waiting


def test_a_key_that_is_refreshed_while_it_waits_keeps_its_place() -> None:
    """More is to be sent than the limit allows: every key gets its turn, however often the others are updated."""
    limiter = FloodLimiter(FloodRate(1, 1))
    keys = [f"key {n}" for n in range(12)]
    left: dict[str, list[int]] = {key: [] for key in keys}
    for second in range(120):
        for n, key in enumerate(keys):
            if (second + n) % 5 == 0:
                # It comes by one way, and then by another one.
                limiter.admit([key], (key, f"by {second % 2}"), float(second))
        for _, due in limiter.due(float(second)):
            for key in due:
                left[key].append(second)
    for key in keys:
        assert max(later - before for before, later in itertools.pairwise([0, *left[key], 120])) <= 2 * len(keys), key
