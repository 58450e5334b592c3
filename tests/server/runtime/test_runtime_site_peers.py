"""Peers of sites with real sockets: they are removed, added, killed and started again."""

from __future__ import annotations

import time

import pytest
import zmq
import zmq.asyncio
from site_nodes import nodes
from support.waiting import until

from statestore_client.server.kvstore.links import DOWN_S
from statestore_client.wire.kvstore.client_messages import ChangePeer
from statestore_client.wire.kvstore.codec import decode, encode
from statestore_client.wire.kvstore.messages import MAX_MESSAGE, Failure


async def test_a_peer_can_be_removed_and_added_at_run_time() -> None:
    """What is set after the peer was removed does not reach it, and does when it was added again."""
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        x.set("before", b"1")
        await until(lambda: y.value("before") == b"1")
        x.peering.remove_peer(y.url)
        x.set("between", b"1")
        await until(lambda: not any(link.name == "x" for link in y.peering.site._links), "the connection is dead")
        assert y.value("between") is None
        x.dial(y)
        await until(lambda: y.value("between") == b"1")


async def test_sites_forget_each_other_also_while_both_talk() -> None:
    """That a site leaves is the last that it says; the connection is closed before the other side has read it."""
    async with nodes("x", "y") as (x, y):
        for number in range(10):
            x.dial(y)
            await until(lambda: "x" in y.peering.site.replicas["a"].peers, "they are peers")
            for key in range(50):
                x.set(f"x{number} {key}", b"1")
                y.set(f"y{number} {key}", b"1")
            x.peering.remove_peer(y.url)
            y.set(f"last {number}", b"1")
            await until(lambda: not y.peering.site.replicas["a"].peers, "it is forgotten")
            assert not x.peering.site.replicas["a"].peers


async def test_a_client_that_has_a_site_forget_a_name_of_a_megabyte_is_refused() -> None:
    """The site goes on."""
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(x.url)
            for url in ("x" * (MAX_MESSAGE - 20), "tcp://" + "\x01" * 200_000, "x" * 1_025):
                await client.send(encode(ChangePeer(7, url, False)))
                assert await client.poll(20_000)
                reply = decode(await client.recv())
                assert isinstance(reply, Failure)
                assert "at most 1024" in reply.text
        x.set("k", b"1")
        await until(lambda: y.value("k") == b"1")


async def test_a_site_that_is_killed_and_started_again_is_taken_before_its_silence_would_be_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its name is free as soon as the connection is gone, and nobody is warned of two sites."""
    async with nodes("x", "y") as (x, y):
        x.dial(y)
        x.set("before", b"1")
        await until(lambda: y.value("before") == b"1")
        for _ in range(3):
            x.peering.close()
            x.start()
            began = time.monotonic()
            await until(lambda: x.value("before") == b"1")
            assert time.monotonic() - began < DOWN_S
        assert (x.peering.refused, y.peering.refused) == (0, 0)
        assert [record for record in caplog.records if record.levelname == "WARNING"] == []
