"""Messages to the user's own state machine: sent once, or, with a request id, until they are answered."""

from __future__ import annotations

import asyncio

import pytest
from raft_shells import RaftShell
from support.scripted_peers import ScriptedCluster
from support.waiting import until

from raft_client import InvalidArgumentError, RequestTimeoutError, new_request_id


def sent(peers: ScriptedCluster, kind: bytes = b"book") -> list[tuple[str, bytes]]:
    """Which peer got such messages, and under which request id."""
    return [(peer, request_id) for peer, request_id, found, _ in list(peers.seen) if found == kind]


async def test_a_message_with_an_id_reaches_the_next_leader(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A message with an id is repeated at the next leader under the same id, so that the state machine recognises
    it."""
    request_id = new_request_id()
    for peer in "123":
        peers.script(peer, b"book", lambda _frames: [[b"booked"]])
    peers.script("1", b"book", lambda _frames: [])
    async with raft.client(peers.seeds) as client:
        booking = asyncio.create_task(client.dispatch("book", "seat 7", request_id=request_id))
        await until(lambda: bool(sent(peers)))
        peers.elect("2")
        peers.kill("1")
        assert await booking == [b"booked"]
        assert await client.dispatch("book", "seat 7", request_id=str(request_id)) == [b"booked"]
    assert {found for _, found in sent(peers)} == {request_id.raw}
    assert sent(peers)[-1][0] == "2"


async def test_a_message_with_an_id_that_is_not_answered_names_it(raft: RaftShell, peers: ScriptedCluster) -> None:
    """The error of an unanswered message has its id for the next try; the message was repeated meanwhile."""
    request_id = new_request_id()
    async with raft.client(peers.seeds, response_timeout=0.1) as client:
        with pytest.raises(RequestTimeoutError) as failed:
            await client.dispatch(b"nobody knows", request_id=request_id, timeout=1.0)
        assert failed.value.request_id == request_id
        assert failed.value.may_have_been_applied
    assert len(sent(peers, b"nobody knows")) > 1


async def test_a_slow_state_machine_takes_no_room_from_others(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A message whose answer takes long gives its place in the window back, with or without an id."""
    async with raft.client(peers.seeds, max_in_flight=1) as client:
        slow = asyncio.create_task(client.dispatch(b"nobody knows", request_id=new_request_id(), timeout=3.0))
        await until(lambda: bool(sent(peers, b"nobody knows")))
        assert await client.append(b"a", timeout=2.0) == 1
        assert not slow.done()
        with pytest.raises(RequestTimeoutError):
            await slow


async def test_a_message_without_an_id_is_sent_once(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A message without an id is sent once, as only the state machine knows if a repetition does harm; a bad id is
    refused unsent."""
    async with raft.client(peers.seeds, response_timeout=0.1) as client:
        with pytest.raises(RequestTimeoutError) as failed:
            await client.dispatch(b"nobody knows", timeout=0.5)
        assert failed.value.request_id is None
        with pytest.raises(InvalidArgumentError, match="request id"):
            await client.dispatch(b"nobody knows", request_id=b"short")
    assert len(sent(peers, b"nobody knows")) == 1
