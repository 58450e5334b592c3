"""A foreign broker, its clients, and the hosts of a store, in one process: each step is one thing that one of them
does.

Connections are two pipes. Between any two steps the host's connection may be lost with what is in them, the host may
crash with or without what its disk had not finished, and the broker may lose the host's session.

In one world of four, two hosts share a log. One of them owns it at a time; the other one reads what it has written,
and takes its place when its lease is over, while the old one may still run, be connected, and know nothing of it. They
have one client identifier, so the broker ends the connection of the one when the other one connects.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import attrs

from statestore_client.mqtt.packets.types import Publish, PublishProperties
from statestore_client.server.host.askers import NO_ID, is_nobody
from statestore_client.server.host.host import Acknowledge, Host, Send
from statestore_client.server.journal import Done, Journal, StreamTables, Timeline, WriteBatch
from statestore_client.server.runtime.storage.group_commit import GroupCommit
from statestore_client.server.runtime.storage.standby import Standby
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore
from statestore_client.wire.commands import Del, KeyNotify, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC, TIMESTAMP, parse_notification_topic, response_topic
from statestore_client.wire.replies import OK

WALL_MS = 1_800_000_000_000
HOST = "the host"
KEYS = (b"a", b"b", b"c")
ANSWERS_LAST_S = 3600.0
#: How long a host on a log may speak after what it has sent came back.
LEASE_S = 0.25


def words(*parts: bytes) -> bytes:
    """A request, by hand."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@attrs.define(eq=False)
class Request:
    """Of a client, and what became of it."""

    client: str
    number: int
    parts: tuple[bytes, ...]
    message: Publish
    sent_at: int
    known: dict[bytes, HlcTimestamp]  # the greatest version of each key that any client had been told of before
    answer: tuple[bytes, HlcTimestamp | None] | None = None

    @property
    def verb(self) -> bytes:
        return self.parts[0]

    @property
    def key(self) -> bytes:
        return self.parts[1]

    @property
    def is_write(self) -> bool:
        return self.verb in (b"SET", b"DEL", b"VDEL")


@attrs.define(eq=False)
class Observed:
    """What a client knows of a key that it observes."""

    heard: set[HlcTimestamp]
    since: HlcTimestamp | None = None


