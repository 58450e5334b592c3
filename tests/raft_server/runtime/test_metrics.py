"""The page for Prometheus: its figures, and what it does with those who ask badly."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import attrs
import pytest
from support.ports import reserved_port
from support.raft_peers import SERVE

from raft_client import AsyncRaftClient, RaftClient
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.metrics import MetricsPage, Readiness, render
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.configuration import Peer

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "run-a-cluster.md"
#: A line of the text format: a name, perhaps labels, and a number.
LINE = re.compile(r'(zmqraft_\w+)(\{\w+="(?:[^"\\\n]|\\.)*"\})? (-?[\d.e+-]+)')


def figures(page: str) -> dict[str, float]:
    """Checks every line: a figure is announced by its HELP and TYPE, and stands there once."""
    found: dict[str, float] = {}
    announced = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            announced = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2:3] == [announced]
            assert line.split()[3] in ("gauge", "counter", "histogram")
        else:
            match = LINE.fullmatch(line)
            assert match is not None, line
            assert match[1].startswith(announced)
            assert (match[1] + (match[2] or "")) not in found
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[RaftPeer]:
    url = f"tcp://127.0.0.1:{reserved_port()}"
    log = DiskLog.open(tmp_path / "1", peer_id="1", ident=b"", peers=(Peer("1", url),))
    async with RaftPeer(NodeSettings(peer_id="1"), log, KeyValueStateMachine(), url=url) as running:
        yield running


async def test_the_figures_are_those_of_the_peer(peer: RaftPeer) -> None:
    """After appends the page says who leads, how far the log is, how long the disk took for how many jobs, and what was
    done: requests by their type, entries and their bytes, and the election that this peer stood in."""
    async with AsyncRaftClient(peer.url) as log:
        for _ in range(3):
            await log.append(b"data")
    found = figures(render(peer).decode())
    assert found['zmqraft_role{role="leader"}'] == 1
    assert sum(value for name, value in found.items() if name.startswith("zmqraft_role{")) == 1
    assert found["zmqraft_leader_known"] == found["zmqraft_term"] == 1
    indexes = [found[f"zmqraft_{name}_index"] for name in ("last", "durable", "commit", "applied")]
    assert indexes == [3, 3, 3, 3]
    assert found["zmqraft_sync_seconds_count"] == found['zmqraft_sync_seconds_bucket{le="+Inf"}'] >= 4  # and the vote
    buckets = [value for name, value in found.items() if name.startswith("zmqraft_sync_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert found["zmqraft_sync_seconds_sum"] > 0
    assert found['zmqraft_requests_total{type="RequestUpdate"}'] == 3
    assert found["zmqraft_applied_entries_total"] == found["zmqraft_applied_index"]
    assert found["zmqraft_applied_bytes_total"] >= 3 * (20 + 4)
    assert (found["zmqraft_elections_total"], found["zmqraft_restored_snapshots_total"]) == (1, 0)
    assert (found["zmqraft_snapshot_index"], found["zmqraft_disk_busy"]) == (0, 0)


async def test_names_from_the_network_stay_in_their_quotes(peer: RaftPeer) -> None:
    """A reason with quotes, a backslash and a line break is one label."""
    peer.dropped['a "b\\c\nd'] = 7
    found = figures(render(peer).decode())
    assert found['zmqraft_dropped_messages_total{reason="a \\"b\\\\c\\nd"}'] == 7


async def test_the_guide_has_all_figures(peer: RaftPeer) -> None:
    """The table of figures in the guide names those on the page, and no others."""
    shown = re.findall(r"^# TYPE (\w+) ", render(peer).decode(), re.M)
    section = GUIDE.read_text("utf-8").partition("## Watch the peers")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = re.findall(r"`(zmqraft_\w+)", " ".join(rows))
    assert sorted(named) == sorted(shown)


async def test_a_peer_is_ready_when_it_has_caught_up(peer: RaftPeer) -> None:
    """Without a leader, and with entries of its log to apply, it says so; then it is ready, whatever comes later."""
    async with AsyncRaftClient(peer.url) as log:
        await log.append(b"data")
    status = attrs.evolve(peer.status(), leader_id=None, commit_index=0, applied_index=0, last_index=10)
    readiness = Readiness(lambda: status)
    assert readiness.why_not_ready() == "no leader is known"
    status = attrs.evolve(status, leader_id="1")
    assert readiness.why_not_ready() == "applied up to 0 of 10"
    status = attrs.evolve(status, commit_index=10, applied_index=10, last_index=20)
    assert readiness.why_not_ready() == ""
    status = attrs.evolve(status, commit_index=20)
    assert readiness.why_not_ready() == ""
    status = attrs.evolve(status, leader_id=None)
    assert readiness.why_not_ready() == "no leader is known"


async def test_the_end_of_a_log_that_its_leader_does_not_have_is_not_waited_for(peer: RaftPeer) -> None:
    """Entries that were cut off need not be applied; those that the leader has committed must be."""
    status = attrs.evolve(peer.status(), leader_id=None, commit_index=0, applied_index=0, last_index=10)
    readiness = Readiness(lambda: status)
    status = attrs.evolve(status, leader_id="1", commit_index=8, applied_index=7, last_index=8)
    assert readiness.why_not_ready() == "applied up to 7 of 8"
    status = attrs.evolve(status, applied_index=8)
    assert readiness.why_not_ready() == ""


@pytest.fixture
async def page() -> AsyncIterator[tuple[str, int]]:
    served = MetricsPage(lambda: b"figures\n", lambda: "no leader is known")
    url = await served.start("127.0.0.1", 0)
    yield url, int(url.split(":")[2].partition("/")[0])
    await served.close()


async def test_a_reader_has_the_page(page: tuple[str, int]) -> None:
    """GET has the page in the text format; HEAD has its length; other paths and methods are refused."""
    url, _ = page

    def ask(method: str, url: str) -> tuple[int, str | None, bytes]:
        try:
            with urlopen(Request(url, method=method), timeout=30) as answer:  # noqa: S310 - of this test
                return answer.status, answer.headers["Content-Length"], answer.read()
        except HTTPError as error:
            with error:
                return error.code, error.headers["Content-Length"], error.read()

    assert await asyncio.to_thread(ask, "GET", url) == (200, "8", b"figures\n")
    assert await asyncio.to_thread(ask, "GET", f"{url}?x=1") == (200, "8", b"figures\n")
    assert await asyncio.to_thread(ask, "HEAD", url) == (200, "8", b"")
    assert (await asyncio.to_thread(ask, "GET", f"{url}/x"))[0] == 404
    assert (await asyncio.to_thread(ask, "POST", url))[0] == 405
    for page_of, status in (("/ready", 503), ("/health", 200)):  # both say what is missing
        there = url.replace("/metrics", page_of)
        assert await asyncio.to_thread(ask, "GET", there) == (status, "19", b"no leader is known\n")
        assert await asyncio.to_thread(ask, "HEAD", there) == (status, "19", b"")


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"rubbish\r\n\r\n", b"HTTP/1.1 400 "),
        (b"\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", b"HTTP/1.1 431 "),
    ],
)
async def test_a_bad_request_is_answered_and_ended(page: tuple[str, int], sent: bytes, answered: bytes) -> None:
    """What is no request, or too long, has an answer that says so, and the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", page[1])
    writer.write(sent)
    writer.write_eof()
    assert (await reader.read()).startswith(answered)
    writer.close()


