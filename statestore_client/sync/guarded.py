# Generated from statestore_client/aio/guarded.py by tools/twins.py. Edit that, and run "make twins".
"""A store whose writes carry a lease's fencing token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from statestore_client.core.arguments import (
    DEFAULT_TIMEOUT,
    Bytes,
    ConditionName,
    SetItem,
    Timeout,
    check_batch,
    check_timeout,
)
from statestore_client.core.leases import check_after
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.errors import BatchError, InvalidArgumentError, TransportError
from statestore_client.sync.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.sync.client import StateStoreClient

__all__ = ["GuardedStore"]

_T = TypeVar("_T")


class GuardedStore:
    """The methods of a client, guarded by a lease; made by :meth:`StateStoreClient.guarded`.

    Every write carries the lease's fencing token. Nothing is sent once the lease is over: :class:`LeaseLostError` is
    raised instead. No request waits longer than the lease lasts, for the sake of an outage in the middle: what would be
    sent after it might overwrite the next holder's work. Reads are refused alike, since work that goes on with what it
    read after the loss is what the lease is to prevent.
    """

    def __init__(self, store: StateStoreClient, lease: Lease) -> None:
        self._store = store
        self._lease = lease

    @property
    def lease(self) -> Lease:
        """The lease that guards it."""
        return self._lease

    def set(
        self,
        key: Bytes,
        value: Bytes,
        *,
        condition: ConditionName | None = None,
        expected: Bytes | None = None,
        expiry: float | None = None,
        persist: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> SetResult:
        """As :meth:`StateStoreClient.set`, with the lease's token."""
        token = self._lease.fencing_token
        return self._call(
            lambda wait: self._store.set(
                key,
                value,
                condition=condition,
                expected=expected,
                expiry=expiry,
                fencing_token=token,
                persist=persist,
                timeout=wait,
            ),
            timeout,
        )

    def get(self, key: Bytes, *, timeout: Timeout = DEFAULT_TIMEOUT) -> Item | None:
        """As :meth:`StateStoreClient.get`."""
        return self._call(lambda wait: self._store.get(key, timeout=wait), timeout)

    def delete(self, key: Bytes, *, timeout: Timeout = DEFAULT_TIMEOUT) -> DeleteResult:
        """As :meth:`StateStoreClient.delete`, with the lease's token."""
        token = self._lease.fencing_token
        return self._call(lambda wait: self._store.delete(key, fencing_token=token, timeout=wait), timeout)

    def vdelete(self, key: Bytes, value: Bytes, *, timeout: Timeout = DEFAULT_TIMEOUT) -> DeleteResult:
        """As :meth:`StateStoreClient.vdelete`, with the lease's token."""
        token = self._lease.fencing_token
        return self._call(lambda wait: self._store.vdelete(key, value, fencing_token=token, timeout=wait), timeout)

    def set_many(
        self,
        pairs: Iterable[tuple[Bytes, Bytes] | SetItem],
        *,
        expiry: float | None = None,
        persist: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> list[SetResult]:
        """As :meth:`StateStoreClient.set_many`, with the lease's token. A lease lost half-way ends it there."""
        token = self._lease.fencing_token
        items = self._while_held(pairs)
        return self._call(
            lambda wait: self._store.set_many(items, expiry=expiry, fencing_token=token, persist=persist, timeout=wait),
            timeout,
        )

    def get_many(self, keys: Iterable[Bytes], *, timeout: Timeout = DEFAULT_TIMEOUT) -> list[Item | None]:
        """As :meth:`StateStoreClient.get_many`. A lease lost half-way ends it there."""
        items = self._while_held(keys)
        return self._call(lambda wait: self._store.get_many(items, timeout=wait), timeout)

    def delete_many(self, keys: Iterable[Bytes], *, timeout: Timeout = DEFAULT_TIMEOUT) -> list[DeleteResult]:
        """As :meth:`StateStoreClient.delete_many`, with the lease's token. A lease lost half-way ends it there."""
        token = self._lease.fencing_token
        items = self._while_held(keys)
        return self._call(lambda wait: self._store.delete_many(items, fencing_token=token, timeout=wait), timeout)

    def vdelete_many(
        self, pairs: Iterable[tuple[Bytes, Bytes]], *, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> list[DeleteResult]:
        """As :meth:`StateStoreClient.vdelete_many`, with the lease's token. A lease lost half-way ends it there."""
        token = self._lease.fencing_token
        items = self._while_held(pairs)
        return self._call(lambda wait: self._store.vdelete_many(items, fencing_token=token, timeout=wait), timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._store.settings.url} under {self._lease!r}>"

    # -- inside --------------------------------------------------------------------------------------------------------

    def _call(self, call: Callable[[float], _T], timeout: Timeout) -> _T:
        self._lease.check()
        if timeout is DEFAULT_TIMEOUT:
            timeout = self._store.settings.request_timeout
        timeout = check_timeout(timeout)
        remaining = max(0.001, self._lease.remaining)
        try:
            return call(remaining if timeout is None else min(timeout, remaining))
        except (TransportError, BatchError) as error:
            check_after(error, self._lease)
            raise

    def _while_held(self, items: Iterable[_T]) -> Iterator[_T]:
        return self._checked(check_batch(items))

    def _checked(self, items: Iterable[_T]) -> Iterator[_T]:
        for item in items:
            self._lease.check()
            if isinstance(item, SetItem) and item.fencing_token is not None:
                raise InvalidArgumentError("an item of a guarded store has the lease's fencing token, not its own")
            yield item
