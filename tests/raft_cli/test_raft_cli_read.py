"""``zmqraft tail | dump | watch | bench``."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pyarrow.parquet
import pytest
from support.scripted_peers import ENTRIES, ScriptedCluster, compact

Run = Any  # conftest.py has it

#: Published test vectors: a client's entry of term 42, and a checkpoint of term 43. And a list of peers, as captured.
STATE = bytes.fromhex("5956dc8826f27e10dcccab20 00 2a000000000000 666f6f")
CHECKPOINT = bytes.fromhex("000000000000000000000000 02 2b000000000000 c0")
PEERS = bytes.fromhex("9192a131b47463703a2f2f3132372e302e302e313a38303437")
CONFIG = STATE[:12] + b"\x01" + STATE[13:20] + PEERS
BINARY = STATE[:20] + b"\xff\n"
LOG = [STATE, CHECKPOINT, CONFIG, BINARY]
ID = "5956dc8826f27e10dcccab20"
TIME = "2017-06-30T23:19:36Z"  # date --date @$((0x5956dc88))

RECORDS: list[dict[str, Any]] = [
    {"index": 1, "term": 42, "type": "state", "request_id": ID, "time": TIME, "data": "foo"},
    {"index": 2, "term": 43, "type": "checkpoint", "request_id": None, "time": None, "data_base64": "wA=="},
    {"index": 3, "term": 42, "type": "config", "request_id": ID, "time": TIME,
     "data_base64": "kZKhMbR0Y3A6Ly8xMjcuMC4wLjE6ODA0Nw==", "peers": {"1": "tcp://127.0.0.1:8047"}},
    {"index": 4, "term": 42, "type": "state", "request_id": ID, "time": TIME, "data_base64": "/wo="},
]  # fmt: skip


def records(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def log(peers: ScriptedCluster) -> ScriptedCluster:
    """The peers, with one entry of each kind and one that is not text."""
    peers.log.extend(LOG)
    return peers


# -- tail --------------------------------------------------------------------------------------------------------------


def test_the_end_of_the_log_is_printed(run: Run, peers: ScriptedCluster) -> None:
    """``tail`` prints the last ten entries, or as many as are wanted or there."""
    assert run("tail").out == b""
    peers.fill(30)
    assert run("tail").out == b"".join(b"%d state %d\n" % (n + 1, n) for n in range(20, 30))
    assert run("tail", "-n", "1").out == b"30 state 29\n"
    assert run("tail", "--last", "100").out.count(b"\n") == 30
    assert run("tail", "-n", "0").out == b""


def test_entries_of_all_kinds_are_printed(run: Run, log: ScriptedCluster) -> None:
    """Data is printed as it is and peers readably; a checkpoint has no content."""
    assert run("tail").out == b"1 state foo\n2 checkpoint\n3 config 1=tcp://127.0.0.1:8047\n4 state \xff\n\n"
    assert run("tail", "--raw").out == b"foo\n\xff\n\n"


def test_a_transition_shows_both_lists_of_peers(run: Run, peers: ScriptedCluster) -> None:
    """During a change of members both lists are printed, and for an unreadable entry none."""
    both = {"old": [["1", "tcp://10.0.0.1:1"]], "new": [["1", "tcp://10.0.0.1:1"], ["2", "tcp://10.0.0.2:1"]]}
    peers.log.extend([CONFIG[:20] + msgpack.packb(both), CONFIG[:20] + b"\xc1"])
    line = b"1 config 1=tcp://10.0.0.1:1 -> 1=tcp://10.0.0.1:1 2=tcp://10.0.0.2:1"
    assert run("tail").out.splitlines() == [line, b"2 config "]
    transition, broken = records(run("tail", "--json").out)
    assert transition["old_peers"] == {"1": "tcp://10.0.0.1:1"}
    assert transition["peers"] == {"1": "tcp://10.0.0.1:1", "2": "tcp://10.0.0.2:1"}
    assert broken["peers"] is None
    assert "old_peers" not in broken


def test_json_tells_everything_about_an_entry(run: Run, log: ScriptedCluster) -> None:
    """JSON has everything of an entry, with bytes that are not text in Base64, and the time of the request id."""
    assert records(run("tail", "--json").out) == RECORDS


def test_a_range_is_printed(run: Run, peers: ScriptedCluster) -> None:
    """``--from`` is the first index that is printed; following prints each index once, also what is broadcast."""
    peers.fill(30)
    assert run("tail", "--from", "9", "--count", "9", "--raw").out.split() == [b"%d" % n for n in range(8, 17)]
    assert run("tail", "--from", "29", "--count", "9").out == b"29 state 28\n30 state 29\n"
    assert run("tail", "--from", "31").out == b""
    assert run("tail", "-f", "--from", "22", "--count", "9").out.split()[::3] == [b"%d" % n for n in range(22, 31)]


@pytest.mark.ci
def test_an_index_that_does_not_exist_yet_is_exit_code_1(run: Run, peers: ScriptedCluster) -> None:
    """An index beyond the log gives exit code 1, and the message says where the log ends."""
    peers.fill(3)
    done = run("tail", "--from", "5")
    assert (done.code, done.out) == (1, b"")
    assert "the log ends at 3" in done.err


def test_reading_goes_on_behind_a_position(run: Run, peers: ScriptedCluster) -> None:
    """Reading goes on after the position in a line of JSON; if the entry there has another term, the exit code is 1."""
    peers.fill(12)
    [*_, last] = records(run("tail", "--from", "1", "--count", "9", "--json").out)
    position = f"{last['index']}@{last['term']}"
    assert position == "9@1"
    for follow in ((), ("-f", "--count", "3")):
        assert run("tail", "--after", position, *follow).out == b"10 state 9\n11 state 10\n12 state 11\n"
        done = run("tail", "--after", "9@2", *follow)
        assert (done.code, done.out) == (1, b"")
        assert "has the term 1 there: it is another log" in done.err
    assert run("tail", "--after", "11").out == b"12 state 11\n"


def test_contradictions_are_exit_code_2(run: Run) -> None:
    """Options that contradict each other, and a word in place of an index, give exit code 2, and nothing is printed."""
    for arguments in (
        ("--from", "1", "-n", "1"),
        ("--raw", "--json"),
        ("--from", "0"),
        ("--after", "x"),
        ("--after", "1", "-n", "1"),
    ):
        done = run("tail", *arguments)
        assert (done.code, done.out) == (2, b"")
    for words in (("tail", "--from"), ("dump", "--to"), ("trim",)):
        done = run(*words, "earliest")
        assert (done.code, "'earliest' is not a valid index." in done.err) == (2, True)


def test_a_compacted_log_is_exit_code_1_unless_the_snapshot_is_skipped(run: Run, peers: ScriptedCluster) -> None:
    """A compacted log gives exit code 1 and the options that help, unless the snapshot is skipped."""
    peers.fill(5)
    compact(peers, 3, b"the whole state")
    done = run("tail", "--from", "2")
    assert (done.code, done.out) == (1, b"")
    assert "--skip-snapshot" in done.err
    assert run("tail", "--from", "2", "--skip-snapshot").out == b"4 state 3\n5 state 4\n"


# -- dump --------------------------------------------------------------------------------------------------------------


def test_a_dump_to_standard_output_is_json_lines(run: Run, log: ScriptedCluster) -> None:
    """A dump to standard output is JSON lines and nothing else."""
    done = run("dump")
    assert (done.code, done.err) == (0, "")
    assert records(done.out) == RECORDS


def test_all_formats_hold_the_same(run: Run, log: ScriptedCluster, tmp_path: Path) -> None:
    """All formats hold the same entries, chosen by the file's name, and keep bytes where they can."""
    for name in ("dump.jsonl", "dump.msgpack", "dump.parquet"):
        done = run("dump", "--output", str(tmp_path / name))
        assert done.code == 0
        assert "wrote 4 entries, up to index 4" in done.err
    assert records((tmp_path / "dump.jsonl").read_bytes()) == RECORDS
    with (tmp_path / "dump.msgpack").open("rb") as file:
        packed = list(msgpack.Unpacker(file))
    rows = pyarrow.parquet.read_table(tmp_path / "dump.parquet").to_pylist()
    for record, one, other, frame in zip(RECORDS, packed, rows, LOG, strict=True):
        common = {name: record[name] for name in ("index", "term", "type", "request_id")} | {"data": frame[20:]}
        made = None if record["time"] is None else datetime.datetime.fromisoformat(record["time"])
        assert one == common | {"time": None if made is None else int(made.timestamp())}
        assert other == common | {"time": made}
    assert sorted(os.listdir(tmp_path)) == ["dump.jsonl", "dump.msgpack", "dump.parquet"]


