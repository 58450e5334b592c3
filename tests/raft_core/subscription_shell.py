"""A subscription in a shell that only tests have."""

from __future__ import annotations

from typing import Any

from model_peer import IDENT, Log, ModelPeer
from model_shell import Shell

from raft_client.core.subscription import Subscription

__all__ = ["subscribe"]


def subscribe(log: Log, after: int | None = 0, **options: Any) -> Shell:
    """A subscription that was just started."""
    shell = Shell(Subscription(IDENT, after, **options), ModelPeer(log))
    shell.machine.start(shell.now)
    shell.act()
    return shell
