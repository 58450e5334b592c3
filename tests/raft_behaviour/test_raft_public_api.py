"""The public face: what the package exports, that both shells are alike, and what importing it does not load."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from typing import Any

import pytest

import raft_client
from raft_client import aio, sync

TWINS = [
    (sync.RaftClient, aio.RaftClient),
    (sync.Entries, aio.Entries),
    (sync.Subscriber, aio.Subscriber),
    (sync.Watch, aio.Watch),
]
#: The protocol methods of the two worlds.
ASYNC_NAMES = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}
#: What one of them says of threads, the other one says of tasks.
ASYNC_WORDS = [
    ("Any number of tasks of one event loop may share a client; other loops and forked processes may not.",
     "Any number of threads may share a client; a process forked from this one may not."),
    ("another task", "another thread"),
    ("Iterating waits", "Iterating blocks"),
    ("AsyncIterator", "Iterator"),
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


def signature(function: Any) -> list[tuple[str, str, Any, str]]:
    found = []
    for p in inspect.signature(function).parameters.values():
        default = "the setting" if type(p.default) is object else p.default
        default = type(default) if isinstance(default, raft_client.KeyValueCodec) else default
        found.append((p.name, p.kind.name, default, str(p.annotation)))
    return found


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS, ids=lambda c: c.__name__)
def test_both_shells_have_the_same_methods(blocking: type, asynchronous: type) -> None:
    """Both shells have methods of the same names, parameters, defaults, annotations and docstrings; only ``async``
    differs."""
    ours, theirs = public(blocking), public(asynchronous)
    assert sorted(ours) == sorted(theirs)
    assert text(blocking.__doc__) == text(asynchronous.__doc__)
    for name, method in ours.items():
        twin = theirs[name]
        if isinstance(method, property):
            method, twin = method.fget, twin.fget
        if callable(method):
            assert signature(method) == signature(twin), name
            if name not in ASYNC_NAMES:
                assert text(method.__doc__) == text(twin.__doc__), name
                assert method.__doc__, name


def test_what_waits_is_awaited() -> None:
    """In the asyncio shell the methods that talk to the network are coroutines, and the other methods are the blocking
    ones."""
    plain = {"entries", "subscribe", "watch"}
    for name, method in public(aio.RaftClient).items():
        if inspect.isfunction(method) and name not in ASYNC_NAMES:
            assert inspect.iscoroutinefunction(method) == (name not in plain), name


def test_everything_public_is_there() -> None:
    """Each name of ``__all__`` exists and stands there once; an unknown name is an AttributeError."""
    names = raft_client.__all__
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(raft_client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        raft_client.Nonsense  # noqa: B018 - reading it is the test


def _modules() -> list[str]:
    """Every module of the package that needs nothing optional."""
    optional = ("raft_client.spark", "raft_client.cli", "raft_client.server")
    found = pkgutil.walk_packages(raft_client.__path__, "raft_client.")
    return sorted(m.name for m in found if not m.name.startswith(optional))


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
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
            "pyspark click rich asyncio statestore_client paho raft_client.wire.peer_rpcs",
        ),
        ("from raft_client import AsyncRaftClient", "pyspark click rich statestore_client paho raft_client.sync"),
    ],
)
def test_importing_is_lean(statement: str, forbidden: str) -> None:
    """Importing the package in a fresh interpreter loads no heavy module: each task of a Spark worker imports it."""
    code = f"import sys; {statement}; print(*(m for m in {forbidden.split()!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_only_the_sockets_speak_zmq() -> None:
    """Two modules import zmq, and the others know nothing of sockets."""
    speakers = []
    for name in _modules():
        source = inspect.getsource(importlib.import_module(name))
        if re.search(r"^\s*(import|from) zmq", source, re.MULTILINE):
            speakers.append(name)
    assert speakers == ["raft_client.links", "raft_client.zmq_messages"]


def test_a_client_is_called_as_it_is_imported() -> None:
    """A client shows the name it is imported by, in its repr and in Python's warning about a coroutine never
    awaited."""
    for name in ("RaftClient", "AsyncRaftClient"):
        cls = getattr(raft_client, name)
        assert (cls.__name__, cls.close.__qualname__) == (name, f"{name}.close")
        assert getattr(importlib.import_module(cls.__module__), name) is cls
        assert repr(cls("tcp://127.0.0.1:8047")).startswith(f"<{name} ")
    aio = importlib.import_module("raft_client.aio")
    assert aio.RaftClient is raft_client.AsyncRaftClient, "the shells have the same names inside"
