"""``zmqraft kv``, with a cluster of peers of this package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from raft_client import RaftClient, new_request_id
from raft_client.server import EmbeddedCluster

Run = Any  # conftest.py has it


@pytest.fixture
def kv(bare_run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run ``zmqraft kv`` against one peer."""
    with EmbeddedCluster(1) as cluster:
        monkeypatch.setenv("ZMQRAFT_URL", cluster.url)
        yield lambda *arguments: bare_run("kv", *arguments)


def test_keys_are_written_read_and_deleted(kv: Run) -> None:
    """Commands print values, indexes and outcomes, and the exit code says whether there was such a key."""
    index = int(kv("put", "a", "1").out)
    assert int(kv("put", "b", "2").out) == index + 1
    assert kv("get", "a", "b").out == b"1\n2\n"
    assert kv("get", "--raw", "--stale", "a").out == b"1"
    missing = kv("get", "a", "x")
    assert (missing.code, missing.out, "no key x" in missing.err) == (1, b"1\n", True)
    assert json.loads(kv("get", "--json", "a").out) | {"position": ""} == {
        "key": "a", "value": "1", "index": index + 1, "position": ""
    }  # fmt: skip
    assert json.loads(kv("get", "--json", "x").out)["value"] is None
    assert kv("range").out == b"a 1\nb 2\n"
    assert kv("range", "--start", "b", "--keys-only").out == b"b\n"
    assert kv("range", "--end", "b", "--stale").out == b"a 1\n"
    (record,) = map(json.loads, kv("range", "--limit", "1", "--json").out.splitlines())
    assert (record["key"], record["value"], record["index"]) == ("a", "1", index + 1)
    deleted = kv("delete", "a", "x")
    assert (deleted.code, deleted.out) == (0, b"%d 1\n" % (index + 2))
    deleted = kv("delete", "a", "--json")
    assert (deleted.code, json.loads(deleted.out)["deleted"]) == (1, 0)
    assert json.loads(kv("put", "c", "3", "--json").out)["index"] == index + 4


def test_transactions(kv: Run) -> None:
    """``txn`` says which branch was done, once for each request id."""
    first = ("txn", "--if-absent", "a", "--set", "a=1=1", "--else-set", "b=2", "--else-delete", "a")
    done = kv(*first)
    assert (done.code, done.out.split()[1]) == (0, b"done")
    assert kv("range").out == b"a 1=1\n"
    other = kv(*first, "--json")
    assert other.code == 1
    assert json.loads(other.out) | {"index": 0, "position": ""} == {
        "index": 0, "position": "", "done": False, "deleted": 1
    }  # fmt: skip
    assert kv("txn", "--if", "b=2", "--delete", "b").code == 0
    identified = ("txn", "--if-absent", "c", "--set", "c=1", "--request-id", str(new_request_id()))
    assert kv(*identified).out == kv(*identified).out  # the second would find the key, were it made again
    for wrong in (("txn", "--set", "a"), ("txn",), ("get", "--raw", "--json", "a"), ("range", "a", "--start", "b")):
        assert kv(*wrong).code == 2


def test_keys_are_watched(kv: Run) -> None:
    """``kv watch`` is ``watch``."""
    index = int(kv("put", "a", "1").out)
    assert kv("watch", "--after", str(index - 1), "--count", "1").out == b"set %d a 1\n" % index


def test_a_mirror_has_all_keys_first(kv: Run) -> None:
    """The keys with the prefix as they are at one index, behind a line that says so."""
    for key in ("a/2", "b", "a/1"):
        index = int(kv("put", key, "on").out)
    done = kv("mirror", "a/", "--count", "2")
    assert (done.code, done.out) == (0, b"snapshot %d\nset %d a/1 on\nset %d a/2 on\n" % (index, index, index))
    (first, *_, last) = map(json.loads, kv("mirror", "--json", "--count", "3").out.splitlines())
    assert first == {"event": "snapshot", "index": index}
    assert last == {"event": "set", "index": index, "key": "b", "value": "on"}
    for wrong in (("a", "b"), ("--json", "--", "true")):
        assert kv("mirror", *wrong).code == 2