def test_an_empty_log_is_an_empty_file(run: Run, tmp_path: Path) -> None:
    """An empty log is dumped as an empty file, in Parquet with its columns."""
    assert run("dump", "-o", str(tmp_path / "x.parquet")).code == 0
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert table.num_rows == 0
    assert table.column_names == ["index", "term", "type", "request_id", "time", "data"]


def test_a_part_of_the_log_is_dumped(run: Run, log: ScriptedCluster) -> None:
    """A dump of a part includes both ends, and may leave out what no client wrote."""
    assert records(run("dump", "--from", "2", "--to", "3").out) == RECORDS[1:3]
    assert records(run("dump", "--state-only").out) == [RECORDS[0], RECORDS[3]]
    assert run("dump", "--from", "5").out == b""


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--to", "5"], 1, "the log ends at 4; there is no index 5 yet"),
        (["--from", "6"], 1, "there is no index 6 yet"),
        (["--from", "3", "--to", "2"], 2, "--to 2 lies before --from 3"),
        (["--format", "parquet"], 2, "parquet needs --output FILE"),
        (["-o", "/tmp/x.csv"], 2, "give --format jsonl|msgpack|parquet"),
        (["-o", "/no/such/folder/x.jsonl"], 2, "cannot be written: No such file or directory"),
        (["--snapshot", "x", "--skip-snapshot"], 2, "either --snapshot or --skip-snapshot"),
        (["--snapshot", "-"], 2, "both go to standard output"),
    ],
)
def test_dumps_that_cannot_be(run: Run, log: ScriptedCluster, arguments: list[str], code: int, complaint: str) -> None:
    """Each impossible dump has its own message."""
    done = run("dump", *arguments)
    assert (done.code, done.out) == (code, b"")
    assert complaint in done.err


