"""The sockets of a site: how much of them is taken at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
import zmq
from support.waiting import eventually

from statestore_client.server.runtime.transport.site_sockets import Came, ConnectionChanged, SiteSockets

_MESSAGES = 200


@contextlib.contextmanager
def bonn() -> Iterator[SiteSockets]:
    """The sockets of a site."""
    sockets = SiteSockets("bonn", lambda _descriptor: None, lambda _descriptor: None, Random(1))
    with contextlib.closing(sockets):
        yield sockets


@pytest.mark.parametrize("most", [1, 16])
def test_a_turn_takes_as_many_messages_as_it_likes(most: int) -> None:
    """What a turn does not take waits for the next one; nothing is lost, and the order stays."""
    with bonn() as sockets, zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(sockets.bind("tcp://127.0.0.1:*"))
        for number in range(_MESSAGES):
            peer.send(b"%d" % number)
        taken: list[int] = []

        def has_all() -> bool:
            taken.extend(int(each.data) for each in islice(sockets.receive(), most) if isinstance(each, Came))
            return len(taken) >= _MESSAGES

        eventually(has_all, "all messages came")
    assert taken == list(range(_MESSAGES))


def test_a_busy_socket_does_not_hold_up_another_one() -> None:
    """Turns that take one message each take one from either socket, however many wait at each of them."""
    with bonn() as sockets, zmq.Context() as context, context.socket(zmq.ROUTER) as rome:
        rome.setsockopt(zmq.LINGER, 0)
        port = rome.bind_to_random_port("tcp://127.0.0.1")
        url = f"tcp://127.0.0.1:{port}"
        sockets.dial(url)
        eventually(lambda: any(isinstance(each, ConnectionChanged) for each in sockets.receive()), "connected")
        sockets.send(url, b"hello")
        route, _ = rome.recv_multipart()
        with context.socket(zmq.DEALER) as client:
            client.setsockopt(zmq.LINGER, 0)
            client.connect(sockets.bind("tcp://127.0.0.1:*"))
            for _ in range(_MESSAGES):
                client.send(b"client")
                rome.send_multipart([route, b"rome"])
            taken: list[bytes] = []

            def has_all() -> bool:
                taken.extend(each.data for each in islice(sockets.receive(), 1) if isinstance(each, Came))
                return len(taken) == 2 * _MESSAGES

            eventually(has_all, "all messages came")
    # From where both have something until one of them has nothing more.
    first = max(taken.index(b"client"), taken.index(b"rome"))
    both = taken[first + 1 : first + 101]
    assert 45 <= both.count(b"rome") <= 55
