"""What docs/explanation/how-it-works.md says of raft_client agrees with the tree, and with what really runs."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType

from support.scripted_peers import UPDATE, ScriptedCluster

import raft_client

PACKAGE = Path(raft_client.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "how-it-works.md"

ROOMS_OF_PEERS = {"server", "server/node", "server/machines", "server/runtime", "server/runtime/storage"}

_MODULES = re.compile(r"^\| `raft_client/([\w/]*?)/?` \| ([^|]+) \|", re.MULTILINE)
_HOP = re.compile(r"^\| `([\w/]+\.py)`: `(\w+)` \| [^|]+ \|$", re.MULTILINE)


def test_every_module_is_on_the_map_once() -> None:
    """Every module of raft_client is on the map once, apart from the command line and Spark, which have pages of their
    own."""
    mapped: dict[str, list[str]] = {}
    for folder, names in _MODULES.findall(PAGE.read_text("utf-8")):
        mapped.setdefault(folder, []).extend(re.findall(r"`(\w+)`", names))
    assert set(mapped) == {"", "wire", "core", "aio", "sync", *ROOMS_OF_PEERS}
    for folder, modules in mapped.items():
        there = [path.stem for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__"]
        assert sorted(modules) == sorted(there), folder


def test_the_hops_of_an_append_are_those_that_are_taken() -> None:
    """The functions that an append enters in the calling thread are those on the page, in the order of first calls."""
    hops: dict[tuple[str, str], None] = {}
    asleep = threading.Event()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            hops.setdefault((file.relative_to(PACKAGE).as_posix(), frame.f_code.co_name))
            if hops.keys() >= {("sync/poller.py", "wait")}:
                asleep.set()

    def answer(_arguments: list[bytes]) -> list[list[bytes]]:
        assert asleep.wait(60)
        return [[b"\x01"], [b"\x01", b"\x02"]]

    with ScriptedCluster(3) as peers, raft_client.RaftClient(peers.seeds, response_timeout=60) as client:
        client.append(b"the leader is known")
        peers.script("1", UPDATE, answer)
        sys.setprofile(note)
        try:
            client.append(b"data")
        finally:
            sys.setprofile(None)
    assert list(hops) == _HOP.findall(PAGE.read_text("utf-8"))
