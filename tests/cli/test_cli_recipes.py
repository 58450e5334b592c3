"""``statestore counter``, ``semaphore``, ``members`` and ``barrier``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.recipes import Members, Semaphore
from statestore_client.server import EmbeddedServer

Here = Callable[..., tuple[int, str, str]]


@contextmanager
def started(server: EmbeddedServer, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """``statestore ARGUMENTS`` in a process of its own."""
    options = ["--url", server.url, *arguments[1:]]
    command = [sys.executable, "-m", "statestore_client.cli", arguments[0], *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_a_counter_is_read_and_added_to(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """It prints the number, says what is none, and gives up where another adds all the time."""
    url = ("--url", statestore_server.url)
    assert here("counter", "parts", *url)[:2] == (0, "0\n")
    assert here("counter", "parts", "--add", "12", *url)[:2] == (0, "12\n")
    assert here("counter", "parts", "--add", "-2", "--wait", "20", "--json", *url)[:2] == (
        0, '{"counter": "parts", "value": 10}\n',
    )  # fmt: skip
    assert here("counter", "parts", *url)[:2] == (0, "10\n")
    with statestore_sync_client.lock("parts/lock"):
        assert here("counter", "parts", "--add", "1", "--wait", "0", *url)[0] == 1
    assert here("counter", "parts", "--add", "1", "--lock", "its own", *url)[:2] == (0, "11\n")
    statestore_sync_client.set("text", "seven")
    assert here("counter", "text", *url)[0] == 2
    for wrong in (("--wait", "1"), ("--add", "x")):
        assert here("counter", "parts", *wrong, *url)[0] == 2


def test_a_command_runs_while_it_has_a_permit(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """It finds permit and token in its environment; when all are taken it never runs; who has them is printed."""
    url = ("--url", statestore_server.url)
    show = 'echo "$STATESTORE_SEMAPHORE $STATESTORE_LOCK $STATESTORE_FENCING_TOKEN"; exit 7'
    with started(statestore_server, "semaphore", "presses", "-n", "2", "--", "sh", "-c", show) as process:
        assert re.fullmatch(rb"presses presses/[01] \d{15}:\d{5}:StateStore", line_of(process))
        assert process.wait(20) == 7
    assert here("semaphore", "presses", "-n", "2", "--show", *url)[:2] == (1, "")
    permits = Semaphore(statestore_sync_client, "presses", 2)
    with permits.acquire() as first, permits.acquire() as second:
        holders = {first.name: first.holder.decode(), second.name: second.holder.decode()}
        told = "".join(f"{name} {holders[name]}\n" for name in ("presses/0", "presses/1"))
        assert here("semaphore", "presses", "-n", "2", "--show", *url)[:2] == (0, told)
        code, out, _ = here("semaphore", "presses", "-n", "2", "--show", "--json", *url)
        assert [code, *map(json.loads, out.splitlines())] == [
            0, *({"permit": n, "lock": f"presses/{n}", "holder": holders[f"presses/{n}"]} for n in range(2))
        ]  # fmt: skip
        code, out, told = here("semaphore", "presses", "-n", "2", "--no-wait", "-E", "75", *url, "--", "echo", "ran")
        assert (code, out) == (75, "")
        assert "no permit of presses was free" in told
    for wrong in (("-n", "2"), ("-n", "0", "--show"), ("--show",), ("-n", "2", "--json", "--", "true")):
        assert here("semaphore", "presses", *url, *wrong)[0] == 2


@pytest.mark.parametrize(
    ("words", "key"), [(["semaphore", "presses", "-n", "1"], "presses/0"), (["members", "g", "--join", "a"], "g/a")]
)
def test_what_is_taken_away_ends_the_command(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, words: list[str], key: str
) -> None:
    """The command is terminated then, and the exit code is 5."""
    with started(statestore_server, *words, "--", "sh", "-c", "echo started; exec sleep 60") as process:
        assert line_of(process) == b"started"
        statestore_sync_client.set(key, "thief", expiry=30)
        assert process.wait(20) == 5
        assert process.stderr is not None
        assert b"was taken away; sh was terminated" in process.stderr.read()


def test_a_command_is_a_member_while_it_runs(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """Others see it until it ends, also by a signal, which it is handed; a name is one program's at a time."""
    url = ("--url", statestore_server.url)
    group = Members(statestore_sync_client, "workers")
    assert here("members", "workers", *url)[:2] == (1, "")
    script = (
        'trap "exit 9" TERM; echo "$STATESTORE_GROUP $STATESTORE_MEMBER $STATESTORE_FENCING_TOKEN"; sleep 60 & wait'
    )
    with started(statestore_server, "members", "workers", "--join", "a b", "--", "sh", "-c", script) as process:
        assert re.fullmatch(rb"workers a b \d{15}:\d{5}:StateStore", line_of(process))
        (holder,) = (value.decode() for value in group.present().members.values())
        assert here("members", "workers", *url)[:2] == (0, f"a b {holder}\n")
        code, out, _ = here("members", "workers", "--json", *url)
        assert (code, json.loads(out)) == (0, {"name": "a b", "holder": holder})
        assert here("members", "workers", "--join", "a b", "-n", *url, "--", "echo", "ran")[:2] == (1, "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 9
    assert group.present().names == ()
    for wrong in (
        ("--join", "a"), ("--", "true"), ("--count", "1"), ("--join", "a/b", "--", "true"),
        ("--watch", "--join", "a", "--", "true"),
    ):  # fmt: skip
        assert here("members", "workers", *url, *wrong)[0] == 2


def test_members_are_watched(statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient) -> None:
    """Who is there comes first, then who joins and leaves; also as JSON."""
    group = Members(statestore_sync_client, "workers")
    options = ("--watch", "--rescan", "0.05", "--count", "4")
    with (
        started(statestore_server, "members", "workers", *options) as lines,
        started(statestore_server, "members", "workers", *options, "--json") as objects,
    ):
        with group.join("a"):
            assert line_of(lines) == b"joined a"
            assert json.loads(line_of(objects)) == {"event": "joined", "name": "a"}
            with group.join("b"):
                assert line_of(lines) == b"joined b"
                assert json.loads(line_of(objects)) == {"event": "joined", "name": "b"}
            assert line_of(lines) == b"left b"
            assert json.loads(line_of(objects)) == {"event": "left", "name": "b"}
        assert line_of(lines) == b"left a"
        assert lines.wait(20) == 0


def test_a_barrier_is_waited_for(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """It is passed when it is not there, or not any more; exit codes say whether it was there."""
    url = ("--url", statestore_server.url)
    assert here("barrier", "gate", *url)[:2] == (0, "")
    assert here("barrier", "gate", "--remove", *url)[0] == 1
    assert here("barrier", "gate", "--create", *url)[0] == 0
    assert here("barrier", "gate", "--create", "--expiry", "60", "--json", *url)[:2] == (
        1, '{"barrier": "gate", "done": false}\n',
    )  # fmt: skip
    assert here("barrier", "gate", "--wait", "0", *url)[0] == 1
    with started(statestore_server, "barrier", "gate", "--json") as process:
        eventually(lambda: any(b"KEYNOTIFY" in m.payload for m in statestore_server.messages), "it watches the key")
        assert statestore_sync_client.delete("gate").count == 1
        assert line_of(process) == b'{"barrier": "gate", "done": true}'
        assert process.wait(20) == 0
    for wrong in (("--create", "--remove"), ("--expiry", "1"), ("--create", "--wait", "1")):
        assert here("barrier", "gate", *wrong, *url)[0] == 2
