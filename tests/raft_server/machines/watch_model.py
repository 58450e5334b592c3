"""Clients that watch through bad connections, beside a plain log that says what they must have been told.

A schedule is a number. It applies entries, lets clients begin, cancel, resume, read slowly, stand still and come back
through other connections, fills queues, restarts the peer, gives it snapshots, and puts back an older log.

What must hold, at each message: a watch was told what it wants of the log after its base, in order, none twice; what a
progress claims was told; and a watch that ended because it missed something did miss something. In the end, when
everything was read: each watch was told everything, or knows that it was not.
"""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from typing import Final

import attrs

from raft_client.server.machines.watch_server import WatchServer, WatchServerLimits
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    EndReason,
    Events,
    NoSession,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
    WatchReply,
)

__all__ = ["STEPS", "Schedule"]

STEPS: Final = 400
LIMITS: Final = WatchServerLimits(
    history_bytes=9_000,
    sessions=6,
    watches=10,
    watches_of_a_session=6,
    window_messages=3,
    window_bytes=1_200,
    window_bytes_of_all=1_500,
)
#: Messages that a connection holds before the ROUTER refuses more.
QUEUE: Final = 20
KEYS: Final = (b"a", b"ab", b"abc", b"b")


@attrs.define(eq=False)
class WatchOfUser:
    """A watch as its user sees it, over all connections."""

    key: bytes
    is_prefix: bool
    base: int | None = None  # of what it must have been told; None until the peer has said it
    position: Position | None = None
    events: list[Events] = attrs.field(factory=list)
    request_id: bytes = b""
    is_confirmed: bool = False
    is_over: bool = False

    def wants(self, key: bytes) -> bool:
        return key.startswith(self.key) if self.is_prefix else key == self.key


@attrs.define(eq=False)
class Client:
    route: bytes
    session: int | None = None
    received: int = 0
    said: int = 0  # how many of them in the last Seen
    watches: dict[bytes, WatchOfUser] = attrs.field(factory=dict)
    inbox: deque[tuple[bytes, WatchReply]] = attrs.field(factory=deque)
    asked: dict[bytes, int] = attrs.field(factory=dict)  # the sessions that were asked for with Seen