def test_without_pyarrow_the_message_says_so(
    run: Run, log: ScriptedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pyarrow a dump to Parquet says so and leaves nothing behind."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run("dump", "-o", str(tmp_path / "x.parquet"))
    assert done.code == 2
    assert "pip install pyarrow" in done.err
    assert os.listdir(tmp_path) == []


def test_a_dump_that_fails_leaves_nothing_behind(run: Run, log: ScriptedCluster, tmp_path: Path) -> None:
    """A dump that fails leaves nothing behind, and an older file as it was."""
    target = tmp_path / "x.jsonl"
    target.write_text("from before")
    log.script("1", ENTRIES, lambda _: [])
    done = run("dump", "-o", str(target), "--timeout", "0.3")
    assert done.code == 4
    assert target.read_text() == "from before"
    assert os.listdir(tmp_path) == ["x.jsonl"]


def test_special_files_are_written_to_and_not_replaced(run: Run, log: ScriptedCluster, tmp_path: Path) -> None:
    """A named pipe is written to and not replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert run("dump", "-o", str(pipe), "--format", "jsonl").code == 0
        assert records(reader.communicate(timeout=10)[0]) == RECORDS
    assert pipe.is_fifo()


def test_a_compacted_log_is_dumped_with_its_snapshot(run: Run, peers: ScriptedCluster, tmp_path: Path) -> None:
    """A compacted log is dumped with its snapshot in a file of its own, and without one refused or begun after it."""
    peers.fill(5)
    compact(peers, 3, b"the whole state")
    assert run("dump").code == 1
    assert [record["index"] for record in records(run("dump", "--skip-snapshot").out)] == [4, 5]
    done = run("dump", "--snapshot", str(tmp_path / "snap"), "-o", str(tmp_path / "x.jsonl"), "--to", "4")
    assert "wrote a snapshot of the first 3 and 1 entries, up to index 4" in done.err
    assert (tmp_path / "snap").read_bytes() == b"the whole state"
    assert [record["index"] for record in records((tmp_path / "x.jsonl").read_bytes())] == [4]


# -- watch -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(run: Run) -> None:
    """A few changes, and an entry of another format between them."""
    for arguments in (("set", "a/1", "x"), ("append", "--data", "a/1"), ("set", "b", "y"), ("del", "a/1")):
        assert run(*arguments).code == 0
    assert run("set", "a", "z").code == 0


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], b"set 1 a/1 x\nset 3 b y\ndelete 4 a/1\nset 5 a z\n"),
        (["a"], b"set 1 a/1 x\ndelete 4 a/1\nset 5 a z\n"),
        (["a/"], b"set 1 a/1 x\ndelete 4 a/1\n"),
        (["--tree", "a"], b"set 1 a/1 x\ndelete 4 a/1\nset 5 a z\n"),
        (["b", "a/"], b"set 1 a/1 x\nset 3 b y\ndelete 4 a/1\n"),
        (["--tree", "b", "a"], b"set 1 a/1 x\nset 3 b y\ndelete 4 a/1\nset 5 a z\n"),
    ],
)
def test_changes_are_printed(run: Run, arguments: list[str], lines: bytes) -> None:
    """``watch`` prints the changes of keys with the prefix, in the order of the log."""
    assert run("watch", "--after", "0", "--count", str(lines.count(b"\n")), *arguments).out == lines


@pytest.mark.usefixtures("keys")
def test_a_watch_goes_on_where_it_ended(run: Run, peers: ScriptedCluster) -> None:
    """``watch`` goes on after the last index that was printed."""
    done = run("watch", "--after", "1", "--count", "2", "--json")
    assert records(done.out) == [
        {"event": "set", "index": 3, "key": "b", "value": "y", "position": place(peers, 3)},
        {"event": "delete", "index": 4, "key": "a/1", "value": None, "position": place(peers, 4)},
    ]


def test_a_position_in_another_log_ends_a_watch(run: Run, keys: None) -> None:
    """A position in another log ends ``watch`` with exit code 1 and what was found."""
    done = run("watch", "--after", "3@2", "--count", "1")
    assert (done.code, done.out) == (1, b"")
    assert "it is another log" in done.err
    assert run("watch", "--after", "3@1", "--count", "1").out == b"delete 4 a/1\n"


def test_only_the_last_change_of_an_entry_is_a_place_to_go_on_from(run: Run, peers: ScriptedCluster) -> None:
    """Only the last change of an entry, and the end of a snapshot, prints a position to go on from."""
    data = msgpack.packb(["kv", [1, b"a", b"x"], [1, b"b", b"y"]])
    peers.log.append((1).to_bytes(12, "big") + b"\x00\x01" + bytes(6) + data)
    peers.fill(2)
    done = records(run("watch", "--after", "0", "--count", "2", "--json").out)
    assert [record.get("position") for record in done] == [None, place(peers, 1)]
    run("set", "c", "z")
    compact(peers, 3, msgpack.packb(["kv", [1, b"a", b"x"]]))
    done = records(run("watch", "--after", "0", "--relist", "--count", "2", "--json").out)
    assert [(record["event"], record.get("position")) for record in done] == [
        ("snapshot", None), ("set", None), ("complete", "3@1"), ("set", place(peers, 4)),
    ]  # fmt: skip


def test_a_watch_on_a_compacted_log_lists_the_snapshot(run: Run, peers: ScriptedCluster) -> None:
    """``watch`` on a compacted log prints the snapshot with ``--relist``, and without it gives exit code 1."""
    for arguments in (("set", "a/1", "old"), ("set", "a/1", "x"), ("set", "b", "y"), ("set", "a/2", "z")):
        run(*arguments)
    # As documented: ["kv", [1, key, value], ...]
    compact(peers, 3, msgpack.packb(["kv", [1, b"a/1", b"x"]]) + msgpack.packb(["kv", [1, b"b", b"y"]]))
    refused = run("watch", "a/", "--after", "0", "--count", "2")
    assert refused.code == 1
    assert "--relist" in refused.err
    done = run("watch", "a/", "--after", "0", "--relist", "--count", "2")
    assert done.out == b"snapshot 3\nset 3 a/1 x\ncomplete 3\nset 4 a/2 z\n"


# -- bench -------------------------------------------------------------------------------------------------------------


def test_a_benchmark_is_not_run_by_accident(run: Run, peers: ScriptedCluster) -> None:
    """``bench`` without its confirmation says what it would append, and where, and appends nothing."""
    done = run("bench")
    assert done.code == 2
    assert "this would append 27,000 entries" in done.err
    assert peers.log == []


def test_a_benchmark_appends_as_many_entries_as_it_says(run: Run, peers: ScriptedCluster) -> None:
    """``bench`` appends as many entries as it says, and prints one measurement for each work and client."""
    done = run("bench", "--yes", "--appends", "3", "--rounds", "2", "--in-flight", "8", "--size", "50", "--json")
    assert done.code == 0
    assert len(peers.log) == 3 * 2 * 2 * (1 + 8)
    assert {len(entry) for entry in peers.log} == {70}
    measured = records(done.out)
    works = ["append, one at a time", "append, 8 in flight", "read"]
    assert [(m["work"], m["client"]) for m in measured] == [
        (work, client) for work in works for client in ("sync", "aio")
    ]
    assert all(m["operations_per_s"] > 0 and m["cpu_us_per_operation"] > 0 for m in measured)


def place(peers: ScriptedCluster, index: int) -> str:
    """The position of an entry, as it is printed."""
    return f"{index}@1@{peers.log[index - 1][:12].hex()}"


# -- get ---------------------------------------------------------------------------------------------------------------


def test_the_value_of_a_key_is_read_from_the_log(run: Run, peers: ScriptedCluster) -> None:
    """``get`` prints the last value of each key; a missing one gives exit code 1, and is named if there are several."""
    assert (run("get", "a").code, run("get", "a").out) == (1, b"")
    for arguments in (("set", "a", "1"), ("set", "b", "2"), ("set", "a", "3"), ("set", "c", "4"), ("del", "c")):
        assert run(*arguments).code == 0
    peers.fill(3)
    assert (run("get", "a").code, run("get", "a").out) == (0, b"3\n")
    assert run("get", "b", "a", "--raw").out == b"23"
    done = run("get", "b", "c", "a")
    assert (done.code, done.out, done.err) == (1, b"2\n3\n", "zmqraft: there is no key c\n")
    assert records(run("get", "a", "c", "--json").out) == [
        {"key": "a", "value": "3", "index": 3, "position": place(peers, 3)},
        {"key": "c", "value": None},
    ]
    assert run("get", "a", "--raw", "--json").code == 2


def test_several_keys_are_deleted_at_once(run: Run, peers: ScriptedCluster) -> None:
    """Several keys are deleted by one entry, and JSON names the key where there is one."""
    assert [record["key"] for record in records(run("set", "a", "1", "--json").out)] == ["a"]
    run("set", "b", "2")
    assert run("del", "a", "b").out == b"3\n"
    assert run("get", "a", "b").code == 1


def test_the_value_of_a_key_is_read_from_a_snapshot(run: Run, peers: ScriptedCluster) -> None:
    """``get`` reads the value of a key from a snapshot and the entries after it."""
    for n in range(6):
        run("set", f"k{n}", f"v{n}")
    run("set", "k0", "new")
    compact(peers, 4, msgpack.packb(["kv", [1, b"k0", b"old"], [1, b"k1", b"v1"]]))
    assert run("get", "k0", "k1", "k5").out == b"new\nv1\nv5\n"
    assert run("get", "k3").code == 1
