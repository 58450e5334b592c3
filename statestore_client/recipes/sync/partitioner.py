# Generated from statestore_client/recipes/aio/partitioner.py by tools/twins.py. Edit that, and run "make twins".
"""Share work among the members of a group, and hand items over when a member joins or leaves."""

from __future__ import annotations

import contextlib
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from statestore_client.core.arguments import check_wait
from statestore_client.errors import ClosedError, LockNotAcquiredError, PickleRefusedError, StateStoreError
from statestore_client.recipes.shares import GiveBack, Join, Look, Sharing, Step, Take, checked_items
from statestore_client.recipes.sync.members import DEFAULT_RESCAN_S, Members
from statestore_client.sync.client import StateStoreClient
from statestore_client.sync.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable


class Partitioner:
    """Shares ``items`` among all that enter one of the same ``name``; all of them give the same items.

    ::

        with Partitioner(store, "line1/work", ["press-1", "press-2", "oven"]) as work:
            while True:
                for item, lease in work.update(timeout=1.0).items():
                    ...  # one piece of work for the item; lease.store writes it

    Each item is a lock, ``NAME/items/ITEM``, and the members are a group, ``NAME/members``. When somebody comes or goes
    all agree on new shares. An item that has another owner then is given back by the old one in its next
    :meth:`update`, and taken by the new one after that: two never have it at a time. Items of a member that has died
    are free when its leases have ended, after ``lease`` seconds.

    What is protected: what is read and written through ``lease.store``, with the token of the item's own lock. Whatever
    else a member does may be late when it has stood still: ask ``lease.check()`` before. What it does not do: work
    between two updates is not interrupted, so call it often; items are not weighed, only counted.
    """

    def __init__(
        self,
        store: StateStoreClient,
        name: str,
        items: Iterable[str],
        *,
        member: str | None = None,
        lease: float = 10.0,
        rescan: float = DEFAULT_RESCAN_S,
    ) -> None:
        self._store = store
        self._name = name
        self._items = checked_items(items)
        self._lease_s = lease
        #: What this member is called in the group.
        self.member: str = uuid.uuid4().hex if member is None else member
        self._sharing = Sharing(self.member, self._items)
        self._group = Members(store, f"{name}/members", lease=lease)
        self._rosters = self._group.watch(rescan=rescan)
        self._membership: Lease | None = None
        self._held: dict[str, Lease] = {}

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a partitioner cannot be pickled: send client.settings, its name and its items")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name[:80]!r}, {len(self._held)} of {len(self._items)} items>"

    def update(self, timeout: float = 0.0) -> dict[str, Lease]:
        """Give back what others should have, and take what is due to this member; returns what it has now.

        If there is nothing to do it waits for a change, up to ``timeout`` seconds. A member that was away for longer
        than its lease has nothing, and joins again. Raises ClosedError where it was not entered, and what
        :meth:`Lock.try_acquire` raises; what is held stays held then.
        """
        if self._membership is None:
            raise ClosedError("a partitioner works while its block runs")
        patience = check_wait(timeout) or 0.0
        steps = self._sharing.update(self._held, patience, is_member=self._membership.valid)
        answer: object = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = self._do(steps.send(answer))
        return dict(self._held)

    def _do(self, step: Step) -> object:
        match step:
            case Join(seconds):
                try:
                    self._membership = self._group.join(self.member, seconds)
                except LockNotAcquiredError:  # its former lease has not ended at the server, whose clock decides
                    return False
                return True
            case Look(seconds):
                return self._rosters.get(seconds)
            case GiveBack(item):
                with contextlib.suppress(StateStoreError):  # it ends by itself
                    self._held.pop(item).release()
            case Take(item):
                lease = self._store.lock(f"{self._name}/items/{item}", lease=self._lease_s).try_acquire()
                if lease is not None:
                    self._held[item] = lease
        return None

    def __enter__(self) -> Self:
        self._membership = self._group.join(self.member)
        try:
            self._rosters.start()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """The items first: who sees that this member is gone finds them free."""
        membership, self._membership = self._membership, None
        for item in sorted(self._held):
            self._do(GiveBack(item))
        self._rosters.close()
        if membership is not None:
            with contextlib.suppress(StateStoreError):
                membership.release()
