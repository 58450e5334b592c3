"""The sockets of a peer, where something cannot be had."""

from __future__ import annotations

import threading

import pytest
import zmq

from raft_client.server.runtime.sockets import PeerSockets


def test_sockets_are_given_back_when_one_of_them_could_not_connect() -> None:
    """A peer that fails because libzmq refuses a URL still ends: closing does not wait for a socket half made."""
    sockets = PeerSockets(lambda _descriptor: None, lambda _descriptor: None)
    sockets.bind("tcp://127.0.0.1:*", None)
    with pytest.raises(zmq.ZMQError) as refused:
        sockets.connect("2", "tcp://-:80")
    closing = threading.Thread(target=sockets.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive(), f"still waiting after {refused.value}"
