"""``zmqraft append | set | del``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
from support.scripted_peers import UPDATE, ScriptedCluster

Run = Any  # conftest.py has it

ID = "5956dc8826f27e10dcccab20"  # of the published test vectors


def log_of(peers: ScriptedCluster) -> list[bytes]:
    """The data of the entries."""
    return [entry[20:] for entry in peers.log]


def test_lines_of_standard_input_are_appended_in_order(run: Run, peers: ScriptedCluster) -> None:
    """Lines of standard input are appended in order as bytes, without their line feed, which the last line need not
    have."""
    done = run("append", stdin=b"one\ntwo \xff\r\nthree")
    assert (done.code, done.err) == (0, "")
    assert done.out == b"appended 3 entries, index 1 to 3\n"
    assert log_of(peers) == [b"one", b"two \xff\r", b"three"]


def test_more_lines_than_are_in_flight_keep_their_order(run: Run, peers: ScriptedCluster) -> None:
    """More lines than are in flight keep their order, across batches and chunks of input."""
    lines = [b"%d" % n * (n % 50 + 1) for n in range(3000)]
    done = run("append", "--in-flight", "100", stdin=b"\n".join(lines))
    assert done.out == b"appended 3000 entries, index 1 to 3000\n"
    assert log_of(peers) == lines
    done = run("append")  # nothing
    assert (done.code, done.out) == (0, b"appended nothing\n")


def test_files_are_appended_line_by_line_or_whole(run: Run, peers: ScriptedCluster, tmp_path: Path) -> None:
    """Files are appended line by line or whole, in the order given, and a dash is standard input."""
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_bytes(b"a\nb\n")
    second.write_bytes(b"\x00\n\xff")
    assert run("append", str(first), "-", stdin=b"c").code == 0
    assert run("append", "--whole", str(first), str(second)).code == 0
    assert log_of(peers) == [b"a", b"b", b"c", b"a\nb\n", b"\x00\n\xff"]


def test_request_ids_are_printed_on_demand(run: Run, peers: ScriptedCluster) -> None:
    """The index of one entry is printed, and on demand the request ids of all, which are those in the log."""
    done = run("append", "--ids", stdin=b"a\nb\n")
    assert done.out.decode() == f"1 {peers.log[0][:12].hex()}\n2 {peers.log[1][:12].hex()}\n"
    records = [json.loads(line) for line in run("append", "--json", stdin=b"c\n").out.splitlines()]
    assert records == [{"index": 3, "request_id": peers.log[2][:12].hex(), "file": "-", "line": 1}]
    assert run("append", "--data", "x").out == b"4\n"
    assert run("append", "--data", "y", "--ids").out == f"5 {peers.log[4][:12].hex()}\n".encode()
    assert json.loads(run("append", "--data", "z", "--json").out)["index"] == 6


def test_empty_lines_are_exit_code_8(run: Run, peers: ScriptedCluster) -> None:
    """An empty line is named and gives exit code 8, and all other lines are appended; an option skips
    them."""
    done = run("append", "--json", stdin=b"a\n\nb\n\n")
    assert done.code == 8
    assert log_of(peers) == [b"a", b"b"]
    assert "standard input, line 2: " in done.err
    assert "standard input, line 4: " in done.err
    failed = [record for record in map(json.loads, done.out.splitlines()) if "error" in record]
    assert [(record["line"], record["may_have_been_applied"]) for record in failed] == [(2, False), (4, False)]
    done = run("append", "--skip-empty", "--json", stdin=b"a\n\nb\n\n")
    assert done.code == 0
    assert [json.loads(line)["line"] for line in done.out.splitlines()] == [1, 3]  # as in the file


def test_a_line_without_end_is_refused_before_it_fills_the_memory(run: Run, tmp_path: Path) -> None:
    """A line without end, as of /dev/zero, is refused before it fills the memory."""
    endless = tmp_path / "long"
    with endless.open("wb") as file:
        file.truncate(30 * 1024 * 1024)
    for arguments, code in ((["append", str(endless)], 2), (["append", "--whole", str(endless)], 8)):
        done = run(*arguments)
        assert done.code == code
        assert "10485760 bytes" in done.err


def test_an_id_that_was_used_appends_nothing_again(run: Run, peers: ScriptedCluster, tmp_path: Path) -> None:
    """Data or a file with a request id that was used is not appended again, and the first index is printed."""
    (tmp_path / "file").write_bytes(b"x")
    assert run("append", "--data", "x", "--request-id", ID).out == b"1\n"
    assert run("append", "--data", "x", "--request-id", ID, "--ids").out == f"1 {ID}\n".encode()
    assert run("append", "--whole", str(tmp_path / "file"), "--request-id", ID).out == b"1\n"
    assert len(peers.log) == 1


def test_mistakes_are_exit_code_2(run: Run, peers: ScriptedCluster) -> None:
    """Usage errors give exit code 2, and nothing is appended."""
    for arguments, complaint in (
        (["--data", "x", "--whole"], "--data"),
        (["--request-id", ID], "--request-id is for one entry"),
        (["--data", "x", "--request-id", "no id"], "24 hex digits"),
        (["/no/such/file"], "/no/such/file"),
        (["--in-flight", "0"], "--in-flight"),
        (["--data", ""], "1 to 10485760 bytes"),
    ):
        done = run("append", *arguments)
        assert (done.code, done.out, peers.log) == (2, b"", [])
        assert complaint in done.err


def test_an_expired_id_is_exit_code_3(run: Run, peers: ScriptedCluster) -> None:
    """An expired id gives exit code 3, because the cluster's refusal is final."""
    peers.script("1", UPDATE, lambda _: [[b""]])
    done = run("append", "--data", "x", "--request-id", ID)
    assert done.code == 3
    assert "expired" in done.err


