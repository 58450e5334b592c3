"""What users, their editors, type checkers and debuggers see: what is exported and imported, options by name, reprs."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import attrs
import pytest
from support.shells import Shell

import raft_client
import statestore_client
from statestore_client import (
    DEFAULT_TIMEOUT,
    ClientOptions,
    ConnectionOptions,
    ConnectionSettings,
    SharedOptions,
    StateStoreClient,
)
from statestore_client.server import EmbeddedServer


@pytest.mark.parametrize("package", [statestore_client, raft_client])
def test_everything_public_is_there(package: ModuleType) -> None:
    """Each name of ``__all__`` exists and stands there once; an unknown name is an AttributeError."""
    names = package.__all__
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        package.Nonsense  # noqa: B018 - reading it is the test


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        (
            "import statestore_client",
            "pyspark click rich paho asyncio ssl raft_client statestore_client.server statestore_client.sync",
        ),
        (
            "from statestore_client import StateStoreClient",
            "pyspark click rich paho asyncio raft_client statestore_client.server",
        ),
        (
            "from statestore_client import AsyncStateStoreClient",
            "pyspark click rich paho raft_client statestore_client.server",
        ),
        ("from statestore_client import *", "pyspark click rich paho raft_client statestore_client.server"),
        (
            "import raft_client",
            "pyspark click rich zmq asyncio attr statestore_client raft_client.core raft_client.wire",
        ),
        (
            "from raft_client import RaftSettings, RequestId",
            "pyspark click rich zmq asyncio statestore_client raft_client.core",
        ),
        (
            "from raft_client import RaftClient",
            "pyspark click rich asyncio statestore_client paho raft_client.wire.peer_messages",
        ),
        ("from raft_client import AsyncRaftClient", "pyspark click rich statestore_client paho raft_client.sync"),
    ],
)
def test_importing_is_lean(statement: str, forbidden: str) -> None:
    """Importing the package in a fresh interpreter loads no heavy module: each task of a Spark worker imports it."""
    code = f"import sys; {statement}; print(*(m for m in {forbidden.split()!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_a_client_is_called_as_it_is_imported() -> None:
    """A client shows the name it is imported by, in its repr and in Python's warning about a coroutine never
    awaited."""
    for name in ("StateStoreClient", "AsyncStateStoreClient"):
        cls = getattr(statestore_client, name)
        assert (cls.__name__, cls.close.__qualname__) == (name, f"{name}.close")
        assert getattr(importlib.import_module(cls.__module__), name) is cls
        assert repr(cls("mqtt://127.0.0.1")).startswith(f"<{name} ")
    aio = importlib.import_module("statestore_client.aio")
    assert aio.StateStoreClient is statestore_client.AsyncStateStoreClient, "the shells have the same names inside"


PROGRAM = """\
from statestore_client import AsyncStateStoreClient, ConnectionSettings, Lease, StateStoreClient
from statestore_client.spark import partition_writer, write_rows
settings = ConnectionSettings(host="broker")
StateStoreClient("mqtt://broker", client_id="pump-7", request_timeout=5.0)
StateStoreClient("mqtt://broker", request_timeuot=5.0)
AsyncStateStoreClient("mqtt://broker", max_in_flight="64")
ConnectionSettings.from_url("mqtt://broker", driver="phao")
ConnectionSettings.from_env(client_ident="pump-7")
settings.evolve(prot=1883)
partition_writer(settings, key_colunm="id")
async def work(store: AsyncStateStoreClient) -> None:
    async with store.lock("job").acquire(timeout=5) as lease:
        await store.set("key", b"1", fencing_token=lease.fencing_token, timeout=None)
        await store.get("key", timeout="5")
def wait(lease: Lease) -> None:
    lease.lost.wait()
