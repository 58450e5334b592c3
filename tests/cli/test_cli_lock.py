"""``statestore lock`` while its server goes away: exit codes, warnings, and no long waits."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from datetime import datetime, timedelta

from waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.server import EmbeddedServer

LOCK = [sys.executable, "-m", "statestore_client.cli", "lock", "jobs/compact"]
COMMAND = ["--", "sh", "-c", "echo started; read line; exit 7"]


def test_the_commands_exit_code_survives_a_server_that_is_away() -> None:
    """It comes at once, and a warning says that the lock was not released and when its lease ends."""
    with EmbeddedServer() as server:
        process = subprocess.Popen(
            [*LOCK, "--lease", "600", "--url", server.url, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
    began = datetime.now().astimezone()
    _, complaint = process.communicate(b"\n", timeout=60)
    assert process.returncode == 7
    told = re.fullmatch(
        rb"statestore: the lock jobs/compact was not released; "
        rb"it is free when its lease ends, at (\d\d:\d\d:\d\d) at the latest \(.*\)\n",
        complaint,
    )
    assert told is not None, complaint
    hours, minutes, seconds = (int(part) for part in told[1].split(b":"))
    lasted = (datetime.now().astimezone() - began).total_seconds()
    soonest = began + timedelta(seconds=600)  # when it would end had the command ended at once
    late = (hours - soonest.hour) * 3600 + (minutes - soonest.minute) * 60 + seconds - soonest.second
    assert -1 <= (late + 43_200) % 86_400 - 43_200 <= lasted + 1


def test_release_waits_a_short_time_for_a_server_that_does_not_answer() -> None:
    """Two seconds, not the ten of a request: whoever runs the command wants to go on."""
    with EmbeddedServer(faults=True) as server:
        process = subprocess.Popen(
            [*LOCK, "--lease", "600", "--url", server.url, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        server.faults.withhold("PUBLISH", times=None)
        began = time.monotonic()
        _, complaint = process.communicate(b"\n", timeout=60)
        assert process.returncode == 7
        assert b"no answer within 2 s" in complaint
        assert time.monotonic() - began >= 1.5


def test_waiting_for_a_server_that_is_away_is_exit_code_4() -> None:
    """Somebody else held the lock when the server was last heard; at the end nobody knows. The command never runs."""
    with EmbeddedServer() as server:
        with StateStoreClient(server.url) as store:
            store.set("jobs/compact", "somebody", expiry=600)
        process = subprocess.Popen(
            [*LOCK, "--wait", "4", "--url", server.url, *COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        eventually(lambda: sum(b"NEX" in m.payload for m in server.messages) >= 2, "it has asked, and watches")
    output, complaint = process.communicate(timeout=60)
    assert (process.returncode, output) == (4, b"")
    assert b"the lock jobs/compact was not acquired within 4 s, and whether it is free is not known" in complaint
