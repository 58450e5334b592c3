"""``statestore elect``: run a command while leading, and see who leads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

ELECT = [sys.executable, "-m", "statestore_client.cli", "elect"]


def elect(server: EmbeddedServer, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """``statestore elect ARGUMENTS`` with a server."""
    return subprocess.run([*ELECT, "--url", server.url, *arguments], capture_output=True, timeout=60)


def test_a_command_runs_while_its_candidate_leads(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """A command runs while its candidate leads, with its token and election in the environment; its exit code is passed
    on."""
    show = 'echo "$STATESTORE_ELECTION $STATESTORE_FENCING_TOKEN"; exit 7'
    done = elect(statestore_server, "active", "--candidate", "left", "--", "sh", "-c", show)
    assert done.returncode == 7, done.stderr
    assert re.fullmatch(rb"active \d{15}:\d{5}:StateStore\n", done.stdout)
    assert statestore_sync_client.election("active").leader() is None


@pytest.mark.parametrize(
    ("options", "code"), [(["-n"], 1), (["--wait", "0"], 1), (["-nE", "75"], 75), (["-w", "0.5", "-E", "9"], 9)]
)
def test_another_leads(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient, options: list[str], code: int
) -> None:
    """While another candidate leads, the exit code is that of a held lock, and the command never runs."""
    other = statestore_sync_client.election("active", candidate="right")
    other.campaign()
    done = elect(statestore_server, "active", *options, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (code, b"")
    assert re.fullmatch(rb"statestore: the election active [^\n]+\n", done.stderr)
    other.resign()


def test_a_leadership_that_is_lost_ends_the_command(
    statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient
) -> None:
    """When the leadership is lost, the command is terminated, and the exit code is 5."""
    command = [*ELECT, "--url", statestore_server.url, "active", "--term", "0.5", "--", "sh", "-c"]
    with subprocess.Popen([*command, "echo started; exec sleep 60"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            statestore_sync_client.set("active", "thief", expiry=30)
            assert process.wait(20) == 5
        finally:
            process.kill()


def test_listening_tells_who_leads(statestore_server: EmbeddedServer, statestore_sync_client: StateStoreClient) -> None:
    """Listening prints the leader now and at each change, and a dash, or null, when nobody leads."""
    election = statestore_sync_client.election("active", candidate="left")
    for options, expected in (
        ((), [b"-", b"left", b"-"]),
        (("--json",), [b'{"leader": null}', b'{"leader": "left"}', b'{"leader": null}']),
    ):
        command = [*ELECT, "active", "--listen", "--count", "3", *options, "--url", statestore_server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                seen = [process.stdout.readline().rstrip()]
                election.campaign()
                seen.append(process.stdout.readline().rstrip())
                election.resign()
                seen.append(process.stdout.readline().rstrip())
                assert process.wait(20) == 0
            finally:
                process.kill()
        assert seen == expected
    assert json.loads(seen[1]) == {"leader": "left"}


def test_contradictions_are_usage_errors(
    here: Callable[..., tuple[int, str, str]], statestore_server: EmbeddedServer
) -> None:
    """Options that contradict each other are usage errors, and nothing runs."""
    for options in (
        ("--listen", "--", "true"),
        ("--json", "--", "true"),
        ("--count", "1", "--", "true"),
        ("--term", "nan", "--", "true"),
        ("--candidate", "", "--", "true"),
        ("-n", "--wait", "1", "--", "true"),
        (),
    ):
        assert here("elect", "--url", statestore_server.url, "active", *options)[0] == 2, options
