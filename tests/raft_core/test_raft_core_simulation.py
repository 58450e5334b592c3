"""Thousands of failure schedules for several callers of one client: appends, custom messages, streams.

Whatever breaks, appends are applied once and in order, and everybody is answered once and truly. And no call fails,
waits or lies because of another: see :mod:`raft_simulation` for what excuses whom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test
from raft_network import ClientDriver, SimCluster, url_of
from raft_simulation import PEERS, Simulation
from support.schedules import scaled

from raft_client.core import request_machine
from raft_client.core.calls import Append, NotLeader, Verdict
from raft_client.core.entries_stream import EntriesStream
from raft_client.core.leader_routing import LeaderRouting
from raft_client.core.request_machine import Deadlines
from raft_client.core.requests import Disconnect, Request, RequestTable, about
from raft_client.errors import ConnectionLostError, RaftError


class Patient(Simulation):
    """Nobody gives up and no peer refuses an id, so the log has the entries in the order of their submission.

    An entry that failed and may have been applied may also be applied later, behind others.
    """

    @rule()
    def submit(self) -> None:
        self.append()

    @rule()
    def submit_again(self) -> None:
        """No call is made again: the simulation has no need for that."""

    @rule()
    def cancel(self) -> None:
        """No caller gives up here."""

    @rule()
    def set_clock(self) -> None:
        """All clocks are right here."""

    @rule()
    def accept_and_refuse(self) -> None:
        """With right clocks no peer refuses an id."""

    @invariant()
    def nothing_is_in_the_log_twice_or_out_of_order(self) -> None:
        numbers = [int(data) for data in self.cluster.log]
        assert numbers == sorted(set(numbers))


class OneAtATime(Patient):
    """A caller that waits for each answer has the order, however long an election takes."""

    window = 1

    @initialize()
    def the_leader_is_known(self) -> None:
        self.append()
        self.client.settle()

    @rule(url=PEERS)
    def elect(self, url: str) -> None:
        """At any moment, also between two messages that are under way to it."""
        peer = self.cluster.peers[url]
        if peer.is_up and not peer.is_frozen:
            self.win(url)

    @rule(url=PEERS, messages=st.integers(0, 2))
    def lose_and_win(self, url: str, messages: int) -> None:
        """Something is under way, and nobody leads while it works off this many messages; then it does."""
        self.append()
        self.append()
        self.cluster.elect(None)
        for _ in range(messages):
            self.client.peer_works(url)
        self.elect(url)

    @rule()
    def calm(self) -> None:
        """With a window of one an append waits for the one before it, and for half a second for a custom message."""

    @rule()
    def vote_out(self) -> None:
        """Not here, for the reason that calm() gives."""


def test_entries_that_an_election_turned_around_are_told_by_their_indexes() -> None:
    """Results are right if a peer refuses one entry and leads again before the next, so that an election reverses their
    order."""
    cluster = SimCluster()
    client = ClientDriver(cluster)
    client.append(0)
    client.settle()
    client.append(1)
    client.append(2)
    leader = cluster.leader
    assert leader is not None
    cluster.elect(None)
    assert client.peer_works(url_of(1))  # refuses entry 1
    cluster.elect(leader)
    client.pass_time(5.0)
    assert cluster.log == [b"0", b"2", b"1"]
    assert [client.outcomes[n] for n in range(3)] == [[1], [3], [2]]


EFFORT = settings(
    max_examples=max(20, scaled(60, 1000)),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
Simulation.TestCase.settings = EFFORT
Patient.TestCase.settings = EFFORT
OneAtATime.TestCase.settings = EFFORT
TestSimulation = pytest.mark.scaled(Simulation.TestCase)
TestPatient = pytest.mark.scaled(Patient.TestCase)
TestOneAtATime = pytest.mark.scaled(OneAtATime.TestCase)


# -- the simulation is worth something: with any of these defects it fails ---------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def _a_stream_that_lags_leaves_the_leader(patch: pytest.MonkeyPatch) -> None:
    def lag(_self: EntriesStream, _last_index: int) -> Verdict:
        return NotLeader(None)

    patch.setattr(EntriesStream, "_lag", lag)


def _one_silent_request_condemns_the_leader(patch: pytest.MonkeyPatch) -> None:
    original = Deadlines._resend_or_search

    def resend_or_search(self: Deadlines, silent: list[Request], now: float) -> None:
        self._routing.doubted_at = now  # as if it had said nothing to anybody
        original(self, silent, now)

    patch.setattr(Deadlines, "_resend_or_search", resend_or_search)


def _a_message_is_lost_with_the_leader(patch: pytest.MonkeyPatch) -> None:
    original = LeaderRouting.take_back

    def take_back(self: LeaderRouting) -> None:
        for request in [r for r in self._table.requests.values() if r.sent_to is not None and not r.call.repeatable]:
            self.reject(request, ConnectionLostError("the leader was lost before the answer came"), 0.0)
        original(self)

    patch.setattr(LeaderRouting, "take_back", take_back)


def _a_link_is_closed_under_those_who_wait(patch: pytest.MonkeyPatch) -> None:
    def leave(self: RequestTable, url: str) -> None:
        if url in self.links:
            self.actions.append(Disconnect(url))
            self.forget_link(url)

    patch.setattr(RequestTable, "leave", leave)


def _streams_take_slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntriesStream, "needs_slot", True)


def _messages_keep_their_slots(patch: pytest.MonkeyPatch) -> None:
    original = RequestTable.free_slot

    def free_slot(self: RequestTable, request: Request) -> None:
        if request.call.repeatable or request.sent_to is None or request.is_done:
            original(self, request)

    patch.setattr(RequestTable, "free_slot", free_slot)


def _refused_means_not_applied(patch: pytest.MonkeyPatch) -> None:
    def naive(request: Request, error: RaftError, *, refused: bool = False) -> RaftError:
        about(request, error, refused=refused)
        error.may_have_been_applied = request.was_sent and not refused and request.call.changes
        return error

    patch.setattr("raft_client.core.leader_routing.about", naive)
    patch.setattr(request_machine, "about", naive)


def _a_given_id_passes_for_a_new_one(patch: pytest.MonkeyPatch) -> None:
    original = Append.__init__

    def init(self: Append, ident: bytes, data: object, request_id: bytes, **_: Any) -> None:
        original(self, ident, data, request_id, has_new_id=True)

    patch.setattr(Append, "__init__", init)


def _a_snapshot_goes_on_at_another_peer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntriesStream, "moved", lambda _self: None)


def _nobody_asks_for_the_term(patch: pytest.MonkeyPatch) -> None:
    def check_leader(self: LeaderRouting, _now: float) -> None:
        self._check_from = 0.0

    patch.setattr(LeaderRouting, "check_leader", check_leader)


MUTANTS: list[Plant] = [
    _a_stream_that_lags_leaves_the_leader,
    _one_silent_request_condemns_the_leader,
    _a_message_is_lost_with_the_leader,
    _a_link_is_closed_under_those_who_wait,
    _streams_take_slots,
    _messages_keep_their_slots,
    _refused_means_not_applied,
    _a_given_id_passes_for_a_new_one,
    _a_snapshot_goes_on_at_another_peer,
    _nobody_asks_for_the_term,
]


@pytest.mark.ci
@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_the_simulation_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation finds each defect within a fixed series of schedules."""
    plant(monkeypatch)
    effort = settings(
        max_examples=400,
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with pytest.raises(Exception):  # noqa: B017 - an assertion, or whatever else breaks
        run_state_machine_as_test(Simulation, settings=effort)
