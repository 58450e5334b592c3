"""Several callers of one client and a cluster, moved by rules: the world of the simulations."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from model_peer import snapshot_bytes
from raft_network import IDENT, NONSENSE, ClientDriver, SimCluster, url_of

from raft_client.core.calls import Again, Append, Custom
from raft_client.core.entries_stream import EntriesStream
from raft_client.core.requests import Request
from raft_client.core.subscription import FindBroadcast
from raft_client.errors import (
    ConnectionLostError,
    NoLeaderError,
    OutOfDateLogError,
    RaftError,
    RequestExpiredError,
    RequestTimeoutError,
    TransportError,
)
from raft_client.wire.log_entry import SnapshotChunk

PEERS = st.integers(1, 3).map(url_of)


# -- the callers: what each of them asked, what it may get, and what it must not ---------------------------------------
#
# Each caller knows only what the world did to *it*: whether its link broke, whether its own time was up, whether a peer
# refused its own id. That is the whole list of its excuses; what other callers do is on no list.


@attrs.define(eq=False)
class Appender:
    """One append. ``number`` is its data and its request id; ``is_new``: this is the first call with it."""

    client: ClientDriver
    number: int
    timeout: float | None
    is_new: bool = True
    is_cancelled: bool = False
    request: Request = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        call = Append(IDENT, b"%d" % self.number, self.number.to_bytes(12, "big"), has_new_id=self.is_new)
        self.request = self.client.submit(call, self, timeout=self.timeout)

    @property
    def data(self) -> bytes:
        return b"%d" % self.number

    def check(self, outcome: Any) -> None:
        """The index is where the data stands; an error has a reason of its own, and "not applied" is true."""
        log = self.client.cluster.log
        if not isinstance(outcome, RaftError):
            assert log[outcome - 1] == self.data
            return
        if isinstance(outcome, RequestExpiredError):
            assert self.number.to_bytes(12, "big") in self.client.cluster.refused
        else:
            assert isinstance(outcome, TransportError)
            assert self.timeout is not None
            assert self.client.time >= self.request.deadline
        self.check_truth(outcome)

    def check_truth(self, error: RaftError) -> None:
        """Now and at any later time."""
        assert error.may_have_been_applied or self.data not in self.client.cluster.log
        assert error.request_id is not None
        assert error.request_id.raw == self.number.to_bytes(12, "big")


@attrs.define(eq=False)
class CustomCaller:
    """One message to the state machine, which answers it at once, later, or never."""

    client: ClientDriver
    kind: str
    number: int
    timeout: float | None
    request: Request = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        call = Custom(IDENT, self.kind, (b"%d" % self.number,))
        self.request = self.client.submit(call, self, timeout=self.timeout)

    @property
    def link(self) -> int | None:
        """The one on which it was sent; it is sent once."""
        links = self.client.links_of.get(self.request.request_id, set())
        assert len(links) <= 1
        return next(iter(links), None)

    def check(self, outcome: Any) -> None:
        """Its own answer, or its own link broke, or its own time is up."""
        if isinstance(outcome, ConnectionLostError):
            assert self.link in self.client.broken
            assert outcome.may_have_been_applied
        elif isinstance(outcome, RaftError):
            assert isinstance(outcome, RequestTimeoutError | NoLeaderError)
            assert self.timeout is not None
            assert self.client.time >= self.request.deadline
            assert outcome.may_have_been_applied is (self.link is not None)
        else:
            assert outcome == [b"custom", b"%d" % self.number]

    def check_waiting(self) -> None:
        """While it waits the client keeps its link."""
        assert self.link is None or self.link in self.client.broken or self.link in self.client.links.values()


@attrs.define(eq=False)
class Finder:
    """A subscription's question where the leader broadcasts, which these peers never answer."""

    client: ClientDriver
    request: Request = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.request = self.client.submit(FindBroadcast(IDENT), self)

    def check(self, outcome: Any) -> None:
        raise AssertionError(f"nobody answered, and still: {outcome}")