"""


def _fields() -> dict[str, object]:
    hints = get_type_hints(ConnectionSettings)
    return {field.name: hints[field.name] for field in attrs.fields(ConnectionSettings)}


def test_every_setting_is_an_option_with_its_type() -> None:
    """Every connection setting is an option of the clients with its type; only the client id has a name of its own."""
    fields = _fields()
    assert get_type_hints(ConnectionOptions) == fields
    assert get_type_hints(ClientOptions) == {n: t for n, t in fields.items() if n != "client_id"}
    assert get_type_hints(SharedOptions) == {n: fields[n] for n in get_type_hints(SharedOptions)}


@pytest.mark.ci
def test_a_type_checker_sees_a_wrong_option(tmp_path: Path) -> None:
    """A type checker reports an option of a wrong name or type (both clients, settings, Spark), and what a lease
    lacks."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    found = [line.split(":")[1] for line in done.stdout.splitlines() if "program.py" in line and ": error:" in line]
    assert found == ["5", "6", "7", "8", "9", "10", "14", "16"], done.stdout


async def test_the_default_time_out(shell: Shell, server: EmbeddedServer) -> None:
    """The default time-out prints as DEFAULT in ``help()``, and not as ``<object object at 0x7f...>``; all methods
    share it, and a function that wraps the client can pass it on."""
    for cls in (StateStoreClient, statestore_client.AsyncStateStoreClient, statestore_client.GuardedStore):
        for name in ("set", "get", "set_many"):
            assert inspect.signature(getattr(cls, name)).parameters["timeout"].default is DEFAULT_TIMEOUT
    assert "= DEFAULT_TIMEOUT" in str(inspect.signature(StateStoreClient.set))
    async with shell.client(server.url) as store:
        assert await store.get("key", timeout=DEFAULT_TIMEOUT) is None


async def test_what_clients_make_can_be_imported(shell: Shell, server: EmbeddedServer) -> None:
    """Each class whose instances a client returns can be imported under the name in its repr, for annotations."""
    async with shell.client(server.url) as store:
        lock, election = store.lock("job"), store.election("leader")
        lease = await lock.acquire()
        made = [lock, election, lease, lock.observe(), store.watch("key"), store.guarded(lease), lease.store]
        for each in (getattr(m, "target", m) for m in made):
            assert getattr(statestore_client, type(each).__name__) is type(each)
        assert isinstance(store.stats, statestore_client.ExchangeStats)
        assert repr(store.stats).startswith("ExchangeStats(requests=1,")


async def test_reprs_tell_name_and_state(shell: Shell, server: EmbeddedServer) -> None:
    """The repr of everything that a client returns tells its name and its state, and reading it changes nothing."""
    a = "Async" if shell.is_aio else ""
    async with shell.client(server.url) as store:
        lock = store.lock("job", holder="me")
        assert repr(lock) == f"<{a}Lock job, holder b'me', not held>"
        async with lock.acquire(timeout=5) as lease:
            assert repr(lock) == f"<{a}Lock job, holder b'me', held>"
            assert re.fullmatch(rf"<{a}Lease job, valid for \d\.\d s>", repr(lease))
            guarded = store.guarded(lease)
            assert re.fullmatch(rf"<{a}GuardedStore at mqtt://\S+ under <{a}Lease job, valid for .*>>", repr(guarded))
        assert repr(lease) == f"<{a}Lease job, released>"
        lease = await store.lock("job").acquire()
        getattr(lease, "target", lease)._state.valid_until -= 100.0  # the machine slept
        assert repr(lease) == f"<{a}Lease job, lost>"
        election = store.election("leader", candidate="me")
        assert repr(election) == f"<{a}Election leader, candidate b'me', not leading>"
        async with election.campaign(timeout=5):
            assert repr(election) == f"<{a}Election leader, candidate b'me', leading>"
        for made, name in ((store.watch("key"), "Watch"), (store.lock("key").observe(), "LockObservation")):
            assert repr(made) == f"<{a}{name} b'key', not started>"
            async with made:
                assert repr(made) == f"<{a}{name} b'key', started>"
            assert repr(made) == f"<{a}{name} b'key', closed>"
