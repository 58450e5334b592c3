"""No call fails, waits or lies because of another: both shells, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raft_shells import RaftShell
from support.scripted_peers import BROADCAST, UPDATE, ScriptedCluster

from raft_client import (
    ClusterBusyError,
    InvalidArgumentError,
    NoLeaderError,
    OutOfDateLogError,
    ProtocolError,
    RequestExpiredError,
    RequestId,
    RequestTimeoutError,
)

NONSENSE = "tcp://no sense:1"
ID = RequestId(bytes(range(12)))


async def take_all(stream: Any) -> list[Any]:
    """Until it ends."""
    taken = []
    while (batch := await stream.next_batch()) is not None:
        taken.append(batch)
    return taken


@pytest.mark.ci
async def test_a_mistaken_stream_is_felt_by_its_reader_alone(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A stream that asks for entries beyond the log fails alone: the client keeps its leader, and a message gets its
    answer."""
    async with raft.client(peers.seeds) as client:
        message = asyncio.create_task(client.dispatch("unknown", timeout=2.0))
        mistaken = asyncio.create_task(take_all(client.entries(10**6)))
        while not mistaken.done():
            await client.append(b"x", timeout=5.0)
            await asyncio.sleep(0.01)
        with pytest.raises(OutOfDateLogError, match="before 1000000"):
            await mistaken
        with pytest.raises(RequestTimeoutError):
            await message
        assert client.stats.searches == 1
        assert client.stats.repeated <= 11  # the stream's own


async def test_open_streams_do_not_keep_an_append_waiting(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Open streams do not keep an append waiting, also with a window of one request."""
    peers.fill(60)
    async with raft.client(peers.seeds, max_in_flight=1) as client:
        streams = [client.entries(buffer_bytes=1) for _ in range(3)]
        for stream in streams:
            await stream.next_batch()
        assert await client.append(b"a", timeout=5.0) == 61
        for stream in streams:
            await stream.close()


@pytest.mark.parametrize(
    ("answers", "request_id", "may"),
    [([[b""]], None, False), ([[b"\x01"], [b""]], None, True), ([[b""]], ID, True)],
    ids=["a first send", "accepted before", "an id that was used"],
)
async def test_an_expired_id_says_whether_it_may_be_in_the_log(
    raft: RaftShell, peers: ScriptedCluster, answers: list[list[bytes]], request_id: RequestId | None, *, may: bool
) -> None:
    """The refusal of an expired id says for certain that nothing is in the log only for the first send of an id made
    here."""
    peers.script("1", UPDATE, lambda _frames: answers)
    async with raft.client(peers.seeds) as client:
        with pytest.raises(RequestExpiredError) as caught:
            await client.append(b"a", request_id)
        assert caught.value.may_have_been_applied is may


async def test_a_peer_with_an_unusable_url_is_passed_over(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A peer that the cluster lists with an unusable URL is skipped, and the others are searched."""
    peers.listed.append(["4", NONSENSE])
    async with raft.client(peers.seeds) as client:
        await client.append(b"a")
        peers.kill("1")
        peers.elect("2")
        assert await client.append(b"b", timeout=5.0) == 2
        assert client.peers["4"] == NONSENSE
        with pytest.raises(RequestTimeoutError):
            await client.log_info("4", timeout=0.3)
        assert await client.append(b"c") == 3


async def test_an_unusable_url_is_refused(raft: RaftShell, peers: ScriptedCluster) -> None:
    """An unusable URL given as an argument is refused before anything is sent."""
    async with raft.client(peers.seeds) as client:
        for url in (NONSENSE, "tcp://a", "http://127.0.0.1:1", "tcp://\ud800:1", "tcp://a:0"):
            with pytest.raises(InvalidArgumentError, match="tcp://host:port"):
                await client.log_info(url)
        assert await client.append(b"a") == 1


async def test_a_leader_that_broadcasts_nowhere_ends_the_subscription(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A leader that broadcasts nowhere ends the subscription alone, with an error of its own."""
    peers.script("1", BROADCAST, lambda _frames: [[NONSENSE.encode()]])
    async with raft.client(peers.seeds) as client:
        subscriber = client.subscribe(0)
        with pytest.raises(ProtocolError, match="cannot be connected to"):
            await subscriber.next_batch(timeout=5.0)
        assert await client.append(b"a") == 1


async def test_the_members_are_told_when_they_are_settled(raft: RaftShell, peers: ScriptedCluster) -> None:
    """config(settled=True) waits until a change of members is over; while it runs both lists come in one, and another
    change is refused."""
    before = list(peers.listed)
    async with raft.client(peers.seeds) as client:
        peers.begin_change(before[:2])
        assert len((await client.config()).peers) == 3
        with pytest.raises(ClusterBusyError):
            await client.config(settled=True, timeout=0.3)
        with pytest.raises(ClusterBusyError) as caught:
            await client.update_config([*before, ("4", "tcp://127.0.0.1:9")], wait=False)
        assert not caught.value.may_have_been_applied
        settled = asyncio.create_task(client.config(settled=True))
        peers.end_change()
        assert [[p.id, p.url] for p in (await settled).peers] == before[:2]


@pytest.mark.parametrize(("request_id", "new_id", "may"), [(None, False, False), (ID, True, False), (ID, False, True)])
async def test_what_was_never_sent_was_not_applied_unless_its_id_was_used(
    raft: RaftShell, peers: ScriptedCluster, request_id: RequestId | None, *, new_id: bool, may: bool
) -> None:
    """An append that was never sent was not applied, unless its id may have been used by an earlier call."""
    async with raft.client(peers.seeds) as client:
        peers.elect(None)
        for peer in peers.peers:
            peers.kill(peer)
        with pytest.raises(NoLeaderError):
            await client.log_info(timeout=0.3)
        with pytest.raises(NoLeaderError) as caught:
            await client.append(b"a", request_id, new_id=new_id, timeout=0.3)
        assert caught.value.may_have_been_applied is may