class FakeLoop:
    """Of the group commit: what is to be called is called by steps of the schedule."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.later: list[Callable[[], None]] = []

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(lambda: function(*arguments))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, function: Callable[[], None]) -> Any:
        if delay < 1:
            self.later.append(function)
        return _Timer(self, function)


@attrs.frozen
class _Timer:
    loop: FakeLoop
    function: Callable[[], None]

    def cancel(self) -> None:
        if self.function in self.loop.later:
            self.loop.later.remove(self.function)


class Disk:
    """Batches become durable one after the other; a crash leaves some that nobody was told of."""

    def __init__(self) -> None:
        self.batches: list[tuple[WriteBatch, int]] = []  # with the number of executions before each cut
        self.done = 0
        self.waiting: deque[Callable[[Exception | None], None]] = deque()
        self.sent: deque[float] = deque()  # of a log: when each of those was
        self.executions: list[bytes] = []

    def append(self, batch: WriteBatch, done: Callable[[Exception | None], None]) -> None:
        self.batches.append((batch, len(self.executions)))
        self.waiting.append(done)

    def crash(self, random: Random) -> StreamTables:
        """What the next life finds."""
        kept = random.randint(self.done, len(self.batches))
        del self.batches[kept:]
        del self.executions[self.batches[-1][1] if self.batches else 0 :]
        self.done = kept
        self.waiting.clear()
        self.sent.clear()
        tables = StreamTables()
        for batch, _ in self.batches:
            tables.absorb(batch)
        return tables


class Life:
    """One host from its start to its end. It loads for some steps, or follows the log until it owns that."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.loop = FakeLoop()
        self.ids: dict[int, int] = {}  # delivery id to packet id, of the session
        self.told_nobody: set[tuple[str, bytes]] = set()  # the host was told that nobody listens
        self.commit: GroupCommit | None = None
        self.unloaded = 0
        # on a log
        self.standby: Standby | None = None
        self.read = 0  # batches of the log
        self.lease_until = 0.0
        self.renewal: float | None = None  # when it was sent
        self.is_connecting = False
        self.journal = Journal(1)
        if not world.has_log:
            self.journal.resume(world.tables, world.instant)
        self.store = StateStore(
            clock=HybridLogicalClock("StateStore", guard=threading.Lock()), journal=self.journal, observer=self._observe
        )
        self.service = StateStoreService(
            self.store,
            token_key=world.random.randbytes(TOKEN_KEY_BYTES),
            journal=self.journal,
            cache_limits=ResponseCacheLimits(max_age_s=ANSWERS_LAST_S),
            no_observer=lambda asker: NO_ID if is_nobody(asker) else None,
        )
        self.host = Host(
            self.service, self.store.observers, client_id=HOST, journal=self.journal, registration_s=world.lifetime_s
        )
        if world.has_log:
            self.standby = Standby(self.journal, self.service, self.host, world.instant)
        else:
            self._speak(world.disk, None)
            self.unloaded = world.random.randint(1, 4)

    def _speak(self, storage: Any, right: Any) -> None:
        # The loop is a model of one: it has call_soon and call_at.
        loop: Any = self.loop
        self.commit = GroupCommit(self.journal, storage, lambda: self.world.instant, loop, self._failed, right)
        self.commit.bind(self.host, self._released, lambda: self.host.caught_up(self.world.instant))

    def _failed(self, error: Exception) -> None:
        self.world.complain(f"the disk failed: {error}")

    def _observe(self, _store: Any, command: Any, request: Any, outcome: Any) -> None:
        world = self.world
        if not self.owns:
            return  # nobody hears of it
        if type(command) is Set and outcome.reply is OK:
            world.disk.executions.append(command.value)
        if type(command) in (Set, Del, VDel) and outcome.version is not None:
            world.last_version[command.key] = outcome.version
        if type(command) is KeyNotify:
            world.registered[request.client_id, command.key] = world.last_version.get(command.key)
            if not command.stop:
                world.stopped.discard((request.client_id, command.key))

    def load(self) -> None:
        """One step of the start."""
        if self.unloaded > 1:
            self.unloaded -= 1
            return
        self.unloaded = 0
        self.service.restore(self.world.tables, self.journal.timeline)
        self.host.restore(self.world.tables, self.world.instant)

    # -- of a log ------------------------------------------------------------------------------------------------------

    @property
    def owns(self) -> bool:
        """Whether the log says that it is the active one. It need not know."""
        return not self.world.has_log or self.world.owner is self

    @property
    def is_caught_up(self) -> bool:
        return self.read == len(self.world.disk.batches)

    def read_step(self) -> None:
        """The next batch of the one that was active when it was written."""
        assert self.standby is not None
        batch, _ = self.world.disk.batches[self.read]
        self.read += 1
        self.standby.absorb(batch)

    def take_over(self) -> None:
        """It has read its own claim."""
        assert self.standby is not None
        self.standby.take_over(self.world.timeline, self.world.instant)
        self.standby = None
        self.lease_until = self.world.now + LEASE_S
        self._speak(self, self)

    def append(self, batch: WriteBatch, done: Done) -> None:
        """The log does not take what a former owner writes."""
        if self.owns:
            self.world.disk.append(batch, done)
            self.world.disk.sent.append(self.world.now)

    def sent(self) -> int:
        return 0

    def holds_lease(self, since: int) -> bool:
        del since
        return self.world.now < self.lease_until

    def renew_lease(self, since: int) -> None:
        del since
        if self.renewal is None:
            self.renewal = self.world.now

    def renewal_step(self) -> None:
        """It came back, or is not valid."""
        sent_at, self.renewal = self.renewal, None
        if self.owns and sent_at is not None:
            self.lease_until = max(self.lease_until, sent_at + LEASE_S)
            self.flush()

    @property
    def may_connect(self) -> bool:
        if self.is_connecting or self.world.speaker is self or not self.host.is_restored:
            return False
        if not self.world.has_log:
            return True
        if not self.holds_lease(0):
            self.renew_lease(0)
            return False
        return True

    # -- what it says --------------------------------------------------------------------------------------------------

    def _released(self, host: Host) -> None:
        self.carry_out()
        host.caught_up(self.world.instant)

    def carry_out(self) -> None:
        """Write what the host says into the pipe."""
        world, host = self.world, self.host
        if host.outbox and world.speaker is not self:
            world.complain("a host without a connection speaks")
        for output in host.outbox:
            if isinstance(output, Send):
                packet_id = self.ids.get(output.delivery_id) if output.is_again else None
                if packet_id is None:
                    packet_id = self.ids[output.delivery_id] = world.next_id
                    world.next_id += 1
                observation = parse_notification_topic(output.message.topic)
                if observation is not None and host.registrations.has(observation):
                    self.told_nobody.discard(observation)  # it was asked for again
                is_over = observation in self.told_nobody or observation in world.stopped
                if is_over and not output.is_again:
                    world.complain(f"{output.message.topic} was notified after its registration had ended")
                world.to_broker.append((packet_id, output.message))
                world.unacknowledged.add(packet_id)
                if len(world.unacknowledged) > world.receive_maximum:
                    world.complain("more is unacknowledged than the broker's Receive Maximum")
            else:
                world.to_broker.append(output)
        host.outbox.clear()

    def flush(self) -> None:
        if self.commit is not None:
            self.commit.flush()
        self.carry_out()

    def receive(self, item: Any) -> None:
        """The next thing from the pipe."""
        if isinstance(item, Publish):
            self.host.receive(item, self.world.instant)
        else:
            packet_id, code = item
            self.world.unacknowledged.discard(packet_id)
            delivery = next((d for d, p in self.ids.items() if p == packet_id), None)
            if delivery is not None:
                del self.ids[delivery]
                sent = self.host._deliveries.get(delivery)
                before = None if sent is None else sent.observation
                self.host.published(delivery, code, self.world.instant)
                if code == 0x10 and before is not None and not self.host.registrations.has(before):
                    self.told_nobody.add(before)
        self.flush()

    def tick(self) -> None:
        due = self.host.next_deadline()
        if self.commit is not None and self.host.is_restored and due is not None and due <= self.world.now:
            self.host.tick(self.world.instant)
            self.flush()

    def loop_step(self) -> None:
        if self.loop.soon:
            self.loop.soon.popleft()()
        elif self.loop.later:
            self.loop.later.pop(0)()
        self.carry_out()


