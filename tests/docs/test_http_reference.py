"""docs/reference/http.md says what servers answer to probes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.ports import reserved_ports
from support.raft_peers import SERVE
from support.waiting import eventually

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client.server import EmbeddedServer, ReplicaSettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"


#: What each kind of server answers at /health and at /ready, in the order of the page.
ROWS = re.findall(r"^\| [^|]+ \| (\d{3} `[^`]+`) \| (\d{3} `[^`]+`) \|$", PAGE.read_text("utf-8"), re.MULTILINE)


def ask(url: str, path: str) -> str:
    """As the page writes it."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    said = f"{answer.status} `{answer.read().decode().strip()}`"
    connection.close()
    return said


def answers(url: str) -> tuple[str, str]:
    return ask(url, "/health"), ask(url, "/ready")


def test_each_kind_of_server_is_on_the_page() -> None:
    """Five states of a server, two of a host, and three of a peer; the last one passes too quickly to be asked for."""
    assert len(ROWS) == 10
    assert ROWS[9] == ("200 `applied up to 5 of 20`", "503 `applied up to 5 of 20`")


def test_a_server_alone() -> None:
    """It is ready as soon as it listens."""
    with EmbeddedServer(metrics_port=0) as server:
        assert answers(server.urls["http"]) == ROWS[0]


def test_the_servers_of_a_log() -> None:
    """The active one, and the one that stands by; and both of them when the log's only peer is lost."""
    with (
        EmbeddedCluster(1, machine=BroadcastStateMachine) as cluster,
        EmbeddedServer(metrics_port=0, log=ReplicaSettings(log=cluster.seeds, id="a")) as first,
    ):
        eventually(lambda: first.is_active, "the first server is active")
        with EmbeddedServer(metrics_port=0, log=ReplicaSettings(log=cluster.seeds, id="b")) as second:
            assert answers(first.urls["http"]) == ROWS[1]
            assert answers(second.urls["http"]) == ROWS[2]
            cluster.kill("1")
            eventually(lambda: answers(second.urls["http"]) == ROWS[3], "the standby says so")
            eventually(lambda: answers(first.urls["http"]) == ROWS[4], "the active server says so")


@contextmanager
def peer(directory: Path, *members: str) -> Iterator[str]:
    """A peer in a process, with these members; the URL of its page."""
    command = [*SERVE, "--id", "1", *members, "--data", str(directory), "--metrics-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening on ")
            yield process.stdout.readline().removeprefix("metrics at ").strip()
        finally:
            process.terminate()


@pytest.mark.parametrize(("members", "row"), [(1, 7), (2, 8)], ids=["with a leader", "without a leader"])
def test_a_peer(tmp_path: Path, members: int, row: int) -> None:
    """A peer alone leads soon; one of two finds no leader."""
    first = reserved_ports(members)
    given = [f"--peer={n + 1}=tcp://127.0.0.1:{first + n}" for n in range(members)]
    with peer(tmp_path / "1", *given) as url:
        eventually(lambda: answers(url) == ROWS[row], "it answers as the page says")


def test_other_paths_and_the_monitor() -> None:
    """A path that is not on the page, and the port of the monitor, have nothing for probes."""
    with EmbeddedServer(metrics_port=0, monitor_port=0) as server:
        assert ask(server.urls["http"], "/healthz").startswith("404 ")
        for path in ("/health", "/ready"):
            assert ask(str(server.monitor_url), path).startswith("404 ")
