"""The store of a server whose keys cross to other sites: it tells what changes, and takes what other sites have.

What another site has is an *import*: a key that no command of a client has set. It has no expiry, no mark and no user
here, and nothing of it is on the disk: after a restart it comes again from the other sites. Clients read, scan and
observe it as any key. Refusing their writes is the service's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from statestore_client.errors import QuotaExceededError
from statestore_client.server.store.keyspace import Entry
from statestore_client.server.store.store import StateStore
from statestore_client.server.store.survival import Kept
from statestore_client.server.store.values import RequestContext
from statestore_client.wire.commands import Set
from statestore_client.wire.notifications import Notification, Operation
from statestore_client.wire.replies import OK

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.store.store import Answer
    from statestore_client.server.store.values import Change
    from statestore_client.wire.hlc import HlcTimestamp
    from statestore_client.wire.instant import Instant

__all__ = ["SiteStore"]

#: Imports come and go for nobody in particular.
_NOBODY: Final = ""
_NOBODYS: Final = None


class SiteStore(StateStore):
    """``on_change(key, entry)`` hears of each SET that was applied, and of each key that was deleted: None. It must not
    change the store. A key that may expire has been heard of when it got its expiry, and is not heard of again.
    """

    __slots__ = ("on_change",)

    def __init__(self, **options: Any) -> None:
        """``options`` are those of :class:`StateStore`."""
        super().__init__(**options)
        self.on_change: Callable[[bytes, Entry | None], object] = _ignore

    # -- imports -------------------------------------------------------------------------------------------------------

    def put_import(self, key: bytes, value: bytes, now: Instant) -> bool:
        """Another site has this value. False, and nothing has changed, if the quota does not allow it.

        A value that a client has set under this key, before the server became a site, is replaced, also on the disk.
        Call :meth:`take_changes` after some of these.
        """
        self._local_clock.read(now)
        entry = self._keyspace.get(key)
        try:
            self._check_quota(Set(key, value), entry, _NOBODYS, now)
        except QuotaExceededError:
            return False
        version = self._clock.tick(now.wall_ms)
        if entry is None:
            entry = Entry(value, version, None, None, Kept.NOTHING)
            replaced = self._survival.take_mark(key, Kept.NOTHING)
            self._keyspace.add(key, entry)
        else:
            replaced = entry.expires_at
        self._survival.removed(key, entry)  # nothing is kept of it, but its version never comes again
        self._keyspace.replace_value(key, entry, value, _NOBODYS)
        entry.version, entry.fence, entry.expires_at, entry.kept = version, None, None, Kept.NOTHING
        self._reschedule(key, replaced, None)
        self._notify(key, Notification(Operation.SET, value), version)
        return True

    def drop_import(self, key: bytes, now: Instant) -> None:
        """The other site has it no longer. Call :meth:`take_changes` after some of these."""
        entry = self._keyspace.get(key)
        if entry is not None:
            self._local_clock.read(now)
            self._remove(key, entry, RequestContext(_NOBODY, None, None, now))

    def take_changes(self) -> tuple[Change, ...]:
        """What observers are to be told of the imports since the last call."""
        return self._take_changes()

    # -- what changes --------------------------------------------------------------------------------------------------

    def _set(self, command: Set, request: RequestContext) -> Answer:
        answer = super()._set(command, request)
        if answer[0] is OK:
            self.on_change(command.key, self._keyspace.get(command.key))
        return answer

    def _remove(self, key: bytes, entry: Entry, request: RequestContext) -> HlcTimestamp:
        version = super()._remove(key, entry, request)
        self.on_change(key, None)
        return version


def _ignore(key: bytes, entry: Entry | None) -> None:
    """Nobody wants to know."""
