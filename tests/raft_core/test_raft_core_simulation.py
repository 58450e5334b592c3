"""Thousands of failure schedules for several callers of one client: appends, custom messages, streams.

Whatever breaks, appends are applied once and in order, and everybody is answered once and truly. And no call fails,
waits or lies because of another: see :mod:`simulated_callers` for what excuses whom.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from raft_network import ClientDriver, SimCluster, url_of
from raft_simulation import PEERS, Simulation


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


EFFORT = settings(max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
Simulation.TestCase.settings = EFFORT
Patient.TestCase.settings = EFFORT
OneAtATime.TestCase.settings = EFFORT
TestSimulation = Simulation.TestCase
TestPatient = Patient.TestCase
TestOneAtATime = OneAtATime.TestCase
