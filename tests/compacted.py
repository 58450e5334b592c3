"""A scripted log that was compacted: a snapshot of the first entries, and the entries after it. Bytes by hand."""

from __future__ import annotations

import msgpack
from scripted_cluster import ENTRIES, Frames, ScriptedCluster, uint

__all__ = ["compact"]


def compact(peers: ScriptedCluster, index: int, snapshot: bytes) -> None:
    """The entries up to ``index`` are only in ``snapshot`` from now on, which comes in chunks of five bytes."""
    offsets: dict[bytes, int] = {}  # of the snapshots under way: request id -> where the next chunk starts

    def answer(arguments: Frames) -> list[Frames]:
        request_id = peers.seen[-1][1]
        previous, count, start = (int.from_bytes(b"".join(arguments[n : n + 1]), "little") for n in range(3))
        if arguments[1:2] and not count and arguments[1]:
            offsets.pop(request_id, None)
            return []
        if previous >= index and request_id not in offsets:
            return [[b"\x01", b"\xc0", uint(len(peers.log)), *peers.log[previous:]]]
        offset = offsets.pop(request_id, start)
        chunk = snapshot[offset : offset + 5]
        if offset + len(chunk) < len(snapshot):
            offsets[request_id] = offset + len(chunk)
        return [[b"\x03", msgpack.packb([offset, len(snapshot), 1]), uint(index), chunk]]

    peers.script("1", ENTRIES, answer)
