"""What users, their editors and type checkers see: what is exported, options by name, reprs, errors and settings."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import pytest
from raft_shells import RaftShell
from support.scripted_peers import ScriptedCluster

import raft_client
from raft_client import Prefix, RaftOptions, RaftSettings, SettingsError, errors
from raft_client.errors import (
    BatchError,
    BusyError,
    ClientClosedError,
    ConfigError,
    HistoryOutrunError,
    InvalidArgumentError,
    NoLeaderError,
    NotLeaderError,
    PickleRefusedError,
    ProtocolError,
    RaftError,
    RequestTimeoutError,
)


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


@pytest.mark.ci
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
    assert "= DEFAULT_TIMEOUT" in str(inspect.signature(raft_client.RaftClient.append))


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
        assert repr(entries).startswith(f"<{prefix}Entries after 1@1@")
        async with client.subscribe(0) as subscriber, client.watch(prefix="pumps/", after=0) as watch:
            assert re.fullmatch(rf"<{prefix}Subscriber after (0|1@1@[0-9a-f]+), (stale|fresh)>", repr(subscriber))
            name = re.escape(f"{prefix}Watch {watch.id} {Prefix(b'pumps/')}")
            assert re.fullmatch(rf"<{name}, after (None|[01](@1(@[0-9a-f]+)?)?), (catching up|live)>", repr(watch))
        await entries.close()
        ends = [repr(each).rpartition(", ")[2] for each in (entries, subscriber, watch)]
        assert ends == ["closed>", "closed>", "ended>"]
    assert repr(client).endswith(", closed>")


# -- errors and settings: what travels, what is refused, and what never shows ------------------------------------------


CLASSES = sorted(
    (c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RaftError)), key=lambda c: c.__name__
)
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"  # a public key out of ZeroMQ's own documentation (zmq_curve(7))


def _through_pickle(error: Any) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


# -- errors ------------------------------------------------------------------------------------------------------------


def test_every_error_is_public() -> None:
    """Every error is exported by its module and by the package."""
    for cls in CLASSES:
        assert cls.__name__ in errors.__all__
        assert getattr(raft_client, cls.__name__) is cls


def _with_id(error: RaftError) -> RaftError:
    error.request_id = raft_client.RequestId(bytes(12))
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(cls("text") for cls in CLASSES),
        _with_id(RequestTimeoutError("late", may_have_been_applied=True)),
        ClientClosedError("closed", may_have_been_applied=True),
        ConfigError("TypeError", "peers must be an array"),
        NotLeaderError("no", leader_id="2"),
        ProtocolError("bad", frame=2, offset=7),
        HistoryOutrunError("gone", snapshot_index=300),
        BatchError("some", results=(1, InvalidArgumentError("x"), None)),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("copied", [_through_pickle, copy.copy])
def test_every_error_travels(error: RaftError, copied: Any) -> None:
    """An error keeps its text and everything it carries when it is pickled (a Spark worker sends it to the driver) or
    copied."""
    other = copied(error)
    assert type(other) is type(error)
    assert str(other) == str(error)
    names = ("message", "may_have_been_applied", "request_id", "name", "leader_id", "frame", "offset", "snapshot_index")
    for name in names:
        assert getattr(other, name, None) == getattr(error, name, None)
    if isinstance(error, BatchError):
        assert [str(r) for r in other.results] == [str(r) for r in error.results]
        assert list(other.failures) == [1] or not error.results


def test_some_errors_are_builtin_errors_too() -> None:
    """Some errors are builtin errors too, so that code which knows nothing of this package catches them; misuse is no
    ValueError, as no argument is to blame."""
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(RequestTimeoutError, TimeoutError)
    assert issubclass(NoLeaderError, TimeoutError)
    assert issubclass(PickleRefusedError, TypeError)
    assert not issubclass(BusyError, ValueError)


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seeds",
    ["tcp://a:1,tcp://b:2", "tcp://a:1, tcp://b:2", ["tcp://a:1", "tcp://b:2"], iter(("tcp://a:1", "tcp://b:2"))],
)
def test_seeds_come_in_many_forms(seeds: Any) -> None:
    """Seeds are one text with commas, or an iterable of texts."""
    assert RaftSettings(seeds=seeds).seeds == ("tcp://a:1", "tcp://b:2")


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"seeds": ""}, "at least one peer"),
        ({"seeds": ()}, "at least one peer"),
        ({"seeds": None}, "must be URLs of peers, not NoneType"),
        ({"seeds": b"tcp://a:1"}, "must be URLs of peers, not bytes"),
        ({"seeds": 5}, "must be URLs of peers, not int"),
        ({"seeds": "a:1"}, "must be tcp://host:port or ipc:///path, not 'a:1'"),
        ({"seeds": "tcp://a"}, "must be tcp://host:port"),
        ({"seeds": "tcp://:1"}, "must be tcp://host:port"),
        ({"seeds": "tcp://a:99999"}, "must be tcp://host:port"),
        ({"seeds": "tcp://a:x"}, "must be tcp://host:port"),
        ({"seeds": "tcp://a:1/path"}, "must be tcp://host:port"),
        ({"seeds": "tcp://a:1,"}, "must be tcp://host:port or ipc:///path, not ''"),
        ({"seeds": "ipc://a"}, "must be tcp://host:port or ipc:///path, not 'ipc://a'"),
        ({"seeds": "ipc:///" + "a" * 103}, "must be tcp://host:port or ipc:///path"),
        ({"seeds": "udp://a:1"}, "must be tcp://host:port"),
        ({"seeds": [5]}, "must be tcp://host:port or ipc:///path, not 5"),
        ({"seeds": "tcp://a:1,tcp://a:1"}, "must differ"),
        ({"cluster": b"x"}, "cluster must be a text, not bytes"),
        ({"cluster": "\ud800"}, "cluster is not valid text"),
        ({"request_timeout": 0}, "request_timeout must be seconds"),
        ({"request_timeout": None}, "request_timeout must be seconds"),
        ({"response_timeout": "1"}, "response_timeout must be seconds"),
        ({"response_timeout": float("nan")}, "response_timeout must be seconds"),
        ({"election_grace": True}, "election_grace must be seconds"),
        ({"max_in_flight": 0}, "max_in_flight must be a number from 1"),
        ({"max_in_flight": 1.5}, "max_in_flight must be a number from 1"),
        ({"heartbeat": 0}, "heartbeat must be seconds"),
        ({"heartbeat": "1"}, "heartbeat must be seconds"),
        ({"broadcast_timeout": None}, "broadcast_timeout must be seconds"),
        ({"progress_interval": 0}, "progress_interval must be seconds"),
        ({"watch_bytes": 0}, "watch_bytes must be a number from 1"),
        ({"curve_peer_keys": {"a": KEY}}, "must name peers by their URLs"),
        ({"curve_peer_keys": {"tcp://a:1": "short"}}, "the key of tcp://a:1 in curve_peer_keys"),
        ({"curve_peer_keys": "tcp://a:1"}, "the key of tcp://a:1 in curve_peer_keys"),
        ({"curve_peer_keys": 5}, "curve_peer_keys must be a mapping"),
        ({"curve_peer_keys": ("tcp://a:1",)}, "must name peers by their URLs"),
        ({"curve_server_key": "short"}, "curve_server_key must be a CURVE key"),
        ({"curve_server_key": 5}, "curve_server_key must be a CURVE key"),
        ({"curve_server_key": KEY, "curve_public_key": KEY}, "belong together"),
        ({"curve_public_key": KEY, "curve_secret_key": KEY}, "without curve_server_key"),
    ],
)
def test_each_mistake_has_one_clear_message(values: dict[str, Any], complaint: str) -> None:
    """Each mistake in a setting has one message, which names the setting and what it takes."""
    with pytest.raises(SettingsError, match=complaint):
        RaftSettings(**{"seeds": "tcp://a:1", **values})


def test_no_repr_and_no_message_shows_the_secret_key() -> None:
    """No repr and no message contains the secret key: settings end up in logs and tracebacks."""
    secret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"  # its other half, out of the same page
    settings = RaftSettings(seeds="tcp://a:1", curve_server_key=KEY, curve_public_key=KEY, curve_secret_key=secret)
    assert secret not in repr(settings)
    with pytest.raises(SettingsError) as caught:
        settings.evolve(curve_secret_key=secret[:-1])
    assert secret[:-1] not in str(caught.value)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting has an environment variable, and a keyword argument wins."""
    env = {
        "ZMQRAFT_SEEDS": "tcp://a:1,tcp://b:2",
        "ZMQRAFT_CLUSTER": "plant",
        "ZMQRAFT_REQUEST_TIMEOUT": "2.5",
        "ZMQRAFT_MAX_IN_FLIGHT": "8",
        "ZMQRAFT_CURVE_SERVER_KEY": KEY,
        "ZMQRAFT_HEARTBEAT": "30",
        "ZMQRAFT_CURVE_PEER_KEYS": f"tcp://a:1={KEY}, tcp://b:2={KEY}",
    }
    settings = RaftSettings.from_env(env, max_in_flight=9)
    assert settings == RaftSettings(
        seeds="tcp://a:1,tcp://b:2",
        cluster="plant",
        request_timeout=2.5,
        max_in_flight=9,
        curve_server_key=KEY,
        heartbeat=30.0,
        curve_peer_keys={"tcp://a:1": KEY, "tcp://b:2": KEY},
    )
    assert settings.ident == b"plant"
    with pytest.raises(SettingsError, match="ZMQRAFT_SEEDS is not set"):
        RaftSettings.from_env({})
    with pytest.raises(SettingsError, match="ZMQRAFT_MAX_IN_FLIGHT must be a number, not 'many'"):
        RaftSettings.from_env({**env, "ZMQRAFT_MAX_IN_FLIGHT": "many"})
    with pytest.raises(SettingsError, match="unknown setting colour"):
        RaftSettings.from_env(env, colour="red")
    monkeypatch.setenv("ZMQRAFT_SEEDS", "tcp://from-env:1")
    assert RaftSettings.from_env().seeds == ("tcp://from-env:1",)


def test_settings_are_frozen_pickle_and_evolve() -> None:
    """Settings are frozen, can be pickled for Spark's workers, and check the values of a changed copy as well."""
    settings = RaftSettings(seeds="tcp://a:1", cluster="x", curve_peer_keys={"tcp://a:1": KEY})
    assert settings.evolve(cluster="x") == settings
    assert _through_pickle(settings) == settings
    assert hash(_through_pickle(settings)) == hash(settings)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(settings, "cluster", "y")  # noqa: B010 - what the type checker forbids
    assert settings.evolve(cluster="y").cluster == "y"
    with pytest.raises(SettingsError, match="response_timeout"):
        settings.evolve(response_timeout=0)
    with pytest.raises(SettingsError, match="unknown setting colour"):
        settings.evolve(colour="red")
