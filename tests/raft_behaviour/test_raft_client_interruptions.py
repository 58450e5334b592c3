"""Streams and closings of the blocking Raft client, interrupted by exceptions from signal handlers at any moment."""

from __future__ import annotations

import pytest
from support.interruptions import interrupting, is_free, needs_timer
from support.scripted_peers import ScriptedCluster

from raft_client import BusyError, RaftClient

pytestmark = [
    needs_timer,
    pytest.mark.ci,
    pytest.mark.interruptions,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of what Python swallows
    # pyzmq warns of a socket whose making was interrupted, and then closes it: not if the warning is an error.
    pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning"),
]


def test_a_second_reader_is_not_refused_after_an_interruption(peers: ScriptedCluster) -> None:
    """A reader of a stream that was interrupted at any moment reads no longer: another thread may."""
    refused: list[BusyError] = []
    with RaftClient(peers.seeds) as client:
        client.append(b"a")
        with client.watch(after=0) as events:

            def look() -> None:
                try:
                    events.get(timeout=0)
                except BusyError as error:
                    refused.append(error)

            with interrupting() as interrupted:
                for _ in range(50):
                    interrupted(look, 0.001)
                    assert is_free(look)
    assert not refused


def test_clients_that_are_closed_under_interruptions_hang_nobody(peers: ScriptedCluster) -> None:
    """A client can be closed after an interruption at any moment of its opening, work and closing."""
    with interrupting(KeyboardInterrupt) as interrupted:
        for _ in range(60):
            client = RaftClient(peers.seeds)

            def work(client: RaftClient = client) -> None:
                client.open()
                client.append(b"a", timeout=30)
                client.close()
                raise KeyboardInterrupt  # a second round would find it closed

            interrupted(work, 0.004)
            assert is_free(client.close)
