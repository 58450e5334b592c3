"""Random calls, packets and time against the machine, with a small model of what must hold at every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from machine_driver import Acknowledge, MachineDriver, Notify, Publish, Seen
from support.schedules import scaled

from statestore_client.core.actions import ConnectionState, Open, Subscribe
from statestore_client.core.results import Item
from statestore_client.errors import ConnectionLostError, StateStoreError
from statestore_client.wire.commands import Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import Connected, Subscribed

WINDOW = 3


class MachineModel(RuleBasedStateMachine):
    """Each GET asks for a key of its own, and the server answers with that key: a mix-up cannot go unseen."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = MachineDriver(max_in_flight=WINDOW, retry_first_connect=True, request_timeout=3.0)
        self.names = 0
        self.deadlines: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self.asked_for: dict[str, bytes] = {}
        self.receive_maximum = 65_535
        self.closed = False
        self.version = 0
        self.watchers: list[Seen] = []

    requests = Bundle("requests")
    watches = Bundle("watches")

    def _name(self) -> str:
        self.names += 1
        return f"{self.names:06}"

    # -- calls ---------------------------------------------------------------------------------------------------------

    @initialize(how_far=st.sampled_from(["new", "open", "ready", "ready", "ready"]))
    def begin(self, how_far: str) -> None:
        if how_far != "new":
            self.driver.open(self._name())
        if how_far == "ready":
            self.driver.connect()

    @rule()
    def open(self) -> None:
        self.driver.open(self._name())

    @rule(target=requests, timeout=st.sampled_from([0.5, 2.0, None]), kind=st.sampled_from(["get", "set", "del"]))
    def submit(self, timeout: float | None, kind: str) -> tuple[str, Any]:
        name = self._name()
        key = name.encode()
        command = {"get": Get(key), "set": Set(key, b"v"), "del": Del(key)}[kind]
        request = self.driver.submit(command, name, timeout)
        self.asked_for[name] = key
        if timeout is not None:
            self.deadlines[name] = self.driver.time + timeout
        return name, request

    @rule(count=st.integers(1, 6))
    def submit_some(self, count: int) -> None:
        for _ in range(count):
            name = self._name()
            self.asked_for[name] = name.encode()
            self.driver.submit(Get(name.encode()), name, None)

    @rule(request=consumes(requests))
    def cancel(self, request: tuple[str, Any]) -> None:
        name, handle = request
        if handle is not None:
            if not self.driver.outcomes[name]:
                self.cancelled.add(name)
            self.driver.machine.request_table.cancel(handle, self.driver.now)
            self.driver.take()

    @rule(target=watches, initial=st.booleans())
    def watch(self, initial: bool) -> Seen:
        seen = self.driver.watch(b"watched", self._name(), initial=initial)
        self.watchers.append(seen)
        return seen

    @rule(seen=consumes(watches))
    def unwatch(self, seen: Seen) -> None:
        self.driver.unwatch(b"watched", seen)

    @precondition(lambda self: self.names > 25)
    @rule()
    def close(self) -> None:
        self.driver.close()
        self.closed = True

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def _is_connecting(self) -> bool:
        return self.driver.machine._phase.value == "connecting"

    @property
    def _has_link(self) -> bool:
        return self.driver.machine._phase.value in ("subscribing", "ready")

    @precondition(lambda self: self._is_connecting)
    @rule(session_present=st.booleans(), receive_maximum=st.sampled_from([1, 2, 65_535]))
    def connected(self, session_present: bool, receive_maximum: int) -> None:
        self.receive_maximum = receive_maximum
        self.driver.receive(Connected(session_present, receive_maximum))

    @precondition(lambda self: self.driver.subscribing and self._has_link)
    @rule(code=st.sampled_from([1, 1, 1, 0x80]))
    def suback(self, code: int) -> None:
        wanted = self.driver.subscribing.pop(0)
        codes = tuple(1 if "response" in f else code for f in wanted.topic_filters)
        self.driver.receive(Subscribed(wanted.subscribe_id, codes))

    @precondition(lambda self: self._is_connecting or self._has_link)
    @rule(fatal=st.sampled_from([False] * 30 + [True]))
    def lost(self, fatal: bool) -> None:
        self.driver.lose(ConnectionLostError("cut"), fatal=fatal)

    @precondition(lambda self: self._is_connecting or self._has_link)
    @rule()
    def taken_over(self) -> None:
        """By another client, or by an attempt of its own, it cannot tell."""
        self.driver.lose(ConnectionLostError("taken over"), fatal=True, reason_code=0x8E)

    @precondition(lambda self: self.driver.machine._phase.value == "waiting")
    @rule(session_present=st.booleans())
    def reconnect(self, session_present: bool) -> None:
        self.receive_maximum = 65_535
        self.driver.reconnect(session_present=session_present)

    # -- the server ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.driver.on_the_wire)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 0, 0x10, 0x97]))
    def puback(self, data: st.DataObject, code: int) -> None:
        self.driver.puback(data.draw(st.sampled_from(self.driver.on_the_wire)), code)

    @precondition(lambda self: self.driver.on_the_wire)
    @rule()
    def serve(self) -> None:
        """The oldest request, as it should be."""
        self.version += 1
        payload = _answer(self.driver.on_the_wire[0].message.payload)
        self.driver.answer(payload, ("__ts", f"{1_700_000_000_000 + self.version}:0:S"))

    @precondition(lambda self: self.driver.published)
    @rule(data=st.data(), how=st.sampled_from(["answer", "answer", "answer", "garbage", "refusal"]))
    def reply(self, data: st.DataObject, how: str) -> None:
        """To any request that was ever sent, also repeatedly: late and repeated answers are part of it."""
        publish = data.draw(st.sampled_from(self.driver.published[-8:]))
        payload = {"garbage": b"??", "refusal": b"-ERR syntax error\r\n"}.get(how) or _answer(publish.message.payload)
        self.version += 1
        self.driver.reply(publish, payload, ("__ts", f"{1_700_000_000_000 + self.version}:0:S"))

    @rule(deleted=st.booleans(), repeated=st.booleans())
    def notification(self, deleted: bool, repeated: bool) -> None:
        self.version += 0 if repeated else 1
        payload = b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n" if deleted else b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n"
        self.driver.notify(b"watched", payload, f"{1_700_000_000_000 + self.version}:0:S")

    # -- time ----------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.5, 3.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.driver.after(seconds)

    @rule()
    def next_deadline(self) -> None:
        deadline = self.driver.machine.next_deadline()
        if deadline is not None:
            self.driver.at(max(deadline, self.driver.time))
            after = self.driver.machine.next_deadline()
            assert after is None or after > self.driver.time, "the machine wants to be called again and again"

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def every_waiter_is_answered_once_and_with_its_own_answer(self) -> None:
        for waiter, outcomes in self.driver.outcomes.items():
            assert isinstance(waiter, str), "an answer for the machine itself came out"
            assert len(outcomes) <= 1
            if outcomes and isinstance(outcomes[0], Item):
                assert outcomes[0].value == self.asked_for[waiter]
            assert not (outcomes and waiter in self.cancelled)

    @invariant()
    def nobody_waits_beyond_a_deadline(self) -> None:
        self.driver.at(self.driver.time)
        for name, deadline in self.deadlines.items():
            if deadline <= self.driver.time and name not in self.cancelled:
                assert self.driver.outcomes[name], f"{name} still waits"

    @invariant()
    def the_window_and_the_receive_maximum_hold(self) -> None:
        assert self.driver.machine.request_table.in_flight <= WINDOW
        if self._has_link:
            assert len(self.driver.on_the_wire) <= self.receive_maximum

    @invariant()
    def a_closed_machine_only_answers(self) -> None:
        machine = self.driver.machine
        assert self.closed <= (machine.state is ConnectionState.CLOSED)
        if machine.state is ConnectionState.CLOSED:
            actions = self.driver.actions
            ends = [i for i, a in enumerate(actions) if getattr(a, "state", None) is ConnectionState.CLOSED]
            after = actions[ends[-1] + 1 :]  # it may have been opened again after an earlier one
            assert not any(isinstance(a, (Open, Publish, Subscribe, Acknowledge, Notify)) for a in after)
            assert machine.request_table.pending == 0
            assert machine.next_deadline() is None

    @invariant()
    def watchers_see_ascending_versions(self) -> None:
        for seen in self.watchers:
            events = [e for e in seen if not isinstance(e, StateStoreError) and e.version is not None]
            # A deletion may carry the version of the value that it deleted: servers of the document's dialect do that.
            steps = [(e.version, e.kind == "delete") for e in events]
            assert steps == sorted(set(steps))
            assert all(isinstance(version, HlcTimestamp) for version, _ in steps)


def _answer(request: bytes) -> bytes:
    """What a state store answers; a GET gets its key as the value."""
    words = request.split(b"\r\n")
    if words[2] == b"GET":
        return b"$%d\r\n%s\r\n" % (len(words[4]), words[4])
    return b":1\r\n" if words[2] == b"DEL" else b"+OK\r\n"


TestMachineModel = pytest.mark.scaled(MachineModel.TestCase)
TestMachineModel.settings = settings(max_examples=max(40, scaled(150, 1500)), stateful_step_count=80)
