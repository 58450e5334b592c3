"""Keys and values of both clients, read from and written to real peers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from raft_shells import RaftShell

from raft_client import (
    BusyError,
    Change,
    ChangeKind,
    Compare,
    HistoryOutrunError,
    InvalidArgumentError,
    InvalidDataError,
    OutcomeUnknownError,
    Position,
    RequestTimeoutError,
    WriteOutcome,
    new_request_id,
)
from raft_client.core import key_value_calls
from raft_client.server import AsyncEmbeddedCluster
from raft_client.server.machines import key_value


async def all_of(found: Any) -> list[tuple[bytes, bytes]]:
    return [item async for item in found]


async def test_keys_are_written_and_read(raft: RaftShell) -> None:
    """Each write says its position and what became of it, and each reading what it shows."""
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        kv = client.kv
        put = await kv.put("pumps/1", "on")
        assert put == WriteOutcome(Position(put.position.index), done=True, deleted=0)
        state = await kv.get("pumps/1")
        assert (state.key, state.value, state.exists) == (b"pumps/1", b"on", True)
        assert state.position.index == put.position.index
        assert state.position.term > 0
        assert not (await kv.get(b"pumps/2")).exists

        assert not (await kv.compare_and_set("pumps/1", "off", "broken")).done
        assert (await kv.compare_and_set("pumps/1", "on", "off")).done
        assert (await kv.compare_and_set("pumps/1", "off", None)).deleted == 1
        assert await all_of(kv.range("pumps/")) == []
        deleted = await kv.delete("pumps/1", "pumps/2")
        assert (deleted.done, deleted.deleted) == (True, 0)
        assert deleted.position > put.position

        done = await kv.transaction(compare={"a": None}, then={"a": "1", "b": "2"}, otherwise={"c": "3"})
        assert done.done
        done = await kv.transaction(
            compare=[Compare(b"a")],
            then={"a": "2"},
            otherwise=[Change(ChangeKind.SET, b"c", b"3"), Change(ChangeKind.DELETE, b"b")],
        )
        assert (done.done, done.deleted) == (False, 1)
        assert await all_of(kv.range()) == [(b"a", b"1"), (b"c", b"3")]


async def test_a_transaction_is_made_once_for_one_request_id(raft: RaftShell) -> None:
    """Repeated with its request id, a transaction is not made again, and has the outcome of the first time."""
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        request_id = new_request_id()
        first = await client.kv.compare_and_set("leader", None, "me", request_id=request_id)
        await client.kv.put("leader", "another")
        assert await client.kv.compare_and_set("leader", None, "me", request_id=request_id) == first
        assert first.done
        assert (await client.kv.get("leader")).value == b"another"


async def test_an_outcome_may_be_forgotten(raft: RaftShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the cluster has forgotten what became of an entry, the error says where it is, with the request id."""
    monkeypatch.setattr(key_value, "_REMEMBERED", 0)
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        with pytest.raises(OutcomeUnknownError) as caught:
            await client.kv.compare_and_set("leader", None, "me")
        assert (await client.kv.get("leader")).value == b"me"
        assert caught.value.index == (await client.kv.get("leader")).position.index
        assert caught.value.may_have_been_applied
        assert caught.value.request_id is not None
        assert copy.copy(caught.value).index == caught.value.index  # as pickle does


