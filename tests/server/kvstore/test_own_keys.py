"""Keys that a site keeps alive: each call, each batch, each line of the table of their defence, what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_key_sites import KEY_TTL_MS, Mesh

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore import own_keys
from statestore_client.server.kvstore.area import Area, SubscriberOptions
from statestore_client.server.kvstore.area_store import AreaLimits
from statestore_client.server.kvstore.own_keys import ERASE_TTL_MS, KeyLost
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, MAX_VERSION, NoMergeReason, Value


@pytest.fixture
def mesh() -> Mesh:
    """Two sites; keys have a TTL of 8 s."""
    return Mesh("a", "b")


# -- set ---------------------------------------------------------------------------------------------------------------


def test_a_key_that_is_set_is_advertised_at_once(mesh: Mesh) -> None:
    """A new key has version 1, the next value one above what is stored."""
    own = mesh.areas["a"].own
    assert own.set("key", b"x", mesh.now) is None
    mesh.settle()
    assert mesh.at("b", "key") == (1, "a", b"x", 0)
    own.set("key", b"y", mesh.now)
    own.set("other", b"y", mesh.now, version=7)
    mesh.settle()
    assert mesh.at("b", "key") == (2, "a", b"y", 0)
    assert mesh.at("b", "other") == (7, "a", b"y", 0)


def test_a_set_that_is_refused_changes_nothing(mesh: Mesh) -> None:
    """A version that is too low is refused with the reason, and what the site said before stays alive."""
    own = mesh.areas["a"].own
    own.set("key", b"x", mesh.now, version=5)
    assert own.set("key", b"y", mesh.now, version=4) is NoMergeReason.OLD_VERSION
    assert own.set("new", b"x" * (1 << 20), mesh.now) is NoMergeReason.VALUE_TOO_LARGE
    assert own.get("new") is None
    mesh.run(21.5)
    assert mesh.at("b", "key") == (5, "a", b"x", 10)


@pytest.mark.parametrize("ttl_ms", [INFINITE_TTL_MS, 0, 1999])
def test_what_is_kept_alive_has_a_ttl_that_gets_far(mesh: Mesh, ttl_ms: int) -> None:
    """An infinite TTL, or one that is over before it gets anywhere, is an error of the caller."""
    with pytest.raises(InvalidArgumentError, match="a TTL of"):
        mesh.areas["a"].own.set("key", b"x", mesh.now, ttl_ms=ttl_ms)
    with pytest.raises(InvalidArgumentError, match="a TTL of"):
        Area("0", "a", key_ttl_ms=ttl_ms)


def test_refreshes_come_at_a_quarter_of_the_ttl(mesh: Mesh) -> None:
    """A key stays everywhere as long as its TTL is raised, by a message without the value."""
    mesh.areas["a"].own.set("key", b"x", mesh.now)
    mesh.run(20)
    assert mesh.times("a", "key", with_value=True) == [0.0]
    assert mesh.times("a", "key", with_value=False) == [2.1, 4.2, 6.3, 8.4, 10.5, 12.6, 14.7, 16.8, 18.9]
    assert mesh.at("b", "key") == (1, "a", b"x", 9)


@pytest.mark.parametrize("how", ["set", "persist"])
def test_a_site_that_starts_again_begins_the_countdown_anew(mesh: Mesh, how: str) -> None:
    """It says the same version as before; the TTL version is higher, so that no other site lets the key end."""

    def say() -> None:
        assert getattr(mesh.areas["a"].own, how)("key", b"x", mesh.now) is None

    say()
    mesh.run(20)
    mesh.cut.add("a")
    mesh.run(KEY_TTL_MS / 1000 - 1)
    mesh.areas["a"] = Area("0", "a", key_ttl_ms=KEY_TTL_MS, started_ms=1_000)
    mesh.cut.clear()
    say()
    for _ in range(4):
        mesh.run(0.5)
        assert mesh.at("b", "key") == (1, "a", b"x", 1_000)
    mesh.run(20)
    assert mesh.at("b", "key") == mesh.at("a", "key")
    assert mesh.resyncs == []


def test_a_key_that_was_set_is_lost_when_another_site_overrides_it(mesh: Mesh) -> None:
    """Lost: the program is told, and nothing is refreshed any more. (hazard a)"""
    mesh.areas["a"].own.set("key", b"x", mesh.now)
    mesh.settle()
    mesh.areas["b"].own.set("key", b"y", mesh.now)
    mesh.run(20)
    assert mesh.areas["a"].own.events == [KeyLost("key", "b", 2)]
    assert mesh.areas["a"].own.get("key") is None
    assert mesh.times("a", "key", with_value=True) == [0.0]
    assert mesh.at("a", "key") == (2, "b", b"y", 9)


def test_a_key_of_the_same_version_is_lost_to_a_higher_originator(mesh: Mesh) -> None:
    """Both set version 1 in a partition: the higher originator wins everywhere, and the other one learns it."""
    for name in ("a", "b"):
        mesh.areas[name].own.set("key", name.encode(), mesh.now)
        mesh.areas[name].take_local_changes()
    mesh.sync("a", "b")
    assert mesh.at("a", "key") == mesh.at("b", "key") == (1, "b", b"b", 0)
    assert mesh.areas["a"].own.events == [KeyLost("key", "b", 1)]
    assert mesh.areas["b"].own.events == []


def test_a_lost_key_is_remembered_until_it_is_said_anew_or_let_go(mesh: Mesh) -> None:
    """Losses are numbered; each way to say something else of the key, or to want it no more, ends its memory."""
    own, other = mesh.areas["a"].own, mesh.areas["b"].own

    def lose(*keys: str) -> None:
        for key in keys:
            own.set(key, b"x", mesh.now)
        mesh.settle()
        for key in keys:
            other.set(key, b"y", mesh.now)
        mesh.settle()

    lose("set", "persisted", "cleared", "erased", "unset", "stays")
    assert [number for number, _ in own.lost.after(4)] == [5, 6]
    own.set("set", b"z", mesh.now)
    own.persist("persisted", b"z", mesh.now)
    assert not own.clear("cleared", mesh.now)
    own.erase("erased", mesh.now)
    own.unset("unset", b"z", mesh.now)
    assert [loss.key for loss in own.lost] == ["stays"]
    lose("stays", "set")
    assert [(number, loss.key) for number, loss in own.lost.after(0)] == [(7, "stays"), (8, "set")]
    assert own.lost.number == 8


def test_only_so_many_losses_are_remembered(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten; all are counted."""
    monkeypatch.setattr(own_keys, "_MOST_LOST", 2)
    lost = mesh.areas["a"].own.lost
    for key in ("k", "l", "k", "m"):
        lost.add(KeyLost(key, "b", 2))
    assert [loss.key for loss in lost] == ["k", "m"]
    assert lost.number == 4


