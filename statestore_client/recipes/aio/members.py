"""A group of programs that know of each other: who is there, and who is there no more."""

from __future__ import annotations

import uuid
from collections import deque
from typing import NoReturn, Self

from statestore_client.aio.acquisition import acquisition
from statestore_client.aio.client import AsyncStateStoreClient
from statestore_client.aio.leases import AsyncLease
from statestore_client.aio.watch import AsyncEventIterator
from statestore_client.clocks import monotonic
from statestore_client.core.arguments import check_wait
from statestore_client.errors import PickleRefusedError
from statestore_client.recipes.roster import Roster, RosterView, key_of, name_in, pattern_of, prefix_of

#: The group is listed anew so often, in seconds: who joins is seen within this time.
DEFAULT_RESCAN_S = 1.0


class AsyncMembersWatch(AsyncEventIterator[Roster]):
    """The members of a group as they change; made by :meth:`Members.watch`.

    Use it as a context manager, which starts it, and iterate: the first roster is the present one, the next comes when
    somebody has joined or left, or when the connection is lost or is back. Renewals do not count. Iteration ends when
    it is closed.
    """

    def __init__(self, store: AsyncStateStoreClient, group: str, rescan: float) -> None:
        self._watch = store.watch_prefix(prefix_of(group), rescan=rescan, initial=True, connection_events=True)
        self._view = RosterView(group)
        self._first: deque[Roster] = deque()

    async def start(self) -> Self:
        """Start; returns when the present members are known."""
        await self._watch.start()
        while (event := await self._watch.get(timeout=0)) is not None:
            self._view.changed(event)
        self._first.append(self._view.roster)
        return self

    async def get(self, timeout: float | None = None) -> Roster | None:
        """The next roster, or None when it did not change within ``timeout`` seconds (None: for ever; 0: only a look).

        Raises :class:`ClosedError` once it or its client is closed.
        """
        seconds = check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        while not self._first:
            remaining = None if deadline is None else max(0.0, deadline - monotonic())
            event = await self._watch.get(timeout=remaining)
            if event is None:
                return None
            if self._view.changed(event):
                return self._view.roster
        return self._first.popleft()

    async def close(self) -> None:
        """Watch no longer. Closing twice is harmless."""
        self._first.clear()
        await self._watch.close()


class AsyncMembers:
    """A group: programs join it, end with their process, and see each other. A member is a lease on ``GROUP/NAME``.

    A membership renews itself, and ends ``lease`` seconds after its program has died or was cut off. Members that watch
    see who leaves at once, and who joins within ``rescan`` seconds of :meth:`watch`: new keys are found by listing.

    What it does not protect: who is in the roster may be gone since, and two members may see different rosters for as
    long as that takes. Where only one may act, take a lock, or send the membership's ``fencing_token`` along.
    """

    def __init__(self, store: AsyncStateStoreClient, group: str, *, lease: float = 10.0) -> None:
        self._store = store
        self._group = group
        self._lease_s = lease
        store.lock(key_of(group, "a"), lease=lease)  # raises for what cannot be

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a group cannot be pickled: send client.settings and its name")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._group[:80]!r}>"

    @acquisition  # asyncio only: lets "async with" wait for the lease and enter it
    async def join(self, name: str | None = None, timeout: float | None = None) -> AsyncLease:
        """Be a member, as ``name`` (a unique one by default); leaving the lease, or releasing it, leaves the group.

        A name that another one has is waited for, up to ``timeout`` seconds: a program that was killed is a member
        until its lease ends. ``lease.on_lost`` tells when the others think that this member is gone. Raises as
        :meth:`Lock.acquire` does.
        """
        key = key_of(self._group, uuid.uuid4().hex if name is None else name)
        return await self._store.lock(key, lease=self._lease_s).acquire(timeout)

    async def present(self) -> Roster:
        """The members now."""
        keys = self._store.scan(pattern_of(self._group))
        named = {name: key async for key in keys if (name := name_in(self._group, key)) is not None}
        found = await self._store.get_many(named.values())
        return Roster({name: item.value for name, item in zip(named, found, strict=True) if item is not None})

    def watch(self, *, rescan: float = DEFAULT_RESCAN_S) -> AsyncMembersWatch:
        """The members as they change: an iterator of :class:`Roster`, used as a context manager. ``rescan``: see
        :meth:`StateStoreClient.watch_prefix`.
        """
        return AsyncMembersWatch(self._store, self._group, rescan)
