"""Watches under random schedules of leaders, links, slow readers and forgetful peers, and mutants that they find."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from raft_network import url_of
from served_cluster import ServedCluster, WatchClient

from raft_client import KeyValueCodec
from raft_client.core.selectors import Key, Prefix, Selector, Tree, Where
from raft_client.core.served_watch_calls import Greeting, ServedWatch, SessionCall
from raft_client.core.served_watches import ServedWatches
from raft_client.core.watch_events import Phase, Progress, Resumed, SnapshotEvent, Suspended, WatchState
from raft_client.wire.log_entry import Position

CODEC = KeyValueCodec()
KEYS = ("a", "a/1", "a/2", "ab", "b", "a;b", "b;a/1;b")
SELECTORS: tuple[Selector, ...] = (
    Key(b"a"), Prefix(b"a/"), Tree(b"a"), Prefix(b""), Where(lambda change: change.key == b"b"),
)  # fmt: skip
SCHEDULES = 150


class Schedule:
    """A cluster, a client, its watches with what they have handed out, and what may happen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = ServedCluster(
            history_bytes=self.random.choice([1_000, 5_000, 10**6]), window_messages=self.random.choice([2, 8, 256])
        )
        if self.random.random() < 0.2:
            self.cluster.peers[url_of(3)].offers = False
        self.client = WatchClient(self.cluster)
        self.watches: list[tuple[WatchState, list[Any]]] = []
        self.first: dict[int, int] = {}  # the end of the log when the watch was made
        self.steps: list[Callable[[], None]] = [
            self.write, self.write, self.lag, self.add, self.take, self.take, self.cancel, self.break_link,
            self.change_leader, self.kill, self.freeze, self.deliver, self.deliver, self.hold_up, self.quiet,
            self.sleep, self.restart,
        ]  # fmt: skip

    def run(self, steps: int = 60) -> None:
        for _ in range(steps):
            self.random.choice(self.steps)()
        self.calm()
        for watch, items in self.watches:
            self.check(watch, items)

    # -- what may happen -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        self.cluster.write(*self.random.choices(KEYS, k=self.random.randint(1, 6)))

    def lag(self) -> None:
        self.cluster.write(self.random.choice(KEYS), lag=True)

    def add(self) -> None:
        end = self.cluster.frames.end
        after = self.random.choice([None, 0, end, self.random.randint(0, end)])
        queue = self.random.choice([1, 400, 10**6])
        watch = self.client.watch(self.random.choice(SELECTORS), after=after, queue_bytes=queue, settle=False)
        self.first[watch.id] = end if after is None else after
        self.watches.append((watch, []))

    def take(self) -> None:
        if self.watches:
            watch, items = self.random.choice(self.watches)
            for _ in range(self.random.randint(1, 5)):
                if (item := self.client.next_item(watch)) is not None:
                    items.append(item)

    def cancel(self) -> None:
        if self.watches and self.random.random() < 0.3:
            watch, items = self.watches.pop(self.random.randrange(len(self.watches)))
            self.client.cancel(watch)
            self.check(watch, items, whole=False)
            assert self.client.next_item(watch) is None

    def break_link(self) -> None:
        self.client.break_link(self.random.choice(list(self.cluster.peers)))

    def change_leader(self) -> None:
        number = self.random.randint(1, 3)
        peer = self.cluster.peers[url_of(number)]
        if peer.is_up and not peer.is_frozen:
            self.cluster.lead(number)

    def kill(self) -> None:
        if self.random.random() < 0.3:
            number = self.random.randint(1, 3)
            self.client.kill(url_of(number))
            self.cluster.lead(number % 3 + 1)
            self.mend()

    def freeze(self) -> None:
        peer = self.cluster.peers[url_of(self.random.randint(1, 3))]
        peer.is_frozen = not peer.is_frozen

    def deliver(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            url = self.random.choice(list(self.cluster.peers))
            what = self.random.choice(("peer", "watches", "client"))
            if what == "peer":
                self.client.peer_works(url)
            elif what == "watches":
                self.client.flush(url)
            else:
                self.client.receive_one(self.random.choice((1, 1, 20)))
        if self.random.random() < 0.5:
            self.client.report_losses()

    def hold_up(self) -> None:
        """The client's process is slow: it takes in at once what has come to it in half a second, and what it asked."""
        self.client.time += 0.5
        self.client.machine.tick(self.client.time)
        self.client.runners.tick(self.client.time)
        self.client.perform()
        for url in self.cluster.peers:
            self.client.flush(url)
            while self.client.peer_works(url):
                pass
        while self.client.receive_one(20):
            pass

    def quiet(self) -> None:
        self.client.quiet_time(self.random.choice([0.05, 0.4, 1.5]))

    def sleep(self) -> None:
        """The client's process was stopped for longer than the leader remembers it."""
        if self.random.random() < 0.1:
            self.client.time += 40.0

    def restart(self) -> None:
        """A new process, behind the same connection or another one."""
        url = self.random.choice(list(self.cluster.peers))
        if self.random.random() < 0.5:
            self.client.break_link(url)
        self.cluster.peers[url].restart()

    def mend(self) -> None:
        for peer in self.cluster.peers.values():
            if not peer.is_up:
                peer.restart()

    # -- what must hold ------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        for peer in self.cluster.peers.values():
            peer.is_frozen = False
        self.mend()
        leader = next(n for n in (1, 2, 3) if self.cluster.peers[url_of(n)] is self.cluster.leader)
        self.cluster.lead(leader)
        self.cluster.write("a", "b", "a/1")
        for _ in range(100):
            self.client.quiet_time(2.0)
            for watch, items in self.watches:
                items += self.client.take(watch)
            if all(self.is_done(watch) for watch, _ in self.watches):
                return

    def is_done(self, watch: WatchState) -> bool:
        after = self.client.watches.resume_after(watch)
        return watch.is_live and watch.idle and after is not None and after.index >= self.cluster.frames.end

    def check(self, watch: WatchState, items: list[Any], *, whole: bool = True) -> None:
        """A second opinion: what the log has for the watch from its start on, each entry once, in order."""
        if whole:
            assert watch.error is None
            assert self.is_done(watch)
        if watch.started_after is None:
            assert not items
            return
        position = watch.started_after.index
        # With a term it is where the peer was that began to serve it: perhaps a former leader that does not know yet.
        assert position >= self.first[watch.id] or watch.started_after.term
        for item in items:
            assert not isinstance(item, SnapshotEvent)
            if isinstance(item, (Suspended, Resumed)):
                continue
            assert item.position.index > position
            for index in range(position + 1, item.position.index + 1):
                wanted = self.wanted(watch, index)
                if index < item.position.index or isinstance(item, Progress):
                    assert not wanted, f"the entry {index} was left out"
                else:
                    assert item.changes == wanted
            position = item.position.index
        if whole:
            assert not any(self.wanted(watch, index) for index in range(position + 1, self.cluster.frames.end + 1))

    def wanted(self, watch: WatchState, index: int) -> tuple[Any, ...]:
        changes = CODEC.decode(self.cluster.frames.frames[index - 1][20:])
        return tuple(change for change in changes if watch.selector.matches(change))


@pytest.mark.parametrize("start", range(0, SCHEDULES, 50))
def test_no_schedule_loses_or_doubles_an_event(start: int) -> None:
    """Whatever happens to leaders and connections, each watch hands out each entry that it wants once, in order."""
    for seed in range(start, start + 50):
        try:
            Schedule(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# -- mutants -----------------------------------------------------------------------------------------------------------

MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def mutant(change: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    MUTANTS[change.__name__] = change
    return change


@mutant
def begins_where_it_was_asked_to_at_first(patch: pytest.MonkeyPatch) -> None:
    """And not after the last event: with a new leader, what was told is told again or skipped."""
    init = ServedWatch.__init__
    patch.setattr(
        ServedWatch,
        "__init__",
        lambda self, ident, wants, _after, call, on_reply: init(self, ident, wants, None, call, on_reply),
    )


@mutant
def progress_says_more_than_it_does(patch: pytest.MonkeyPatch) -> None:
    """What the leader says of all watches is taken for the entry after it, too, which is still to come."""
    progress = ServedWatches._progress
    patch.setattr(
        ServedWatches, "_progress", lambda self, position: progress(self, Position(position.index + 1, position.term))
    )


@mutant
def progress_after_the_end_of_a_watch_is_its_own(patch: pytest.MonkeyPatch) -> None:
    """What is said of all watches is taken for the one as well whose end came just before, and is yet to be told."""
    patch.setattr(ServedWatch, "is_over", property(lambda _self: False, lambda _self, _is_over: None))


@mutant
def a_lost_session_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """Neither NoSession nor the number of another session begins anything again."""
    begin_again = ServedWatches._begin_again

    def only_over_new_connections(self: ServedWatches, calls: list[ServedWatch]) -> None:
        if len(calls) == len(self._watches) and not self._due and self.heartbeat_at is not None:
            return
        begin_again(self, calls)

    patch.setattr(ServedWatches, "_begin_again", only_over_new_connections)


@mutant
def a_full_queue_drops_events(patch: pytest.MonkeyPatch) -> None:
    """A watch whose reader is slow goes on being served, without what did not fit."""
    events = ServedWatches._events

    def drop_what_does_not_fit(self: ServedWatches, call: ServedWatch, reply: Any) -> None:
        watch = self._watches[call]
        if watch is not None and watch.size > self._table.room(watch):
            self._session.messages += 1
            return
        events(self, call, reply)

    patch.setattr(ServedWatches, "_events", drop_what_does_not_fit)


@mutant
def history_outrun_is_not_minded(patch: pytest.MonkeyPatch) -> None:
    """Where the leader has forgotten what follows, the watch goes on with what the leader still has."""

    def skip(self: ServedWatches, watch: WatchState | None, _reason: Any) -> None:
        if watch is not None:
            watch.start_after(watch.after or watch.seen)
            watch.seen = Position(10_000)
            watch.phase = Phase.BEHIND
            self.begin(watch)

    patch.setattr(ServedWatches, "_ended", skip)


@mutant
def nobody_is_greeted_anew(patch: pytest.MonkeyPatch) -> None:
    """Over a new connection watches are begun before its peer has said that it serves them."""
    patch.setattr(SessionCall, "moved", lambda self: setattr(self, "_is_new", True))
    patch.setattr(ServedWatches, "failed", _failed_without_doubt)


def _failed_without_doubt(self: ServedWatches, call: Any, _error: Any) -> bool:
    if call is self._call or call not in self._watches:
        return False
    watch = self._forget(call)
    if watch is not None:
        self.begin(watch)
    return True


@mutant
def begins_are_never_repeated(patch: pytest.MonkeyPatch) -> None:
    """A watch whose connection broke is not begun over the next one."""
    begin_again = ServedWatches._begin_again

    def forget(self: ServedWatches, calls: list[ServedWatch]) -> None:
        begin_again(self, calls)
        self._to_begin.clear()

    patch.setattr(ServedWatches, "_begin_again", forget)


@mutant
def never_says_what_has_arrived(patch: pytest.MonkeyPatch) -> None:
    """The leader is told that the client is there, but not how many messages have arrived."""
    seen = SessionCall.seen
    patch.setattr(SessionCall, "seen", lambda self, session, _messages: seen(self, session, 0))


@mutant
def counts_anew_with_each_watch(patch: pytest.MonkeyPatch) -> None:
    """With each watch that begins, all messages but two are forgotten: the leader waits for the others."""
    watching = ServedWatches._watching

    def keep_count(self: ServedWatches, call: ServedWatch, reply: Any) -> None:
        watching(self, call, reply)
        self._session.messages = min(self._session.messages, 2)

    patch.setattr(ServedWatches, "_watching", keep_count)


@mutant
def stays_with_a_leader_that_leads_no_more(patch: pytest.MonkeyPatch) -> None:
    """What the leader says of its role is not heard: a peer that is cut off tells nothing for ever."""
    hand_out = SessionCall._hand_out
    patch.setattr(SessionCall, "_greeted", lambda self, _reply, _hello: hand_out(self, _greeting(self)))


def _greeting(call: SessionCall) -> Any:
    call.is_greeted = True
    return Greeting(offers=True, is_new=True)


@pytest.mark.ci
@pytest.mark.turns(3)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of getting it wrong is found by the schedules."""
    MUTANTS[name](monkeypatch)
    for seed in range(SCHEDULES):
        try:
            Schedule(seed).run()
        except Exception:  # noqa: BLE001 - whatever shows that something is wrong
            return
    pytest.fail(f"{SCHEDULES} schedules did not find it")