# -- persist -----------------------------------------------------------------------------------------------------------


def test_persist_is_advertised_within_100_ms_and_once(mesh: Mesh) -> None:
    """The window begins with the first call; later calls join it and do not make it longer."""
    own = mesh.areas["a"].own
    own.persist("key", b"x", mesh.now)
    mesh.run(0.06)
    own.persist("other", b"x", mesh.now)
    own.persist("key", b"x", mesh.now)
    mesh.run(0.2)
    assert mesh.times("a", "key", with_value=True) == [0.1]
    assert mesh.times("a", "other", with_value=True) == [0.1]
    assert mesh.at("b", "key") == (1, "a", b"x", 0)


def test_persist_of_what_is_stored_advertises_nothing(mesh: Mesh) -> None:
    """What this site has said before, in its own name and with the same value, is kept; another TTL is put right."""
    area = mesh.areas["a"]
    area.set({"same": Value(4, "a", b"x", KEY_TTL_MS, 3), "short": Value(4, "a", b"x", 7000, 3)}, mesh.now)
    mesh.settle()
    for key in ("same", "short"):
        assert area.own.persist(key, b"x", mesh.now) is None
    mesh.run(0.5)
    assert mesh.times("a", "same", with_value=False) == []
    assert mesh.times("a", "short", with_value=False) == [0.1]
    assert mesh.at("b", "short") == (4, "a", b"x", 4)
    assert mesh.ttl_ms("b", "short") == KEY_TTL_MS - 1
    mesh.run(1.7)
    assert mesh.times("a", "same", with_value=False) == [2.1]


def test_persist_of_what_is_stored_for_long_refreshes_at_once(mesh: Mesh) -> None:
    """An adopted entry that has little of its time left is not left to expire before its first refresh."""
    area = mesh.areas["a"]
    area.set({"key": Value(1, "a", b"x", KEY_TTL_MS)}, mesh.now)
    mesh.run(7)
    area.own.persist("key", b"x", mesh.now)
    mesh.run(10)
    assert mesh.times("a", "key", with_value=True) == [0.0, 7.1]
    assert mesh.at("b", "key") is not None


