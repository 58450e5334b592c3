"""Bytes <-> values, in both directions, and nothing else.

===================  ===============================================================================================
module               what it reads and writes
===================  ===============================================================================================
``frames``           one frame: numbers, texts, json
``fields``           how a message is declared: the fields that it is made of, and a reader of frames for the others
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
Frames after those of a message are ignored, as
the peers do. ``docs/reference/raft-messages.md`` shows all of them.

Values are checked when they are made, so that nothing malformed can be sent: one bad frame ends the process of a Node
peer (facts §1.4). Making one raises :class:`~raft_client.errors.InvalidArgumentError`; reading one raises
:class:`~raft_client.errors.ProtocolError`, and nothing but that.

Source: ØMQ Raft protocol, the section of each RPC; facts §1.3.
"""
