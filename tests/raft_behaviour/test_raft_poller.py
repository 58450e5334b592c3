"""Sleeping on descriptors: in time, whatever time that is."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from raft_client.sync.poller import Poller, _PollPoller, _SelectorPoller


@pytest.fixture(params=[_PollPoller, _SelectorPoller])
def poller(request: pytest.FixtureRequest) -> Iterator[Poller]:
    made: Poller = request.param()
    yield made
    made.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seconds", [0.0, -0.0005, -0.5, -1e6])
def test_a_moment_that_has_passed_is_no_wait(poller: Poller, seconds: float) -> None:
    """A deadline that has passed when the thread comes to wait for it does not make it wait."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poller.add(ours.fileno(), "owner")
        assert poller.wait(seconds) == []
        theirs.send(b"x")
        [(descriptor, _)] = poller.wait(seconds)
        assert poller.owners[descriptor] == "owner"
        poller.remove(ours.fileno())


def test_a_wait_is_never_early(poller: Poller) -> None:
    """A wait of half a millisecond lasts a millisecond, and not zero."""
    for _ in range(20):
        began = time.monotonic()
        assert poller.wait(0.0005) == []
        assert time.monotonic() - began >= 0.0005
