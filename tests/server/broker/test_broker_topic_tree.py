"""The filter tree and the retained store against naive matchers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.broker_driver import calls_in

from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.broker.limits import BrokerLimits
from statestore_client.server.broker.message import Message, message_of
from statestore_client.server.broker.retained import Retained
from statestore_client.server.broker.topic_tree import FilterTree
from statestore_client.wire.instant import Instant

NOW = Instant(100.0, 0)
LEVELS = st.sampled_from(["a", "b", "c", "", "$x", "$SYS"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(LEVELS | st.just("+"), min_size=1, max_size=5))
    if draw(st.booleans()):
        levels[-1] = "#"
    return "/".join(levels) or "#"


def matches(topic_filter: str, topic: str) -> bool:
    """The oracle: MQTT 5.0, 4.7, word by word."""

    def below(wanted: list[str], levels: list[str]) -> bool:
        if not wanted:
            return not levels
        if wanted[0] == "#":
            return True
        if not levels:
            return False
        return wanted[0] in ("+", levels[0]) and (
            below(wanted[1:], levels[1:]) or (wanted[1:] == ["#"] and levels[1:] == [])
        )

    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return below(topic_filter.split("/"), topic.split("/"))


@given(st.sets(filters(), max_size=12), st.lists(TOPICS, max_size=8))
def test_a_topic_finds_every_filter_that_matches_once(wanted: set[str], topics: list[str]) -> None:
    """The tree finds the filters that the oracle finds, without duplicates."""
    tree: FilterTree[str] = FilterTree()
    for topic_filter in wanted:
        tree.insert(topic_filter, topic_filter)
    assert len(tree) == len(wanted)
    for topic in topics:
        assert sorted(tree.match(topic)) == sorted(f for f in wanted if matches(f, topic))


@given(st.sets(filters(), max_size=12), st.data())
def test_removed_filters_leave_nothing_behind(wanted: set[str], data: st.DataObject) -> None:
    """When filters are removed in any order the others go on matching, and at the end the tree is as new."""
    tree: FilterTree[str] = FilterTree()
    for topic_filter in wanted:
        tree.insert(topic_filter, topic_filter)
    left = set(wanted)
    for topic_filter in data.draw(st.permutations(sorted(wanted))):
        assert tree.get(topic_filter) == topic_filter
        tree.remove(topic_filter)
        left.discard(topic_filter)
        assert tree.get(topic_filter) is None
        for topic in ("a", "a/b", "$x", "/", "a/b/c"):
            assert sorted(tree.match(topic)) == sorted(f for f in left if matches(f, topic))
    assert len(tree) == 0
    assert tree._root.is_empty


def test_matching_does_not_grow_with_the_number_of_filters() -> None:
    """With ten thousand filters elsewhere a match calls as many functions as with one filter."""
    tree: FilterTree[int] = FilterTree()
    tree.insert("here/+/x", 0)
    alone = calls_in(lambda: tree.match("here/1/x"))
    for number in range(10_000):
        tree.insert(f"there/{number}/+", number)
    assert calls_in(lambda: tree.match("here/1/x")) == alone


# -- retained ---------------------------------------------------------------------------------------------------------


def message(topic: str, payload: bytes = b"x", expiry: int | None = None, now: Instant = NOW) -> Message:
    return message_of(
        Publish(topic, payload, retain=True, properties=PublishProperties(message_expiry=expiry)), "", now
    )


@given(st.lists(st.tuples(TOPICS, st.sampled_from([b"", b"1", b"2"])), max_size=20), filters())
def test_a_filter_finds_the_last_message_of_every_matching_topic(puts: list[tuple[str, bytes]], wanted: str) -> None:
    """The store finds retained messages as a dictionary and the oracle do, and an empty payload deletes."""
    retained, model = Retained(BrokerLimits()), {}
    for topic, payload in puts:
        retained.put(message(topic, payload))
        model[topic] = payload
    model = {topic: payload for topic, payload in model.items() if payload}
    found = {m.topic: m.payload for m in retained.match(wanted, NOW)}
    assert found == {topic: payload for topic, payload in model.items() if matches(wanted, topic)}
    assert len(retained) == len(model)
    for topic in model:
        retained.discard(topic)
    assert retained.bytes == 0
    assert not [*retained._sorted]


def test_expired_messages_are_not_found_and_make_room() -> None:
    """An expired message is not found, and gives its place to another one when the store is full."""
    retained = Retained(BrokerLimits(retained_messages=1))
    retained.put(message("old", expiry=5))
    later = Instant(105.0, 0)
    assert not retained.has_room(message("new"), NOW)
    assert retained.has_room(message("new"), later)
    assert retained.match("#", later) == []


def test_a_full_store_replaces_and_deletes() -> None:
    """A full store of topics accepts changes of known topics, and deletions."""
    retained = Retained(BrokerLimits(retained_messages=1))
    retained.put(message("t"))
    assert retained.has_room(message("t", b"other"), NOW)
    assert retained.has_room(message("elsewhere", b""), NOW)
    assert not retained.has_room(message("elsewhere"), NOW)
