"""A server whose list of the log's peers is not what the log says is told so, by a line in its log and by status."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.ports import reserved_ports
from support.waiting import eventually

from statestore_client.curve_keys import KeyPair
from statestore_client.server import EmbeddedServer, LogKeys, ReplicaSettings
from statestore_client.server.runtime.replication.log_members import member_warning

NODES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
MEMBERS = {name: f"tcp://{host}:8047" for name, host in NODES.items()}


@pytest.mark.parametrize(
    ("members", "faults"),
    [
        (MEMBERS, []),
        ({**MEMBERS, "d": "tcp://10.0.0.4:8047"}, ["it lacks d, a member at tcp://10.0.0.4:8047"]),
        ({**MEMBERS, "c": "tcp://10.0.0.9:8047"}, ["it has c at tcp://10.0.0.3:8047, which is at tcp://10.0.0.9:8047"]),
        (
            {"a": MEMBERS["a"], "b": MEMBERS["b"], "d": "tcp://10.0.0.4:8047"},
            ["it names c, which is not a member", "it lacks d, a member at tcp://10.0.0.4:8047"],
        ),
    ],
)
def test_each_difference_is_named(members: dict[str, str], faults: list[str], tmp_path: Path) -> None:
    """One that is missing, one too many, one that is elsewhere; nothing is said of what is equal."""
    settings = ReplicaSettings.in_cluster(NODES, id="a", data=tmp_path, listen="127.0.0.1")
    text = member_warning(settings, members)
    assert text.removeprefix("--cluster is not what the log says: ").partition(". ")[0].split("; ") == (faults or [""])


def test_with_a_log_of_its_own_only_keys_count() -> None:
    """A server needs to know one peer, which names the others; but it speaks to none whose key it has not."""
    log = tuple(MEMBERS.values())[:2]
    assert member_warning(ReplicaSettings(log=log, id="x"), MEMBERS) == ""
    keys = LogKeys(tuple((url, "k" * 40) for url in log), KeyPair(b"p" * 40, b"s" * 40))
    text = member_warning(ReplicaSettings(log=log, id="x", log_keys=keys), MEMBERS)
    assert "it has no key of c, a member at tcp://10.0.0.3:8047" in text


def status(*places: str) -> subprocess.CompletedProcess[str]:
    """What ``statestore ha status`` says of these servers."""
    command = [sys.executable, "-m", "statestore_client.cli", "ha", "status", *places, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_list_that_was_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other servers go on with the old list; the one that has another one works, and says what to put right."""
    nodes = {name: f"127.0.0.1:{reserved_ports(3)}" for name in "abc"}
    moved = {**nodes, "c": f"127.0.0.1:{reserved_ports(3)}"}

    def server(name: str, places: dict[str, str]) -> EmbeddedServer:
        return EmbeddedServer(log=ReplicaSettings.in_cluster(places, id=name, data=tmp_path / name))

    with ThreadPoolExecutor() as pool:
        both = [server("a", nodes), server("b", nodes)]
        list(pool.map(EmbeddedServer.start, both))
        list(pool.map(EmbeddedServer.stop, both))
        assert "is not what the log says" not in caplog.text
        both = [server("a", moved), server("b", nodes)]
        try:
            list(pool.map(EmbeddedServer.start, both))
            places = [f"127.0.0.1:{int(nodes[name].rpartition(':')[2]) + 2}" for name in "ab"]
            done = status(*places)
            assert done.returncode == 0
            warnings = [json.loads(line)["warning"] for line in done.stdout.splitlines()]
            fault = f"it has c at tcp://{moved['c']}, which is at tcp://{nodes['c']}"
            assert [fault in each for each in warnings] == [True, False]
            assert warnings[1] == ""
            assert done.stderr.startswith("statestore: a: --cluster is not what the log says: ")
            assert caplog.text.count(fault) == 1
        finally:
            list(pool.map(EmbeddedServer.stop, both))


def test_a_log_without_a_majority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that waits for the others says so soon, and so does status; afterwards the one that was active is told
    apart from one that serves.
    """
    nodes = {name: f"127.0.0.1:{reserved_ports(3)}" for name in "abc"}
    place = f"127.0.0.1:{int(nodes['a'].rpartition(':')[2]) + 2}"
    a, b = (EmbeddedServer(log=ReplicaSettings.in_cluster(nodes, id=name, data=tmp_path / name)) for name in "ab")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(a.start)
        try:
            eventually(lambda: "no leader of the replicated log was found" in caplog.text, "a line in the log")
            assert_has_no_leader(status(place))
            b.start()
            waiting.result()
            eventually(lambda: a.is_active or b.is_active, "an active server")
            assert status(place).stderr == ""
            b.stop()
            assert_has_no_leader(status(place))
        finally:
            list(pool.map(EmbeddedServer.stop, (a, b)))


def assert_has_no_leader(done: subprocess.CompletedProcess[str]) -> None:
    """It fails, and says what has to be done."""
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert not answer["log_has_leader"]
    assert "more than half of the log's peers must run" in answer["warning"]
    assert done.stderr == f"statestore: a: {answer['warning']}\n"
