"""What the clients are compared with does the work that it is timed for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paho_baseline import PahoBaseline
from raw_pyzmq import RawPyzmq

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

if TYPE_CHECKING:
    from support.scripted_peers import ScriptedCluster


def test_paho_by_hand_sets_and_gets(server: EmbeddedServer) -> None:
    """The baseline with paho really sets and gets, one at a time and many in flight; its keys expire after a minute."""
    with PahoBaseline("127.0.0.1", server.port) as peer, StateStoreClient(server.url) as store:
        peer.set(b"one", b"1")
        peer.set_many([(b"many/%d" % n, b"%d" % n) for n in range(100)], 8)
        peer.get(b"one")
        peer.get_many([b"many/%d" % n for n in range(100)], 8)
        found = {key: store.get(key).value for key in store.scan("*")}
    assert found == {b"one": b"1"} | {b"many/%d" % n: b"%d" % n for n in range(100)}


def test_pyzmq_by_hand_appends_and_reads(peers: ScriptedCluster) -> None:
    """The baseline with pyzmq really appends and reads everything back, one at a time and many in flight."""
    leader = peers.peers["1"].url
    with RawPyzmq(leader) as peer:
        first = peer.append(int(time.time()), b"one")
        peer.append_many(int(time.time()), b"many", 20, 8)
        assert peer.stream(first - 1)[0] == len(peers.log) == 21
        assert peer.stream(0, 5)[0] == 5
