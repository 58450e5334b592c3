"""A thread for a server, beside code that does not wait for an event loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from statestore_client import thread_locks
from statestore_client.errors import ReplicatedLogError
from statestore_client.thread_locks import Flag

if TYPE_CHECKING:
    from statestore_client.server.runtime.server import Server

__all__ = ["ServerThread"]

#: Starting takes milliseconds. What may take long: a name server that does not answer, a log without a majority.
_START_TIMEOUT_S: Final = 30.0


class ServerThread:
    """An event loop in a thread, for as long as one server runs.

    A daemon thread: a program that forgets to stop its server can still end.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_ready = Flag()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._serving: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._is_unwanted = False  # a signal's handler has cut the start: the thread ends as soon as it can
        self._thread = threading.Thread(target=self._run, name="statestore-server", daemon=True)

    def start_and_wait(self) -> None:
        try:
            thread_locks.start(self._thread)
            is_ready = self._is_ready.wait(_START_TIMEOUT_S)
        except BaseException:
            self._is_unwanted = True
            self._cancel()
            raise
        if not is_ready:
            self._give_up()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _give_up(self) -> None:
        """Whatever was begun is undone, unless a name server hinders even that."""
        self._cancel()
        self._thread.join(_START_TIMEOUT_S)
        told = f"the server did not start within {_START_TIMEOUT_S:g} s"
        if self._server.replication is None:
            raise TimeoutError(told)
        raise ReplicatedLogError(f"{told}: its log does not answer; does a majority of the log's peers run?")

    def _cancel(self) -> None:
        if self._loop is not None and self._serving is not None:
            with suppress(RuntimeError):  # it has ended, and its loop is closed
                self._loop.call_soon_threadsafe(self._serving.cancel)

    def stop_and_wait(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # Windows' own has no add_reader()
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._error = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._serving = asyncio.current_task()
        if self._is_unwanted:
            return
        await self._server.start()
        self._is_ready.set()
        failing = asyncio.ensure_future(self._server.wait_for_failure())
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((failing, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            failing.cancel()
            stopping.cancel()
            await self._server.stop()
        if self._server.failure is not None:
            raise self._server.failure
