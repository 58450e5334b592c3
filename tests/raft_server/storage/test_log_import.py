"""A Node peer's data folder, made into a directory for our peer: what is kept, and which folders are refused."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from raft_client.errors import (
    InvalidArgumentError,
    StorageDamagedError,
    StorageError,
    StorageInUseError,
    StorageVersionError,
)
from raft_client.server.node.ready import HardState, Persist
from raft_client.server.runtime.storage.backup import Inspection
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.server.runtime.storage.log_import import NodePeerFolder, import_log
from raft_client.wire.configuration import ConfigChange, Peer, Peers
from raft_client.wire.log_entry import EntryKind, LogEntry

#: A data folder that a Node peer (npm zmq-raft 0.5.0) wrote, with files of 16 entries instead of 16,384. Its peer "1"
#: leads a cluster of three in term 1. 60 clients' entries, ``pump-0`` to ``pump-59``; in between, at 26 and 27, the
#: peer "4" was added. The log was compacted up to 20; the files still have all entries.
_SAMPLE: Final = json.loads((Path(__file__).with_name("node_peer_folder.json")).read_text())
FILES: Final = [f"log/00000/00/00/{first:014x}.rlog" for first in (1, 16, 32, 48)]
MEMBERS: Final[Peers] = tuple(Peer(name, url) for name, url in _SAMPLE["urls"].items())
LAST: Final = 62
CONFIGS: Final = (26, 27)
#: Index and data of clients' entries.
STATES: Final = {n + 1 if n < 25 else n + 3: b"pump-%d" % n for n in range(60)}
SEEDS = MEMBERS[:3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of the Node peer."""
    for name, data in _SAMPLE["files"].items():
        path = tmp_path / "node" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
    return tmp_path / "node"


def imported(folder: Path, **changes: Any) -> Inspection:
    return import_log(folder, folder.parent / "ours", **{"peer_id": "1", "ident": b"", **changes})


def opened(folder: Path) -> DiskLog:
    return DiskLog.open(folder.parent / "ours", peer_id="1", ident=b"", peers=SEEDS)


def change(folder: Path, name: str, edit: Callable[[bytes], bytes]) -> None:
    (folder / name).write_bytes(edit((folder / name).read_bytes()))


