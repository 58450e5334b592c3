"""What a user's editor, type checker and debugger see: options by name, errors of misuse, reprs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import attrs
import pytest
from raft_shells import RaftShell
from support.scripted_peers import ScriptedCluster

import raft_client
from raft_client import DEFAULT_TIMEOUT, BusyError, Prefix, RaftOptions, RaftSettings, SettingsError


async def test_urls_may_come_in_a_list(raft: RaftShell, peers: ScriptedCluster) -> None:
    """URLs may come in a list, a tuple or any iterable of texts, and a number is refused."""
    urls = peers.seeds.split(",")
    async with raft.client(urls) as client:
        assert await client.append(b"a") == 1
        assert client.settings.seeds == tuple(urls)
    assert raft.client(iter(urls)).settings.seeds == tuple(urls)
    with pytest.raises(SettingsError, match="URLs of peers"):
        raft.client(7)


def test_every_setting_is_an_option_with_its_type() -> None:
    """Every setting is an option of the clients with its type."""
    assert set(get_type_hints(RaftOptions)) == {field.name for field in attrs.fields(RaftSettings)}


def test_a_type_checker_sees_a_wrong_option(tmp_path: Path) -> None:
    """A type checker reports an option of a wrong name or type in both clients, in ``evolve`` and in ``from_env``."""
    program = tmp_path / "program.py"
    program.write_text(
        "from raft_client import AsyncRaftClient, RaftClient, RaftSettings\n"
        "RaftClient(['tcp://10.0.0.1:1'], request_timeout=5.0)\n"
        "RaftClient('tcp://10.0.0.1:1', request_timeuot=5.0)\n"
        "AsyncRaftClient('tcp://10.0.0.1:1', request_timeout='5')\n"
        "RaftSettings.from_env(clutser='a')\n"
        "RaftSettings(seeds='tcp://10.0.0.1:1').evolve(cluster=7)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    found = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    assert found == ["3", "4", "5", "6"], done.stdout


def test_the_default_time_out_prints_as_itself() -> None:
    """The default time-out prints as DEFAULT in ``help()``, and not as ``<object object at 0x7f...>``."""
    assert repr(DEFAULT_TIMEOUT) == "DEFAULT_TIMEOUT"
    for name in ("append", "entries", "dispatch", "open"):
        assert "= DEFAULT_TIMEOUT" in str(inspect.signature(getattr(raft_client.RaftClient, name)))


async def test_misuse_is_no_value_error(raft: RaftShell, peers: ScriptedCluster) -> None:
    """Misuse, as of a client that is not open or a watch with a callback, is not a ValueError: no argument is to
    blame."""
    assert not issubclass(BusyError, ValueError)
    client = raft.client(peers.seeds)
    with pytest.raises(BusyError, match="not opened"):
        await client.config()
    async with client, client.watch(callback=lambda _item: None) as watch:
        with pytest.raises(BusyError, match="callback"):
            await watch.get(0)


async def test_reprs_tell_name_and_state(raft: RaftShell, peers: ScriptedCluster) -> None:
    """A repr tells the leader of a client, the position of a reader and the selection of a watch."""
    prefix = "Async" if raft.is_aio else ""
    client = raft.client(peers.seeds)
    assert repr(client) == f"<{prefix}RaftClient {peers.seeds}, not open>"
    async with client:
        assert repr(client) == f"<{prefix}RaftClient {peers.seeds}, leader 1>"
        await client.append(b"a")
        entries = client.entries()
        assert repr(entries) == f"<{prefix}Entries after 0, not started>"
        await entries.__anext__()
        assert repr(entries).startswith(f"<{prefix}Entries after 1@1, ")
        await entries.close()
        assert repr(entries).endswith(", closed>")
        async with client.subscribe(0) as subscriber:
            assert re.fullmatch(rf"<{prefix}Subscriber after (0|1@1), (stale|fresh)>", repr(subscriber))
        assert repr(subscriber).endswith(", closed>")
        async with client.watch(prefix="pumps/", after=0) as watch:
            name = re.escape(f"{prefix}Watch {watch.id} {Prefix(b'pumps/')}")
            assert re.fullmatch(rf"<{name}, after (None|[01](@1)?), (catching up|live)>", repr(watch))
        assert repr(watch).endswith(", ended>")
    assert repr(client).endswith(", closed>")
