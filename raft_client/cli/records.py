"""Log entries as people and other programs read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from raft_client.cli.output import as_json
from raft_client.errors import RaftError
from raft_client.wire.configuration import ConfigChange, Peers, decode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.request_id import ZERO_REQUEST_ID


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
        change = _change(entry)
        record["peers"] = None if change is None else _by_id(change.new)
        if change is not None and change.old is not None:
            record["old_peers"] = _by_id(change.old)
    return record


def entry_line(entry: LogEntry) -> bytes:
    """``INDEX state DATA``, ``INDEX config ID=URL …`` or ``INDEX checkpoint``; a transition is ``OLD … -> NEW …``."""
    head = f"{entry.index} {type_name(entry)}".encode()
    if entry.kind is EntryKind.STATE:
        return b"%b %b\n" % (head, entry.data)
    if entry.kind is EntryKind.CONFIG:
        return b"%b %b\n" % (head, _sides(_change(entry)).encode())
    return head + b"\n"


def _change(entry: LogEntry) -> ConfigChange | None:
    """None when the entry cannot be read."""
    try:
        return decode_config(entry.data)
    except RaftError:
        return None


def _by_id(peers: Peers) -> dict[str, str]:
    return {peer.id: peer.url for peer in peers}


def _sides(change: ConfigChange | None) -> str:
    """The peers in force; in a transition both lists, for both have to agree on everything."""
    if change is None:
        return ""
    sides = [change.new] if change.old is None else [change.old, change.new]
    return " -> ".join(" ".join(f"{peer.id}={peer.url}" for peer in side) for side in sides)
