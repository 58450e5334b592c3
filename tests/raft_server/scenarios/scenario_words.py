"""How scenarios write entries, logs, messages and jobs of the disk: the same words are read and printed.

A place in a log is ``INDEX/TERM``. In a log only the terms stand, as in the figures of the paper: ``2`` is an entry of
term 2, ``2:x`` one with the update ``x`` of a client, ``2:*`` a CHECKPOINT, ``2:{1,2,3}`` a CONFIG entry with these
members, and ``2:{1,2,3->3,4}`` the transition between two lists.
"""

from __future__ import annotations

import re

from raft_client.server.node.ready import Persist
from raft_client.wire.client_requests import ConfigUpdateReply, UpdateReply
from raft_client.wire.configuration import ConfigChange, Peer, Peers, decode_config, encode_config
from raft_client.wire.frames import Message
from raft_client.wire.log_entry import CHECKPOINT_DATA, EntryKind, LogEntry, SnapshotChunk
from raft_client.wire.peer_messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from raft_client.wire.request_id import RequestId
from raft_client.wire.streams import EntriesReply, RequestEntries

__all__ = ["WALL_S", "id_of", "job_words", "log_words", "message_words", "peers_of", "place", "read_entry"]

#: What the wall clock says when a scenario begins, and in each request id.
WALL_S = 1.7e9
_CONFIG = re.compile(r"\{(.*)\}$")


def peers_of(names: str) -> Peers:
    """Of a list of names with commas. A name has one letter."""
    return tuple(Peer(name, f"tcp://127.0.0.1:{8000 + ord(name)}") for name in names.split(","))


def id_of(name: str) -> RequestId:
    """The request id of the update with this name: always the same, and fresh."""
    return RequestId.derive(name, 0, seconds=int(WALL_S))


def read_entry(word: str, index: int) -> LogEntry:
    """One word of a log."""
    number, _, what = word.partition(":")
    term = int(number)
    if not what:
        return LogEntry.of(f"{index}/{term}".encode(), term=term, index=index)
    if what == "*":
        return LogEntry.of(CHECKPOINT_DATA, term=term, kind=EntryKind.CHECKPOINT, index=index)
    config = _CONFIG.match(what)
    if config is None:
        return LogEntry.of(what.encode(), term=term, request_id=id_of(what), index=index)
    old, _, new = config[1].rpartition("->")
    change = ConfigChange(peers_of(new), peers_of(old) if old else None)
    return LogEntry.of(encode_config(change), term=term, kind=EntryKind.CONFIG, request_id=id_of(what), index=index)


def entry_word(entry: LogEntry) -> str:
    """As it is read."""
    if entry.kind is EntryKind.CHECKPOINT:
        return f"{entry.term}:*"
    if entry.kind is EntryKind.CONFIG:
        change = decode_config(entry.data)
        lists = [",".join(peer.id for peer in peers) for peers in (change.old, change.new) if peers is not None]
        return f"{entry.term}:{{{'->'.join(lists)}}}"
    return f"{entry.term}:{entry.data.decode()}" if any(entry.request_id.raw) else str(entry.term)


def log_words(entries: list[LogEntry] | tuple[LogEntry, ...]) -> str:
    """The entries one after the other."""
    return " ".join(map(entry_word, entries))


def place(index: int, term: int | None) -> str:
    """Where a log ends."""
    return f"{index}/{term}"


def job_words(job: Persist) -> str:
    """What the disk is to do, in the order in which it does it."""
    parts: list[str] = []
    if job.hard_state is not None:
        vote = f" vote {job.hard_state.voted_for}" if job.hard_state.voted_for else ""
        parts.append(f"term {job.hard_state.term}{vote}")
    if job.chunk is not None:
        parts.append(_chunk_words(job.chunk))
    if job.install is not None:
        parts.append(f"installs the snapshot {place(job.install.index, job.install.term)}")
    if job.truncate_after is not None:
        parts.append(f"cuts after {job.truncate_after}")
    if job.entries:
        parts.append(f"entries from {job.entries[0].index}: {log_words(job.entries)}")
    return ", ".join(parts)


def _chunk_words(chunk: SnapshotChunk) -> str:
    return f"bytes {chunk.offset} to {chunk.end} of {chunk.size} of the snapshot {place(chunk.index, chunk.term)}"


def _entries_words(message: AppendEntries | EntriesReply) -> str:
    return f": {log_words(message.entries)}" if message.entries else ""


def _no(value: bool) -> str:
    return "yes" if value else "no"


def message_words(message: Message) -> str:
    """One line, all that decides what its receiver does."""
    match message:
        case RequestVote() | PreVote():
            kind = type(message).__name__
            agrees = ", the leader agrees" if getattr(message, "leader_agrees", False) else ""
            return f"{kind} term {message.term}, log ends at {place(message.last_index, message.last_term)}{agrees}"
        case VoteReply() | PreVoteReply():
            return f"{type(message).__name__} term {message.term}, {_no(message.granted)}"
        case AppendEntries():
            before = place(message.prev_index, message.prev_term)
            return f"AppendEntries term {message.term}, after {before}, commit {message.commit_index}" + _entries_words(
                message
            )
        case AppendReply():
            conflict = "" if message.conflict_index is None else f", conflict at {message.conflict_index}"
            return f"AppendReply term {message.term}, {_no(message.success)}{conflict}"
        case InstallSnapshot():
            return f"InstallSnapshot term {message.term}, {_chunk_words(message.chunk)}"
        case SnapshotReply():
            position = "" if message.position is None else f", go on at {message.position}"
            return f"SnapshotReply term {message.term}{position}"
        case RequestEntries():
            return f"RequestEntries after {message.after}"
        case EntriesReply():
            leader = f", {message.leader_id} leads" if message.leader_id else ""
            chunk = f", {_chunk_words(message.chunk)}" if message.chunk is not None else ""
            return (
                f"EntriesReply {message.status.name.lower().replace('_', ' ')}{leader}{chunk}{_entries_words(message)}"
            )
        case TimeoutNow():
            return f"TimeoutNow term {message.term}"
        case TimeoutNowReply():
            return f"TimeoutNowReply term {message.term}, {_no(message.started)}"
        case ReadIndex():
            return "ReadIndex"
        case ReadIndexReply():
            return f"ReadIndexReply {message.index if message.index is not None else f'no, {message.leader_id} leads'}"
        case UpdateReply() | ConfigUpdateReply():
            place_ = f" at {message.index}" if message.index is not None else ""
            leader = f", {message.leader_id} leads" if message.leader_id else ""
            error = (
                f": {message.error_message}" if isinstance(message, ConfigUpdateReply) and message.error_message else ""
            )
            return f"{message.outcome.value}{place_}{leader}{error}"
    return repr(message)
