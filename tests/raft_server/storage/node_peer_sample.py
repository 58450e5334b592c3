"""A data folder that a Node peer (npm zmq-raft 0.5.0) wrote, with files of 16 entries instead of 16,384.

Its peer "1" leads a cluster of three in term 1. 60 clients' entries, ``pump-0`` to ``pump-59``; in between, at 26 and
27, the peer "4" was added. The log was compacted up to 20; the files still have all entries.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

from raft_client.wire.configuration import Peer, Peers

__all__ = ["CONFIGS", "FILES", "LAST", "MEMBERS", "STATES", "write_sample"]

_SAMPLE: Final = json.loads((Path(__file__).with_name("node_peer_folder.json")).read_text())
FILES: Final = [f"log/00000/00/00/{first:014x}.rlog" for first in (1, 16, 32, 48)]
MEMBERS: Final[Peers] = tuple(Peer(name, url) for name, url in _SAMPLE["urls"].items())
LAST: Final = 62
CONFIGS: Final = (26, 27)
#: Index and data of clients' entries.
STATES: Final = {n + 1 if n < 25 else n + 3: b"pump-%d" % n for n in range(60)}


def write_sample(path: Path) -> Path:
    """Write the folder to ``path``."""
    for name, data in _SAMPLE["files"].items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(base64.b64decode(data))
    return path
