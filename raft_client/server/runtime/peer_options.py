"""One way to make a peer: for ``zmqraft serve``, embedded peers and embedded clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from raft_client.errors import InvalidArgumentError
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.state_machine import StateMachine
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.curve_keys import CurveKeys
from raft_client.server.runtime.peer import RaftPeer, check_first_start
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits

if TYPE_CHECKING:
    from raft_client.wire.configuration import Peers


@attrs.frozen(kw_only=True)
class PeerOptions:
    """What all peers of a cluster have in common. Raises InvalidArgumentError for what cannot be used.

    ``settings`` are changes of :class:`.NodeSettings`; ``curve_keys`` is the directory of all public keys. What the
    options mean is said where people give them: :class:`raft_client.server.EmbeddedCluster`.
    """

    cluster: str = ""
    machine: Callable[[], StateMachine] = KeyValueStateMachine
    fsync: Fsync = Fsync.GROUP
    limits: StorageLimits | None = None
    curve_keys: Path | None = None
    compact_bytes: int | None = None
    trim_forgets_ids: bool = False
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        value: object = self.compact_bytes
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidArgumentError(
                f"compact_bytes is a number of bytes, at least 1, or None, not {value!r}", argument="compact_bytes"
            )
        self.settings_of("1")

    def settings_of(self, peer_id: str) -> NodeSettings:
        """All settings of this peer."""
        own = {"peer_id": peer_id, "ident": self.cluster.encode(), "trim_forgets_ids": self.trim_forgets_ids}
        try:
            return NodeSettings(**{**own, **self.settings})
        except TypeError as error:
            raise InvalidArgumentError(f"settings cannot be used: {error}") from None


def open_peer(
    options: PeerOptions,
    peer_id: str,
    peers: Peers,
    data: Path,
    *,
    url: str,
    publisher_url: str,
    open_log: Callable[..., DiskLog] = DiskLog.open,
    **more: Any,
) -> RaftPeer:
    """Open the log at ``data`` and return the peer that writes to it, to be started.

    ``peers`` count when there is no log yet; later it says who they are. ``more`` and the URLs are what
    :class:`.RaftPeer` takes. Raises TransportError if this is the first start and an address is taken, SettingsError if
    a key is missing, and what :meth:`.DiskLog.open` raises.
    """
    settings = options.settings_of(peer_id)
    keys = CurveKeys.of_member(options.curve_keys, peer_id, peers)
    check_first_start(data, url, publisher_url)
    log = open_log(data, peer_id=peer_id, ident=settings.ident, peers=peers, fsync=options.fsync, limits=options.limits)
    return RaftPeer(
        settings,
        log,
        options.machine(),
        url=url,
        publisher_url=publisher_url,
        keys=keys,
        compact_bytes=options.compact_bytes,
        **more,
    )
