"""Log entries as people and other programs read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from raft_client.cli.output import as_json
from raft_client.errors import RaftError
from raft_client.wire.entries import EntryKind, LogEntry, decode_config
from raft_client.wire.request_id import ZERO_REQUEST_ID

__all__ = ["entry_line", "entry_record", "made_at", "type_name"]


def type_name(entry: LogEntry) -> str:
    """``state``, ``config`` or ``checkpoint``."""
    return entry.kind.name.lower()


def made_at(entry: LogEntry) -> datetime | None:
    """When its request id was made, to the second, by the clock of the one who made it; None for a checkpoint."""
    request_id = entry.request_id
    return None if request_id == ZERO_REQUEST_ID else datetime.fromtimestamp(request_id.seconds, UTC)


def entry_record(entry: LogEntry) -> dict[str, Any]:
    """For JSON. ``data`` is text, or Base64 under ``data_base64``; peers in a CONFIG entry are decoded, too."""
    made = made_at(entry)
    record: dict[str, Any] = {
        "index": entry.index,
        "term": entry.term,
        "type": type_name(entry),
        "request_id": None if made is None else str(entry.request_id),
        "time": None if made is None else made.isoformat().replace("+00:00", "Z"),
        **as_json("data", entry.data),
    }
    if entry.kind is EntryKind.CONFIG:
        record["peers"] = _peers(entry)
    return record


def entry_line(entry: LogEntry) -> bytes:
    """``INDEX state DATA``, ``INDEX config ID=URL …`` or ``INDEX checkpoint``."""
    head = f"{entry.index} {type_name(entry)}".encode()
    if entry.kind is EntryKind.STATE:
        return b"%b %b\n" % (head, entry.data)
    if entry.kind is EntryKind.CONFIG:
        words = [f"{name}={url}" for name, url in (_peers(entry) or {}).items()]
        return b"%b %b\n" % (head, " ".join(words).encode())
    return head + b"\n"


def _peers(entry: LogEntry) -> dict[str, str] | None:
    """The list that shall be in force; None when the entry cannot be read."""
    try:
        return {peer.id: peer.url for peer in decode_config(entry.data).new}
    except RaftError:
        return None
