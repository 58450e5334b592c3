"""A scripted log of ten entries, of which the first four were compacted. Bytes by hand."""

from __future__ import annotations

from support.scripted_peers import ScriptedCluster

__all__ = ["CHUNKS", "compacted"]

ENTRIES, LOG_INFO = b"\x3c", b"\x25"
#: MessagePack of [offset, size, term]: a snapshot of 6 bytes, of term 2, in two chunks; it stands at index 4.
CHUNKS = [
    [b"\x03", b"\x93\x00\x06\x02", b"\x04", b"abc"],
    [b"\x03", b"\x93\x03\x06\x02", b"\x04", b"def"],
]


def compacted(peers: ScriptedCluster) -> None:
    """Entries up to 4 of 10 exist only as a snapshot."""
    peers.fill(10)
    numbers = [b"\x01", b"\x05", b"\x0a", b"\x0a", b"\x0a", b"\x06", b"\x00"]

    def stream(arguments: list[bytes]) -> list[list[bytes]]:
        after = int.from_bytes(arguments[0], "little")
        stop = len(arguments) > 1 and arguments[1] == b"\x00"
        if stop:
            return []
        if after < 4:
            return CHUNKS
        count = int.from_bytes(arguments[1], "little") if len(arguments) > 1 and arguments[1] else 10
        entries = peers.log[after : after + count]
        return [[b"\x01", b"\xc0", bytes([after + len(entries)]), *entries]]

    peers.script("1", LOG_INFO, lambda _: [[b"\x01", b"\xa11", *numbers]])
    peers.script("1", ENTRIES, stream)