async def test_pages_show_one_moment_whoever_leads(raft: RaftShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range shows what keys were at its first page, whatever changes while it is read, also at the next leader."""
    monkeypatch.setattr(key_value_calls, "PAGE_KEYS", 3)
    async with AsyncEmbeddedCluster(3) as cluster, raft.client(cluster.url) as client:
        await client.append_many(
            [b"\x93\xa2kv\x93\x01\xc4\x01%c\xc4\x01%c" % (n, n) + b"\x92\x00\xc4\x01\x00" for n in range(65, 75)]
        )
        found = client.kv.range("", limit=9)
        with pytest.raises(BusyError, match="not read yet"):
            _ = found.position
        items = [await anext(found)]
        at = found.position
        former = await cluster.leader()
        await client.kv.transaction(then={"B": "changed", "D": None, "E": "changed", "EE": "new", "A": None})
        await cluster.kill(former)
        await client.kv.put("F", "changed")
        items += await all_of(found)
        assert items == [(b"%c" % n, b"%c" % n) for n in range(65, 74)]
        assert found.position == at
        assert await all_of(client.kv.range(start="D", end="F", keys_only=True)) == [(b"E", b""), (b"EE", b"")]


async def test_a_range_that_takes_too_long_says_so(raft: RaftShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the peers have forgotten what keys were, the reading ends with an error that says from where they know."""
    monkeypatch.setattr(key_value_calls, "PAGE_KEYS", 1)
    monkeypatch.setattr(key_value, "_PAST_BYTES", 600)
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        await client.kv.transaction(then={"a": "1", "b": "1"})
        found = client.kv.range()
        assert await anext(found) == (b"a", b"1")
        for number in range(3):
            last = await client.kv.put("c", str(number))
        with pytest.raises(HistoryOutrunError, match="not remembered any more") as caught:
            await anext(found)
        assert caught.value.current_index == last.position.index


async def test_any_peer_answers_what_may_be_stale(raft: RaftShell) -> None:
    """Without a leader nothing can be read but what may be stale; a peer that does not answer costs a moment."""
    async with AsyncEmbeddedCluster(3) as cluster:
        async with raft.client(cluster.url) as client:
            written = await client.kv.put("pumps/1", "on")
            for peer in cluster.running:
                while (await client.log_info(peer)).last_applied < written.position.index:
                    pass  # asked until it is so
        survivor = cluster.running[0]
        for peer in cluster.running[1:]:
            await cluster.kill(peer)
        client = raft.client(cluster.url, response_timeout=0.1)
        await client.open(wait=False)
        try:
            state = await client.kv.get("pumps/1", stale=True)
            assert (state.value, survivor) == (b"on", "1")
            assert state.position.index >= written.position.index
            assert await all_of(client.kv.range("pumps/", stale=True)) == [(b"pumps/1", b"on")]
            with pytest.raises(TimeoutError):  # no leader, or none that can find a majority
                await client.kv.get("pumps/1", timeout=0.3)
        finally:
            await client.close()


async def test_nobody_answers(raft: RaftShell) -> None:
    """When no peer answers, a stale reading ends at its time-out."""
    async with AsyncEmbeddedCluster(1) as cluster:
        client = raft.client(cluster.url, response_timeout=0.1)
        await client.open(wait=False)
        await cluster.kill("1")
        try:
            with pytest.raises(RequestTimeoutError, match=r"no peer answered within 0.3 s"):
                await client.kv.get("a", stale=True, timeout=0.3)
        finally:
            await client.close()


async def test_a_question_with_too_few_frames_is_answered(raft: RaftShell) -> None:
    """A message of too few frames is answered at once, with the reason."""
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        for kind in ("kv.get", "kv.range", "kv.done", "kv.read", "kv.outcome"):
            empty, reason = await client.dispatch(kind)
            assert empty == b""
            assert reason.decode().startswith(f"{kind}: ")


async def test_arguments_that_cannot_be(raft: RaftShell) -> None:
    """What cannot be sent is refused before anything is."""
    client = raft.client("tcp://127.0.0.1:9")
    for wrong in ({"prefix": "a", "start": "b"}, {"start": "b", "end": "a"}, {"limit": 0}, {"limit": True}, {"end": 5}):
        with pytest.raises(InvalidArgumentError):
            client.kv.range(**wrong)
    for call in (
        client.kv.get(""),
        client.kv.delete(),
        client.kv.put("", "a"),
        client.kv.transaction(compare={"a": None}),
        client.kv.transaction(then={"a": "b"}, otherwise={"a": "c"}),
        client.kv.transaction(then={"a": "\ud800"}),
    ):
        with pytest.raises(InvalidDataError):
            await call
    for call in (
        client.kv.get(5),
        client.kv.transaction(then="ab"),
        client.kv.transaction(then=[5]),
        client.kv.put("a", 5),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"", b""), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", b""), (b"a\x00", b"a\x01")]
)
def test_the_end_of_a_prefix(prefix: bytes, end: bytes) -> None:
    """A prefix is the interval up to the first key that does not begin with it."""
    assert key_value_calls.bounds_of(prefix, None, None) == (prefix, end)
