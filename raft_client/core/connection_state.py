"""Whether there is a leader to talk to, as users see it."""

from __future__ import annotations

from enum import StrEnum

import attrs

from raft_client.errors import RaftError
from raft_client.wire.configuration import Peer


class ConnectionState(StrEnum):
    """The life of a client's connection to its cluster."""

    CONNECTING = "connecting"  # no leader was found yet
    CONNECTED = "connected"  # requests go to a leader
    #: The leader was lost. The next one is looked for as soon as something is asked; what was under way waits for it.
    SUSPENDED = "suspended"
    CLOSED = "closed"


@attrs.frozen
class StateChanged:
    """Another state than before. ``leader`` is the new one, when connected; ``error`` is why the last one was lost."""

    state: ConnectionState
    leader: Peer | None = None
    error: RaftError | None = None
