"""Random programs against a broker with a journal. The oracle is the same broker, whose clients all lose their
connection at the moment of the crash: what is restored from the committed batches must be in the same state.

All that a client ever received was committed before, so this says that what was acknowledged is there, in order, that
QoS 2 identifiers and PUBRELs are, and that nothing is there that is over.
"""

from __future__ import annotations

from typing import Any

from broker_driver import Client
from durable_driver import DurableWorld
from durable_program import NAMES, STEPS, TOPICS, Program, broker_state
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.mqtt.packets import Connect


class _CrashProgram(Program):
    def _crash(self, away_s: float) -> None:
        """Compare the restored broker with the one whose clients are all gone now."""
        world = self.world
        world.work()
        written = world.storage.copy()
        world.sleep(away_s)
        self.all_leave()
        expected = broker_state(world.broker, world.now, is_exact=not away_s)
        world.storage = written
        world.crash()
        assert broker_state(world.broker, world.now, is_exact=not away_s) == expected
        assert world.broker.audit() == ()
        world.work()

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


@given(st.lists(st.one_of(*STEPS, st.tuples(st.just("crash"), st.sampled_from((0.0, 25.0)))), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_restored_broker_is_one_whose_clients_all_left(steps: list[tuple[Any, ...]]) -> None:
    """At any crash sessions, queues, QoS 2 state, wills and retained messages equal those of a broker whose clients all
    left."""
    program = _CrashProgram(DurableWorld())
    program.begin()
    for step in steps:
        program.run(step)
    program.end()
