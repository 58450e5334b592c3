"""One client per worker process.

Spark keeps its Python workers between tasks and drops idle ones after 60 s without running ``atexit`` hooks or signal
handlers. So a client is kept for the next task, and closed by a thread once it was idle for 25 s, while the process is
still there to say good-bye. A client that met an error is thrown away: the next task connects anew.

The pool belongs to its process. A forked child starts with an empty one; the parent's connections are left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from statestore_client import thread_locks
from statestore_client.clocks import monotonic
from statestore_client.errors import RequestTimeoutError, StateStoreError
from statestore_client.settings import ConnectionSettings
from statestore_client.thread_locks import Mutex

if TYPE_CHECKING:
    from statestore_client.sync.client import StateStoreClient

#: Below the 60 s after which Spark drops an idle worker.
IDLE_TTL_S: Final = 25.0
#: A killed worker leaves its session behind. Long enough to survive a reconnect, short enough not to pile up.
_SESSION_EXPIRY_S: Final = 30.0
_NOT_FOR_CLIENT_IDS: Final = re.compile(r"[^A-Za-z0-9._-]+")


@attrs.frozen
class PoolKey:
    """Tasks with equal keys share a client."""

    settings: ConnectionSettings
    prefix: str = "spark"
    application: str | None = None  # Spark's application id, if the driver knew it


#: The number is how many seconds it may take, None: what the settings say.
Connect: TypeAlias = "Callable[[PoolKey, float | None], StateStoreClient]"


class Loan:
    """A borrowed client."""

    __slots__ = ("client", "spoiled")

    def __init__(self, client: StateStoreClient) -> None:
        self.client: StateStoreClient = client
        self.spoiled: bool = False

    def spoil(self) -> None:
        """Do not hand this client out again."""
        self.spoiled = True


class _Entry:
    """Invariant: an entry without ``users`` is in the pool or its client is closed."""

    __slots__ = ("client", "idle_since", "opening", "users")

    def __init__(self) -> None:
        self.client: StateStoreClient | None = None
        self.opening = Mutex()
        self.users: set[int] = set()
        self.idle_since = 0.0


class ClientPool:
    """Clients by :class:`PoolKey`. Any number of threads may borrow; they share the client, which is thread-safe."""

    def __init__(
        self,
        *,
        idle_ttl_s: float = IDLE_TTL_S,
        clock: Callable[[], float] = monotonic,
        connect: Connect | None = None,
    ) -> None:
        self._idle_ttl_s = idle_ttl_s
        self._clock = clock
        self._connect = connect or _connect
        self._start_empty()

    def _start_empty(self) -> None:
        self._guard = Mutex()  # guards what follows; never held while connecting or closing
        self._entries: dict[PoolKey, _Entry] = {}
        self._reaping = False

    def __len__(self) -> int:
        """How many clients the pool keeps."""
        return len(self._entries)

    @contextlib.contextmanager
    def borrow(self, key: PoolKey, timeout_s: float | None = None) -> Iterator[Loan]:
        """The client for ``key``, connected when there is none. After an exception or ``spoil()`` it is thrown away.

        Raises :class:`RequestTimeoutError` when there is none within ``timeout_s``.
        """
        taken: list[_Entry] = []
        healthy = False
        try:
            self._take(key, taken)
            loan = Loan(self._client(taken[0], key, timeout_s))
            yield loan
            healthy = not loan.spoiled
        finally:
            for entry in taken:
                self._give_back(key, entry, id(taken), healthy=healthy)

    def _client(self, entry: _Entry, key: PoolKey, timeout_s: float | None) -> StateStoreClient:
        text = f"another thread of this process is still connecting to {key.settings.url}"
        with entry.opening.within(timeout_s, lambda: RequestTimeoutError(text)):
            if entry.client is None:
                entry.client = self._connect(key, timeout_s)
            return entry.client

    def drop(self, key: PoolKey) -> None:
        """Let the next borrower connect anew. Clients in use are closed when they are given back."""
        with self._guard:
            entry = self._entries.pop(key, None)
        if entry is not None and not entry.users:
            _close(entry)

    def clear(self) -> None:
        """Drop all clients."""
        for key in list(self._entries):
            self.drop(key)

    def forget(self) -> None:
        """In a forked child: the clients, the lock and the thread are the parent's."""
        self._start_empty()

    def reap(self) -> float | None:
        """Close what has been idle for too long. Seconds until there may be more to close, None if nothing is idle."""
        now = self._clock()
        with self._guard:
            due = [
                key
                for key, entry in self._entries.items()
                if not entry.users and now - entry.idle_since >= self._idle_ttl_s
            ]
            expired = [self._entries.pop(key) for key in due]
            idle = [entry.idle_since for entry in self._entries.values() if not entry.users]
            if not idle:
                self._reaping = False
        for entry in expired:
            _close(entry)
        return min(idle) + self._idle_ttl_s - now if idle else None

    def _take(self, key: PoolKey, taken: list[_Entry]) -> None:
        """Add the entry to ``taken``, the mark of this user. Whatever line an exception cuts, it is given back."""
        with self._guard:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
            taken.append(entry)
            entry.users.add(id(taken))

    def _give_back(self, key: PoolKey, entry: _Entry, user: int, *, healthy: bool) -> None:
        with self._guard:
            entry.users.discard(user)
            entry.idle_since = self._clock()
            if not healthy and self._entries.get(key) is entry:
                del self._entries[key]
            pooled = self._entries.get(key) is entry
            must_reap = pooled and not entry.users and not self._reaping
            self._reaping = self._reaping or must_reap
        if not pooled and not entry.users:
            _close(entry)
        if must_reap:
            try:
                thread_locks.start(threading.Thread(target=self._reap_for_ever, name="statestore pool", daemon=True))
            except BaseException:
                self._reaping = False  # so the next one tries again; two of them do no harm
                raise

    def _reap_for_ever(self) -> None:
        """Until nothing is idle any more; the next return starts a new thread."""
        while (delay_s := self.reap()) is not None:
            time.sleep(max(delay_s, 0.1))


def worker_settings(key: PoolKey) -> ConnectionSettings:
    """The settings of a client in this process: an id of its own, and nothing that outlives the process for long.

    Two processes with one MQTT client id would disconnect each other for ever.
    """
    application = key.application or application_id() or "app"
    client_id = f"{key.prefix}-{application}-{os.getpid()}-{secrets.token_hex(4)}"
    return key.settings.evolve(
        client_id=_NOT_FOR_CLIENT_IDS.sub("-", client_id),
        clean_start=True,
        session_expiry=min(key.settings.session_expiry, _SESSION_EXPIRY_S),
    )


def application_id() -> str | None:
    """Spark's application id: in a task from its properties, on the driver from the active session."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import TaskContext

    if (context := TaskContext.get()) is not None:
        return context.getLocalProperty("spark.app.id")
    from pyspark.sql import SparkSession

    try:
        session: Any = SparkSession.getActiveSession()
        return None if session is None else str(session.sparkContext.applicationId)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so with errors of several libraries
        return None


def _connect(key: PoolKey, timeout_s: float | None) -> StateStoreClient:
    from statestore_client.sync.client import StateStoreClient

    client = StateStoreClient(worker_settings(key))
    try:
        return client.open(timeout_s)
    except BaseException:
        client.close()
        raise


def _close(entry: _Entry) -> None:
    if entry.client is not None:
        with contextlib.suppress(StateStoreError, OSError):  # it is thrown away; its connection may be broken
            entry.client.close()


#: The pool of this process.
POOL: Final = ClientPool()
if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=POOL.forget)
