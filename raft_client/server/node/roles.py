"""The roles of a peer.

::

    CLIENT ──> FOLLOWER ──> CANDIDATE ──> LEADER
      ^            ^            │            │
      │            └────────────┴────────────┤   a higher term, or a leader
      └──────────────────────────────────────┘   no member of the cluster any more
                                    any ──> STOPPED   the disk failed

Source: Raft (Ongaro, *Consensus: Bridging Theory and Practice*), §3.3; facts §3 for CLIENT.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """What a peer is at the moment."""

    CLIENT = "client"  # not in the configuration: copies the log, has no election time-out
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"
    STOPPED = "stopped"  # says nothing any more
