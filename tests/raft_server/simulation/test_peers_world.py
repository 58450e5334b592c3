"""The simulated network, disk and past do what they promise, and nothing by accident."""

from __future__ import annotations

from random import Random

import pytest
from peers_audit import Audit
from peers_deviations import Deviation, invent_deviations, parse
from peers_history import invent_history
from peers_network import Network, Weather
from peers_profile import invent_profile, peers_of
from peers_world import World
from support.raft_disks import DamagedLogError, SimulatedLog, steps_of

from raft_client.server.node.ready import Configuration, HardState, Persist, SnapshotMeta
from raft_client.wire.configuration import ConfigChange, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk

_START = Configuration(0, ConfigChange(peers_of(["1", "2", "3"])))


def _entries(first: int, last: int, term: int = 1) -> tuple[LogEntry, ...]:
    return tuple(LogEntry.of(b"%d" % index, term=term, index=index) for index in range(first, last + 1))


def _log() -> SimulatedLog:
    return SimulatedLog(_START)


def _do(log: SimulatedLog, job: Persist, share: float = 1.0) -> None:
    log.write(job)
    log.sync(job, share)


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_after_a_crash_any_first_part_of_a_job_is_there() -> None:
    """In the order of its fields: term, then the cut, then the entries one by one."""
    found = set()
    for share in (0.0, 0.25, 0.5, 0.75, 0.99):
        log = _log()
        _do(log, Persist(entries=_entries(1, 3)))
        _do(log, Persist(HardState(2, "1"), truncate_after=1, entries=_entries(2, 3, term=2)), share)
        log.reopen()
        found.add((log.hard_state.term, log.last_index, log.term_at(log.last_index)))
    assert found == {(0, 3, 1), (2, 3, 1), (2, 1, 1), (2, 2, 2), (2, 3, 2)}


def test_what_follows_a_write_that_was_lost_is_lost_with_it() -> None:
    """The cache has it; who opens the log anew ends before the gap."""
    log = _log()
    log.write(Persist(entries=_entries(1, 2)))
    _do(log, Persist(entries=_entries(3, 4)))
    assert log.last_index == 4
    log.reopen()
    assert log.last_index == 0


def test_a_snapshot_keeps_the_tail_that_follows_it_and_no_other() -> None:
    """The entry that it ends with has to be in the log, with its term."""
    for term, last in ((1, 4), (2, 2)):
        log = _log()
        _do(log, Persist(entries=_entries(1, 4)))
        chunk = SnapshotChunk(2, term, 0, 3, b"abc")
        _do(log, Persist(chunk=chunk, install=SnapshotMeta(2, term, 3, _START)))
        assert (log.first_index, log.last_index, log.term_at(2)) == (3, last, term)
        assert log.read_snapshot(1, 9) == b"bc"


def test_configurations_are_those_of_the_log() -> None:
    """They come with their entries and go with them."""
    log = _log()
    change = ConfigChange(peers_of(["1"]), peers_of(["1", "2", "3"]))
    entry = LogEntry.of(encode_config(change), term=1, kind=EntryKind.CONFIG, index=2)
    _do(log, Persist(entries=(*_entries(1, 1), entry)))
    assert [each.index for each in log.configurations] == [0, 2]
    _do(log, Persist(truncate_after=1))
    assert log.configurations == (_START,)


def test_damage_is_noticed_at_the_next_start_and_when_it_is_read() -> None:
    """It is never served."""
    log = _log()
    _do(log, Persist(entries=_entries(1, 4)))
    log.damaged_at = 3
    assert len(log.entries(0, 2, 1000)) == 2
    with pytest.raises(DamagedLogError):
        log.entries(0, 4, 1000)
    with pytest.raises(DamagedLogError):
        log.reopen()


def test_a_read_takes_what_fits_and_at_least_one() -> None:
    """However long the first one is."""
    log = _log()
    _do(log, Persist(entries=_entries(1, 4)))
    assert [entry.index for entry in log.entries(1, 4, 45)] == [2, 3]
    assert [entry.index for entry in log.entries(1, 4, 1)] == [2]
    assert steps_of(Persist()) == []


