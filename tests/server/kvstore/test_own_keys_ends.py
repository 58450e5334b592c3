"""How keys that a site keeps alive end: clear, erase, unset; refresh by hand; and keys that two sites persist, or whose
values change all the time.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from own_key_sites import KEY_TTL_MS, Mesh

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.own_keys import ERASE_TTL_MS, KeyContested
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, NoMergeReason, Value


@pytest.fixture
def mesh() -> Mesh:
    """Two sites; keys have a TTL of 8 s."""
    return Mesh("a", "b")


def test_a_cleared_key_ends_with_its_ttl(mesh: Mesh) -> None:
    """Nothing is sent; the key is there until its time is over, and then it is gone everywhere."""
    own = mesh.areas["a"].own
    own.set("key", b"x", mesh.now)
    mesh.run(3)
    assert own.clear("key", mesh.now)
    assert not own.clear("key", mesh.now)
    mesh.run(7)
    assert mesh.at("b", "key") is not None
    mesh.run(0.2)
    assert mesh.at("a", "key") is None
    assert mesh.at("b", "key") is None


def test_a_cleared_key_that_was_overridden_ends_too(mesh: Mesh) -> None:
    """What another site put in the place of a key that is let go has a countdown, also if its time is over already."""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    mesh.run(1)
    mesh.areas["a"].merge({"key": Value(9, "z", b"z", 50)}, "z", mesh.now)
    mesh.now += 0.06
    mesh.areas["a"].tick(mesh.now)
    assert mesh.at("a", "key") == (9, "z", b"z", 0)
    own.clear("key", mesh.now)
    mesh.areas["a"].tick(mesh.now)
    assert mesh.at("a", "key") is None


def test_an_erased_key_is_gone_everywhere_soon(mesh: Mesh) -> None:
    """Where the erasure gets to, the key ends within ERASE_TTL_MS: well before its own TTL would."""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    mesh.run(1)
    assert own.erase("key", mesh.now)
    mesh.run(ERASE_TTL_MS / 1000 + 0.01)
    assert mesh.at("a", "key") is None
    assert mesh.at("b", "key") is None
    assert mesh.times("a", "key", with_value=False) == [1.0]
    assert mesh.resyncs == []
    assert not own.erase("key", mesh.now)


def test_an_erasure_gets_past_a_slow_line() -> None:
    """Over ten hops, each of which takes 400 ms, an erased key is still long enough alive to be sent on."""
    mesh = Mesh(*(f"s{number}" for number in range(11)))
    names = list(mesh.areas)
    mesh.areas["s0"].own.set("key", b"x", mesh.now)
    mesh.settle()
    mesh.cut = set(names)
    mesh.areas["s0"].own.erase("key", mesh.now)
    entries = mesh.areas["s0"].store.leaving(mesh.areas["s0"].take_local_changes(), mesh.now)
    for sender, receiver in pairwise(names):
        mesh.now += 0.4
        accepted = mesh.areas[receiver].merge(entries, sender, mesh.now).accepted
        assert list(accepted) == ["key"]
        entries = mesh.areas[receiver].store.leaving(accepted, mesh.now)
    mesh.run(ERASE_TTL_MS / 1000)
    assert [mesh.at(name, "key") for name in names] == [None] * 11


def test_a_site_that_was_cut_off_loses_an_erased_key_within_its_ttl(mesh: Mesh) -> None:
    """After a partition the key may come back from there, but nobody refreshes it: it is gone within key_ttl."""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    mesh.run(1)
    mesh.cut = {"b"}
    own.erase("key", mesh.now)
    mesh.run(6)
    assert mesh.at("a", "key") is None
    mesh.cut = set()
    mesh.sync("a", "b")
    assert mesh.at("a", "key") is not None
    mesh.run(KEY_TTL_MS / 1000 - 6)
    assert mesh.at("a", "key") is None
    assert mesh.at("b", "key") is None


def test_what_another_site_says_is_not_erased(mesh: Mesh) -> None:
    """Erasing ends one's own only."""
    mesh.areas["b"].own.set("key", b"x", mesh.now)
    mesh.settle()
    assert not mesh.areas["a"].own.erase("key", mesh.now)
    mesh.run(20)
    assert mesh.at("a", "key") is not None


# -- unset -------------------------------------------------------------------------------------------------------------


def test_unset_says_a_last_value_and_lets_it_expire(mesh: Mesh) -> None:
    """The value has the next version and the TTL that is stored, goes out within 10 ms, and is not refreshed."""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    mesh.run(3)
    own.unset("key", b"gone", mesh.now)
    mesh.run(0.02)
    assert mesh.at("b", "key") == (2, "a", b"gone", 0)
    assert mesh.times("a", "key", with_value=True) == [0.1, 3.01]
    mesh.run(KEY_TTL_MS / 1000)
    assert mesh.at("a", "key") is None
    assert mesh.at("b", "key") is None


def test_unset_of_an_infinite_key_of_another_site_ends(mesh: Mesh) -> None:
    """A last value never has an infinite TTL: it has the one of the settings."""
    mesh.areas["b"].set({"key": Value(3, "b", b"x", INFINITE_TTL_MS)}, mesh.now)
    mesh.settle()
    mesh.areas["a"].own.unset("key", b"gone", mesh.now)
    mesh.run(1)
    assert mesh.at("b", "key") == (4, "a", b"gone", 0)
    mesh.run(8)
    assert mesh.at("b", "key") is None


