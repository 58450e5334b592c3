"""What else happens while the pipeline runs: one client watches an aircraft, and a writer goes on with an old token."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from types import TracebackType
from typing import Final, Self

from statestore_client import FencingTokenTooOldError, HlcTimestamp, StateStoreClient, StateStoreError, Watch

from .pipeline import KEY_PREFIX

__all__ = ["StaleWriter", "Watcher"]

#: Between two attempts of the stale writer (seconds).
_PACE_S: Final = 0.02
_STALE_KEYS: Final = 200


class Watcher:
    """Follows one aircraft and tells each change, from a thread of its own."""

    def __init__(self, store: StateStoreClient, tail_number: str, tell: Callable[[str], None]) -> None:
        self._watch: Watch = store.watch(f"{KEY_PREFIX}{tail_number}")
        self._tail_number = tail_number
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.changes = 0

    def __enter__(self) -> Self:
        self._watch.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            for event in self._watch:
                self.changes += 1
                self._tell(f"{self._tail_number}: {_describe(event.value)}")
        except StateStoreError as error:
            self._tell(f"{self._tail_number}: the watch ended: {error}")


def _describe(value: bytes | None) -> str:
    if value is None:
        return "deleted"
    state = json.loads(value)
    delay = "cancelled" if state["cancelled"] else f"{state['dep_delay']:+d} min"
    return (
        f"{state['scheduled']} {state['carrier']} {state['flight']} {state['origin']} → {state['dest']}, "
        f"departure {delay}"
    )


class StaleWriter:
    """A writer that held the lock once, did not notice that another one took over, and goes on with its old token.

    Every attempt goes to a key that the new holder has written. ``rejected`` and ``accepted`` count the outcomes.
    """

    def __init__(self, store: StateStoreClient, token: HlcTimestamp) -> None:
        self._store = store
        self._token = token
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.rejected = 0
        self.accepted = 0

    def start(self) -> None:
        """Begin; once there are keys to write. Again does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stale writer", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End and wait."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            for key in self._keys():
                self._attempt(key)
                if self._stop.wait(_PACE_S):
                    return
        except StateStoreError:
            return  # the server is gone, which the pipeline notices itself

    def _keys(self) -> Iterator[bytes]:
        return cycle(list(islice(self._store.scan(f"{KEY_PREFIX}*"), _STALE_KEYS)))

    def _attempt(self, key: bytes) -> None:
        try:
            self._store.set(key, b'{"stale":true}', fencing_token=self._token)
        except FencingTokenTooOldError:
            self.rejected += 1
        else:
            self.accepted += 1
