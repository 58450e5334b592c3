"""Random programs against a broker with a journal. The oracle is the same broker, whose clients all lose their
connection when those of the other one are no longer awaited: what is restored from the committed batches must be in the
same state. Or all clients come back, and no will goes out.

All that a client ever received was committed before, so this says that what was acknowledged is there, in order, that
QoS 2 identifiers and PUBRELs are, and that nothing is there that is over.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Client
from support.durable_broker import NAMES, STEPS, TOPICS, UNEVEN_S, DurableWorld, Program, broker_state, is_calm

from statestore_client.mqtt.packets import Connect
from statestore_client.server.broker.session.awaited import GRACE_S


class _CrashProgram(Program):
    def _crash(self, away_s: float) -> None:
        """Compare the restored broker with the one whose clients are all gone now."""
        world = self.world
        world.sleep(UNEVEN_S)
        world.work()
        written = world.storage.copy()
        crashed_at = world.monotonic
        is_exact = not away_s and is_calm(world.broker, world.now)
        world.sleep(away_s + GRACE_S)
        self.all_leave()
        expected = broker_state(world.broker, world.now, is_exact=is_exact)
        world.storage, world.monotonic = written, crashed_at
        world.crash(away_s)
        assert world.broker.audit() == ()
        world.sleep(GRACE_S)
        assert broker_state(world.broker, world.now, is_exact=is_exact) == expected
        assert world.broker.audit() == ()
        world.work()

    def _crash_and_return(self, away_s: float) -> None:
        world = self.world
        world.work()
        before = world.broker
        world.crash(away_s)
        self.all_return(before)
        assert world.broker.audit() == ()

    def end(self) -> None:
        """When all sessions and retained messages are gone, nothing is left on the disk."""
        self._crash(0.0)
        world = self.world
        for name in NAMES:
            client = Client(world)
            client.send(Connect(name, clean_start=True))
            client.received()
        for topic in TOPICS:
            client.publish(topic, b"", 1, retain=True)
        client.received()
        assert world.storage.count() == {}


_crashes = st.tuples(st.sampled_from(("crash", "crash_and_return")), st.sampled_from((0.0, 25.0)))


@given(st.lists(st.one_of(*STEPS, _crashes), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_restored_broker_is_one_whose_clients_all_left(steps: list[tuple[Any, ...]]) -> None:
    """At any crash sessions, queues, QoS 2 state, wills and retained messages equal those of a broker whose clients all
    left."""
    program = _CrashProgram(DurableWorld())
    program.begin()
    for step in steps:
        program.run(step)
    program.end()
