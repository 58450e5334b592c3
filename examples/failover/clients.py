"""The load: clients that write, one that holds a lock, and one that watches. Each has a thread and a connection."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from itertools import pairwise
from types import TracebackType
from typing import Final, Self

from statestore_client import StateStoreClient, StateStoreError, Watch

__all__ = ["Clients", "LockHolder", "Watcher", "Writer"]

#: A request is answered by then, whichever server answers it.
_PATIENCE_S: Final = 30.0
_LOCK: Final = "press/1"
_GUARDED: Final = "press/1/state"
#: Longer than any failover: the lock is not lost with the server that gave it.
_LEASE_S: Final = 5.0
_PACE_S: Final = 0.02
_WRITERS_PACE_S: Final = 0.004
_WRITERS: Final = 4


class _Client(ABC):
    """``error`` is what ended it, if that was not :meth:`stop`."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: StateStoreError | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End with the request under way, and wait."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with StateStoreClient(self._url) as store:
                self._work(store)
        except StateStoreError as error:
            self.error = error

    @abstractmethod
    def _work(self, store: StateStoreClient) -> None:
        """Until it is to stop."""


class Writer(_Client):
    """Sets one key after the other. ``times`` are the moments at which they were acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(url, f"writer {number}")
        self._number = number
        self.times: list[float] = []

    def key(self, count: int) -> str:
        return f"line/{self._number}/part/{count}"

    def _work(self, store: StateStoreClient) -> None:
        while not self._stopping.wait(_WRITERS_PACE_S):
            count = len(self.times)
            store.set(self.key(count), str(count), timeout=_PATIENCE_S)
            self.times.append(time.monotonic())

    def gap(self, since: float) -> float:
        """The longest time without an acknowledgement that ends after this moment."""
        times = self.times
        return max((after - before for before, after in pairwise(times) if after > since), default=0.0)

    def lost(self, store: StateStoreClient) -> int:
        """How many that were acknowledged are not there."""
        items = store.get_many([self.key(count) for count in range(len(self.times))], timeout=_PATIENCE_S)
        return sum(item is None or item.value != str(count).encode() for count, item in enumerate(items))


class LockHolder(_Client):
    """Holds one lock all the time, and writes under its fencing token."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "lock holder")
        self.writes = 0

    def _work(self, store: StateStoreClient) -> None:
        with store.lock(_LOCK, lease=_LEASE_S) as lease:
            while not self._stopping.wait(_PACE_S):
                store.set(_GUARDED, str(self.writes), fencing_token=lease.fencing_token, timeout=_PATIENCE_S)
                self.writes += 1


class Watcher(_Client):
    """Follows the key that the lock holder writes."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "watcher")
        self.changes = 0
        self.last = b""

    def _work(self, store: StateStoreClient) -> None:
        with store.watch(_GUARDED) as watch:
            closing = threading.Thread(target=self._close_in_the_end, args=(watch,), daemon=True)
            closing.start()
            for event in watch:
                self.changes += 1
                self.last = event.value or b""
            closing.join()

    def _close_in_the_end(self, watch: Watch) -> None:
        self._stopping.wait()
        watch.close()


class Clients:
    """All of them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.writers = [Writer(url, number) for number in range(1, _WRITERS + 1)]
        self.holder = LockHolder(url)
        self.watcher = Watcher(url)

    @property
    def acknowledged(self) -> int:
        return sum(len(writer.times) for writer in self.writers)

    @property
    def errors(self) -> list[StateStoreError]:
        """Of clients that gave up."""
        return [each.error for each in (*self.writers, self.holder, self.watcher) if each.error is not None]

    def have_gone_on(self, since: float) -> bool:
        """Whether each writer has been answered after this moment, or has given up."""
        return all(writer.error is not None or (writer.times and writer.times[-1] > since) for writer in self.writers)

    def gap(self, since: float) -> float:
        """The longest of all writers; see :meth:`Writer.gap`."""
        return max(writer.gap(since) for writer in self.writers)

    def stop(self) -> None:
        """The watcher as the last one: it is to see the last change."""
        for each in (*self.writers, self.holder):
            each.stop()

    def lost(self) -> int:
        """Of what was acknowledged."""
        with StateStoreClient(self._url) as store:
            return sum(writer.lost(store) for writer in self.writers)

    def watcher_has_seen_all(self, patience_s: float = 5.0) -> bool:
        """Whether the watcher knows the last value."""
        deadline = time.monotonic() + patience_s
        last = str(self.holder.writes - 1).encode()
        while self.watcher.last != last and time.monotonic() < deadline:
            time.sleep(_PACE_S)
        return self.watcher.last == last

    def __enter__(self) -> Self:
        for each in (self.watcher, self.holder, *self.writers):
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.watcher.stop()
