"""Thousands of failure schedules: whatever breaks, appends are applied once, in order, and answered once."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raft_network import ClientDriver, SimCluster, url_of

from raft_client.errors import RaftError, TransportError

PEERS = st.integers(1, 3).map(url_of)


class Simulation(RuleBasedStateMachine):
    """Rules are the world's moves; at the end the world is mended, and every promise must have been kept."""

    window = 4

    def __init__(self) -> None:
        super().__init__()
        self.cluster = SimCluster()
        self.client = ClientDriver(self.cluster, max_in_flight=self.window)
        self.submitted: list[int] = []
        self.may_fail: set[int] = set()

    @rule(patient=st.sampled_from([True, True, True, False]))
    def submit(self, patient: bool) -> None:
        number = len(self.submitted)
        self.submitted.append(number)
        if not patient:
            self.may_fail.add(number)
        self.client.append(number, timeout=None if patient else 1.0)

    @rule(url=PEERS, messages=st.integers(1, 5))
    def peer_works(self, url: str, messages: int) -> None:
        for _ in range(messages):
            self.client.peer_works(url)

    @rule(messages=st.integers(1, 5))
    def client_receives(self, messages: int) -> None:
        for _ in range(messages):
            self.client.receive_one()

    @rule()
    def client_hears_of_broken_links(self) -> None:
        self.client.report_losses()

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.3, 0.6, 2.0]))
    def time_jumps(self, seconds: float) -> None:
        """Late, as on a machine that was suspended."""
        self.client.time += seconds
        self.client.machine.tick(self.client.time)
        self.client.perform()

    @rule(url=PEERS)
    def freeze(self, url: str) -> None:
        self.cluster.peers[url].is_frozen = True

    @rule(url=PEERS)
    def thaw(self, url: str) -> None:
        self.cluster.peers[url].is_frozen = False

    @rule(url=PEERS)
    def break_link(self, url: str) -> None:
        self.client.break_link(url)

    @rule(url=PEERS)
    def kill(self, url: str) -> None:
        peer = self.cluster.peers[url]
        if peer.is_up:
            self.client.kill(url)
            if self.cluster.leader is peer:
                self.cluster.elect(None)

    @rule(url=PEERS)
    def restart(self, url: str) -> None:
        peer = self.cluster.peers[url]
        if not peer.is_up:
            peer.is_up, peer.is_frozen, peer.is_deluded = True, False, False
            peer.believes = self.cluster.leader.id if self.cluster.leader is not None else None

    @rule(url=PEERS)
    def elect(self, url: str) -> None:
        """An election takes longer than a message: the refusals of a follower arrive before it leads.

        A peer that refused one message, was elected, and took the next one that was already under way to it, would turn
        two entries around. Only a client that waits for each answer can exclude that; append_many() says so.
        """
        peer = self.cluster.peers[url]
        if peer.is_up and not peer.is_frozen:
            while self.client.peer_works(url) or self.client.receive_one():
                pass
            peer.is_deluded = False
            self.cluster.elect(peer)

    @rule(url=PEERS)
    def cut_off(self, url: str) -> None:
        """It goes on to believe what it believes now."""
        self.cluster.peers[url].is_deluded = True

    @precondition(lambda self: len(self.submitted) > 0)
    @rule(number=st.integers(0, 100))
    def cancel(self, number: int) -> None:
        """The caller has given up, as on KeyboardInterrupt."""
        waiting = [r for r in self.client.machine._requests.values() if isinstance(r.waiter, int)]
        if waiting and number % 7 == 0:
            request = waiting[number % len(waiting)]
            self.may_fail.add(request.waiter)
            self.client.machine.cancel(request, self.client.time)
            self.client.perform()

    @invariant()
    def everybody_is_answered_at_most_once_and_truly(self) -> None:
        for number, outcomes in self.client.outcomes.items():
            assert len(outcomes) == 1
            [outcome] = outcomes
            if isinstance(outcome, RaftError):
                assert number in self.may_fail
                assert isinstance(outcome, TransportError)
                if not outcome.may_have_been_applied:
                    assert str(number).encode() not in self.cluster.log
            else:
                assert self.cluster.log[outcome - 1] == b"%d" % number

    @invariant()
    def nothing_is_in_the_log_twice_or_out_of_order(self) -> None:
        numbers = [int(data) for data in self.cluster.log]
        assert numbers == sorted(set(numbers))

    @invariant()
    def no_more_links_than_peers(self) -> None:
        assert len(self.client.links) <= 3

    def teardown(self) -> None:
        """All peers up, one of them leads: everybody who waits is answered within seconds."""
        for url in self.cluster.peers:
            self.restart(url)
            peer = self.cluster.peers[url]
            peer.is_frozen = peer.is_deluded = False
        self.elect(url_of(2))
        self.client.pass_time(20.0)
        answered = {n for n, outcomes in self.client.outcomes.items() if not isinstance(outcomes[0], RaftError)}
        assert answered | self.may_fail == set(self.submitted)
        self.everybody_is_answered_at_most_once_and_truly()
        self.nothing_is_in_the_log_twice_or_out_of_order()
        assert self.client.machine.pending == 0
        assert self.client.machine.next_deadline() is None
        assert len(self.client.links) <= 1


class OneAtATime(Simulation):
    """Who waits for each answer has the order without any assumption about how long an election takes.

    Nobody gives up here: an entry that failed and may have been applied may also be applied later, behind others.
    """

    window = 1

    @initialize()
    def the_leader_is_known(self) -> None:
        self.submit()
        self.client.settle()

    @rule()
    def submit(self) -> None:
        super().submit(patient=True)

    @rule(url=PEERS)
    def elect(self, url: str) -> None:
        """At any moment, also between two messages that are under way to it."""
        peer = self.cluster.peers[url]
        if peer.is_up and not peer.is_frozen:
            peer.is_deluded = False
            self.cluster.elect(peer)

    @rule(url=PEERS, messages=st.integers(0, 2))
    def lose_and_win(self, url: str, messages: int) -> None:
        """Something is under way, and nobody leads while it works off so many messages; then it does."""
        self.submit()
        self.submit()
        self.cluster.elect(None)
        for _ in range(messages):
            self.client.peer_works(url)
        self.elect(url)

    @rule()
    def cancel(self) -> None:
        """Nobody does."""


def test_entries_that_an_election_turned_around_are_told_by_their_indexes() -> None:
    """A peer that refuses one entry and leads again before the next one comes: each result is true all the same."""
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
OneAtATime.TestCase.settings = EFFORT
TestSimulation = Simulation.TestCase
TestOneAtATime = OneAtATime.TestCase