# -- the network -------------------------------------------------------------------------------------------------------


def _send(world: World, network: Network, count: int) -> list[bytes]:
    arrived: list[bytes] = []
    network.is_bound["2"] = lambda _route, frames: arrived.append(frames[0])
    connection = network.connect("1", "2", lambda _frames: None)
    for n in range(count):
        network.request(connection, [bytes([n])])
    world.run(10.0, lambda: False)
    return arrived


def test_messages_keep_their_order_where_tcp_is_meant() -> None:
    """Late ones hold up those behind them; nothing comes twice."""
    world = World(1)
    network = Network(world, delay_s=0.01)
    network.weather["1", "2"] = Weather(doubled=0.5, late=0.5)
    assert _send(world, network, 100) == [bytes([n]) for n in range(100)]


def test_elsewhere_they_are_lost_doubled_and_overtaken() -> None:
    """All three at once."""
    world = World(1)
    network = Network(world, delay_s=0.01, in_order=frozenset())
    network.weather["1", "2"] = Weather(lost=0.2, doubled=0.2, late=0.2)
    arrived = _send(world, network, 100)
    assert len(set(arrived)) < 100
    assert len(arrived) > len(set(arrived))
    assert arrived != sorted(arrived)


def test_a_cut_is_one_way() -> None:
    """Requests arrive, answers do not."""
    world = World(1)
    network = Network(world, delay_s=0.01)
    network.cut.add(("2", "1"))
    answers: list[object] = []
    network.is_bound["2"] = lambda route, frames: network.answer("2", route, frames)
    connection = network.connect("1", "2", answers.append)
    network.request(connection, [b"a"])
    world.run(1.0, lambda: False)
    network.cut.clear()
    network.request(connection, [b"b"])
    world.run(2.0, lambda: False)
    assert answers == [[b"b"]]


def test_an_answer_to_a_former_routing_id_is_lost() -> None:
    """A peer that connects anew hears nothing of what was asked before."""
    world = World(1)
    network = Network(world, delay_s=0.01)
    routes: list[bytes] = []
    network.is_bound["2"] = lambda route, _frames: routes.append(route)
    answers: list[object] = []
    for frame in (b"a", b"b"):
        connection = network.connect("1", "2", answers.append)
        network.request(connection, [frame])
        if frame == b"a":
            network.close(connection)
    world.run(1.0, lambda: False)
    assert len(set(routes)) == 2
    for route in routes:
        network.answer("2", route, [route])
    world.run(2.0, lambda: False)
    assert answers == [[routes[1]]]


# -- the past and the plan ---------------------------------------------------------------------------------------------


def test_every_past_is_one_that_raft_allows() -> None:
    """The audit finds nothing in it, and what is committed is on a majority of the disks."""
    tails = 0
    for seed in range(300):
        random = Random(seed)
        names = [str(n) for n in range(1, random.randint(1, 5) + 1)]
        history = invent_history(random, names, random.randint(0, 6))
        audit, logs = Audit(), {name: _log() for name in names}
        history.write(audit, logs, random)
        assert audit.violations == []
        for entry in history.committed:
            holders = [log for log in logs.values() if log.durable.before >= entry.index or entry in log.cache.entries]
            assert len(holders) * 2 > len(names)
        for name in names:
            assert all(entry in history.committed for entry in history.logs[name][: history.applied[name]])
        tails += len({log.last_index for log in logs.values()}) > 1
    assert tails > 100


def test_a_deviation_can_be_written_down_and_read() -> None:
    """As a failing seed is printed, and as a scenario is kept."""
    for seed in range(200):
        random = Random(seed)
        for deviation in invent_deviations(random, invent_profile(random)):
            assert parse(str(deviation)) == deviation
    with pytest.raises(ValueError, match="begins with"):
        parse("after 1.0 crash 1")
    assert str(Deviation(0.5, "append", ("1", "2"))) == "at 0.500  append     1 2"
