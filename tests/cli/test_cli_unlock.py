"""``statestore lock --show`` and ``unlock``: who holds a lock, and how it is taken away so that its holder notices."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.cli.entries import prefix_pattern
from statestore_client.server import EmbeddedServer

Here = Callable[..., tuple[int, str, str]]
STATESTORE = [sys.executable, "-m", "statestore_client.cli"]


@contextmanager
def holder(server: EmbeddedServer, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """``statestore lock job`` with a command that never ends, as soon as that runs."""
    line = [*STATESTORE, "lock", "--url", server.url, *options, "job", "--", "sh", "-c", "echo; exec sleep 600"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process
        finally:
            process.terminate()  # which ends its command as well


def told_to_end(process: subprocess.Popen[bytes]) -> str:
    """What a holder says that lost its lock; its exit code is that of a lost lease."""
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 5, complaint
    return complaint.decode()


def test_who_holds_a_lock_is_shown(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """The holder's name, what is left of its lease and who watches are shown, and what is not told is called unknown;
    exit code 1 says that nobody holds the lock.
    """
    show = ("lock", "--url", statestore_server.url, "--show", "job[1]")
    assert here(*show) == (1, "nobody holds the lock job[1]\n", "")
    assert here(*show, "--json")[:2] == (1, '{"lock": "job[1]", "is_held": false}\n')
    statestore_sync_client.set("job[1]2", "another", expiry=60)
    version = statestore_sync_client.set("job[1]", "somebody", expiry=60).version
    with statestore_sync_client.watch("job[1]"):
        code, out, _ = here(*show)
        found = json.loads(here(*show, "--json")[1])
    lines = dict(line.split(":", 1) for line in out.splitlines())
    assert code == 0
    assert lines["holder"].split() == ["somebody"]
    assert [name for name, text in lines.items() if text.split()[0].startswith("unknown")] == ["host", "pid", "since"]
    assert lines["waiting"].startswith(" watched by 1 client: ")
    assert 0 < found.pop("left_s") <= 60
    assert found.pop("renewed") > 0
    assert found == {
        "lock": "job[1]",
        "is_held": True,
        "holder": "somebody",
        "host": None,
        "pid": None,
        "version": str(version),
        "watchers": 1,
    }


def test_a_lock_is_taken_from_a_holder_and_its_keys_are_fenced(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """After unlock the lock is free, the old holder's renewals and older tokens are refused, and the fenced key has its
    value and expiry still.
    """
    store = statestore_sync_client
    with store.lock("job", lease=60).acquire() as lease:
        store.set("data", "1", expiry=1000, fencing_token=lease.fencing_token)
        code, out, complaint = here(
            "unlock",
            "--url",
            statestore_server.url,
            "--force",
            "--yes",
            "--after",
            "0",
            "--fence",
            "data",
            "--json",
            "job",
        )
        assert (code, complaint) == (0, "")
        done = json.loads(out)
        assert (done["is_free"], done["unfenced"], done["holder"]) == (True, [], lease.holder.decode())
        refused = here("set", "--url", statestore_server.url, "data", "2", "--fencing-token", str(lease.fencing_token))
        assert refused[0] == 3
        assert store.set("data", "3", expiry=1000, fencing_token=done["token"])
    assert store.get("job") is None


def test_unlock_asks_and_says_what_it_cannot_do(
    here: Here, statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """Without --force or --yes nothing is taken, nobody's lock gives exit code 1, and a key that cannot be fenced 8."""
    unlock = ("unlock", "--url", statestore_server.url, "job")
    assert here(*unlock, "--force", "--yes")[::2] == (1, "statestore: nobody holds the lock job\n")
    statestore_sync_client.set("job", "me")
    assert here(*unlock)[0] == 2
    assert here(*unlock, "--force")[0] == 2  # nobody can be asked here
    item = statestore_sync_client.get("job")
    assert item is not None
    assert item.value == b"me"
    code, out, complaint = here(*unlock, "--force", "--yes", "--fence", "nothing")
    assert (code, complaint) == (8, "statestore: nothing cannot be fenced: there is no such key\n")
    assert out.splitlines()[1] == "it is free now"
    assert statestore_sync_client.get("job") is None


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [
        (b"", b"*"),
        (b"a/b", b"a/b*"),
        (b"a[1]", b"a*"),
        (b"a\xc3", b"a*"),
        ("é".encode(), "é*".encode()),
        (b"\xffabc", b"*"),
        (b"x" + "é".encode() * 1000, b"x" + "é".encode() * 511 + b"*"),
    ],
)
def test_patterns_of_any_prefix(prefix: bytes, pattern: bytes) -> None:
    """The pattern for the keys below a prefix ends before what is no text, or has a meaning in a pattern."""
    assert prefix_pattern(prefix) == pattern


@pytest.mark.ci
def test_a_holder_ends_when_its_lock_is_taken(statestore_server: EmbeddedServer, here: Here) -> None:
    """A command that runs under a lock says where it runs, and is terminated with exit code 5 as soon as the lock is
    taken from it, or its key deleted, long before its next renewal; the lock is free then.
    """
    url = ("--url", statestore_server.url)
    with holder(statestore_server, "--lease", "3600") as process:
        found = json.loads(here("lock", *url, "--show", "job", "--json")[1])
        assert (found["host"], found["pid"]) == (socket.gethostname(), process.pid)
        assert here("unlock", *url, "--force", "--yes", "--after", "0", "job")[0] == 0
        assert "the lock job was taken away; sh was terminated" in told_to_end(process)
    assert here("lock", *url, "--show", "job")[0] == 1
    with holder(statestore_server, "--lease", "3600") as process:
        assert here("del", *url, "job")[0] == 0
        assert "the lock job was taken away" in told_to_end(process)
    assert here("lock", *url, "--show", "job")[0] == 1


@pytest.mark.ci
def test_an_unlock_that_is_killed_frees_the_lock_all_the_same(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, here: Here
) -> None:
    """While unlock waits for the end of the holder's lease, the lock is neither the holder's nor free; when unlock is
    killed just then, the lock is free a little later by itself.
    """
    line = [*STATESTORE, "unlock", "--url", statestore_server.url, "--force", "--yes", "job"]
    statestore_sync_client.set("job", "stuck", expiry=60)
    with subprocess.Popen(line) as process:
        eventually(
            lambda: (item := statestore_sync_client.get("job")) and item.value.startswith(b"unlock --force by "),
            "taken",
        )
        assert statestore_sync_client.set("job", "stuck", condition="NEX").applied is False
        os.kill(process.pid, signal.SIGKILL)
    assert here("lock", "--url", statestore_server.url, "--show", "job")[0] == 0
    statestore_server.clock.advance(66)
    assert here("lock", "--url", statestore_server.url, "--show", "job")[0] == 1
