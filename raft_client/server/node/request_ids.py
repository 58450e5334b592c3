"""Which request ids may be appended.

An id is in the log or it is not: :meth:`.log.Log.index_of_request` knows those of the tail and asks the stored log for
the others. One that is in neither is new, or so old that it was forgotten; its first bytes say when it was made, so an
id that is older than what is remembered is refused (ØMQ Raft protocol, "RequestUpdate RPC"; facts §1.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.wire.request_id import IdFreshness

if TYPE_CHECKING:
    from raft_client.server.node.state import NodeState
    from raft_client.wire.request_id import RequestId


def is_fresh(request_id: RequestId, state: NodeState) -> bool:
    """Whether an id that is not in the log is new for certain. ``wall_s`` is the clock of this peer."""
    ttl_s = state.settings.request_id_ttl_s
    return ttl_s is None or request_id.freshness(state.wall_s, ttl_s=ttl_s) is IdFreshness.FRESH
