"""``statestore watch`` of several keys, and with a command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.ports import reserved_port

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

WATCH = [sys.executable, "-m", "statestore_client.cli", "watch"]
VERSION = rb"\d{15}:\d{5}:StateStore"
SHOW = 'printf "%s %s %s " "$STATESTORE_EVENT" "$STATESTORE_KEY$STATESTORE_KEY_BASE64" "$STATESTORE_VERSION"; cat; echo'


def watch(server: EmbeddedServer, *arguments: str | bytes) -> subprocess.Popen[bytes]:
    """``statestore watch ARGUMENTS``, running."""
    return subprocess.Popen([*WATCH, "--url", server.url, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def line(process: subprocess.Popen[bytes]) -> bytes:
    """The next one that it prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_several_keys_are_watched(statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient) -> None:
    """With several keys each line names its key, and --count counts all of them together."""
    for name in ("a", "b"):
        statestore_sync_client.set(name, f"first {name}")
    with watch(statestore_server, "a", "b", "a", "--initial", "--count", "4") as process:
        first = {line(process), line(process)}  # it watches both
        assert all(re.fullmatch(rb"set " + VERSION + rb" [ab] first [ab]\n", each) for each in first)
        assert len(first) == 2
        statestore_sync_client.set("b", "second")
        assert re.fullmatch(rb"set " + VERSION + rb" b second\n", line(process))
        statestore_sync_client.delete("a")
        assert re.fullmatch(rb"delete " + VERSION + rb" a\n", line(process))
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_an_outage_has_a_beginning_and_an_end_on_standard_error() -> None:
    """An outage prints one line when the connection is lost, with why, and one when it stands again, on standard
    error."""
    port = reserved_port()
    with EmbeddedServer(port) as server, StateStoreClient(server.url) as store:
        store.set("k", "before")
        process = watch(server, "k", "--initial", "--count", "2")
        assert line(process).endswith(b" before\n")
    with process:
        assert process.stderr is not None
        assert b": suspended: " in process.stderr.readline()
        with EmbeddedServer(port=port):  # where the key is gone
            out, complaint = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"delete -*\n")
    assert re.fullmatch(rb"state store client [^ ]+: connected again( after \d+ failed attempts?)?[^\n]*\n", complaint)


