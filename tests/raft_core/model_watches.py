"""Watches in a shell, a codec that counts, and shorthand for the tests of both."""

from __future__ import annotations

from typing import Any

from model_peer import IDENT, Log, ModelPeer
from model_shell import Shell

from raft_client.core.selectors import Selector
from raft_client.core.watch_events import DEFAULT_QUEUE_BYTES, WatchEvent, WatchState
from raft_client.core.watches import Watches
from raft_client.wire.key_changes import Change, ChangeKind

__all__ = ["LineCodec", "history", "seen", "start", "take", "watch", "write"]


class LineCodec:
    """Entries such as ``b"a/1=x;b/2"``: sets a/1 and deletes b/2. ``!`` is broken, ``-`` belongs to others."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, data: bytes) -> list[Change]:
        self.decoded += 1
        if data.startswith(b"!"):
            raise ValueError("broken")
        if data.startswith(b"-"):
            return []
        changes = []
        for part in data.split(b";"):
            key, equals, value = part.partition(b"=")
            kind = ChangeKind.SET if equals else ChangeKind.DELETE
            changes.append(Change(kind, key, value if equals else None))
        return changes


def start(log: Log | None = None, *, watch_bytes: int = DEFAULT_QUEUE_BYTES, **options: Any) -> Shell:
    """No watches yet, and a cluster. ``watch_bytes`` is for each watch."""
    codec = LineCodec()
    shell = Shell(Watches(IDENT, codec, **options), ModelPeer(log or Log()))
    shell.codec = codec  # for tests that count
    shell.watch_bytes = watch_bytes
    return shell


def write(shell: Shell, *datas: bytes, lost: bool = False) -> None:
    """New entries, broadcast together unless that is lost."""
    first = shell.leader.log.end + 1
    for data in datas:
        shell.leader.log.append(data)
    if not lost:
        shell.hear(shell.broadcast(first, shell.leader.log.end))


def watch(shell: Shell, selector: Selector, **options: Any) -> WatchState:
    """A watch that has started."""
    made: WatchState = shell.machine.watch(selector, **{"queue_bytes": shell.watch_bytes, **options})
    shell.act()
    shell.settle()
    return made


def take(shell: Shell, watch: WatchState) -> list[Any]:
    """All that the watch has, with what arrives meanwhile."""
    items = []
    while True:
        shell.settle()
        item = shell.machine.next_item(watch, shell.now)
        shell.act()
        if item is None:
            if not any(c.inbox for c in shell.conversations.values()):
                return items
            continue
        items.append(item)


def seen(items: list[Any]) -> list[tuple[int, list[bytes]]]:
    """Index and keys of events."""
    return [(i.index, [c.key for c in i.changes]) for i in items if isinstance(i, WatchEvent)]


def history(count: int) -> Log:
    """Entries that set key k1, k2, k3 and so on."""
    log = Log()
    for n in range(1, count + 1):
        log.append(b"k%d=%d" % (n, n))
    return log
