"""Who is in a group, as the events of its keys tell it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.errors import InvalidArgumentError
from statestore_client.recipes.roster import Roster, RosterView, key_of, name_in, pattern_of, prefix_of

_EVENTS = st.lists(
    st.one_of(
        st.builds(
            WatchEvent,
            st.just(EventKind.SET),
            st.sampled_from([b"g/a", b"g/b", b"g/b/deeper", b"g/", b"g/\xff"]),
            st.sampled_from([b"1", b"2"]),
            st.none(),
        ),
        st.builds(WatchEvent, st.just(EventKind.DELETE), st.sampled_from([b"g/a", b"g/b"]), st.none(), st.none()),
        st.builds(
            WatchEvent,
            st.sampled_from([EventKind.SUSPENDED, EventKind.RESUMED]),
            st.just(b"g/"),
            st.none(),
            st.none(),
        ),
    )
)


@given(_EVENTS)
def test_a_roster_is_what_the_keys_hold(events: list[WatchEvent]) -> None:
    """It is told if and only if it is another one than before; renewals change nothing."""
    view, held, is_current = RosterView("g"), dict[bytes, bytes](), True
    for event in events:
        before = view.roster
        if event.kind is EventKind.SET:
            held[event.key] = event.value or b""
        elif event.kind is EventKind.DELETE:
            held.pop(event.key, None)
        else:
            is_current = event.kind is EventKind.RESUMED
        has_changed = view.changed(event)
        members = {key[2:].decode(): value for key, value in held.items() if key in (b"g/a", b"g/b")}
        assert view.roster == Roster(members, is_current)
        assert has_changed == (view.roster != before)


def test_names_are_in_one_order_for_all() -> None:
    """Also if they have joined in another one."""
    assert Roster({"b": b"1", "a": b"2"}).names == Roster({"a": b"2", "b": b"1"}).names == ("a", "b")


def test_keys_of_a_group() -> None:
    """A name has no '/', so that each key is of one group."""
    assert key_of("g", "a") == "g/a"
    assert name_in("g", b"g/a") == "a"
    assert [name_in("g", key) for key in (b"g/a/b", b"h/a", b"g/", b"g/\xff")] == [None] * 4
    assert pattern_of("g*[?") == "g[*][[][?]/*"
    wrong: Any
    for wrong in ("", "a/b", b"a", None):
        with pytest.raises(InvalidArgumentError, match="name of a member"):
            key_of("g", wrong)
    for wrong in ("", b"g", None):
        with pytest.raises(InvalidArgumentError, match="name of a group"):
            prefix_of(wrong)


_changed = RosterView.changed


def _counts_renewals(view: RosterView, event: WatchEvent) -> bool:
    return _changed(view, event) or event.kind is EventKind.SET


def _hears_no_farewell(view: RosterView, event: WatchEvent) -> bool:
    return event.kind is not EventKind.DELETE and _changed(view, event)


def _says_that_it_is_current(view: RosterView, event: WatchEvent) -> bool:
    return event.kind is not EventKind.SUSPENDED and _changed(view, event)


@pytest.mark.parametrize("mistake", [_counts_renewals, _hears_no_farewell, _says_that_it_is_current])
def test_a_mistake_is_seen(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some events show it."""
    monkeypatch.setattr(RosterView, "changed", mistake)
    with pytest.raises(AssertionError):
        test_a_roster_is_what_the_keys_hold()
