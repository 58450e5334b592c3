"""The public face: what the package exports, that both shells are alike, and what importing it does not load."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

import statestore_client
from statestore_client import AsyncStateStoreClient, StateStoreClient
from statestore_client.aio import election as aio_election
from statestore_client.aio import guarded as aio_guarded
from statestore_client.aio import lock as aio_lock
from statestore_client.aio import observation as aio_observation
from statestore_client.aio import watch as aio_watch
from statestore_client.sync import election as sync_election
from statestore_client.sync import guarded as sync_guarded
from statestore_client.sync import lock as sync_lock
from statestore_client.sync import observation as sync_observation
from statestore_client.sync import watch as sync_watch

TWINS = [
    (StateStoreClient, AsyncStateStoreClient),
    (sync_lock.Lock, aio_lock.AsyncLock),
    (sync_lock.Lease, aio_lock.AsyncLease),
    (sync_watch.Watch, aio_watch.AsyncWatch),
    (sync_observation.LockObservation, aio_observation.AsyncLockObservation),
    (sync_election.Election, aio_election.AsyncElection),
    (sync_guarded.GuardedStore, aio_guarded.AsyncGuardedStore),
]
#: The protocol methods of the two worlds.
ASYNC_NAMES = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}
#: What one of them says of threads, the other one says of tasks.
ASYNC_WORDS = [
    ("another task", "another thread"),
    ("tasks that compete", "threads that compete"),
    ("Any number of tasks of one event loop may share a client; other loops and forked processes may not.",
     "Any number of threads may share a client; a process forked from this one may not."),
    ("from the engine", "from the network thread"),
    ("AsyncIterator", "Iterator"),
    ("asyncio.", "threading."),
]  # fmt: skip


def public(cls: type) -> dict[str, Any]:
    """The members that a user may use, by their names in the blocking shell."""
    back = {v: k for k, v in ASYNC_NAMES.items()}
    members = {back.get(name, name): value for name, value in vars(cls).items()}
    return {n: v for n, v in members.items() if not n.startswith("_") or n in ASYNC_NAMES}


def text(doc: str | None) -> str:
    words = " ".join((doc or "").split())
    for a, s in ASYNC_WORDS:
        words = words.replace(a, s)
    return words


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS, ids=lambda c: c.__name__)
def test_both_shells_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    """Both shells have methods of the same names, parameters, defaults, annotations and docstrings; only ``async``
    differs."""
    ours, theirs = public(blocking), public(asynchronous)
    assert sorted(ours) == sorted(theirs)
    for name, method in ours.items():
        twin = theirs[name]
        if isinstance(method, property):
            method, twin = method.fget, twin.fget
        if not callable(method):
            continue
        assert _signature(method) == _signature(twin), name
        if name not in ASYNC_NAMES:
            assert text(method.__doc__) == text(twin.__doc__), name
            assert method.__doc__, name
    assert _signature(blocking.__init__) == _signature(asynchronous.__init__)


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS, ids=lambda c: c.__name__)
def test_the_twins_are_documented_alike(blocking: type, asynchronous: type) -> None:
    """The docstrings of a blocking class and its asyncio twin differ only in the words for threads and tasks."""
    assert text(blocking.__doc__) == text(asynchronous.__doc__)


@pytest.mark.parametrize("watch", [sync_watch.Watch, aio_watch.AsyncWatch])
def test_a_watch_has_what_its_reader_calls(watch: type) -> None:
    """The public methods of a watch are those that its reader calls, and none of those that the engine calls."""
    assert set(public(watch)) - set(ASYNC_NAMES) == {"key", "start", "error", "get", "close"}


def test_what_waits_is_awaited() -> None:
    """In the asyncio shell the methods that talk to the network are coroutines, and the other methods are the blocking
    ones."""
    plain = {"watch", "watch_prefix", "lock", "scan", "election", "guarded"}
    for name, method in public(AsyncStateStoreClient).items():
        if inspect.isfunction(method) and name not in ASYNC_NAMES:
            assert inspect.iscoroutinefunction(method) == (name not in plain), name


def _signature(function: Any) -> list[tuple[str, str, Any, str]]:
    return [
        (p.name, p.kind.name, p.default, re.sub(r"\bAsync", "", str(p.annotation)))
        for p in inspect.signature(function).parameters.values()
    ]


def test_everything_public_is_there() -> None:
    """Each name of ``__all__`` exists and stands there once; an unknown name is an AttributeError."""
    names = statestore_client.__all__
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(statestore_client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        statestore_client.Nonsense  # noqa: B018 - reading it is the test


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        (
            "import statestore_client",
            "pyspark click rich paho asyncio ssl statestore_client.server statestore_client.sync",
        ),
        ("from statestore_client import StateStoreClient", "pyspark click rich paho asyncio statestore_client.server"),
        ("from statestore_client import AsyncStateStoreClient", "pyspark click rich paho statestore_client.server"),
        ("from statestore_client import *", "pyspark click rich paho statestore_client.server"),
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
