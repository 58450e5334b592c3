"""What holds of own keys whatever is asked, whatever others send, and however the time passes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from own_key_sites import KEY_TTL_MS, Mesh

from statestore_client.server.kvstore.own_keys import ERASE_TTL_MS
from statestore_client.wire.kvstore.value import Value

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
