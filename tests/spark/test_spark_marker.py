"""The state is the fold of the rows by index, whatever becomes of drivers, their tasks and their leases."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_world import DELETED, Row, World
from support.schedules import scaled

from statestore_client.errors import SettingsError
from statestore_client.spark.marker import Marker
from statestore_client.wire.commands import Command, Del, Set

pytestmark = pytest.mark.scaled

_EXAMPLES = scaled(200, 20_000)
_SEEDS = 5 * _EXAMPLES

_rows = st.lists(
    st.builds(Row, st.sampled_from([b"k1", b"k2", b"k3"]), st.sampled_from([b"1", b"2", DELETED])),
    min_size=1,
    max_size=12,
)
#: Steps of the drivers are most of it: a whole batch takes a dozen.
_events = st.lists(
    st.one_of(
        *[st.tuples(st.just("act"), st.integers(0, 2), st.integers(1, 6))] * 8,
        st.tuples(st.just("expire")),
        st.tuples(st.just("kill"), st.integers(0, 2)),
        *[st.tuples(st.just("arrive"), st.integers(0, 1000))] * 2,
    ),
    max_size=80,
)


def play(world: World, events: list[tuple[object, ...]]) -> None:
    for name, *arguments in events:
        getattr(world, str(name))(*arguments)
    world.finish()


@settings(max_examples=_EXAMPLES, deadline=None)
@given(_rows, _events)
def test_state_is_the_fold_by_index(rows: list[Row], events: list[tuple[object, ...]]) -> None:
    """Three drivers, lost leases, kills and late requests at each step: no row is lost, and none comes back."""
    play(World(rows), events)


@pytest.mark.parametrize("first", range(0, _SEEDS, 100))
def test_state_is_the_fold_by_index_in_long_schedules(first: int) -> None:
    """The same with longer schedules, by seeds: a lease is lost, another driver writes, and the lease is won again."""
    for seed in range(first, first + 100):
        random = Random(seed)
        keys, values = (b"k1", b"k2", b"k3"), (b"1", b"2", DELETED)
        world = World([Row(random.choice(keys), random.choice(values)) for _ in range(random.randint(1, 12))])
        for _ in range(100):
            match random.choices(["act", "expire", "kill", "arrive"], [14, 2, 1, 3])[0]:
                case "act":
                    world.act(random.randrange(3), random.randint(1, 6))
                case "expire":
                    world.expire()
                case "kill":
                    world.kill(random.randrange(3))
                case _:
                    world.arrive(random.randrange(1000))
        world.finish()


def _lead(world: World, driver: int, size: int) -> None:
    """The driver campaigns, takes over, and writes one batch."""
    world.expire()
    world.act(driver, size)
    while world.drivers[driver].marker is None:
        world.act(driver, size)
    world.act(driver, size)
    while world.drivers[driver].steps is not None:
        world.act(driver, size)


def test_zombie_moves_no_marker() -> None:
    """A driver that lost its lease in a batch is refused where a newer row is, and with its marker always."""
    world = World([Row(b"k1", b"1"), Row(b"k1", b"2"), Row(b"k2", b"1")])
    _lead(world, 0, 1)
    world.act(0, 1)  # begins its second batch
    for _ in range(4):
        world.act(0, 1)  # has a token for it, and has looked at the marker
    _lead(world, 1, 3)
    while world.drivers[0].steps is not None:
        world.act(0, 1)
    assert world.refused == 1
    assert world.marker() == Marker(2, 3)
    assert world.value(b"k1") == b"2"


def test_deletes_without_tombstones_would_come_back() -> None:
    """What keeps a late row out of a deleted key is the tombstone: with plain deletes the same schedule fails."""

    def plain(row: Row) -> Command:
        return Del(row.key) if row.value == DELETED else Set(row.key, row.value)

    def run(world: World) -> None:
        _lead(world, 0, 1)
        _lead(world, 1, 1)
        world.arrive_all()

    rows = [Row(b"k1", b"1"), Row(b"k1", DELETED)]
    run(World(rows))
    with pytest.raises(AssertionError):
        run(World(rows, plain))


@pytest.mark.parametrize(
    "value", [b"", b"7", b"{}", b"[]", b'{"format": 1}', b'{"format": 1, "index": "7", "rows": 1, "source": null}']
)
def test_other_values_are_no_markers(value: bytes) -> None:
    """A key that somebody else uses is not taken for a marker, nor overwritten."""
    with pytest.raises(SettingsError, match="choose another pipeline_id"):
        Marker.decode(value, "pipelines/p/marker")


def test_marker_of_a_later_release_is_refused() -> None:
    """A format that this release does not know is refused with what to do."""
    with pytest.raises(SettingsError, match="use that release"):
        Marker.decode(b'{"format": 2}', "pipelines/p/marker")


def test_marker_survives_its_encoding() -> None:
    """What is written is read back, and the same marker has the same bytes."""
    marker = Marker(7, 5, "log")
    assert Marker.decode(marker.encode(), "m") == marker
    assert Marker.decode(marker.encode(), "m").encode() == marker.encode()