@contextmanager
def mirrored(url: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What ``zmqraft kv mirror`` prints, in a process of its own."""
    command = [sys.executable, "-m", "raft_client.cli", "kv", "mirror", "--json", "--progress", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield map(json.loads, process.stdout)
        finally:
            process.terminate()


def test_a_mirror_follows(kv: Run) -> None:
    """Each change is told, and after the last one of an entry one can go on, as after the end of the first keys."""
    url = os.environ["ZMQRAFT_URL"]
    with RaftClient(url) as client, mirrored(url) as lines:
        assert [next(lines)["event"] for _ in range(2)] == ["snapshot", "complete"]
        outcome = client.kv.transaction(then={"a": "1", "b": "2"})
        first, last = (next(line for line in lines if "key" in line) for _ in range(2))
        assert first == {"event": "set", "index": outcome.position.index, "key": "a", "value": "1"}
        assert last.pop("position").startswith(f"{outcome.position.index}@")
        assert last == {"event": "set", "index": outcome.position.index, "key": "b", "value": "2"}
        index = client.kv.delete("none").position.index
        assert next(line for line in lines if line["index"] >= index)["event"] == "progress"
        client.kv.delete("a")
        assert next(line for line in lines if line["event"] == "delete")["key"] == "a"


@pytest.mark.ci
def test_a_mirror_tells_the_loss_of_the_leader_and_goes_on_at_the_next_one() -> None:
    """It says that it may be late, then that it is not, and no change is missing or told twice."""
    with EmbeddedCluster(3) as cluster, RaftClient(cluster.url) as client, mirrored(cluster.url) as lines:
        assert next(lines)["event"] == "snapshot"
        client.kv.put("a", "1")
        values = (line["value"] for line in lines if line["event"] == "set")
        assert next(values) == "1"
        lost = [cluster.leader(), next(peer for peer in cluster.running if peer != cluster.leader())]
        for peer in lost:
            cluster.kill(peer)
        assert any(line["event"] == "suspended" for line in lines)
        for peer in lost:
            cluster.restart(peer)
        assert next(line for line in lines if line["event"] == "resumed")
        for value in "234":
            client.kv.put("a", value)
        assert [next(values) for _ in range(3)] == ["2", "3", "4"]


def test_a_key_is_kept_as_long_as_the_command_runs(kv: Run) -> None:
    """``put --lease-ttl`` keeps its key until it is ended, or until its lease is; ``kv lease`` shows and ends that."""
    command = [sys.executable, "-m", "raft_client.cli", "kv", "put", "--lease-ttl", "5"]
    with (
        subprocess.Popen([*command, "a", "1"], stdout=subprocess.PIPE) as ended,
        subprocess.Popen([*command, "b", "2", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as loses,
    ):
        assert ended.stdout is not None
        assert loses.stdout is not None
        index, lease = ended.stdout.readline().decode().split()
        other = json.loads(loses.stdout.readline())
        assert kv("lease", lease).out == b"5\na\n"
        assert json.loads(kv("lease", lease, "--json").out) == {"lease": lease, "ttl": 5.0, "keys": [{"key": "a"}]}
        assert int(index) > 0
        ended.send_signal(signal.SIGTERM)
        assert ended.wait(30) == 130
        gone = kv("lease", lease)
        assert (gone.code, gone.out) == (1, b"")
        assert kv("range").out == b"b 2\n"
        done = kv("lease", other["lease"], "--end")
        assert (done.code, done.out.split()[1]) == (0, b"1")
        assert kv("lease", other["lease"], "--end").code == 1
        _, said = loses.communicate(timeout=30)
        assert (loses.returncode, b"the lease was ended" in said) == (5, True)
    assert kv("put", "--lease-ttl", "0.5", "a", "1").code == 2
