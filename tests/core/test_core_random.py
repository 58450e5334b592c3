"""A client machine against a simulated broker and state store, over a link that is cut at random.

The simulation is a naive second implementation: one dictionary with its whole history, a session that is kept or lost,
and a cache of answers by correlation data (state store protocol, "Overview"; MQTT 5.0, 4.4). What the machine tells its
callers is held against what really happened there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from machine_driver import NOTIFICATIONS, RESPONSES, Acknowledge, MachineDriver, Publish, Seen
from support.schedules import scaled

from statestore_client.core.actions import Drop, EventKind, Open, Subscribe, WatchEvent
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.errors import ConnectionLostError, StateStoreError
from statestore_client.wire.commands import Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import Connected, IncomingMessage, Published, Subscribed

KEYS = [b"a", b"b"]
_WINDOW = 3


class Store:
    """The state store: what is stored, everything that was stored before, and who is to be told."""

    def __init__(self) -> None:
        self.history: dict[bytes, list[tuple[HlcTimestamp | None, bytes | None]]] = {k: [(None, None)] for k in KEYS}
        self.executed: Counter[bytes] = Counter()  # by the value, which is different in each SET
        self.versions: dict[bytes, HlcTimestamp] = {}  # value -> the version that its SET was given
        self.observed: set[bytes] = set()
        self._cache: dict[bytes, IncomingMessage] = {}
        self._time = 1_700_000_000_000

    def execute(self, payload: bytes, correlation_data: bytes) -> list[IncomingMessage]:
        """Notification and answer; of a repeated request the answer alone, and nothing happens."""
        if correlation_data in self._cache:
            return [self._cache[correlation_data]]
        verb, key, *rest = payload.split(b"\r\n")[2::2]
        messages: list[IncomingMessage] = []
        stamp: HlcTimestamp | None = None
        if verb == b"SET":
            messages = self.change(key, rest[0])
            self.executed[rest[0]] += 1
            answer, stamp = b"+OK\r\n", self.versions[rest[0]]
        elif verb == b"GET":
            stamp, value = self.history[key][-1]
            answer = b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
            stamp = None if value is None else stamp
        elif verb == b"DEL":
            answer = b":%d\r\n" % (self.history[key][-1][1] is not None)
            messages = self.change(key, None)
        else:
            answer = b"+OK\r\n"
            (self.observed.discard if rest else self.observed.add)(key)
        properties = () if stamp is None else (("__ts", str(stamp)),)
        self._cache[correlation_data] = IncomingMessage(RESPONSES, answer, correlation_data, properties)
        return [*messages, self._cache[correlation_data]]

    def change(self, key: bytes, value: bytes | None) -> list[IncomingMessage]:
        """Set or delete a key; what an observer is told of it."""
        if value is None and self.history[key][-1][1] is None:
            return []
        self._time += 1
        stamp = HlcTimestamp(self._time, 0, "store")
        self.history[key].append((stamp, value))
        if value is not None:
            self.versions[value] = stamp
        if key not in self.observed:
            return []
        payload = b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"
        if value is not None:
            payload = b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$%d\r\n%s\r\n" % (len(value), value)
        return [IncomingMessage(NOTIFICATIONS + key.hex().upper(), payload, None, (("__ts", str(stamp)),))]


class World:
    """One client, one store, the session and the link between them."""

    def __init__(self, receive_maximum: int) -> None:
        self.driver = MachineDriver(max_in_flight=_WINDOW, retry_first_connect=True)
        self.store = Store()
        self.receive_maximum = receive_maximum
        self.connected = False
        self.session = False
        self.subscribed: set[str] = set()
        self.to_server: list[Any] = []
        self.to_client: list[Any] = []
        self._unacknowledged: dict[int, IncomingMessage] = {}
        self._ack_ids = 0
        self._carried_out = 0
        self._wants_to_open = False

    def settle(self) -> None:
        """Carry out what the machine asked for."""
        while self._carried_out < len(self.driver.actions):
            action = self.driver.actions[self._carried_out]
            self._carried_out += 1
            match action:
                case Publish() | Subscribe() | Acknowledge():
                    assert self.connected
                    self.to_server.append(action)
                case Open():
                    self._wants_to_open = True
                case Drop():
                    self.cut(0)

    def connect(self, *, lose_session: bool) -> None:
        """If the machine wants to: a session that the broker has is used again."""
        if not self._wants_to_open:
            return
        self._wants_to_open = False
        if lose_session:
            self.forget_session()
        present, self.session, self.connected = self.session, True, True
        waiting = list(self._unacknowledged.values())
        self._unacknowledged.clear()
        self.driver.receive(Connected(present, self.receive_maximum))
        self.settle()
        self.send(waiting)

    def forget_session(self) -> None:
        self.session = False
        self.subscribed.clear()
        self._unacknowledged.clear()

    def send(self, messages: list[IncomingMessage]) -> None:
        """The broker keeps a message for its subscriber until it is acknowledged (MQTT 5.0, 4.3.2)."""
        for message in messages:
            if not any(message.topic.startswith(f.rstrip("+")) for f in self.subscribed):
                continue
            self._ack_ids += 1
            message = IncomingMessage(
                message.topic, message.payload, message.correlation_data, message.user_properties, self._ack_ids
            )
            self._unacknowledged[self._ack_ids] = message
            if self.connected:
                self.to_client.append(message)

    def up(self, count: int) -> None:
        """The broker takes in the next packets of the client."""
        for _ in range(min(count, len(self.to_server))):
            match self.to_server.pop(0):
                case Acknowledge(ack_id=ack_id):
                    self._unacknowledged.pop(ack_id, None)
                case Subscribe(subscribe_id=subscribe_id, topic_filters=filters):
                    self.subscribed.update(filters)
                    self.to_client.append(Subscribed(subscribe_id, (1,) * len(filters)))
                case Publish(delivery_id=delivery_id, message=message):
                    self.to_client.append(Published(delivery_id))
                    self.send(self.store.execute(message.payload, message.correlation_data))

    def down(self, count: int) -> None:
        """The client takes in the next packets of the broker."""
        for _ in range(count):
            if not self.to_client:
                return
            self.driver.receive(self.to_client.pop(0))
            self.settle()

    def cut(self, arrives: int) -> None:
        """The link breaks; a few of the client's packets still arrive."""
        if not self.connected:
            return
        self.connected = False
        self.up(arrives)
        self.to_server.clear()
        self.to_client.clear()
        self.store.observed.clear()
        self.driver.lose(ConnectionLostError("cut"))
        self.settle()

    def wait(self, seconds: float) -> None:
        self.driver.after(seconds)
        self.settle()

    def await_attempt(self) -> None:
        """Time passes until the machine wants to connect, unless it is connected."""
        while not self.connected and not self._wants_to_open:
            deadline = self.driver.machine.next_deadline()
            assert deadline is not None, "a machine that is not closed connects again"
            self.wait(max(0.0, deadline - self.driver.time))

    def heal(self) -> None:
        """From now on nothing breaks: everything arrives until both sides are silent."""
        for _ in range(1000):
            self.await_attempt()
            self.connect(lose_session=False)
            self.up(len(self.to_server))
            self.down(len(self.to_client))
            if self.connected and not self.to_server and not self.to_client:
                return
        raise AssertionError("both sides never fall silent")


