"""What our peers say beyond the document harms no Node peer (npm zmq-raft 0.5.0), whose answer tells the two apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zmq
from support.raft_peers import RaftCluster, why_not

from raft_client.wire.client_requests import HandOver, LogInfoReply, RequestLogInfo
from raft_client.wire.hello import Capability, Hello, hello_in_reply
from raft_client.wire.peer_messages import PreVote, ReadIndex, TimeoutNow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop

HELLO = Hello("9", 2**52, tuple(Capability))
ANSWER_WITHIN_MS = 10_000


@pytest.fixture
def node_peer(tmp_path: Path) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER that is connected to one of three Node peers."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with RaftCluster(tmp_path) as running, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvtimeo = ANSWER_WITHIN_MS
        dealer.connect(running.urls[running.leader()])
        yield dealer


def say_hello(dealer: zmq.Socket[bytes], hello: Hello) -> list[bytes]:
    """Ask, and take what comes for the answer; its request id must be that of the question."""
    dealer.send_multipart([hello.to_request_id(), *RequestLogInfo(b"").to_frames()])
    request_id, *answer = dealer.recv_multipart()
    assert request_id == hello.to_request_id()
    return answer


def test_a_node_peer_answers_a_hello_like_any_question(node_peer: zmq.Socket[bytes]) -> None:
    """A Node peer answers a hello as any question: with the long request id byte for byte, and nine frames that say
    that it knows nothing else."""
    answer = say_hello(node_peer, HELLO)
    assert len(answer) == 9
    assert hello_in_reply(answer) is None
    assert LogInfoReply.from_frames(answer).is_leader


def test_a_node_peer_is_silent_about_our_types_and_lives_on(node_peer: zmq.Socket[bytes]) -> None:
    """A Node peer does not answer messages of our types and lives on. Our peers send it none; one that comes too late
    for a peer that was replaced does no harm. A ROUTER answers one connection in the order of its questions: what comes
    next is the answer to the hello."""
    for message in (PreVote(b"", "9", 5, 0, 0), TimeoutNow(b"", "9", 5), ReadIndex(b""), HandOver(b"", "2")):
        node_peer.send_multipart([b"\x01", *message.to_frames()])
    say_hello(node_peer, HELLO)
