"""Which texts are URLs of peers."""

from __future__ import annotations

import pytest
import zmq

from raft_client.wire.peer_urls import is_ipc_url, is_peer_url, is_tcp_url


@pytest.mark.parametrize("host", ["a", "a-", "a._-", "9", "127.0.0.1", "[::1]", "[fe80::1%eth0.1_a-b]"])
def test_a_url_of_a_peer_can_be_connected_to(host: str) -> None:
    """libzmq takes what is a URL of a peer; whether anybody is there is another question."""
    assert is_peer_url(f"tcp://{host}:80")
    assert is_connectable(f"tcp://{host}:80")


@pytest.mark.parametrize("host", ["-", "_a", ".a", "", "a b", "*", "@", "é", "[fe80::1%a b]"])
def test_what_cannot_be_connected_to_is_no_url_of_a_peer(host: str) -> None:
    """A name that libzmq refuses is refused where it is given, not when a peer wants to connect to it."""
    assert not is_peer_url(f"tcp://{host}:80")


@pytest.mark.parametrize("path", ["/a", "/tmp/raft/1.sock", "/é", "/" + "a" * 102, "/" + "é" * 51])
def test_a_unix_socket_is_a_url_for_clients(path: str) -> None:
    """An absolute path that fits is a URL that libzmq connects to, and none of a peer among machines."""
    assert is_peer_url(f"ipc://{path}")
    assert is_ipc_url(f"ipc://{path}")
    assert not is_tcp_url(f"ipc://{path}")
    assert is_connectable(f"ipc://{path}")


@pytest.mark.parametrize(
    "path", ["", "a", "/", "*", "@a", "/a b", "/a,b", "/a=b", "/a\0", "/\ud800", "/" + "a" * 103, "/" + "é" * 52]
)
def test_other_paths_are_no_urls(path: str) -> None:
    """What libzmq refuses, what macOS has no room for, and what settings could not write is refused."""
    assert not is_peer_url(f"ipc://{path}")


def is_connectable(url: str) -> bool:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        try:
            dealer.connect(url)
        except zmq.ZMQError:
            return False
    return True