class Schedule:
    """``run()`` raises AssertionError if something does not hold."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[tuple[int, tuple[Change, ...]]] = []
        self.term = 1
        self.applied = 0
        self.now = 0.0
        self.ids = (b"%d" % number for number in count())
        self.routes = (b"r%d" % number for number in count())
        self.sessions = 100
        self.server = WatchServer(Position(0), LIMITS, first_session=self.sessions)
        self.clients = [Client(next(self.routes)) for _ in range(3)]
        self.seen: dict[str, int] = {}

    def run(self, steps: int = STEPS) -> dict[str, int]:
        """What was seen, and how often: to see that a schedule does something."""
        actions = {
            self.apply: 25,
            self.deliver: 30,
            self.turn: 60,
            self.say_seen: 12,
            self.begin: 8,
            self.cancel: 2,
            self.pause: 2,
            self.reconnect: 2,
            self.stand_still: 1,
            self.flood: 1,
            self.restart: 0.4,
            self.install: 0.4,
            self.put_back: 0.3,
        }
        for action in self.rng.choices(list(actions), list(actions.values()), k=steps):
            action()
            self.collect()
        self.settle()
        return self.seen

    # -- the log -------------------------------------------------------------------------------------------------------

    def apply(self) -> None:
        """A committed entry, a new one or one that the peer has yet to apply again."""
        for _ in range(self.rng.choice((1, 1, 1, 6))):
            if self.applied == len(self.log):
                self.term += self.rng.random() < 0.05
                changes = tuple(self.change() for _ in range(self.rng.choice((0, 1, 1, 1, 4))))
                self.log.append((self.term, changes))
            term, changes = self.log[self.applied]
            self.applied += 1
            if changes or term != self.term_at(self.applied - 1) or self.rng.random() < 0.7:
                self.server.applied(self.applied, term, changes)
        if not self.log[self.applied - 1][1]:
            self.server.applied(self.applied, self.log[self.applied - 1][0])

    def change(self) -> Change:
        key = self.rng.choice(KEYS)
        if self.rng.random() < 0.2:
            return Change(ChangeKind.DELETE, key)
        return Change(ChangeKind.SET, key, bytes(self.rng.choice((1, 3, 3, 300))))

    def term_at(self, index: int) -> int:
        return self.log[index - 1][0] if index else 0

    def wanted(self, watch: WatchOfUser, up_to: int) -> list[Events]:
        assert watch.base is not None
        found = []
        for index in range(watch.base + 1, up_to + 1):
            term, changes = self.log[index - 1]
            chosen = tuple(change for change in changes if watch.wants(change.key))
            if chosen:
                found.append(Events(Position(index, term), chosen))
        return found

    # -- the peer ------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        self.server.turn(self.now)

    def pause(self) -> None:
        self.now += self.rng.choice((1.0, 10.0))

    def new_server(self, index: int) -> None:
        """The peer starts with a snapshot of the entries up to ``index``; all connections are lost."""
        self.applied = index
        self.sessions += 1_000
        self.server = WatchServer(Position(index, self.term_at(index)), LIMITS, first_session=self.sessions)
        for client in self.clients:
            self.connect(client, forgets=False)

    def restart(self) -> None:
        """A client does not see that libzmq connects anew: it goes on as before."""
        self.new_server(self.rng.randint(max(0, self.applied - 10), self.applied))

    def install(self) -> None:
        """A snapshot of what the others have applied meanwhile."""
        for _ in range(self.rng.randint(0, 5)):
            self.log.append((self.term, (self.change(),)))
        self.applied = len(self.log)
        self.server.restored(Position(self.applied, self.term_at(self.applied)))

    def put_back(self) -> None:
        """The cluster begins anew with a backup of its log, with a much higher term."""
        length = self.rng.randint(max(0, len(self.log) - 8), len(self.log))
        for watch in self.all_watches():
            if watch.position is None or not watch.position.term:
                self.give_up(watch)  # nobody can tell which log it is of
        del self.log[length:]
        self.term += 100
        self.log.append((self.term, ()))
        self.new_server(self.rng.randint(max(0, length - 5), length))

    # -- clients -------------------------------------------------------------------------------------------------------

    def all_watches(self) -> list[WatchOfUser]:
        return [watch for client in self.clients for watch in client.watches.values()]

    def client(self) -> Client:
        return self.rng.choice(self.clients)

    def send(self, client: Client, request_id: bytes, request: BeginWatch | CancelWatch | Seen) -> None:
        self.server.request(client.route, request_id, request, self.now)
        self.collect()

    def begin(self) -> None:
        client = self.client()
        if len(client.watches) >= 7:
            return
        watch = WatchOfUser(self.rng.choice((*KEYS, b"")), self.rng.random() < 0.5)
        match self.rng.choice(("now", "now", "past", "past", "index", "wrong")):
            case "past":
                index = self.rng.randint(max(0, len(self.log) - 15), len(self.log))
                watch.base, watch.position = index, Position(index, self.term_at(index))
            case "index":
                index = self.rng.randint(max(0, len(self.log) - 9), len(self.log))
                watch.base, watch.position = index, Position(index)
            case "wrong" if self.applied > 1:
                index = self.rng.randint(max(1, self.applied - 9), self.applied)
                watch.base, watch.position = index, Position(index, self.term_at(index) + self.rng.choice((-1, 1, 5)))
                if not watch.position.term:
                    return
        self.ask(client, watch)

    def ask(self, client: Client, watch: WatchOfUser) -> None:
        """Begin it, or begin it again after its position."""
        watch.request_id, watch.is_confirmed = next(self.ids), False
        client.watches[watch.request_id] = watch
        self.send(client, watch.request_id, BeginWatch(b"", watch.key, watch.is_prefix, watch.position))

    def ask_again(self, client: Client, watches: list[WatchOfUser]) -> None:
        for watch in watches:
            client.watches.pop(watch.request_id, None)
        for watch in watches:
            self.ask(client, watch)

    def give_up(self, watch: WatchOfUser) -> None:
        watch.is_over = True
        for client in self.clients:
            client.watches.pop(watch.request_id, None)

    def cancel(self) -> None:
        client = self.client()
        if client.watches:
            watch = self.rng.choice(list(client.watches.values()))
            watch.is_over = True  # what arrives before the answer is still its own
            self.send(client, watch.request_id, CancelWatch(b""))

    def say_seen(self) -> None:
        self.say_seen_of(self.client())

    def say_seen_of(self, client: Client) -> None:
        if client.session is not None:
            client.asked[request_id := next(self.ids)] = client.session
            client.said = client.received
            self.send(client, request_id, Seen(b"", client.session, client.received))

    def connect(self, client: Client, *, forgets: bool) -> None:
        """Another connection; the client knows of it (``forgets``), or finds out by its next Seen."""
        client.route = next(self.routes)
        client.inbox.clear()
        if forgets:
            client.session = None
            self.ask_again(client, [watch for watch in client.watches.values() if not watch.is_over])
        else:
            for watch in [watch for watch in client.watches.values() if not watch.is_confirmed]:
                self.ask_again(client, [watch])  # its answer never comes: the client asks again

    def reconnect(self) -> None:
        self.connect(self.client(), forgets=self.rng.random() < 0.5)

    def flood(self) -> None:
        """A client asks more than its connection holds answers, and goes on without those that were refused."""
        client = self.client()
        for _ in range(QUEUE):
            self.say_seen_of(client)
            if self.rng.random() < 0.1:
                self.apply()
                self.turn()
                self.collect()

    def stand_still(self) -> None:
        """The peer takes this client for gone; the others go on."""
        silent = self.client()
        self.now += 29.0
        for client in self.clients:
            if client is not silent:
                self.say_seen_of(client)
        self.now += 2.0
        self.server.turn(self.now)

    # -- messages ------------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """The ROUTER takes what the peer sends, or refuses it; who is not there any more refuses everything."""
        refused: set[bytes] = set()
        by_route = {client.route: client for client in self.clients}
        for each in self.server.take():
            client = by_route.get(each.route)
            if isinstance(each.reply, WatchEnded) and each.reply.reason is EndReason.TOO_MANY:
                assert self.is_full(each.route), "there is room for the watch"
            if each.route in refused:
                continue
            if client is None or len(client.inbox) >= QUEUE:
                refused.add(each.route)
                self.server.refused(each.route)
                continue
            client.inbox.append((each.request_id, each.reply))
        for client in self.clients:
            session = self.server._sessions.get(client.route)
            if session is not None and session.number == client.session:
                assert session.sent - client.said <= LIMITS.window_messages, "more on its way than there is room for"

    def is_full(self, route: bytes) -> bool:
        session = self.server._sessions.get(route)
        if session is None:
            return self.server.session_count == LIMITS.sessions or self.server.watch_count == LIMITS.watches
        return len(session.watches) == LIMITS.watches_of_a_session or self.server.watch_count == LIMITS.watches

    def deliver(self) -> None:
        client = self.client()
        for _ in range(self.rng.choice((1, 3, 10))):
            if client.inbox:
                self.receive(client, *client.inbox.popleft())

    def receive(self, client: Client, request_id: bytes, reply: WatchReply) -> None:
        name = reply.reason.name if isinstance(reply, WatchEnded) else type(reply).__name__
        self.seen[name] = self.seen.get(name, 0) + 1
        watch = client.watches.get(request_id)
        match reply:
            case Watching():
                self.watching(client, watch, reply)
            case Events() as events:
                client.received += 1
                if watch is not None:
                    self.told(watch, events)
            case WatchProgress() if reply.session == client.session:
                self.progress(client, reply.position)
            case NoSession(session=session) if session == client.session == client.asked.pop(request_id, None):
                client.session = None
                self.begin_all_again(client)
            case WatchEnded() if watch is not None:
                del client.watches[request_id]
                self.ended(client, watch, reply)

    def begin_all_again(self, client: Client) -> None:
        """Those that were confirmed are of the session that is over; the others have yet to be answered."""
        self.ask_again(client, [each for each in client.watches.values() if each.is_confirmed and not each.is_over])

    def watching(self, client: Client, watch: WatchOfUser | None, reply: Watching) -> None:
        assert reply.applied.term == self.term_at(reply.applied.index) or reply.applied.index > len(self.log)
        if reply.session != client.session:
            client.session, client.received, client.said = reply.session, 0, 0
            self.begin_all_again(client)
        if watch is not None:
            watch.is_confirmed = True
            if watch.base is None:
                watch.base, watch.position = reply.applied.index, reply.applied

    def told(self, watch: WatchOfUser, events: Events) -> None:
        assert watch.is_confirmed, "an event before the watch has begun"
        watch.events.append(events)
        watch.position = events.position
        expected = self.wanted(watch, events.position.index)
        assert watch.events == expected, f"told {watch.events[-3:]}, and not {expected[-3:]}"

    def progress(self, client: Client, position: Position) -> None:
        assert position.term == self.term_at(position.index)
        for watch in client.watches.values():
            if not watch.is_confirmed or watch.is_over or watch.position is None or watch.base is None:
                continue
            if position.index >= watch.position.index:
                assert watch.events == self.wanted(watch, position.index), "progress before what it says was told"
                watch.position = position

    def ended(self, client: Client, watch: WatchOfUser, reply: WatchEnded) -> None:
        match reply.reason:
            case EndReason.CANCELLED:
                assert watch.is_over
            case EndReason.TOO_MANY:
                pass  # see collect()
            case EndReason.OTHER_LOG:
                assert watch.position is not None
                index, term = watch.position.index, watch.position.term
                is_other = index > len(self.log) or term != self.term_at(index)
                assert is_other, "a position of this log is refused"
            case _:
                assert watch.position is not None
                assert watch.position.index + 1 < reply.oldest, "it missed nothing"
        watch.is_over = True

    # -- the end -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything is applied, told and read; then each watch has everything, or knows that it has not."""
        while self.applied < len(self.log):
            self.apply()
        for _ in range(60):
            for client in self.clients:
                self.ask_again(client, [each for each in client.watches.values() if not each.is_confirmed])
                self.say_seen_of(client)
            turns = 0
            while self.server.next_deadline() == 0.0:
                turns += 1
                assert turns < 2_000, "the turns have no end"
                self.server.turn(self.now)
                self.collect()
            for client in self.clients:
                while client.inbox:
                    self.receive(client, *client.inbox.popleft())
        for client in self.clients:
            for watch in client.watches.values():
                if watch.is_over:
                    continue
                assert watch.is_confirmed, "a watch that was never answered"
                assert watch.events == self.wanted(watch, len(self.log)), "something was never told"
                assert watch.position == Position(len(self.log), self.term_at(len(self.log))), "no progress"
