"""Elections, with both shells."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import InvalidArgumentError, LeaseLostError, LockNotAcquiredError
from statestore_client.server import EmbeddedServer


async def test_one_candidate_leads_until_it_resigns(shell: Shell, server: EmbeddedServer) -> None:
    """One candidate leads until it resigns; then the other one leads, with a newer token."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        one = store.election("leader", candidate="one", term=30.0)
        two = other.election("leader", candidate="two", term=30.0)
        assert (one.name, one.candidate) == ("leader", b"one")
        assert await one.leader() is None
        assert not await one.resign()
        first = await one.campaign()
        assert await two.leader() == b"one"
        assert await two.try_campaign() is None
        with pytest.raises(LockNotAcquiredError, match=r"the election leader was not won within 1 s"):
            await two.campaign(timeout=1)
        waiting = asyncio.ensure_future(two.campaign(timeout=20))
        assert await one.resign()
        second = await waiting
        assert second.fencing_token > first.fencing_token
        assert await one.leader() == b"two"
        with pytest.raises(LeaseLostError):
            first.check()


async def test_leading_is_a_context(shell: Shell, server: EmbeddedServer) -> None:
    """Entering a campaign's context leads and leaving resigns, also after an exception; a guarded store takes the
    leadership."""
    async with shell.client(server.url) as store:
        election = store.election("leader")
        tokens = []

        async def work() -> None:
            async with election.campaign(timeout=5) as leadership:
                assert await election.leader() == election.candidate
                await store.guarded(leadership).set("state", b"1")
                tokens.append(leadership.fencing_token)
                raise RuntimeError("the work failed")

        for _ in range(2):
            with pytest.raises(RuntimeError, match="the work failed"):
                await work()
            assert await election.leader() is None
        assert tokens[0] < tokens[1]


async def test_candidates_of_one_process_are_two(shell: Shell, server: EmbeddedServer) -> None:
    """Two election objects of one client are two candidates, unless they get the same name."""
    async with shell.client(server.url) as store:
        one, two = store.election("leader"), store.election("leader")
        assert one.candidate != two.candidate
        async with one.campaign():
            assert await two.try_campaign() is None


async def test_everybody_sees_who_leads(shell: Shell, server: EmbeddedServer) -> None:
    """An observer sees that nobody leads, then each leader in turn, without the renewals in between."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        seen: list[Any] = []
        async with other.election("leader").observe() as states:
            for name in ("one", "two", "three"):
                async with store.election("leader", candidate=name, term=1.0).campaign():
                    while (state := await states.get(timeout=5)).holder != name.encode():
                        seen.append(state.holder)
                    seen.append(state.holder)
                    assert await states.get(timeout=0.5) is None  # a renewal
        assert seen == [None, b"one", None, b"two", None, b"three"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"name": ""}, "election's name is empty"),
        ({"name": "x", "candidate": ""}, "candidate is empty"),
        ({"name": "x", "term": 0}, "term must be seconds"),
    ],
)
async def test_mistakes_are_named(
    shell: Shell, server: EmbeddedServer, arguments: dict[str, Any], complaint: str
) -> None:
    """Errors of an election use the words of an election."""
    async with shell.client(server.url) as store:
        with pytest.raises(InvalidArgumentError, match=complaint):
            store.election(**arguments)