@pytest.mark.parametrize(
    "stored", [Value(5, "b", b"x", KEY_TTL_MS, 4), Value(5, "a", b"y", KEY_TTL_MS, 4)], ids=["originator", "value"]
)
def test_persist_goes_above_what_is_stored(mesh: Mesh, stored: Value) -> None:
    """What another site has said, or another value, is overridden with the next version, and the TTL begins again."""
    mesh.areas["b"].set({"key": stored}, mesh.now)
    mesh.settle()
    mesh.areas["a"].own.persist("key", b"x", mesh.now)
    mesh.run(0.2)
    assert mesh.at("b", "key") == (6, "a", b"x", 0)


def test_persist_of_what_was_set_defends_it_from_then_on(mesh: Mesh) -> None:
    """The same value: nothing is sent, but an override is answered; the TTL becomes the one of the settings."""
    own = mesh.areas["a"].own
    own.set("key", b"x", mesh.now, ttl_ms=4000)
    own.persist("key", b"x", mesh.now)
    mesh.run(0.5)
    assert mesh.at("a", "key") == (1, "a", b"x", 1)
    assert mesh.ttl_ms("a", "key") == KEY_TTL_MS
    mesh.areas["b"].set({"key": Value(3, "b", b"y")}, mesh.now)
    mesh.run(1)
    assert mesh.at("b", "key") == (4, "a", b"x", 0)


def test_persist_is_refused_where_it_could_not_be_stored() -> None:
    """A value that is too large, or an area without room, is said at once; nothing is kept."""
    area = Area("0", "a", limits=AreaLimits(max_keys=1))
    assert area.own.persist("key", b"x" * (1 << 20), 0.0) is NoMergeReason.VALUE_TOO_LARGE
    assert area.own.persist("", b"x", 0.0) is NoMergeReason.INVALID_KEY
    area.set({"full": Value(1, "a", b"x")}, 0.0)
    assert area.own.persist("key", b"x", 0.0) is NoMergeReason.NO_ROOM
    assert len(area.own) == 0
    assert area.next_deadline() is None


def test_a_room_that_fills_up_meanwhile_is_tried_again() -> None:
    """A persisted key that finds no room when its window is over is tried again every 8 s."""
    area = Area("0", "a", limits=AreaLimits(max_keys=1))
    area.own.persist("key", b"x", 0.0)
    area.set({"full": Value(1, "b", b"x", 3000)}, 0.0)
    while area.get("key") is None:
        deadline = area.next_deadline()
        assert deadline is not None
        assert deadline < 12
        area.tick(deadline)
    assert area.own.get("key") is not None


# -- the table of the defence ------------------------------------------------------------------------------------------


def persisted(mesh: Mesh) -> None:
    """Site a persists version 5 of a key, TTL version 1."""
    mesh.areas["a"].set({"key": Value(5, "a", b"mine", KEY_TTL_MS - 1)}, mesh.now)
    mesh.areas["a"].own.persist("key", b"mine", mesh.now)
    mesh.run(1)
    assert mesh.at("b", "key") == (5, "a", b"mine", 1)


@pytest.mark.parametrize(
    ("override", "version"),
    [
        (Value(9, "b", b"other"), 10),
        (Value(9, "a", b"mine"), 10),
        (Value(5, "b", b"mine"), 6),
        (Value(5, "a", b"other"), 6),
        (Value(9, "b", b"other", 400), 10),
    ],
    ids=["higher", "higher and the same", "originator", "value", "too short a TTL to be sent on"],
)
def test_an_override_is_answered_with_the_next_version(mesh: Mesh, override: Value, version: int) -> None:
    """What wins against a persisted key is overridden in its turn, within 100 ms, also if it never leaves this site."""
    persisted(mesh)
    mesh.areas["a"].merge({"key": override}, "b", mesh.now)
    mesh.run(0.15)
    # Nothing that is said of a key in this site's own name stays above what this site says of it.
    ttl_version = override.ttl_version + 1 if override.originator == "a" else 0
    assert mesh.at("a", "key") == mesh.at("b", "key") == (version, "a", b"mine", ttl_version)
    assert mesh.areas["a"].own.events == []


def test_followers_see_the_override_and_then_the_answer(mesh: Mesh) -> None:
    """A subscriber sees what another site said, and then what this site says."""
    persisted(mesh)
    subscription = mesh.areas["a"].subscribers.subscribe(SubscriberOptions())
    mesh.areas["b"].set({"key": Value(9, "b", b"other")}, mesh.now)
    mesh.run(1)
    seen = []
    while publication := subscription.take():
        seen += [(entry.version, entry.originator) for entry in publication.entries.values()]
    assert seen == [(9, "b"), (10, "a")]


