"""A foreign broker, its clients, and the host of a store, in one process: each step is one thing that one of them does.

Connections are two pipes. Between any two steps the host's connection may be lost with what is in them, the host may
crash with or without what its disk had not finished, and the broker may lose the host's session.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import attrs

from statestore_client.mqtt.packets.types import Publish, PublishProperties
from statestore_client.server.host.askers import NO_ID, is_nobody
from statestore_client.server.host.host import Acknowledge, Host, Send
from statestore_client.server.journal import Journal, StreamTables, WriteBatch
from statestore_client.server.runtime.storage.group_commit import GroupCommit
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.service import TOKEN_KEY_BYTES, StateStoreService
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

    life: int  # of the host that has answered
    heard: HlcTimestamp | None = None
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
        tables = StreamTables()
        for batch, _ in self.batches:
            tables.absorb(batch)
        return tables


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
        self.is_connected = False
        self.to_host: deque[Any] = deque()
        self.to_broker: deque[Any] = deque()
        self.decided: deque[tuple[int, int]] = deque()  # PUBACKs that the broker is going to send
        self.ids: dict[int, int] = {}  # delivery id to packet id, of the host's session
        self.next_id = 1
        # the host
        self.disk = Disk()
        self.life = 0
        self.tables = StreamTables()
        self.unloaded = 0
        self.last_version: dict[bytes, HlcTimestamp] = {}  # of what was carried out
        self.registered: dict[tuple[str, bytes], HlcTimestamp | None] = {}  # the same when somebody began to observe
        self.told_nobody: set[tuple[str, bytes]] = set()  # the host was told that nobody listens
        self.start()
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

    def start(self) -> None:
        """Another life. It loads for some steps."""
        self.life += 1
        self.journal = Journal(1)
        self.journal.resume(self.tables, self.instant)
        self.loop = FakeLoop()
        store = StateStore(
            clock=HybridLogicalClock("StateStore", guard=threading.Lock()), journal=self.journal, observer=self._observe
        )
        self.store = store
        self.service = StateStoreService(
            store,
            token_key=self.random.randbytes(TOKEN_KEY_BYTES),
            journal=self.journal,
            cache_limits=ResponseCacheLimits(max_age_s=ANSWERS_LAST_S),
            no_observer=lambda asker: NO_ID if is_nobody(asker) else None,
        )
        self.host = Host(
            self.service, store.observers, client_id=HOST, journal=self.journal, registration_s=self.lifetime_s
        )
        # The loop is a model of one: it has call_soon and call_at.
        commit = GroupCommit(self.journal, self.disk, lambda: self.instant, self.loop, self._failed)  # type: ignore[arg-type]
        commit.bind(self.host, self._released, lambda: self.host.caught_up(self.instant))
        self.commit = commit
        self.unloaded = self.random.randint(1, 4)
        self.told_nobody.clear()

    def _failed(self, error: Exception) -> None:
        self.complain(f"the disk failed: {error}")

    def _observe(self, _store: Any, command: Any, request: Any, outcome: Any) -> None:
        if type(command) is Set and outcome.reply is OK:
            self.disk.executions.append(command.value)
        if type(command) in (Set, Del, VDel) and outcome.version is not None:
            self.last_version[command.key] = outcome.version
        if type(command) is KeyNotify:
            self.registered[request.client_id, command.key] = self.last_version.get(command.key)

    def load(self) -> None:
        """One step of the start."""
        if self.unloaded > 1:
            self.unloaded -= 1
            return
        self.unloaded = 0
        self.service.restore(self.tables, self.journal.timeline)
        self.host.restore(self.tables, self.instant)

    def crash(self) -> None:
        self.faults["crash"] += 1
        self.lose_connection()
        self.tables = self.disk.crash(self.random)
        self.ids.clear()
        self.start()

    def _released(self, host: Host) -> None:
        self._carry_out(host)
        host.caught_up(self.instant)

    def _carry_out(self, host: Host) -> None:
        """Write what the host says into the pipe."""
        for output in host.outbox:
            if isinstance(output, Send):
                packet_id = self.ids.get(output.delivery_id) if output.is_again else None
                if packet_id is None:
                    packet_id = self.ids[output.delivery_id] = self.next_id
                    self.next_id += 1
                observation = parse_notification_topic(output.message.topic)
                if observation is not None and host.registrations.has(observation):
                    self.told_nobody.discard(observation)  # it was asked for again
                if observation in self.told_nobody and not output.is_again:
                    self.complain(f"{output.message.topic} was notified after its registration had ended")
                self.to_broker.append((packet_id, output.message))
                self.unacknowledged.add(packet_id)
                if len(self.unacknowledged) > self.receive_maximum:
                    self.complain("more is unacknowledged than the broker's Receive Maximum")
            else:
                self.to_broker.append(output)
        host.outbox.clear()

    def flush(self) -> None:
        self.commit.flush()
        self._carry_out(self.host)

    def host_step(self) -> None:
        """Take the next thing from the pipe."""
        item = self.to_host.popleft()
        if isinstance(item, Publish):
            self.host.receive(item, self.instant)
        else:
            packet_id, code = item
            self.unacknowledged.discard(packet_id)
            delivery = next((d for d, p in self.ids.items() if p == packet_id), None)
            if delivery is not None:
                del self.ids[delivery]
                sent = self.host._deliveries.get(delivery)
                before = None if sent is None else sent.observation
                self.host.published(delivery, code, self.instant)
                if code == 0x10 and before is not None and not self.host.registrations.has(before):
                    self.told_nobody.add(before)
        self.flush()

    def tick(self) -> None:
        """Time passes."""
        self.now += self.random.choice([0.01, 0.1, 1.0])
        due = self.host.next_deadline()
        if self.host.is_restored and due is not None and due <= self.now:
            self.host.tick(self.instant)
            self.flush()

    def loop_step(self) -> None:
        if self.loop.soon:
            self.loop.soon.popleft()()
        elif self.loop.later:
            self.loop.later.pop(0)()
        self._carry_out(self.host)

    def disk_step(self) -> None:
        self.disk.done += 1
        self.disk.waiting.popleft()(None)

    # -- the connection of the host ------------------------------------------------------------------------------------

    def connect(self) -> None:
        """CONNECT, CONNACK, SUBSCRIBE: one step."""
        self.is_connected = True
        self.unacknowledged.clear()
        self.again = deque(sorted(self.in_flight))
        if not self.has_session:
            self.ids.clear()
            self.in_flight.clear()
            self.again.clear()
        self.host.connected(self.instant, session_present=self.has_session, receive_maximum=self.receive_maximum)
        self.has_session = True
        self.flush()

    def lose_connection(self) -> None:
        if self.is_connected:
            self.faults["connection"] += 1
            self.is_connected = False
            self.to_host.clear()
            self.to_broker.clear()
            self.decided.clear()
            self.host.disconnected()

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
        return self.is_connected and waits and (bool(self.again) or sent < self.host_maximum)

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
        elif self.subscribed[request.client]:
            self.observed[observation] = Observed(self.life, since=self.registered[observation])

    def _notified(self, observation: tuple[str, bytes], message: Publish) -> None:
        observed = self.observed.get(observation)
        version = HlcTimestamp.parse(message.properties.user_properties[0][1])
        if observed is not None:
            observed.heard = version if observed.heard is None else max(version, observed.heard)
        key = observation[1]
        self.greatest[key] = max(version, self.greatest.get(key, version))