async def test_readers_who_say_nothing_keep_nobody_out(page: tuple[str, int]) -> None:
    """With sixteen silent connections open, a reader has the page, and the oldest of them has gone for it."""
    silent = [await asyncio.open_connection("127.0.0.1", page[1]) for _ in range(16)]
    reader, writer = await asyncio.open_connection("127.0.0.1", page[1])
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.read()).endswith(b"figures\n")
    writer.close()
    assert await silent[0][0].read() == b""
    for _, each in silent:
        each.close()


def test_a_peer_says_where_its_figures_are(tmp_path: Path) -> None:
    """``zmqraft serve --metrics-port 0`` prints the URL of the page; a port that is taken ends it with exit code 10."""
    url = f"tcp://127.0.0.1:{reserved_port()}"
    command = [*SERVE, "--id", "1", f"--peer=1={url}", "--data", str(tmp_path / "1"), "--metrics-port"]
    with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {url}\n"
        where = process.stdout.readline().removeprefix("metrics at ").strip()
        with RaftClient(url) as log:
            log.append(b"data")
        with urlopen(where, timeout=30) as answer:  # noqa: S310 - printed by our own program
            assert figures(answer.read().decode())["zmqraft_applied_index"] == 1
        for page_of in ("/health", "/ready"):
            with urlopen(where.replace("/metrics", page_of), timeout=30) as answer:  # noqa: S310 - the same
                assert (answer.status, answer.read()) == (200, b"ready\n")
        process.terminate()
        assert process.wait(60) == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [*command, str(taken.getsockname()[1])], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 10
    assert "for metrics" in done.stderr