@pytest.mark.parametrize("entry", [Value(4, "z", b"z"), Value(5, "a", b"min"), Value(5, "A", b"z")])
def test_what_loses_is_not_answered(mesh: Mesh, entry: Value) -> None:
    """An entry that does not win changes nothing."""
    persisted(mesh)
    sent = len(mesh.sent)
    mesh.areas["a"].merge({"key": entry}, "b", mesh.now)
    mesh.run(0.5)
    assert len(mesh.sent) == sent
    assert mesh.at("a", "key") == (5, "a", b"mine", 1)


@pytest.mark.parametrize("value", [b"mine", None], ids=["full", "TTL only"])
def test_a_foreign_refresh_is_gone_above_at_once(mesh: Mesh, value: bytes | None) -> None:
    """A TTL version that another site has raised is adopted, so that the next refresh is not an old one. (hazard b)"""
    persisted(mesh)
    mesh.areas["b"].set({"key": Value(5, "a", value, 3000, 900)}, mesh.now)
    mesh.run(0.15)
    assert mesh.at("a", "key") == mesh.at("b", "key") == (5, "a", b"mine", 901)
    mesh.run(60)
    assert mesh.at("b", "key") is not None


def test_the_last_version_cannot_be_defended(mesh: Mesh) -> None:
    """No version is above the last one: the key is lost, and the program is told."""
    persisted(mesh)
    mesh.areas["b"].set({"key": Value(MAX_VERSION, "b", b"other")}, mesh.now)
    mesh.run(1)
    assert mesh.areas["a"].own.events == [KeyLost("key", "b", MAX_VERSION)]
    assert mesh.areas["a"].own.persist("key", b"mine", mesh.now) is NoMergeReason.INVALID_VERSION
    assert mesh.areas["a"].own.unset("key", b"mine", mesh.now) is NoMergeReason.INVALID_VERSION


def test_the_last_ttl_version_is_followed_by_the_next_version(mesh: Mesh) -> None:
    """When TTL versions are used up, the key is advertised again with the next version."""
    persisted(mesh)
    mesh.areas["b"].set({"key": Value(5, "a", None, 3000, MAX_VERSION)}, mesh.now)
    mesh.run(1)
    assert mesh.at("a", "key") == mesh.at("b", "key") == (6, "a", b"mine", 0)
    mesh.run(30)
    assert mesh.at("b", "key") is not None


def test_a_site_that_slept_says_all_of_it_again(mesh: Mesh) -> None:
    """A site that was stopped for longer than its TTL finds its own keys, and brings them back to the others."""
    mesh.areas["a"].own.set("key", b"x", mesh.now)
    mesh.settle()
    mesh.now += 20
    mesh.areas["b"].tick(mesh.now)
    assert mesh.at("b", "key") is None
    mesh.run(1)
    assert mesh.at("b", "key") == (1, "a", b"x", 1)
    assert mesh.areas["a"].store.counters.expired == 0
    assert mesh.resyncs == []


def test_a_site_that_begins_again_goes_above_what_it_said_before(mesh: Mesh) -> None:
    """What the others have of a site's earlier life is overridden when the two meet."""
    mesh.areas["b"].merge({"key": Value(40, "a", b"old", KEY_TTL_MS, 9)}, "a", mesh.now)
    mesh.cut = {"a"}
    mesh.areas["a"].own.persist("key", b"new", mesh.now)
    mesh.run(1)
    mesh.cut = set()
    mesh.sync("a", "b")
    mesh.run(1)
    assert mesh.at("a", "key") == mesh.at("b", "key") == (41, "a", b"new", 10)


# -- what holds whatever is asked, whatever others send, and however the time passes -----------------------------------


KEYS = st.sampled_from(["k0", "k1"])
VALUES = st.sampled_from([b"", b"x", b"y"])
FOREIGN = st.builds(
    Value,
    version=st.integers(1, 8),
    originator=st.sampled_from(["a", "b", "z"]),
    value=st.one_of(st.none(), VALUES),
    ttl_ms=st.sampled_from([1, 100, 499, 700, 3000, 9000]),
    ttl_version=st.integers(0, 6),
)
CALLS = st.one_of(
    st.tuples(st.sampled_from(["persist", "set", "unset"]), KEYS, VALUES),
    st.tuples(st.sampled_from(["clear", "erase", "refresh"]), KEYS, st.none()),
    st.tuples(st.just("foreign"), KEYS, FOREIGN),
    st.tuples(st.just("run"), st.none(), st.sampled_from([0.001, 0.05, 0.11, 0.5, 2.0, 7.9, 9.0])),
    st.tuples(st.just("sleep"), st.none(), st.sampled_from([0.3, 3.0, 9.0])),
    st.tuples(st.sampled_from(["cut", "join"]), st.none(), st.none()),
)