def test_an_append_without_an_answer_says_how_to_repeat_it(run: Run, peers: ScriptedCluster) -> None:
    """An append without an answer gives exit code 4 and its id, with which a repetition cannot append it twice."""
    peers.script("1", UPDATE, lambda _: [])
    done = run("append", "--data", "x", "--request-id", ID, "--timeout", "0.3")
    assert done.code == 4
    assert f"repeat it with --request-id {ID}" in done.err


def test_lines_without_an_answer_end_the_run(run: Run, peers: ScriptedCluster) -> None:
    """Lines without an answer are each named with their id, and what comes after their batch is not tried."""
    leader = peers.peers["1"]

    def answer(arguments: list[bytes]) -> list[list[bytes]]:
        if arguments[0] == b"lost":
            return []
        return [[b"\x01"], [b"\x01", msgpack.packb(peers.commit(peers.seen[-1][1], arguments[0]))]]

    peers.script(leader.id, UPDATE, answer)
    done = run("append", "--timeout", "0.3", stdin=b"a\nlost\n" + b"b\n" * 2000)
    assert done.code == 4
    lost = next(seen[1] for seen in peers.seen if seen[2] == UPDATE and seen[3] == [b"lost"])
    assert "standard input, line 2: " in done.err
    assert f"it may have been appended; request id {lost.hex()}" in done.err
    assert "stopped at standard input, line 1024; appended 1023 entries, index 1 to 1023" in done.err
    assert log_of(peers) == [b"a"] + [b"b"] * 1022


def test_keys_are_set_and_deleted(run: Run, peers: ScriptedCluster) -> None:
    """Keys are set and deleted by entries of the documented key/value format."""
    assert run("set", "k", "v").out == b"1\n"
    assert json.loads(run("del", "k", "--json", "--request-id", ID).out) == {
        "key": "k",
        "index": 2,
        "request_id": ID,
    }
    assert [msgpack.unpackb(data) for data in log_of(peers)] == [["kv", [1, b"k", b"v"]], ["kv", [0, b"k"]]]
    assert run("set", "", "v").code == 2