def test_a_command_is_run_for_each_change(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """The command of each change gets the value on standard input and the rest in its environment, and keeps its own
    options."""
    statestore_sync_client.set("k", "one\ntwo")
    with watch(statestore_server, "k", "--initial", "--count", "2", "--", "sh", "-c", SHOW, "--count", "--") as process:
        assert re.fullmatch(rb"set k " + VERSION + rb" one\n", line(process))
        assert line(process) == b"two\n"
        statestore_sync_client.delete("k")
        assert re.fullmatch(rb"delete k " + VERSION + rb" \n", line(process))
        assert process.wait(20) == 0


@pytest.mark.parametrize(("key", "shown"), [(b"\xff", b"\xff"), (b"-k", b"-k")])
def test_keys_behind_dashes_and_keys_that_are_no_text(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, key: bytes, shown: bytes
) -> None:
    """A first -- stands before the keys, a second one before the command, and keys may be any bytes."""
    statestore_sync_client.set(key, "v")
    with watch(statestore_server, "--initial", "--count", "1", "--", key, "--", "sh", "-c", SHOW) as process:
        out, _ = process.communicate(timeout=60)
    assert re.fullmatch(rb"set " + re.escape(shown) + rb" " + VERSION + rb" v\n", out)
    with watch(statestore_server, "--initial", "--count", "1", "--", key) as process:
        out, _ = process.communicate(timeout=60)
    assert re.fullmatch(rb"set " + VERSION + rb" v\n", out)


def test_a_command_that_fails_is_told(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """After a command that fails the next change is still handled; one that does not exist ends the watch with 127."""
    statestore_sync_client.set("k", "v" * 1_000_000)  # more than a pipe holds, and it does not read
    with watch(statestore_server, "k", "--initial", "--count", "2", "--", "sh", "-c", "echo ran; exit 3") as process:
        assert line(process) == b"ran\n"
        statestore_sync_client.set("k", "v")
        out, complaints = process.communicate(timeout=60)
    assert (process.returncode, out, complaints) == (0, b"ran\n", b"statestore: sh ended with 3\n" * 2)
    with watch(statestore_server, "k", "--initial", "--", "/no/such/command") as process:
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 127
    assert b"cannot run /no/such/command" in complaints


def test_what_a_watch_cannot_do(here: Callable[..., tuple[int, str, str]], statestore_server: EmbeddedServer) -> None:
    """Options that do not go together are usage errors before anything is watched."""
    of_prefixes = (("k", "--rescan", "1"), ("k", "--max-keys", "1"), ("k", "--prefix", "--rescan", "0"))
    for words in (("--",), ("k", "--json", "--", "true"), ("k", "--count", "0"), *of_prefixes, ()):
        assert here("watch", "--url", statestore_server.url, *words)[0] == 2, words


# -- prefixes, and what looks like a pattern ---------------------------------------------------------------------------


def test_a_prefix_is_watched(statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient) -> None:
    """With a prefix each line names its key; one that is found later has a star after its version."""
    statestore_sync_client.set_many([("a/1", "first"), ("ab", "no")])
    options = ("--prefix", "--initial", "--rescan", "0.05", "--count", "3")
    with watch(statestore_server, "a/", *options) as process:
        assert re.fullmatch(rb"set " + VERSION + rb" a/1 first\n", line(process))
        statestore_sync_client.set("a/2", "new")
        assert re.fullmatch(rb"set " + VERSION + rb"\* a/2 new\n", line(process))
        statestore_sync_client.delete("a/1")
        assert re.fullmatch(rb"delete " + VERSION + rb" a/1\n", line(process))
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_several_prefixes_in_json(statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient) -> None:
    """With several prefixes every object names its key, and a key that matches more than one is printed once."""
    statestore_sync_client.set_many([("a/1", "1"), ("b/1", "2"), ("c/1", "3")])
    with watch(statestore_server, "a/1", "a/", "b/", "--prefix", "--initial", "--json", "--count", "3") as process:
        found = {line(process), line(process)}
        statestore_sync_client.set("a/1", "new")
        found.add(line(process))
        assert process.wait(20) == 0
    assert sorted((each["key"], each["value"]) for each in map(json.loads, found)) == [
        ("a/1", "1"),
        ("a/1", "new"),
        ("b/1", "2"),
    ]


def test_too_many_keys_are_told_in_the_words_of_the_options(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """Too many keys give one line in the words of the options, and no traceback."""
    statestore_sync_client.set_many([("a/1", ""), ("a/2", "")])
    with watch(statestore_server, "a/", "--prefix", "--max-keys", "1") as process:
        _, complaints = process.communicate(timeout=60)
    assert process.returncode not in (0, 2)
    assert complaints.count(b"\n") == 1
    assert b"more than 1 keys begin with b'a/'; raise --max-keys" in complaints


@pytest.mark.ci
def test_a_key_that_looks_like_a_pattern_gets_a_hint(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """A key that looks like a pattern gives a one-line hint, and is watched literally; brackets are common in keys."""
    keys = ("a/*", "a?", "a[1]")
    statestore_sync_client.set_many([*((key, "itself") for key in keys), ("a/1", "another"), ("ab", "another")])
    taken = "statestore: '{}' is taken as a {} with these very characters{}\n"
    for key, options, told in (
        ("a/*", ("--json",), taken.format("a/*", "key", "; --prefix watches all keys that begin with a KEY")),
        ("a?", ("--prefix",), taken.format("a?", "prefix", "")),
        ("a[1]", (), ""),
    ):
        with watch(statestore_server, key, "--initial", "--count", "1", *options) as process:
            out, hint = process.communicate(timeout=60)
        assert (process.returncode, hint.decode()) == (0, told)
        assert (out.count(b"\n"), b"itself" in out) == (1, True)
