"""The sockets of a client: what one that is lost or dropped does to the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from raft_client.links import Links
from raft_client.settings import RaftSettings


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links(RaftSettings(seeds=["tcp://127.0.0.1:1"]), on_open=lambda _: None, on_close=lambda _: None)
    yield made
    made.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which connections are begun and never made: the queue of its listener is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_links_that_are_dropped_while_they_connect_do_not_stop_the_next_ones(links: Links, silent: str) -> None:
    """libzmq's thread reports the end of each to its monitor, and waits for ever if that is closed first: whatever is
    sent afterwards goes nowhere.
    """
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        for number in range(5):
            for _ in range(8):
                links.connect(silent)
                links.set_aside(silent, f"{silent} {len(links.dealers)}")
            links.drop()
            assert links.connect(f"tcp://127.0.0.1:{port}").send([b"%d" % number])
            assert router.poll(10_000), f"nothing comes after drop {number}"
            assert router.recv_multipart()[1:] == [b"%d" % number]