@attrs.define(eq=False)
class Reader:
    """One stream of entries, and what its reader made of it. ``is_mistaken``: it asks for what never was."""

    client: ClientDriver
    after: int
    is_mistaken: bool
    call: EntriesStream = attrs.field(init=False)
    request: Request = attrs.field(init=False)
    expected: int = attrs.field(init=False)
    piece: bytes = b""
    may_lag: bool = False  # a peer was cut off while it read

    def __attrs_post_init__(self) -> None:
        self.expected = self.after + 1
        self.call = EntriesStream(IDENT, self.after, buffer_bytes=150)
        self.request = self.client.submit(self.call, self)

    def take(self) -> bool:
        """The next batch, as the shells do it; what it holds is what the log holds."""
        batch = self.call.next_batch(self.client.time)
        verdict = self.call.resume()
        if isinstance(verdict, Again):
            self.client.machine.again(self.request, verdict.last, self.client.time)
        elif verdict is not None:
            for frames in verdict.frames:
                self.client.machine.follow_up(self.request, frames, self.client.time)
        self.client.perform()
        if isinstance(batch, SnapshotChunk):
            self._check_chunk(batch)
        elif batch is not None:
            for entry in batch:
                assert entry.index == self.expected
                assert entry.data == self.client.cluster.log[entry.index - 1]
                self.expected += 1
        return batch is not None

    def _check_chunk(self, chunk: SnapshotChunk) -> None:
        self.piece = chunk.data if chunk.is_first else self.piece + chunk.data
        wholes = [snapshot_bytes(chunk.index, chunk.size, maker) for maker in range(1, self.client.cluster.makers + 1)]
        assert any(whole[: chunk.end] == self.piece for whole in wholes), "spliced from two"
        assert chunk.index >= self.expected
        if chunk.is_last:
            self.expected = chunk.index + 1

    def check(self, outcome: Any) -> None:
        """The end of the log as it was when the last entry came; or that it was never so long."""
        if isinstance(outcome, RaftError):
            assert isinstance(outcome, OutOfDateLogError)
            assert self.is_mistaken or self.may_lag
        else:
            assert outcome <= len(self.client.cluster.log)
            assert not self.is_mistaken


# -- the world --------------------------------------------------------------------------------------------------------


