"""How a directory of a peer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.server.node.stored_log import HardState
from raft_client.server.runtime.storage.recovery import FIRST_SEQUENCE, list_files
from raft_client.server.runtime.storage.segment import SegmentWriter
from raft_client.server.runtime.storage.segment_format import Mark, SegmentHeader

if TYPE_CHECKING:
    from raft_client.server.runtime.storage.filesystem import Folder
    from raft_client.server.runtime.storage.owner import Owner


def make_log(folder: Folder, owner: Owner, salt: bytes) -> None:
    """A new directory. It counts when the owner's file is there, which is the last to come."""
    for name in list_files(folder).data:
        folder.remove(name)
    header = SegmentHeader(FIRST_SEQUENCE, salt, 0, 0)
    mark = SegmentWriter.begin(header).add_job(Mark(0, HardState(), True), ())
    file = folder.open(header.name, create=True)
    try:
        file.write(header.encode() + b"".join(mark), 0)
        file.sync()
    finally:
        file.close()
    owner.write(folder)