class LossyLink(RuleBasedStateMachine):
    """Random calls, cuts, lost sessions and foreign writes, in any order; hypothesis prints the steps to a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(receive_maximum=2)
        self.driver = self.world.driver
        self.driver.open()
        self.world.settle()
        self.world.heal()
        self.count = 0
        self.asked: dict[str, tuple[Any, dict[bytes, int]]] = {}  # waiter -> command, history lengths at the call
        self.answered: dict[str, dict[bytes, int]] = {}  # waiter -> history lengths when the answer was there
        self.observers: list[tuple[bytes, Seen, str, bool]] = []

    watching = Bundle("watching")

    def lengths(self) -> dict[bytes, int]:
        return {key: len(changes) for key, changes in self.world.store.history.items()}

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    # -- what can happen -----------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), verb=st.sampled_from(["set", "get", "del"]), timeout=st.sampled_from([2.0, 60.0]))
    def call(self, key: bytes, verb: str, timeout: float) -> None:
        value = self.value()
        command = {"set": Set(key, value), "get": Get(key), "del": Del(key)}[verb]
        waiter = f"{verb} {self.count}"
        self.asked[waiter] = (command, self.lengths())
        self.driver.submit(command, waiter, timeout=timeout)
        self.world.settle()

    @rule(target=watching, key=st.sampled_from(KEYS), initial=st.booleans())
    def watch(self, key: bytes, initial: bool) -> Any:
        if len(self.observers) > 6:
            return multiple()
        self.count += 1
        waiter = f"watch {self.count}"
        self.asked[waiter] = (None, self.lengths())
        seen = self.driver.watch(key, waiter, initial=initial)
        self.observers.append((key, seen, waiter, initial))
        self.world.settle()
        return self.observers[-1]

    @rule(observer=consumes(watching))
    def unwatch(self, observer: tuple[bytes, Seen, str, bool]) -> None:
        self.driver.unwatch(observer[0], observer[1])
        self.observers.remove(observer)
        self.asked.pop(observer[2])
        self.driver.outcomes.pop(observer[2], None)
        self.world.settle()

    @rule(key=st.sampled_from(KEYS), deleted=st.booleans())
    def somebody_else_writes(self, key: bytes, deleted: bool) -> None:
        self.world.send(self.world.store.change(key, None if deleted else self.value()))

    @rule(count=st.integers(1, 5))
    def packets_reach_the_broker(self, count: int) -> None:
        self.world.up(count)

    @rule(count=st.integers(1, 5))
    def packets_reach_the_client(self, count: int) -> None:
        self.world.down(count)

    @rule()
    def both_sides_catch_up(self) -> None:
        self.world.up(100)
        self.world.down(100)

    @rule(arrives=st.integers(0, 4))
    def the_link_breaks(self, arrives: int) -> None:
        self.world.cut(arrives)

    @rule(lose_session=st.booleans(), subscribed=st.booleans())
    def the_link_is_back(self, lose_session: bool, subscribed: bool) -> None:
        self.world.await_attempt()
        self.world.connect(lose_session=lose_session)
        if subscribed:
            self.both_sides_catch_up()

    @rule(arrives=st.integers(0, 4), lose_session=st.booleans(), key=st.sampled_from(KEYS), change=st.integers(0, 3))
    def the_link_fails_for_a_moment(self, arrives: int, lose_session: bool, key: bytes, change: int) -> None:
        self.the_link_breaks(arrives)
        if change < 2:
            self.somebody_else_writes(key, deleted=change == 0)
        self.the_link_is_back(lose_session, subscribed=False)

    @rule(seconds=st.sampled_from([0.4, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def nobody_is_answered_twice_or_with_a_lie(self) -> None:
        for waiter in self.asked.keys() - self.answered.keys():
            if self.driver.outcomes[waiter]:
                self.answered[waiter] = self.lengths()
                self.check(waiter, self.driver.outcome(waiter))
        for outcomes in self.driver.outcomes.values():
            assert len(outcomes) <= 1

    def check(self, waiter: str, outcome: Any) -> None:
        """An answer against what the store did, and had, between the call and now."""
        command, before = self.asked[waiter]
        store = self.world.store
        if isinstance(command, Get) and not isinstance(outcome, StateStoreError):
            possible = store.history[command.key][before[command.key] - 1 :]
            found = (None, None) if outcome is None else (outcome.version, outcome.value)
            assert isinstance(outcome, Item | None)
            assert found in [(None, None) if value is None else (stamp, value) for stamp, value in possible]
        elif isinstance(command, Set) and isinstance(outcome, SetResult):
            assert (outcome.applied, outcome.version) == (True, store.versions[command.value])
        elif isinstance(command, Del):
            assert isinstance(outcome, DeleteResult | StateStoreError)

    @invariant()
    def the_window_and_the_receive_maximum_hold(self) -> None:
        assert self.driver.machine.request_table.in_flight <= _WINDOW
        unacknowledged = sum(isinstance(a, Publish) for a in self.world.to_server)
        unacknowledged += sum(isinstance(e, Published) for e in self.world.to_client)
        assert unacknowledged <= self.world.receive_maximum

    @invariant()
    def every_gap_in_what_a_watch_saw_is_marked(self) -> None:
        for key, seen, _, _ in self.observers:
            history = self.world.store.history[key]
            positions = [self.position(history, event) for event in seen]
            known = [p for p in positions if p is not None]
            assert known == sorted(set(known))
            for event, before, after in zip(seen[1:], positions, positions[1:], strict=False):
                if before is not None and after is not None and not event.missed:
                    assert after == before + 1

    @staticmethod
    def position(history: list[tuple[HlcTimestamp | None, bytes | None]], event: Any) -> int | None:
        """The place of an event in the history; None when a GET found nothing, which has no version."""
        assert isinstance(event, WatchEvent)
        if event.version is None:
            assert event.kind is EventKind.DELETE
            return None
        return history.index((event.version, event.value))

    def teardown(self) -> None:
        """Once nothing breaks any more, everybody is answered, and every watch shows the state of its key."""
        self.world.heal()
        self.nobody_is_answered_twice_or_with_a_lie()
        self.every_gap_in_what_a_watch_saw_is_marked()
        store = self.world.store
        for waiter, (command, _) in self.asked.items():
            outcome = self.driver.outcome(waiter)
            if isinstance(command, Set):
                executed = store.executed[command.value]
                assert executed <= 1, "executed twice"
                if isinstance(outcome, StateStoreError):
                    assert not executed or outcome.may_have_been_applied, "said not to be applied, and it was"
                else:
                    assert executed, "said to be applied, and it was not"
        for key, seen, waiter, initial in self.observers:
            _, latest = store.history[key][-1]
            if seen:
                assert seen[-1].value == latest
            else:
                unchanged = len(store.history[key]) == self.answered[waiter][key]
                assert latest is None or (unchanged and not initial), "a change that nobody was told of"


#: Making a failure small takes hypothesis a minute or two, which is worth waiting for.
TestLossyLink = pytest.mark.scaled(pytest.mark.timeout(600)(LossyLink.TestCase))
TestLossyLink.settings = settings(max_examples=max(40, scaled(150, 1500)), stateful_step_count=60)