@pytest.mark.parametrize("end", ["unset", "erase"])
def test_a_key_that_ends_before_it_was_sent_never_appears(mesh: Mesh, end: str) -> None:
    """Nothing is sent and nothing waits: of a key that was not there, or was persisted just now."""
    own = mesh.areas["a"].own
    own.unset("missing", b"x", mesh.now)
    own.persist("key", b"x", mesh.now)
    if end == "unset":
        own.unset("key", b"y", mesh.now)
    else:
        assert own.erase("key", mesh.now)
    mesh.run(20)
    assert mesh.sent == []
    assert mesh.areas["a"].next_deadline() is None


def test_unset_and_persist_within_the_window_persists(mesh: Mesh) -> None:
    """The unset is dropped."""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    mesh.run(1)
    own.unset("key", b"gone", mesh.now)
    own.persist("key", b"y", mesh.now)
    mesh.run(20)
    assert mesh.at("b", "key") == (2, "a", b"y", 9)


def test_the_last_of_several_unsets_counts_and_the_first_begins_the_window(mesh: Mesh) -> None:
    """Each call replaces the value of the one before, and none makes the window longer. (hazard c)"""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    mesh.run(1)
    own.unset("key", b"first", mesh.now)
    mesh.run(0.006)
    own.unset("key", b"last", mesh.now)
    mesh.run(0.5)
    assert mesh.at("b", "key") == (2, "a", b"last", 0)
    assert mesh.times("a", "key", with_value=True) == [0.1, 1.01]


# -- refresh by hand ---------------------------------------------------------------------------------------------------


def test_refresh_begins_the_time_of_a_key_again(mesh: Mesh) -> None:
    """The TTL version is raised, and the value is not sent again; a key that is not there is said."""
    area = mesh.areas["a"]
    area.set({"key": Value(2, "a", b"x", 3000)}, mesh.now)
    mesh.run(2)
    assert area.own.refresh("key", 9000, mesh.now) is None
    mesh.run(8.9)
    assert mesh.at("b", "key") == (2, "a", b"x", 1)
    mesh.run(0.2)
    assert mesh.at("b", "key") is None
    assert area.own.refresh("key", 9000, mesh.now) is NoMergeReason.NO_NEED_TO_UPDATE


def test_refresh_of_a_key_that_was_set_gives_it_that_ttl(mesh: Mesh) -> None:
    """The key is kept alive with the new TTL, at a quarter of it."""
    own = mesh.areas["a"].own
    own.set("key", b"x", mesh.now)
    mesh.run(1)
    assert own.refresh("key", 20_000, mesh.now) is None
    mesh.run(10)
    assert mesh.times("a", "key", with_value=False) == [1.0, 6.1]
    assert mesh.ttl_ms("b", "key") == 19_999
    with pytest.raises(InvalidArgumentError, match="a TTL of 1000 ms"):
        own.refresh("key", 1000, mesh.now)


def test_refresh_of_a_persisted_key_is_an_error(mesh: Mesh) -> None:
    """Its TTL is the one of the settings."""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    with pytest.raises(InvalidArgumentError, match="without being asked"):
        own.refresh("key", 20_000, mesh.now)


# -- much at once ------------------------------------------------------------------------------------------------------


def test_many_keys_are_advertised_and_refreshed_in_slices(mesh: Mesh) -> None:
    """A thousand keys of one window go out in bounded pieces, and all of them are kept alive."""
    own = mesh.areas["a"].own
    for number in range(1000):
        own.persist(str(number), b"x", mesh.now)
    mesh.now += 0.1
    sizes = []
    while (deadline := own.next_deadline()) is not None and deadline <= mesh.now:
        own.tick(mesh.now)
        sizes.append(len(mesh.areas["a"].take_local_changes()))
    assert sum(sizes) == 1000
    assert max(sizes) <= 64
    mesh.run(30)
    assert len(mesh.areas["a"].store) == 1000
    assert mesh.areas["a"].store.counters.expired == 0


def test_news_keeps_the_value_of_what_is_refreshed_before_it_was_sent(mesh: Mesh) -> None:
    """A key that is set and refreshed before the peers were told goes out with its value and the last TTL version."""
    area = mesh.areas["a"]
    area.own.set("key", b"x", mesh.now)
    area.own.refresh("key", 9000, mesh.now)
    news = area.take_local_changes()
    assert (news["key"].value, news["key"].ttl_version) == (b"x", 1)


# -- contests, and values that change all the time --------------------------------------------------------------------


def contest(mesh: Mesh) -> None:
    """Both persist one key, for ten seconds."""
    for name in ("a", "b"):
        mesh.areas[name].own.persist("key", name.encode(), mesh.now)
    mesh.run(10)


def test_two_sites_that_persist_one_key_are_told_and_slow_down(mesh: Mesh) -> None:
    """After three rounds each of the two says that the key is contested, once, and advertises every 8.192 s."""
    contest(mesh)
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
    contest(mesh)
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
    contest(mesh)
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
    contest(mesh)
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
    contest(mesh)
    mesh.sent.clear()
    for number in range(600):
        mesh.areas["a"].own.persist("key", b"%d" % number, mesh.now)
        mesh.run(0.1)
    gaps = [later - earlier for earlier, later in pairwise(mesh.times("a", "key", with_value=True))]
    assert len(gaps) >= 5
    assert min(gaps) >= 8.19
