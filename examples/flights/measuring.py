"""What is seen from outside, at any time: who leads, how far the marker is, what the store wrote and refused."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from types import TracebackType
from typing import Final, Self

import attrs

from statestore_client import StateStoreClient, StateStoreError

from .driver import LEADER_KEY, MARKER_KEY
from .feed import Feed

__all__ = ["Counts", "Observer", "Sample", "read_counts"]

_EVERY_S: Final = 0.2
_COUNTER: Final = re.compile(r'^statestore_store_(requests|refusals)_total\{\w+="([^"]+)"\} (\d+)', re.MULTILINE)


@attrs.frozen
class Counts:
    """Of the state store's server, since it started."""

    sets: int
    #: Writes that were refused because of their fencing token: those of zombies, as everybody has the newest.
    refused: int


def read_counts(metrics_url: str) -> Counts:
    """From the page for Prometheus. Raises OSError."""
    with urllib.request.urlopen(f"http://{metrics_url.removeprefix('http://')}", timeout=3.0) as page:
        found = _COUNTER.findall(page.read().decode())
    sets = sum(int(n) for group, name, n in found if group == "requests" and name == "set")
    refused = sum(int(n) for group, name, n in found if group == "refusals" and "fencing" in name)
    return Counts(sets, refused)


@attrs.frozen
class Sample:
    """At one moment (seconds since the beginning)."""

    at: float
    leader: str | None
    appended: int
    #: Rows of the source that are in the state store, each counted once.
    stored: int
    counts: Counts


class Observer:
    """Takes samples in a thread."""

    def __init__(self, store: StateStoreClient, metrics_url: str, feed: Feed) -> None:
        self._store = store
        self._metrics_url = metrics_url
        self._feed = feed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self.began: float = time.monotonic()
        self.samples: list[Sample] = []

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(0.0, None, 0, 0, Counts(0, 0))

    def marker(self) -> tuple[int, int]:
        """The log index of the last row that is stored, and how many rows are."""
        item = self._store.get(MARKER_KEY)
        fields = {"index": -1, "rows": 0} if item is None else json.loads(item.value)
        return fields["index"], fields["rows"]

    def _run(self) -> None:
        try:
            while not self._stop.wait(_EVERY_S):
                self.samples.append(self._sample())
        except (StateStoreError, OSError):
            return  # the server is gone, which the demo notices itself

    def _sample(self) -> Sample:
        leader = self._store.get(LEADER_KEY)
        name = None if leader is None else leader.value.decode().partition("-")[0]
        _index, rows = self.marker()
        counts = read_counts(self._metrics_url)
        return Sample(time.monotonic() - self.began, name, self._feed.appended, rows, counts)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