def patch(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + data + whole[at + len(data) :]


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_everything_is_kept(folder: Path) -> None:
    """Entries, their terms and ids, also those before the snapshot, the snapshot, the term, the vote and the members
    are those of the Node peer."""
    found = imported(folder)
    assert (found.last_index, found.problems, found.members_known) == (LAST, (), True)
    with opened(folder) as log:
        assert log.hard_state == HardState(1, "1")
        assert log.snapshot is not None
        assert (log.snapshot.index, log.snapshot.term, log.snapshot.members_known) == (20, 1, True)
        assert log.read_snapshot(0, 1000) == b"".join(data for index, data in STATES.items() if index <= 20)
        entries = log.entries(20, LAST, 1 << 30)
        assert {entry.index: entry.data for entry in entries if entry.is_state} == {
            index: data for index, data in STATES.items() if index > 20
        }
        assert [entry.index for entry in entries if entry.kind is EntryKind.CONFIG] == list(CONFIGS)
        assert log.configurations[-1].change == ConfigChange(MEMBERS)
        theirs = list(NodePeerFolder.read(folder).entries(0))
        assert [entry.index for entry in theirs] == list(range(1, LAST + 1))
        assert entries == theirs[20:]
        for entry in theirs:
            if entry.is_state:
                assert log.index_of_request(entry.request_id.raw) == entry.index
        assert log.prune_index == 0


def test_the_folder_is_not_changed(folder: Path) -> None:
    """The Node peer's folder is only read."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    imported(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_old_files_may_be_gone(folder: Path) -> None:
    """Files before the snapshot's last entry may have been removed: the log begins in the middle, and the request ids
    that they had are unknown."""
    (folder / FILES[0]).unlink()
    assert imported(folder).problems == ()
    with opened(folder) as log:
        assert (log.snapshot.index if log.snapshot else 0, log.last_index, log.prune_index) == (20, LAST, 16)
        assert [entry.data for entry in log.entries(20, 22, 1000)] == [STATES[21], STATES[22]]
        assert log.term_at(20) == 1


@pytest.mark.parametrize("index", [15, 16])
def test_a_log_that_begins_after_its_snapshot(folder: Path, index: int) -> None:
    """A log whose files begin right after the snapshot, or with its last entry, begins after it."""
    (folder / FILES[0]).unlink()
    change(folder, "snap", patch(12, struct.pack("<Q", index)))
    imported(folder)
    with opened(folder) as log:
        assert log.snapshot is not None
        assert (log.snapshot.index, log.snapshot.size, log.first_index, log.last_index) == (index, 130, index + 1, LAST)
        assert log.read_snapshot(0, 1000).startswith(b"pump-0pump-1")
        assert log.entries(index, index + 1, 0)[0].data == STATES[index + 1]
        assert not log.snapshot.members_known


def test_a_snapshot_without_entries(folder: Path) -> None:
    """A peer that was sent a snapshot and nothing else votes as before; who the members are is not certain then."""
    shutil.rmtree(folder / "log")
    (folder / "state.pers").unlink()
    (folder / "raft.pers").write_bytes(msgpack.packb({"currentTerm": 7, "votedFor": "2"}))
    found = imported(folder, peers=SEEDS)
    assert (found.entry_count, found.members_known) == (0, False)
    with opened(folder) as log:
        assert (log.first_index, log.last_index, log.term_at(20)) == (21, 20, 1)
        assert log.hard_state == HardState(7, "2")


def test_a_peer_that_has_written_nothing(tmp_path: Path) -> None:
    """The folder of a Node peer that has just been started becomes an empty log."""
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "raft.pers").write_bytes(b"")
    found = imported(tmp_path / "node", peers=SEEDS)
    assert (found.entry_count, found.snapshot, found.hard_state) == (0, None, HardState())


def test_large_entries_are_written_a_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large entries are, only some megabytes of them are in memory at once, and one at least."""
    frames = [LogEntry.of(bytes([n + 1]) * size, term=1).frame for n, size in enumerate([3 << 20] * 4 + [9 << 20, 5])]
    table = struct.pack("<16I", *accumulate(map(len, frames)), *[0] * 10)
    path = tmp_path / "node" / FILES[0]
    path.parent.mkdir(parents=True)
    path.write_bytes(struct.pack("<4sIIIQ", b"RLOG", 80, 1, 16, 1) + table + b"ITMZ\0\0\0\0" + b"".join(frames))
    (tmp_path / "node" / "raft.pers").write_bytes(b"")
    jobs: list[int] = []
    write = DiskLog.write

    def counted(log: DiskLog, job: Persist) -> None:
        jobs.append(len(job.entries))
        write(log, job)

    monkeypatch.setattr(DiskLog, "write", counted)
    imported(tmp_path / "node", peers=SEEDS)
    assert jobs == [2, 2, 1, 1, 0]
    with opened(tmp_path / "node") as log:
        assert [entry.frame for entry in log.entries(0, 6, 1 << 30)] == frames


# -- raft.pers ---------------------------------------------------------------------------------------------------------


def test_a_torn_end_of_the_state_is_no_damage(folder: Path) -> None:
    """What a power failure left of the last change of the state does not count, wherever it ends."""
    whole = (folder / "raft.pers").read_bytes()
    last = msgpack.packb({"currentTerm": 9, "votedFor": "3"})
    for length in range(len(last)):
        (folder / "raft.pers").write_bytes(whole + last[:length])
        assert imported(folder).hard_state == HardState(1, "1")
        shutil.rmtree(folder.parent / "ours")
    (folder / "raft.pers").write_bytes(whole + last)
    assert imported(folder).hard_state == HardState(9, "3")


def test_a_term_that_is_behind_the_log_is_raised(folder: Path) -> None:
    """A peer that only copied the log has not noted its term: it begins with that of the last entry, and no vote."""
    (folder / "raft.pers").write_bytes(msgpack.packb({"currentTerm": 0, "votedFor": "3"}))
    assert imported(folder, peers=SEEDS).hard_state == HardState(1)


def test_large_numbers_are_floats(folder: Path) -> None:
    """Node writes numbers of more than 31 bits as floats."""
    change(folder, "raft.pers", lambda data: data + msgpack.packb({"currentTerm": float(2**52 + 1), "votedFor": None}))
    assert imported(folder).hard_state == HardState(2**52 + 1)


def test_who_the_members_are(folder: Path) -> None:
    """A folder that names no members needs them as an argument; a peer that is none of them is refused."""
    with pytest.raises(InvalidArgumentError, match="'5' is none of the members, who are 1, 2, 3, 4"):
        imported(folder, peer_id="5")
    (folder / "raft.pers").write_bytes(msgpack.packb({"currentTerm": 1, "votedFor": "1"}))
    with pytest.raises(InvalidArgumentError, match="who the members are"):
        imported(folder)
    assert {path.name for path in folder.parent.iterdir()} == {"node"}
    imported(folder, peers=SEEDS)
    with opened(folder) as log:
        assert log.configurations[0].change == ConfigChange(SEEDS)
        assert log.configurations[-1].change == ConfigChange(MEMBERS)  # the log knows


def test_members_as_in_a_configuration_file(folder: Path) -> None:
    """Members may be maps with more than id and URL, as in the configuration that the peer was started with."""
    peers = [{"id": peer.id, "url": peer.url, "pub": "tcp://127.0.0.1:1"} for peer in SEEDS]
    (folder / "raft.pers").write_bytes(msgpack.packb({"currentTerm": 1, "votedFor": None, "peers": peers}))
    imported(folder)
    with opened(folder) as log:
        assert log.configurations[0].change == ConfigChange(SEEDS)


# -- damage ------------------------------------------------------------------------------------------------------------


def entry_at(data: bytes, number: int) -> int:
    """Where the entry with this number begins in a file of entries."""
    return data.index(b"ITMZ") + 8 + (struct.unpack_from("<I", data, 24 + 4 * (number - 1))[0] if number else 0)


def in_entry(number: int, offset: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: patch(entry_at(data, number) + offset, new)(data)


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "an rlog that is cut off": (FILES[3], lambda data: data[:-1], "its last entries are missing"),
    "an rlog that is cut off in its head": (FILES[0], lambda data: data[:50], "its head says"),
    "an rlog that is empty": (FILES[3], lambda _data: b"", "does not begin"),
    "an rlog without its name": (FILES[0], patch(0, b"RL0G"), "does not begin"),
    "an rlog of another place": (FILES[1], patch(16, struct.pack("<Q", 32)), "its head says"),
    "an impossible capacity": (FILES[1], patch(12, b"\xff\xff\xff\xff"), "its head says"),
    "no token of entries": (FILES[1], lambda data: data.replace(b"ITMZ", b"JTMZ"), "no ITMZ"),
    "places that fall": (FILES[1], patch(28, struct.pack("<I", 1)), "not in order"),
    "a place that is 0 in the middle": (FILES[1], patch(24, struct.pack("<I", 0)), "begins with the entry 32"),
    "an unknown kind": (FILES[1], in_entry(3, 12, b"\x09"), "instead of the entry 19"),
    "a term that falls": (FILES[1], in_entry(3, 13, b"\0" * 7), "has the term 0 after 1"),
    "an impossible term": (FILES[1], in_entry(3, 19, b"\xff"), "instead of the entry 19"),
    "a list of members that cannot be read": (FILES[1], in_entry(11, 20, b"\xc1"), "from 1 on"),
    "a snapshot that is cut off": ("snap", lambda data: data[:-1], "129 bytes of a snapshot of 130"),
    "a snapshot that is too long": ("snap", lambda data: data + b"x", "131 bytes of a snapshot of 130"),
    "a snapshot without a head": ("snap", lambda data: data[:20], "does not begin"),
    "a snapshot of another term": ("snap", patch(20, struct.pack("<Q", 2)), "has the term 2, and the log 1"),
    "a snapshot of what is not there": ("snap", patch(12, struct.pack("<Q", 99)), "the log ends at 62"),
    "a snapshot of nothing": ("snap", patch(12, struct.pack("<Q", 0)), "index 0 that is not empty"),
    "a state without a map": ("raft.pers", lambda data: b"\x00" + data, "no map"),
    "a state of other bytes": ("raft.pers", lambda data: b"\xc1" + data, "not MessagePack"),
    "a state whose first map is too long": ("raft.pers", lambda data: b"\x8f" + data[1:], "not MessagePack"),
    "a state whose first map has a vote without an end": (
        "raft.pers",
        lambda data: msgpack.packb({"currentTerm": 1, "votedFor": ""})[:-1] + b"\xdb\0\0\xff\xff" + data,
        "several maps follow",
    ),
    "a vote that is a number": ("raft.pers", lambda data: data + msgpack.packb({"votedFor": 3}), "no peer id"),
    "a term that is none": ("raft.pers", lambda data: data + msgpack.packb({"currentTerm": 1.5}), "currentTerm"),
    "a term that is too large": ("raft.pers", lambda data: data + msgpack.packb({"currentTerm": 2**53}), "currentTerm"),
    "members that are none": ("raft.pers", lambda data: data + msgpack.packb({"peers": [3]}), "list of peers"),
    "members whose entry is none": ("raft.pers", lambda data: data + msgpack.packb({"peersIndex": 30}), "at 30"),
    "members that the log has not": (
        "raft.pers",
        lambda data: data + msgpack.packb({"peersIndex": None, "peersUpdateRequest": "A" * 16}),
        "that the log has not",
    ),
    "more applied than there is": ("state.pers", lambda data: data + msgpack.packb({"lastApplied": 63}), "63 entries"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused(folder: Path, damage: str) -> None:
    """A folder that says what cannot be is refused with what is wrong in which file, and nothing is left behind."""
    name, edit, complaint = DAMAGES[damage]
    change(folder, name, edit)
    with pytest.raises(StorageDamagedError) as caught:
        imported(folder)
    assert complaint in str(caught.value)
    assert {path.name for path in folder.parent.iterdir()} == {"node"}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_that_is_missing_is_refused(folder: Path, number: int) -> None:
    """A file of entries after the snapshot that is not there is noticed, also the last one if it was applied."""
    (folder / FILES[number]).unlink()
    with pytest.raises(StorageDamagedError):
        imported(folder)
    for each in FILES[:number]:
        (folder / each).unlink()
    with pytest.raises(StorageDamagedError):
        imported(folder)
    assert {path.name for path in folder.parent.iterdir()} == {"node"}


def test_a_log_without_its_begin_needs_a_snapshot(folder: Path) -> None:
    """Without a snapshot, the log has to begin with the first entry."""
    (folder / "snap").unlink()
    assert imported(folder).first_index == 1
    shutil.rmtree(folder.parent / "ours")
    (folder / FILES[0]).unlink()
    with pytest.raises(StorageDamagedError, match="entries 1 to 15 are missing"):
        imported(folder)


@pytest.mark.parametrize(("name", "at"), [(FILES[0], 8), ("snap", 8)])
def test_a_newer_version_is_refused(folder: Path, name: str, at: int) -> None:
    """Files of another version are refused as such."""
    change(folder, name, patch(at, b"\x02"))
    with pytest.raises(StorageVersionError, match="has version 2"):
        imported(folder)


def test_a_peer_that_runs_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is written to while it is read belongs to a peer that runs: nothing is imported."""
    entries = NodePeerFolder.entries

    def meanwhile(found: NodePeerFolder, after: int) -> Iterator[LogEntry]:
        change(folder, "raft.pers", lambda data: data + msgpack.packb({"currentTerm": 2}))
        return entries(found, after)

    monkeypatch.setattr(NodePeerFolder, "entries", meanwhile)
    with pytest.raises(StorageInUseError, match="stop the Node peer"):
        imported(folder)
    assert {path.name for path in folder.parent.iterdir()} == {"node"}


def test_what_is_no_folder_of_a_node_peer(folder: Path, tmp_path: Path) -> None:
    """A folder without a state, and a target that exists, are refused; the target stays as it is."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(StorageError, match=r"no file raft\.pers"):
            imported(path)
    imported(folder)
    before = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    with pytest.raises(StorageError, match="exists already"):
        imported(folder)
    assert {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()} == before


@pytest.mark.ci
def test_any_flipped_bit_is_refused_or_harmless(folder: Path) -> None:
    """Whatever byte of the state or of a file of entries is another one, the import succeeds or raises StorageError or
    InvalidArgumentError: never anything else, and never half."""
    for name in ("raft.pers", FILES[1], "snap"):
        whole = (folder / name).read_bytes()
        for at in range(0, len(whole), 7):
            (folder / name).write_bytes(patch(at, bytes([whole[at] ^ (1 << at % 8)]))(whole))
            try:
                imported(folder)
            except (StorageError, InvalidArgumentError):
                assert not (folder.parent / "ours").exists()
            else:
                shutil.rmtree(folder.parent / "ours")
        (folder / name).write_bytes(whole)


# -- zmqraft import-log: its words and its exit codes ------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "raft_client.cli", *arguments], capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_folder_is_imported(folder: Path, tmp_path: Path) -> None:
    """It says what the new directory has, and our peer opens it under the id and the cluster that were given."""
    target = str(tmp_path / "ours")
    assert run("import-log", str(folder), target, "--id", "1", "--cluster", "plant") == (
        0,
        f"{target} has the entries 1 to 62 and a snapshot up to 20\n",
        "",
    )
    with DiskLog.open(target, peer_id="1", ident=b"plant", peers=MEMBERS) as log:
        assert log.last_index == 62
    code, out, _ = run("check", target)
    assert (code, out.splitlines()[:4]) == (
        0,
        [f"{target} is sound", "peer: 1", "cluster: plant", "term: 1, voted for 1"],
    )


def test_members_that_are_not_certain_are_told(folder: Path, tmp_path: Path) -> None:
    """Where the folder does not say for certain who the members are, a line on standard error says what follows."""
    for path in (tmp_path / "node" / "log").rglob("*.rlog"):
        path.unlink()
    (tmp_path / "node" / "state.pers").unlink()
    (tmp_path / "node" / "raft.pers").write_bytes(b"")
    members = [f"--peer={peer.id}={peer.url}" for peer in MEMBERS]
    code, out, err = run("import-log", str(folder), str(tmp_path / "ours"), "--id", "1", *members)
    assert (code, out.split(" has ")[1]) == (0, "no entries and a snapshot up to 20\n")
    assert "does not stand for election" in err


@pytest.mark.ci
def test_what_cannot_be_imported(folder: Path, tmp_path: Path) -> None:
    """Damage is exit code 6 with the file, a wrong id is exit code 2; nothing is left of either."""
    target = str(tmp_path / "ours")
    code, _, err = run("import-log", str(folder), target, "--id", "9")
    assert (code, err) == (2, "zmqraft: '9' is none of the members, who are 1, 2, 3, 4\n")
    (tmp_path / "node" / "snap").write_bytes(b"SNIP")
    code, _, err = run("import-log", str(folder), target, "--id", "1")
    assert (code, err) == (6, "zmqraft: snap is damaged at byte 0: it does not begin as a snapshot\n")
    assert {path.name for path in tmp_path.iterdir()} == {"node"}
