"""Which texts are URLs of peers."""

from __future__ import annotations

import pytest
import zmq

from raft_client.wire.peer_urls import is_peer_url


@pytest.mark.parametrize("host", ["a", "a-", "a._-", "9", "127.0.0.1", "[::1]", "[fe80::1%eth0.1_a-b]"])
def test_a_url_of_a_peer_can_be_connected_to(host: str) -> None:
    """libzmq takes what is a URL of a peer; whether anybody is there is another question."""
    assert is_peer_url(f"tcp://{host}:80")
    assert is_connectable(f"tcp://{host}:80")


@pytest.mark.parametrize("host", ["-", "_a", ".a", "", "a b", "*", "@", "é", "[fe80::1%a b]"])
def test_what_cannot_be_connected_to_is_no_url_of_a_peer(host: str) -> None:
    """A name that libzmq refuses is refused where it is given, not when a peer wants to connect to it."""
    assert not is_peer_url(f"tcp://{host}:80")


def is_connectable(url: str) -> bool:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        try:
            dealer.connect(url)
        except zmq.ZMQError:
            return False
    return True