class World:
    """All of it. A violation ends the schedule."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now = 100.0
        self.steps = 0
        self.violations: list[str] = []
        self.faults: Counter[str] = Counter()
        # the broker
        self.receive_maximum = random.choice([1, 2, 5, 20])  # the broker's, for the host
        self.host_maximum = random.choice([1, 3, 8])
        self.tells = random.random() < 0.7
        self.lifetime_s = random.choice([5.0, 1e9])  # of registrations, where the broker does not tell
        self.queues: dict[str, deque[Publish]] = {}
        self.has_session = False
        self.in_flight: dict[int, tuple[str, Publish]] = {}
        self.again: deque[int] = deque()
        self.last_id = 0
        self.subscribed: dict[str, bool] = {}
        self.unacknowledged: set[int] = set()  # packet ids of the host, on this connection
        self._speaker: Life | None = None
        self.to_host: deque[Any] = deque()
        self.to_broker: deque[Any] = deque()
        self.decided: deque[tuple[int, int]] = deque()  # PUBACKs that the broker is going to send
        self.next_id = 1
        # the hosts
        self.has_log = seed % 4 == 3
        self.timeline = Timeline.begin(self.instant)
        self.owner: Life | None = None
        self.disk = Disk()
        self.life = 0
        self.tables = StreamTables()
        self.last_version: dict[bytes, HlcTimestamp] = {}  # of what was carried out
        self.registered: dict[tuple[str, bytes], HlcTimestamp | None] = {}  # the same when somebody began to observe
        self.stopped: set[tuple[str, bytes]] = set()  # who was told that it does not observe any longer
        self.lives = [self.start() for _ in range(1 + self.has_log)]
        # the clients
        self.requests: dict[bytes, Request] = {}
        self.sent: Counter[str] = Counter()
        self.observed: dict[tuple[str, bytes], Observed] = {}
        self.greatest: dict[bytes, HlcTimestamp] = {}
        self.versions: dict[HlcTimestamp, Request] = {}

    def complain(self, text: str) -> None:
        self.violations.append(f"step {self.steps}: {text}")

    @property
    def instant(self) -> Instant:
        return Instant(self.now, WALL_MS + int(self.now * 1000))

    # -- the host ------------------------------------------------------------------------------------------------------

    def start(self) -> Life:
        """Another life."""
        self.life += 1
        return Life(self, self.life)

    @property
    def speaker(self) -> Life | None:
        """Whose connection the broker has."""
        return self._speaker

    @property
    def active(self) -> Life:
        """The host, or the one of them that owns the log."""
        return self.lives[0] if self.owner is None else self.owner

    @property
    def store(self) -> StateStore:
        return self.active.store

    def crash(self) -> None:
        """Of a host."""
        self.faults["crash"] += 1
        if not self.has_log:
            self.lose_connection()
            self.tables = self.disk.crash(self.random)
            self.lives = [self.start()]
            return
        self.replace(self.random.choice(self.lives))

    def replace(self, life: Life) -> None:
        """By another one, which knows nothing."""
        if self.speaker is life:
            self.lose_connection()
        self.lives[self.lives.index(life)] = self.start()

    # -- hosts on one log ----------------------------------------------------------------------------------------------

    @property
    def may_claim(self) -> bool:
        """Whether the owner is gone, or its lease is over. It may still be there, and active as far as it knows."""
        is_over = self.owner is None or self.now >= self.owner.lease_until
        return is_over and any(life.standby is not None and life is not self.owner for life in self.lives)

    @property
    def is_vacant(self) -> bool:
        """Whether the owner is no process any more."""
        return self.owner not in self.lives

    def claim(self) -> None:
        """Another host owns the log. What the old one has written before is in it, or never will be."""
        self.disk.crash(self.random)
        self.owner = next(life for life in self.lives if life.standby is not None and life is not self.owner)

    def log_steps(self) -> list[Callable[[], None]]:
        """What the hosts on a log can do."""
        able: list[Callable[[], None]] = []
        if self.is_vacant and self.may_claim:
            able.append(self.claim)
        for life in self.lives:
            if life.standby is not None and life.read < self.disk.done:
                able.append(life.read_step)
            if life.standby is not None and life.owns and life.is_caught_up:
                able.append(life.take_over)
            if life.renewal is not None:
                able.append(life.renewal_step)
            if life.is_connecting:
                able.append(partial(self.connect, life))
            if life.commit is not None and not life.owns and self.random.random() < 0.2:  # it reads who is active
                able.append(partial(self.replace, life))
        return able

    # -- steps of a host -----------------------------------------------------------------------------------------------

    def host_step(self) -> None:
        """Take the next thing from the pipe."""
        assert self.speaker is not None
        self.speaker.receive(self.to_host.popleft())

    def tick(self) -> None:
        """Time passes."""
        self.now += self.random.choice([0.01, 0.1, 1.0])
        for life in self.lives:
            life.tick()

    def disk_step(self) -> None:
        self.disk.done += 1
        if self.owner is not None:
            self.owner.lease_until = max(self.owner.lease_until, self.disk.sent.popleft() + LEASE_S)
        self.disk.waiting.popleft()(None)

    # -- the connection of the host ------------------------------------------------------------------------------------

    def connect(self, life: Life) -> None:
        """CONNECT, CONNACK, SUBSCRIBE: one step, but that the CONNECT of a host on a log takes a while to arrive. The
        connection of another one ends with it.
        """
        if self.has_log and not life.is_connecting:
            life.is_connecting = True
            return
        life.is_connecting = False
        if self._speaker is not None:
            self.lose_connection("taken over")
        self._speaker = life
        self.unacknowledged.clear()
        self.again = deque(sorted(self.in_flight))
        if not self.has_session:
            life.ids.clear()
            self.in_flight.clear()
            self.again.clear()
        life.host.connected(self.instant, session_present=self.has_session, receive_maximum=self.receive_maximum)
        self.has_session = True
        life.flush()

    def lose_connection(self, fault: str = "connection") -> None:
        if self._speaker is not None:
            self.faults[fault] += 1
            life, self._speaker = self._speaker, None
            if self.random.random() < 0.5:  # some brokers take these, and not the messages before them
                for item in self.to_broker:
                    if isinstance(item, Acknowledge):
                        self._acknowledged(item.packet_id)
            self.to_host.clear()
            self.to_broker.clear()
            self.decided.clear()
            life.host.disconnected()

    def lose_session(self) -> None:
        """The broker forgets the host, and what waited for it; clients send what was not answered again."""
        self.faults["session"] += 1
        self.lose_connection()
        self.has_session = False
        self.in_flight.clear()
        self.queues.clear()
        for client in sorted({each.client for each in self.requests.values() if each.answer is None}):
            self.resend(client)

    # -- the broker ----------------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """One request, of any client, or one that was not acknowledged on an earlier connection."""
        if self.again:
            packet_id = self.again.popleft()
            _, message = self.in_flight[packet_id]
            self.to_host.append(attrs.evolve(message, packet_id=packet_id, dup=True))
            return
        client = self.random.choice(sorted(name for name, queue in self.queues.items() if queue))
        message = self.queues[client].popleft()
        self.last_id += 1
        self.in_flight[self.last_id] = (client, message)
        self.to_host.append(attrs.evolve(message, packet_id=self.last_id, dup=False))

    @property
    def may_deliver(self) -> bool:
        waits = bool(self.again) or any(self.queues.values())
        sent = len(self.in_flight) - len(self.again)
        return self._speaker is not None and waits and (bool(self.again) or sent < self.host_maximum)

    def broker_step(self) -> None:
        """Take the next thing from the pipe."""
        item = self.to_broker.popleft()
        if isinstance(item, Acknowledge):
            self._acknowledged(item.packet_id)
            return
        packet_id, message = item
        observation = parse_notification_topic(message.topic)
        code = 0x10 if self.tells else 0
        if observation is None:
            self._answered(message)
            code = 0
        elif observation[0] != HOST and self.subscribed.get(observation[0]):
            self._notified(observation, message)
            code = 0
        self.decided.append((packet_id, code))

    def puback(self) -> None:
        """What was decided some steps ago."""
        self.to_host.append(self.decided.popleft())

    def _acknowledged(self, packet_id: int) -> None:
        if packet_id not in self.in_flight:
            self.complain("a request was acknowledged that was not delivered on this connection")
            return
        _, message = self.in_flight.pop(packet_id)
        request = self.requests[message.properties.correlation_data or b""]
        if request.answer is None:
            self.complain(f"{request.parts} was acknowledged and not answered")

    # -- the clients ---------------------------------------------------------------------------------------------------

    def ask(self, client: str, *parts: bytes, has_clock: bool = True) -> None:
        """Send a request."""
        number = self.sent[client] = self.sent[client] + 1
        correlation = f"{client} {number}".encode()
        users = ((TIMESTAMP, f"{WALL_MS + int(self.now * 1000)}:{number}:{client}"),) if has_clock else ()
        properties = PublishProperties(
            message_expiry=60,
            response_topic=response_topic(client),
            correlation_data=correlation,
            user_properties=users,
        )
        message = Publish(COMMAND_TOPIC, words(*parts), 1, properties=properties, packet_id=1)
        self.subscribed[client] = True
        self.requests[correlation] = Request(client, number, parts, message, self.steps, dict(self.greatest))
        self.queues.setdefault(client, deque()).append(message)

    def resend(self, client: str) -> None:
        """What has no answer yet, in order: its connection to the broker was lost."""
        for request in self.requests.values():
            if request.client == client and request.answer is None:
                self.queues.setdefault(client, deque()).append(request.message)

    def leave(self, client: str) -> None:
        """Its session ends: nobody subscribes to its notifications."""
        self.subscribed[client] = False
        for observation in [each for each in self.observed if each[0] == client]:
            del self.observed[observation]

    def _answered(self, message: Publish) -> None:
        properties = message.properties
        request = self.requests[properties.correlation_data or b""]
        texts = [value for name, value in properties.user_properties if name == TIMESTAMP]
        version = HlcTimestamp.parse(texts[0]) if texts else None
        answer = (message.payload, version)
        if request.answer is not None:
            if request.is_write and request.answer != answer:
                self.complain(f"{request.parts} was answered with {request.answer}, and then with {answer}")
            return
        request.answer = answer
        if message.payload.startswith(b"-ERR"):
            self.complain(f"{request.parts} was refused: {message.payload!r}")
        if request.verb == b"KEYNOTIFY":
            self._observes(request)
        if version is None:
            return
        known = request.known.get(request.key)
        if request.verb == b"GET" and known is not None and version < known:
            self.complain(f"{request.parts} was answered with version {version}, after {known} was known")
        is_applied = request.is_write and message.payload in (b"+OK\r\n", b":1\r\n")
        if is_applied and self.versions.setdefault(version, request) is not request:
            self.complain(f"two writes have version {version}")
        self.greatest[request.key] = max(version, self.greatest.get(request.key, version))

    def _observes(self, request: Request) -> None:
        observation = (request.client, request.key)
        if len(request.parts) == 3:
            self.observed.pop(observation, None)
            if not self.store.observers.has(*observation):  # else an earlier request, sent again, came after it
                self.stopped.add(observation)
        elif self.subscribed[request.client]:
            known = self.observed.get(observation)
            heard = set() if known is None else known.heard
            self.observed[observation] = Observed(heard, since=self.registered.get(observation))

    def _notified(self, observation: tuple[str, bytes], message: Publish) -> None:
        observed = self.observed.get(observation)
        version = HlcTimestamp.parse(message.properties.user_properties[0][1])
        if observed is not None:
            observed.heard.add(version)
        key = observation[1]
        self.greatest[key] = max(version, self.greatest.get(key, version))
