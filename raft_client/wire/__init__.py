"""Bytes <-> values, in both directions, and nothing else.

===================  ===============================================================================================
module               what it reads and writes
===================  ===============================================================================================
``frames``           one frame: numbers, texts, json
``fields``           the fields that messages are made of: their checks, and a reader of frames
``client_requests``  what a client asks, and the answers: queries, updates, changes of the cluster, compaction
``streams``          what a peer sends of its log: RequestEntries and StateBroadcast
``watch_messages``   what watches that the leader serves send and receive
``peer_messages``    what peers ask each other, and which request a message to a peer is
``hello``            what a peer knows beyond the document, hidden in a request id
``log_entry``        entries, places in the log, chunks of snapshots
``configuration``    lists of peers and their URLs
``key_changes``      changes of keys, as codecs read them from entries
``request_id``       the ids of appends
===================  ===============================================================================================

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