def carry_out(mesh: Mesh, call: str, key: str | None, argument: bytes | Value | float | None) -> None:
    """One call at site a, or what happens around it."""
    area = mesh.areas["a"]
    if isinstance(argument, Value) and key is not None:
        area.merge({key: argument}, "z", mesh.now)
    elif isinstance(argument, bytes) and key is not None:
        {"persist": area.own.persist, "set": area.own.set, "unset": area.own.unset}[call](key, argument, mesh.now)
    elif call in ("clear", "erase") and key is not None:
        {"clear": area.own.clear, "erase": area.own.erase}[call](key, mesh.now)
    elif call == "refresh" and key is not None:
        own = area.own.get(key)
        if own is None or not own.is_persisted:
            area.own.refresh(key, 4000, mesh.now)
    elif call == "run" and isinstance(argument, float):
        mesh.run(argument)
    elif call == "sleep" and isinstance(argument, float):
        mesh.now += argument  # nothing happens in time
    elif call == "cut":
        mesh.cut = {"b"}
    elif call == "join":
        mesh.cut = set()
        mesh.sync("a", "b")


@settings(max_examples=300)
@given(st.lists(CALLS, max_size=25))
@pytest.mark.ci
def test_own_keys_live_and_what_is_let_go_ends(
    calls: list[tuple[str, str | None, bytes | Value | float | None]],
) -> None:
    """An own key that was ever stored is stored, always. When all is calm, both sites have what is persisted, with the
    own value; and everything that nobody keeps alive is gone.
    """
    mesh = Mesh("a", "b")
    area = mesh.areas["a"]
    stored: set[str] = set()
    for call, key, argument in calls:
        carry_out(mesh, call, key, argument)
        stored = {key for key, _ in area.own if key in stored or area.get(key) is not None}
        assert all(area.get(key) is not None for key in stored)
    mesh.cut = set()
    mesh.run(9.0)
    mesh.sync("a", "b")
    mesh.run(3 * KEY_TTL_MS / 1000)
    for key, own in area.own:
        assert mesh.at("a", key) is not None
        assert mesh.at("a", key) == mesh.at("b", key)
        entry = area.get(key)
        assert entry is not None
        assert (entry.version, entry.originator, entry.value) == (own.entry.version, "a", own.entry.value)
    kept = {key for key, _ in area.own}
    assert set(area.store) == set(mesh.areas["b"].store) == kept
    for key in kept:
        area.own.erase(key, mesh.now)
    mesh.run(ERASE_TTL_MS / 1000 + 0.1)
    assert set(area.store) | set(mesh.areas["b"].store) == set()
    assert area.next_deadline() is None


@settings(max_examples=100)
@given(st.lists(FOREIGN, min_size=1, max_size=10), st.sampled_from([0.0, 0.01, 0.2, 1.0]))
def test_a_persisted_key_survives_whatever_others_say(entries: list[Value], pause: float) -> None:
    """Any sequence of foreign entries, at any pace: the key never expires at its own site, and its value comes back."""
    mesh = Mesh("a", "b")
    area = mesh.areas["a"]
    area.own.persist("key", b"mine", mesh.now)
    mesh.run(0.2)
    for entry in entries:
        area.merge({"key": entry}, "z", mesh.now)
        mesh.run(pause)
        assert area.get("key") is not None
    mesh.run(10)
    found = area.get("key")
    assert found is not None
    assert (found.originator, found.value) == ("a", b"mine")
    assert mesh.at("b", "key") == mesh.at("a", "key")
    assert area.store.counters.expired == 0


@settings(max_examples=100)
@given(st.integers(2, 5), st.lists(st.sampled_from([0.0, 0.03, 0.2, 5.0]), min_size=2, max_size=5))
@pytest.mark.ci
def test_however_many_sites_persist_one_key_the_messages_are_few(sites: int, pauses: list[float]) -> None:
    """In any contest a site sends the key a few times, and then once in 8 s; every site is told once."""
    mesh = Mesh(*"abcde"[:sites])
    for name, pause in zip("abcde"[:sites], [*pauses, 0.0, 0.0, 0.0], strict=False):
        mesh.areas[name].own.persist("key", name.encode(), mesh.now)
        mesh.run(pause)
    mesh.run(60)
    for name in mesh.areas:
        assert len(mesh.times(name, "key", with_value=True)) <= 4 + 60 / 8 + 2
    assert all(len(area.own.events) == 1 for area in mesh.areas.values())