class Simulation(RuleBasedStateMachine):
    """Rules are the world's moves; at the end the world is mended, and every promise must have been kept."""

    window = 4

    def __init__(self) -> None:
        super().__init__()
        self.cluster = SimCluster()
        self.client = ClientDriver(self.cluster, max_in_flight=self.window)
        self.callers: list[Any] = []
        self.denied: list[tuple[Appender, RaftError]] = []  # who was told that nothing was applied
        self.numbers = 0

    # -- the callers ---------------------------------------------------------------------------------------------------

    def append(self, timeout: float | None = None) -> Appender:
        caller = Appender(self.client, self.next_number(), timeout)
        self.callers.append(caller)
        return caller

    @rule(patient=st.sampled_from([True, True, True, False]))
    def submit(self, patient: bool) -> None:
        self.append(None if patient else 1.0)

    @precondition(lambda self: self.denied)
    @rule(which=st.integers(0, 100), patient=st.booleans())
    def submit_again(self, which: int, patient: bool) -> None:
        """With the id that the error carried."""
        former, _ = self.denied.pop(which % len(self.denied))
        self.callers.append(Appender(self.client, former.number, None if patient else 1.0, is_new=False))

    @rule(kind=st.sampled_from(["ping", "later", "never"]), timeout=st.sampled_from([None, 0.4, 3.0]))
    def call(self, kind: str, timeout: float | None) -> None:
        self.callers.append(CustomCaller(self.client, kind, self.next_number(), timeout))

    @rule(share=st.sampled_from([0.0, 0.0, 0.5, 1.0]), is_mistaken=st.sampled_from([False, False, True]))
    def read(self, share: float, is_mistaken: bool) -> None:
        after = 10**6 if is_mistaken else int(share * len(self.cluster.log))
        self.callers.append(Reader(self.client, after, is_mistaken))

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 100), times=st.integers(1, 6))
    def take(self, which: int, times: int) -> None:
        reader = self.readers[which % len(self.readers)]
        for _ in range(times):
            reader.take()

    @rule()
    def find_broadcast(self) -> None:
        if not any(isinstance(caller, Finder) for caller in self.callers):
            self.callers.append(Finder(self.client))

    @property
    def readers(self) -> list[Reader]:
        return [caller for caller in self.callers if isinstance(caller, Reader)]

    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        """The caller has given up, as on KeyboardInterrupt."""
        waiting = [c for c in self.callers if isinstance(c, Appender) and not c.request.is_done]
        if waiting and which % 7 == 0:
            caller = waiting[which % len(waiting)]
            caller.is_cancelled = True
            self.client.machine.cancel(caller.request, self.client.time)
            self.client.perform()

    # -- the world -----------------------------------------------------------------------------------------------------

    @rule(url=PEERS, messages=st.integers(1, 5))
    def peer_works(self, url: str, messages: int) -> None:
        for _ in range(messages):
            self.client.peer_works(url)

    @rule(url=PEERS)
    def state_machine_works(self, url: str) -> None:
        self.client.state_machine_works(url)

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

    @rule(seconds=st.sampled_from([0.1, 0.6, 2.0]))
    def time_passes(self, seconds: float) -> None:
        """With everything delivered in between."""
        self.client.pass_time(seconds)

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
            peer.term, peer.reader.applied = self.cluster.term, None
            self.cluster.makers += 1
            peer.reader.snapshot_maker = self.cluster.makers  # as after its data was lost and copied from another

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
            self.win(url)

    def win(self, url: str) -> None:
        peer = self.cluster.peers[url]
        peer.is_deluded = False
        self.cluster.elect(peer)

    @rule(url=PEERS)
    def cut_off(self, url: str) -> None:
        """It goes on to believe what it believes now."""
        self.cluster.peers[url].cut_off()
        for reader in self.readers:
            reader.may_lag = True

    @rule(url=PEERS, share=st.sampled_from([0.5, 1.0]))
    def compact(self, url: str, share: float) -> None:
        reader = self.cluster.peers[url].reader
        reader.compacted = max(reader.compacted, int(share * reader.end))

    @rule(url=PEERS, wrong=st.booleans())
    def set_clock(self, url: str, wrong: bool) -> None:
        """A peer whose clock is wrong takes every id for an expired one."""
        self.cluster.peers[url].says_expired = wrong

    @rule()
    def list_nonsense(self) -> None:
        """The cluster names a peer to which nobody can connect."""
        if len(self.cluster.listed) == 3:
            self.cluster.listed.append(["4", NONSENSE])

    # -- the promises --------------------------------------------------------------------------------------------------

    @invariant()
    def everybody_is_answered_at_most_once_and_truly(self) -> None:
        for caller in self.callers:
            outcomes = self.client.outcomes.get(caller, [])
            assert len(outcomes) <= 1
            if outcomes:
                caller.check(outcomes[0])
            elif isinstance(caller, CustomCaller):
                caller.check_waiting()
        for appender, error in self.denied:
            appender.check_truth(error)
        for caller in [c for c in self.callers if self.client.outcomes.get(c)]:
            [outcome] = self.client.outcomes[caller]
            if isinstance(caller, Appender) and isinstance(outcome, RaftError):
                self.denied.append((caller, outcome))
            if not isinstance(caller, Reader):  # whose queue may hold something still
                self.callers.remove(caller)

    @invariant()
    def nothing_is_in_the_log_twice_or_out_of_order(self) -> None:
        numbers = [int(data) for data in self.cluster.log]
        assert len(numbers) == len(set(numbers))

    @invariant()
    def no_more_links_than_are_needed(self) -> None:
        table = self.client.machine._table
        assert len(table.links) <= 4
        waiting = {request.sent_to for request in table.requests.values()}
        assert table.aside <= waiting

    @rule(
        mistaken=st.booleans(),
        streams=st.sampled_from([0, 1, 6]),
        kinds=st.lists(st.sampled_from(["never", "later"]), max_size=1),
        finder=st.booleans(),
    )
    def calm(self, *, mistaken: bool, streams: int, kinds: list[str], finder: bool) -> None:
        """Nothing is wrong with the world, so appends and messages are answered at once, whoever else is in trouble."""
        self.mend()
        self.append()
        self.client.pass_time(1.0)
        searches = self.client.machine.stats.searches
        for _ in range(streams):
            self.read(0.0, is_mistaken=False)
        for kind in kinds:
            self.call(kind, None)
        if finder:
            self.find_broadcast()
        if mistaken:
            self.read(1.0, is_mistaken=True)
        for _ in range(25):
            self.client.pass_time(0.2)
            appender = self.append()
            caller = CustomCaller(self.client, "ping", self.next_number(), None)
            self.callers.append(caller)
            self.client.settle()
            for waiter in (appender, caller):
                assert self.client.outcomes[waiter], "it waits, and nothing is wrong with the cluster"
        assert self.client.machine.stats.searches == searches
        self.everybody_is_answered_at_most_once_and_truly()

    @rule(stays=st.booleans(), reads=st.booleans())
    def vote_out(self, *, stays: bool, reads: bool) -> None:
        """A leader that was voted out and does not know it answers everything; the client goes to the next one."""
        self.mend()
        self.append()
        self.client.pass_time(1.0)
        self.cut_off(url_of(2))
        self.win(url_of(3))
        number = self.next_number()
        self.cluster.commit(number.to_bytes(12, "big"), b"%d" % number)  # somebody else's
        if reads:
            self.read(1.0, is_mistaken=False)
        else:
            self.append()
        caller = self.callers[-1]
        for _ in range(20):
            self.client.pass_time(0.2)
            if stays:  # somebody whom the former leader answers
                self.callers.append(CustomCaller(self.client, "ping", self.next_number(), None))
        assert self.client.outcomes[caller], "a leader of an earlier term keeps it"

    @rule(again=st.booleans(), messages=st.integers(1, 3))
    def accept_and_refuse(self, *, again: bool, messages: int) -> None:
        """One peer accepts an entry and is cut off, the next one refuses its id, and then the first one leads again."""
        self.mend()
        self.append()
        self.client.pass_time(1.0)
        self.cut_off(url_of(2))
        self.set_clock(url_of(3), wrong=True)
        self.win(url_of(3))
        appender = self.append()
        for _ in range(messages):
            self.client.peer_works(url_of(2))
        self.client.pass_time(5.0)
        self.everybody_is_answered_at_most_once_and_truly()
        if again and any(former is appender for former, _ in self.denied):
            self.callers.append(Appender(self.client, appender.number, None, is_new=False))
            self.client.pass_time(1.0)
            self.everybody_is_answered_at_most_once_and_truly()
        self.win(url_of(2))

    @rule(messages=st.integers(1, 4), url=PEERS, dies=st.booleans())
    def hand_over_a_snapshot(self, messages: int, url: str, *, dies: bool) -> None:
        """All peers have compacted the same entries, each into bytes of its own, and the leader changes on the way."""
        self.mend()
        self.append()
        self.client.pass_time(1.0)
        for peer in self.cluster.peers.values():
            peer.reader.compacted = peer.reader.end
        self.append()
        self.client.settle()
        reader = Reader(self.client, 0, is_mistaken=False)
        self.callers.append(reader)
        for _ in range(messages):
            self.client.peer_works(url_of(2))
            self.client.receive_one()
        if dies:
            self.kill(url_of(2))
            self.restart(url_of(2))
        self.elect(url)
        self.client.pass_time(1.0)
        while reader.take():
            self.client.settle()

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def mend(self) -> None:
        """All peers up, one of them leads; and time for everybody to find that out."""
        for url in self.cluster.peers:
            self.restart(url)
            peer = self.cluster.peers[url]
            peer.is_frozen = peer.is_deluded = peer.says_expired = False
            peer.reader.applied = None
            self.client.state_machine_works(url)
        self.elect(url_of(2))
        self.client.pass_time(20.0)
        self.everybody_is_answered_at_most_once_and_truly()

    def teardown(self) -> None:
        """In a mended world everybody who waits is answered within seconds, and every stream comes to its end."""
        self.mend()
        for url in self.cluster.peers:
            self.client.state_machine_works(url)
        self.client.settle()
        for reader in self.readers:
            while reader.take() or self.client.to_client or any(p.inbox for p in self.cluster.peers.values()):
                self.client.settle()
            assert self.client.outcomes[reader]
            assert reader.is_mistaken or reader.may_lag or reader.expected == self.client.outcomes[reader][0] + 1
        self.everybody_is_answered_at_most_once_and_truly()
        self.nothing_is_in_the_log_twice_or_out_of_order()
        self.only_who_asked_for_it_waits()
        self.no_more_links_than_are_needed()

    def only_who_asked_for_it_waits(self) -> None:
        """For an answer that never comes."""
        for caller in self.callers:
            if isinstance(caller, Finder) or (isinstance(caller, CustomCaller) and caller.kind == "never"):
                self.client.machine.cancel(caller.request, self.client.time)
                self.client.perform()
            elif not isinstance(caller, Reader):
                assert isinstance(caller, Appender)
                assert caller.is_cancelled
        assert self.client.machine.pending == 0
        assert self.client.machine.next_deadline() is None
        assert len(self.client.links) <= 1
