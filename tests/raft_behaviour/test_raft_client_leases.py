"""Leases of keys, in both clients, on real peers: keys end with their owner, and watches and mirrors are told so."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from raft_shells import RaftShell
from support.waiting import until

from raft_client import (
    AsyncKeyLease,
    AsyncKeyValues,
    AsyncRaftClient,
    BusyError,
    ChangeKind,
    InvalidArgumentError,
    LeaseEndedError,
    LeaseLimitError,
    LeasesUnsupportedError,
    PickleRefusedError,
    RequestId,
    RequestTimeoutError,
    new_request_id,
)
from raft_client.server import AsyncEmbeddedCluster, BroadcastStateMachine, KeyValueStateMachine, StateMachine
from raft_client.server.machines import leases


def given(lease: Any) -> Any:
    """A lease as users have it, to be given to a method."""
    return getattr(lease, "target", lease)


async def test_keys_end_with_the_block(raft: RaftShell) -> None:
    """What is put with a lease is there as long as the block, and is deleted in one entry when it ends."""
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        kv = client.kv
        async with kv.mirror("members/") as members:
            changes = members.changes()
            async with kv.lease(60) as lease:
                assert (lease.ttl, lease.lost, await lease.wait_lost(0)) == (60.0, None, False)
                await kv.put("members/1", "a", lease=given(lease))
                done = await kv.transaction(
                    compare={"members/2": None}, then={"members/2": "b", "other": "c"}, lease=given(lease)
                )
                assert done.done
                assert (await kv.compare_and_set("members/3", None, "d", lease=given(lease))).done
                await kv.put("members/3", "e")  # which belongs to no lease any more
                await kv.put("members/4", "f", lease=lease.id)
                found = await kv.look_up_lease(given(lease))
                assert (found.ttl, found.keys) == (60.0, (b"members/1", b"members/2", b"members/4", b"other"))
            assert [key async for key, _ in kv.range()] == [b"members/3"]
            assert await kv.look_up_lease(lease.id) is None
            told = [(await changes.get(10)).changes for _ in range(6)]
            assert [(change.kind, change.key) for change in told[-1]] == [
                (ChangeKind.DELETE, b"members/1"),
                (ChangeKind.DELETE, b"members/2"),
                (ChangeKind.DELETE, b"members/4"),
            ]
        assert lease.lost is not None
        with pytest.raises(LeaseEndedError, match="was ended"):
            await kv.put("members/1", "a", lease=given(lease))
        with pytest.raises(LeaseEndedError, match="nothing was done") as caught:
            await kv.put("members/1", "a", lease=lease.id)
        assert not caught.value.may_have_been_applied
        assert caught.value.request_id is not None


class LosesAnswer:
    """The calls of a lease, on real peers; the answer to the first grant is lost."""

    def __init__(self, kv: AsyncKeyValues) -> None:
        self.kv = kv
        self.is_lost = False

    async def grant_lease(self, lease: RequestId, ttl: float, *, seconds: float | None) -> None:
        await self.kv.grant_lease(lease, ttl, seconds=seconds)
        if not self.is_lost:
            self.is_lost = True
            raise RequestTimeoutError("the answer is lost")

    async def keep_lease(self, lease: RequestId, *, seconds: float | None) -> None:
        await self.kv.keep_lease(lease, seconds=seconds)

    async def end_lease(self, lease: RequestId, *, timeout: float | None) -> None:
        await self.kv.end_lease(lease, timeout=timeout)


async def test_a_lease_that_was_over_before_its_owner_knew_of_it_does_not_begin() -> None:
    """The grant is appended once: the answer to one that is sent again later is about the first one."""
    async with AsyncEmbeddedCluster(1) as cluster, AsyncRaftClient(cluster.url) as client:
        over, alive = (
            AsyncKeyLease(LosesAnswer(client.kv), new_request_id(), ttl, timeout=10.0, on_lost=None)
            for ttl in (1.0, 60.0)
        )
        for lease in (over, alive):
            with pytest.raises(RequestTimeoutError):
                await lease.start()
        async with asyncio.timeout(30):
            while await client.kv.look_up_lease(over.id) is not None:
                pass
        with pytest.raises(LeaseEndedError):
            await over.start()
        with pytest.raises(BusyError):
            over.check()
        async with alive:
            alive.check()


async def test_a_silent_owner_loses_its_keys(raft: RaftShell) -> None:
    """A client that is closed says nothing more: its keys are there until the ttl is over, and no longer."""
    async with (
        AsyncEmbeddedCluster(1) as cluster,
        raft.client(cluster.url) as watcher,
        watcher.kv.mirror("members/") as members,
        raft.client(cluster.url) as owner,
    ):
        changes = members.changes()
        lease = await owner.kv.lease(2).start()
        await owner.kv.put("members/1", "a", lease=given(lease))
        await owner.close()
        told = [change.kind for _ in range(2) for change in (await changes.get(30)).changes]
        assert told == [ChangeKind.SET, ChangeKind.DELETE]
        assert await lease.wait_lost(10)
        assert not given(members).snapshot()


async def test_an_owner_is_told_that_its_lease_was_ended(raft: RaftShell) -> None:
    """A lease that others end is lost at its owner's next word: what is given it raises, and the callback is called."""
    told: list[LeaseEndedError] = []
    async with (
        AsyncEmbeddedCluster(1) as cluster,
        raft.client(cluster.url) as client,
        client.kv.lease(3, on_lost=told.append) as lease,
    ):
        await client.kv.put("k", "v", lease=given(lease))
        assert (await client.kv.end_lease(lease.id)).deleted == 1
        assert await lease.wait_lost(30)
        await until(lambda: len(told) == 1)
        assert str(told[0]) == str(lease.lost)
        with pytest.raises(LeaseEndedError):
            await client.kv.put("k", "v", lease=given(lease))
        with pytest.raises(LeaseEndedError):
            await client.kv.end_lease(lease.id)
    assert len(told) == 1


