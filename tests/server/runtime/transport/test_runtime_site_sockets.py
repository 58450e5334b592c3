"""The sockets of a site: how much of them is taken at once."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
import zmq
from waiting import eventually

from statestore_client.server.runtime.transport.site_sockets import Came, SiteSockets

_MESSAGES = 200


@pytest.mark.parametrize(
    ("size", "limit", "limit_bytes", "most"), [(40_000, 16, 32_768, 1), (10_000, 16, 32_768, 4), (10, 16, 32_768, 16)]
)
def test_a_turn_takes_a_bounded_number_of_messages_and_bytes(
    size: int, limit: int, limit_bytes: int, most: int
) -> None:
    """After a message that reaches the limit of bytes the rest waits; nothing is lost, and the order stays."""
    sockets = SiteSockets("bonn", lambda _descriptor: None, lambda _descriptor: None, Random(1))
    with contextlib.closing(sockets), zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(sockets.bind("tcp://127.0.0.1:*"))
        for number in range(_MESSAGES):
            peer.send(b"%d " % number + bytes(size))
        taken: list[list[int]] = []

        def has_all() -> bool:
            came = [each for each in sockets.receive(limit, limit_bytes) if isinstance(each, Came)]
            taken.append([int(each.data.split(b" ")[0]) for each in came])
            return sum(map(len, taken)) == _MESSAGES

        eventually(has_all, "all messages came")
    assert max(map(len, taken)) <= most
    assert [number for some in taken for number in some] == list(range(_MESSAGES))
