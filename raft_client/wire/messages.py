"""Every RPC of ØMQ Raft, one class per request and reply: frames <-> values.

A message turns into the frames *after* the request id (``to_frames``) and is read from them (``from_frames``). What
matches requests and replies puts the id in front: a ``uint32``, or the 12-byte
:class:`~raft_client.wire.request_id.RequestId` for RequestUpdate and ConfigUpdate. There is no empty delimiter frame.
Frames after those of the table are ignored, as the peers do.

==================  ====  ====================================================  ===================================
request             type  its frames                                            frames of the reply
==================  ====  ====================================================  ===================================
RequestConfig       5e    ident                                                 is leader, leader id, peers
RequestLogInfo      25    ident                                                 is leader, leader id, 7 numbers
RequestUpdate       3d    ident, data                                           ok, index or leader id?
ConfigUpdate        26    ident, peers                                          status, index, leader id or error?
RequestEntries      3c    ident, after, count?, snapshot offset?                status, info, last index?, entries
BroadcastStateUrl   2a    ident                                                 url?
ClientDispatch      any   ident, frames of your own                             frames of the state machine
StateBroadcast      none  ident, term, last applied, entries                    published, not asked for
RequestVote         3f    ident, candidate, term, last index, last term         term, granted
AppendEntries       2b    ident, leader, term, prev index, prev term, commit,   term, success, conflict index?,
                          entries                                               conflict term?
InstallSnapshot     24    ident, leader, term, index, its term, offset, size,   term, position?
                          chunk
==================  ====  ====================================================  ===================================

Values are checked when they are made, so that nothing malformed can be sent: one bad frame ends the process of a Node
peer (facts §1.4). Making one raises :class:`~raft_client.errors.InvalidArgumentError`; reading one raises
:class:`~raft_client.errors.ProtocolError`, and nothing but that.

Source: ØMQ Raft protocol, the section of each RPC; facts §1.3.
"""

from __future__ import annotations

from typing import Protocol

from raft_client.wire.client_dispatch import ClientDispatch
from raft_client.wire.cluster_queries import (
    BroadcastStateUrl,
    BroadcastStateUrlReply,
    ConfigReply,
    LogInfoReply,
    RequestConfig,
    RequestLogInfo,
)
from raft_client.wire.peer_rpcs import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from raft_client.wire.request_entries import EntriesReply, EntriesStatus, RequestEntries
from raft_client.wire.snapshots import SnapshotChunk
from raft_client.wire.state_broadcast import StateBroadcast
from raft_client.wire.update_requests import ConfigUpdate, ConfigUpdateReply, Outcome, RequestUpdate, UpdateReply

__all__ = [
    "AppendEntries",
    "AppendReply",
    "BroadcastStateUrl",
    "BroadcastStateUrlReply",
    "ClientDispatch",
    "ConfigReply",
    "ConfigUpdate",
    "ConfigUpdateReply",
    "EntriesReply",
    "EntriesStatus",
    "InstallSnapshot",
    "LogInfoReply",
    "Message",
    "Outcome",
    "RequestConfig",
    "RequestEntries",
    "RequestLogInfo",
    "RequestUpdate",
    "RequestVote",
    "SnapshotChunk",
    "SnapshotReply",
    "StateBroadcast",
    "UpdateReply",
    "VoteReply",
]


class Message(Protocol):
    """What can be sent."""

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        ...
