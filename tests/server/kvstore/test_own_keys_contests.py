"""Keys that two sites persist, and keys whose values change all the time: how often they are sent."""

from __future__ import annotations

from itertools import pairwise

import pytest
from own_key_sites import KEY_TTL_MS, Mesh

from statestore_client.server.kvstore.own_key import KeyContested
from statestore_client.wire.kvstore.value import Value


@pytest.fixture
def mesh() -> Mesh:
    """Two sites; keys have a TTL of 8 s."""
    return Mesh("a", "b")


def test_two_sites_that_persist_one_key_are_told_and_slow_down(mesh: Mesh) -> None:
    """After three rounds each of the two says that the key is contested, once, and advertises every 8.192 s."""
    for name in ("a", "b"):
        mesh.areas[name].own.persist("key", name.encode(), mesh.now)
    mesh.run(10)
    assert mesh.areas["a"].own.events == [KeyContested("key", "b")]
    assert mesh.areas["b"].own.events == [KeyContested("key", "a")]
    assert mesh.areas["a"].own.contested == 1
    mesh.sent.clear()
    mesh.run(100)
    for name in ("a", "b"):
        times = mesh.times(name, "key", with_value=True)
        assert 10 <= len(times) <= 13
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert min(gaps) >= 8.19
    assert len(mesh.areas["a"].own.events) == 1


def test_a_contest_ends_when_one_of_the_two_stops(mesh: Mesh) -> None:
    """The key of the one that goes on is everywhere, and after half a minute it is not contested any more."""
    for name in ("a", "b"):
        mesh.areas[name].own.persist("key", name.encode(), mesh.now)
    mesh.run(10)
    mesh.areas["b"].own.clear("key", mesh.now)
    mesh.run(60)
    assert mesh.areas["a"].own.contested == 0
    assert mesh.at("b", "key") == mesh.at("a", "key")
    own = mesh.areas["a"].own.get("key")
    assert own is not None
    assert own.backoff_ms == 0
    mesh.areas["b"].set({"key": Value(10_000, "b", b"again")}, mesh.now)
    mesh.run(0.2)
    assert mesh.at("b", "key") == (10_001, "a", b"a", 0)


def test_a_contest_ends_also_while_the_own_value_changes() -> None:
    """Each new value puts the refresh off, which with a usual TTL comes late anyway; the calm is counted beside it."""
    mesh = Mesh("a", "b", key_ttl_ms=300_000)
    for name in ("a", "b"):
        mesh.areas[name].own.persist("key", name.encode(), mesh.now)
    mesh.run(10)
    area = mesh.areas["a"]
    assert area.own.contested == 1
    mesh.areas["b"].own.clear("key", mesh.now)
    for number in range(40):
        area.own.persist("key", b"%d" % number, mesh.now)
        mesh.run(1)
    assert area.own.contested == 0
    own = area.own.get("key")
    assert own is not None
    assert not own.is_contested
    assert mesh.at("b", "key") == mesh.at("a", "key")


@pytest.mark.parametrize("end", ["clear", "set", "erase"])
def test_a_key_that_is_let_go_is_contested_no_more(mesh: Mesh, end: str) -> None:
    """However it is let go; the calm of another one that follows is its own."""
    for name in ("a", "b"):
        mesh.areas[name].own.persist("key", name.encode(), mesh.now)
    mesh.run(10)
    own = mesh.areas["a"].own
    assert own.contested == 1
    if end == "set":
        assert own.set("key", b"x", mesh.now) is None
    else:
        getattr(own, end)("key", mesh.now)
    assert own.contested == 0
    mesh.run(60)
    assert own.contested == 0


@pytest.mark.parametrize("pause", [0.02, 0.15, 0.5])
def test_a_key_whose_own_values_change_all_the_time_is_said_all_the_time(mesh: Mesh, pause: float) -> None:
    """However long and however fast a site changes its own key, others have what it said a tenth of a second ago."""
    own = mesh.areas["a"].own
    for number in range(round(20 / pause)):
        own.persist("key", b"%d" % number, mesh.now)
        mesh.run(pause)
        there = mesh.at("b", "key")
        if number * pause > 0.1:
            assert there is not None
            assert there[2] is not None
            assert (number - int(there[2])) * pause <= 0.1 + pause
    times = mesh.times("a", "key", with_value=True)
    assert len(times) >= 19 / max(0.12, pause)
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.099


def test_overrides_of_one_key_back_off(mesh: Mesh) -> None:
    """Each override within half a minute makes the next defence slower; after a rest it begins at 64 ms again."""
    area, backoffs = mesh.areas["a"], []
    area.own.persist("key", b"mine", mesh.now)
    mesh.run(0.2)
    own = area.own.get("key")
    assert own is not None
    assert own.backoff_ms == 0
    for pause in (1.0, 1.0, 40.0, 1.0):
        mesh.areas["b"].set({"key": Value(own.entry.version + 1, "b", b"other", KEY_TTL_MS)}, mesh.now)
        mesh.settle()
        backoffs.append(own.backoff_ms)
        mesh.run(pause)
        assert mesh.at("b", "key") == mesh.at("a", "key") == (own.entry.version, "a", b"mine", own.entry.ttl_version)
    assert backoffs == [64, 128, 8192, 64]


def test_new_values_of_a_contested_key_keep_the_slow_pace(mesh: Mesh) -> None:
    """A site that changes its value all the time cannot outdo the other one: each says one in 8.192 s."""
    for name in ("a", "b"):
        mesh.areas[name].own.persist("key", name.encode(), mesh.now)
    mesh.run(10)
    mesh.sent.clear()
    for number in range(600):
        mesh.areas["a"].own.persist("key", b"%d" % number, mesh.now)
        mesh.run(0.1)
    gaps = [later - earlier for earlier, later in pairwise(mesh.times("a", "key", with_value=True))]
    assert len(gaps) >= 5
    assert min(gaps) >= 8.19
