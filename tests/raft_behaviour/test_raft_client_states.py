"""Listeners and the log are told that a leader was found or lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from raft_shells import RaftShell
from support.scripted_peers import UPDATE, ScriptedCluster
from support.waiting import until

from raft_client import ConnectionState, InvalidArgumentError, NotLeaderError, Peer, RaftError
from raft_client.core.connection_state import StateChanged
from raft_client.reports import log_change


async def test_listeners_hear_of_every_leader(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Listeners are told once each, in order: leader found, lost and why, found again, closed."""
    states: list[tuple[str, str]] = []
    leaders: list[str] = []

    def on_state(state: ConnectionState, error: RaftError | None) -> None:
        states.append((str(state), type(error).__name__ if error is not None else ""))

    client = raft.client(peers.seeds, on_state=on_state, on_leader=lambda peer: leaders.append(peer.id))
    assert client.state is ConnectionState.CONNECTING
    async with client:
        assert client.state is ConnectionState.CONNECTED
        await client.append(b"a")
        peers.elect("2")
        await client.append(b"b")
        await until(lambda: len(leaders) == 2)
        peers.elect("3")
        peers.kill("2")
        await client.append(b"c")
        await until(lambda: len(leaders) == 3)
    await until(lambda: states[-1:] == [("closed", "")])
    lost = [error for state, error in states if state == "suspended"]
    assert lost == [NotLeaderError.__name__, "ConnectionLostError"]
    assert [state for state, _ in states] == [*["connected", "suspended"] * 2, "connected", "closed"]
    assert leaders == ["1", "2", "3"]


async def test_a_silent_leader_is_a_reason_of_its_own(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A silent leader is a reason of its own, because nothing broke and nobody refused."""
    errors: list[RaftError] = []
    options = {"on_state": lambda _state, error: errors.append(error) if error is not None else None}
    async with raft.client(peers.seeds, response_timeout=0.2, **options) as client:
        peers.freeze("1")
        appending = asyncio.create_task(client.append(b"a", timeout=20))
        await until(lambda: bool(errors))
        peers.elect("2")
        await appending
    assert "said nothing within 0.2 s" in str(errors[0])


async def test_a_listener_may_fail_and_use_the_client(raft: RaftShell, peers: ScriptedCluster, caplog: Any) -> None:
    """A listener runs in a worker of its own, so it may use the client, and its exceptions are logged."""
    gate = threading.Event()
    config: list[Any] = []
    client = raft.client(peers.seeds, on_state=lambda *_: 1 // 0)
    async with client:
        assert await client.append(b"a") == 1
        await until(lambda: "on_state" in caplog.text)

    def blocking(_peer: Any) -> None:
        gate.wait(20)
        config.append(client.target.config())

    async def waiting(_peer: Any) -> None:
        await asyncio.to_thread(gate.wait, 20)
        config.append(await client.config())

    client = raft.client(peers.seeds, on_leader=waiting if raft.is_aio else blocking)
    async with client:
        assert await client.append(b"b") == 2
        gate.set()
        await until(lambda: bool(config))


def test_a_listener_is_a_function(raft: RaftShell) -> None:
    """A listener that is not a function is refused when the client is made."""
    for name in ("on_state", "on_leader"):
        with pytest.raises(InvalidArgumentError, match="function"):
            raft.client("tcp://127.0.0.1:1", **{name: "print"})


async def test_a_lost_leader_is_one_warning(raft: RaftShell, peers: ScriptedCluster, caplog: Any) -> None:
    """A lost leader is one WARNING with its reason, the next leader one INFO, and the search between them logs
    nothing."""
    caplog.set_level(logging.INFO, "raft_client")
    async with raft.client(peers.seeds, response_timeout=0.1) as client:
        await client.append(b"a")
        peers.elect(None)
        peers.kill("1")
        appending = asyncio.create_task(client.append(b"b", timeout=20))
        await until(lambda: "suspended" in caplog.text)
        await until(lambda: len([s for s in list(peers.seen) if s[0] == "2" and s[2] == b"\x5e"]) > 5)
        peers.elect("2")
        await appending
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "raft_client"]
    assert [level for level, _ in told] == ["INFO", "WARNING", "INFO"]
    assert told[0][1].endswith(f"the leader is 1 at {peers.peers['1'].url}")
    assert "broke the connection" in told[1][1]
    assert "leader is 2" in told[2][1]
    assert [s[2] for s in peers.seen].count(UPDATE) >= 2


def test_what_peers_say_stays_on_its_line(caplog: Any) -> None:
    """Names from peers with line breaks, colours or separators stay on their line of the log."""
    caplog.set_level(logging.INFO, "raft_client")
    evil = "2\r\nWARNING \x1b[31mthe bank\u2028was robbed"
    log_change(["tcp://a:1"], StateChanged(ConnectionState.CONNECTED, leader=Peer(evil, "tcp://b:1")))
    log_change(["tcp://a:1"], StateChanged(ConnectionState.SUSPENDED, error=NotLeaderError(f"it names {evil}")))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert caplog.text.count("2\\r\\nWARNING") == 2