async def test_what_is_asked_for_has_bounds(raft: RaftShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases too short or too long are my mistake; too many, or too many keys, are refused by the cluster."""
    monkeypatch.setattr(leases, "MOST_LEASES", 1)
    monkeypatch.setattr(leases, "MOST_KEYS_OF_A_LEASE", 1)
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        for ttl in (0.9, 86_401, "1", True):
            with pytest.raises(InvalidArgumentError, match="from 1 to 86400"):
                client.kv.lease(ttl)
        lease = client.kv.lease(60)
        with pytest.raises(BusyError, match="not entered"):
            await client.kv.put("a", "1", lease=given(lease))
        with pytest.raises(PickleRefusedError):
            pickle.dumps(given(lease))
        async with lease:
            await client.kv.put("a", "1", lease=given(lease))
            with pytest.raises(LeaseLimitError):
                await client.kv.put("b", "1", lease=given(lease))
            with pytest.raises(LeaseLimitError):
                await client.kv.lease(60).start()
        await lease.end()
        with pytest.raises(LeaseEndedError):
            await lease.start()
        with pytest.raises(LeaseEndedError):
            await client.kv.put("a", "1", lease=new_request_id())


async def test_a_cluster_of_others_grants_no_lease(raft: RaftShell) -> None:
    """Where a member has another state machine no lease is granted, and the error says which."""
    one = AsyncEmbeddedCluster(1, machine=BroadcastStateMachine)
    async with one as cluster, raft.client(cluster.url) as client:
        with pytest.raises(LeasesUnsupportedError, match="the leader 1 knows no leases"):
            await client.kv.lease(60).start()
    machines: list[type[StateMachine]] = [BroadcastStateMachine, KeyValueStateMachine, KeyValueStateMachine]
    three = AsyncEmbeddedCluster(3, machine=lambda: machines.pop()())
    async with three as cluster, raft.client(cluster.url) as client:
        before = (await client.log_info()).last_index
        with pytest.raises(LeasesUnsupportedError, match=r"knows no leases|3 knows none"):
            await client.kv.lease(60).start()
        assert (await client.log_info()).last_index == before


# -- with real processes -----------------------------------------------------------------------------------------------

OWNER = """
import sys
from raft_client import RaftClient
with RaftClient(sys.argv[1]) as client, client.kv.lease(4) as lease:
    client.kv.put(f"members/{sys.argv[2]}", "here", lease=lease)
    print("here", flush=True)
    lease.wait_lost()
    print("lost", flush=True)
"""


def owner_of(cluster: AsyncEmbeddedCluster, name: str) -> subprocess.Popen[bytes]:
    folder = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", OWNER, cluster.url, name], stdout=subprocess.PIPE, cwd=folder)


@pytest.mark.ci
async def test_no_event_is_missed_when_the_leader_and_an_owner_are_killed(raft: RaftShell) -> None:
    """The leader is lost, and then one of two owners is killed: its key goes, once; that of the other one stays."""
    async with (
        AsyncEmbeddedCluster(3) as cluster,
        raft.client(cluster.url) as watcher,
        watcher.kv.mirror("members/") as members,
    ):
        changes = members.changes()
        owners = [owner_of(cluster, name) for name in ("dies", "lives")]
        try:
            for owner in owners:
                assert owner.stdout is not None
                assert await asyncio.to_thread(owner.stdout.readline) == b"here\n"
            await cluster.kill(await cluster.leader())
            await cluster.leader()
            owners[0].send_signal(signal.SIGKILL)
            told: list[tuple[ChangeKind, bytes]] = []
            while len(told) < 3:
                told += [(change.kind, change.key) for change in (await changes.get(60)).changes]
            assert sorted(told[:2]) == [(ChangeKind.SET, b"members/dies"), (ChangeKind.SET, b"members/lives")]
            assert told[2:] == [(ChangeKind.DELETE, b"members/dies")]
            assert given(members).snapshot() == {b"members/lives": b"here"}
            assert owners[1].poll() is None
        finally:
            for owner in owners:
                owner.kill()
                owner.communicate()
