"""The connection of an asyncio client to its site."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import zmq
import zmq.asyncio

from statestore_client.core.arguments import check_function
from statestore_client.errors import BusyError, ClosedError, RemoteProtocolError
from statestore_client.kvstore.calls import REPLIES, hold_s, may_change, packed
from statestore_client.kvstore.socket import SiteSocket
from statestore_client.reports import warn_unclosed
from statestore_client.wire.kvstore.codec import decode

if TYPE_CHECKING:
    from statestore_client.curve_keys import ClientKeys
    from statestore_client.kvstore.calls import Call, ClientRequest
    from statestore_client.wire.kvstore.messages import Reply

logger: Final = logging.getLogger("statestore_client")

T = TypeVar("T")


class SiteLink(SiteSocket):
    """Requests of many tasks are on their way at once; a reply goes to the one whose id it has."""

    def __init__(self, url: str, timeout_s: float, keys: ClientKeys | None = None) -> None:
        super().__init__(url, timeout_s, keys)
        self._context: zmq.asyncio.Context | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._replies: dict[int, tuple[ClientRequest, asyncio.Future[Reply | None]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._asked_on = 0

    async def run(self, call: Call[T]) -> T:
        """Carry out a call."""
        self._open()
        try:
            request = next(call)
            while True:
                request = call.send(await self._ask(request))
        except StopIteration as done:
            result: T = done.value
            return result

    def _open(self) -> None:
        self.check()
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise BusyError("this client belongs to the event loop that it was first used in")
        if self._context is not None and self._reader is not None and self._reader.done():
            self._hang_up()
        if self._context is None:
            context = zmq.asyncio.Context()
            try:
                self._socket = context.socket(zmq.DEALER)
                self.connect(self._socket)
            except zmq.ZMQError as error:  # too many files are open, say
                context.term()
                raise self.broken(error) from error
            except BaseException:
                context.term()
                raise
            self._context, self._loop = context, loop
            has_ended = weakref.WeakMethod(self._has_ended)  # reading keeps no client that was dropped
            reading = _read(self._socket, self._replies)
            self._reader = asyncio.Task(reading, loop=loop)  # not eager, whatever task factory the loop has
            self._reader.add_done_callback(lambda reader: (end := has_ended()) and end(reader))
            has_turned = weakref.WeakMethod(self._has_turned)
            loop.add_reader(self.monitored, lambda: (turn := has_turned()) and turn())
            self._asked_on = self.connection()  # the descriptor tells of what comes once all before it was seen

    def _hang_up(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self.monitored)
            self.hang_up()
            context.destroy(linger=0)

    def _has_turned(self) -> None:
        """Ask again what changes nothing, when there is a new connection: answers of the one before are lost."""
        before, self._asked_on = self._asked_on, self.connection()
        if self._asked_on > before:
            for request, waiting in self._replies.values():
                if not waiting.done() and not may_change(request):
                    waiting.set_result(None)

    def _has_ended(self, reader: asyncio.Task[None]) -> None:
        """Nobody reads answers any more: those that wait for one are told why, and not that none has come."""
        error = None if reader.cancelled() else reader.exception()
        for request, waiting in self._replies.values():
            if not waiting.done():
                waiting.set_exception(
                    ClosedError(f"the client of the site at {self.url} was closed meanwhile")
                    if self._is_closed
                    else self.broken(error, request)
                )
                waiting.exception()  # one whose request is not sent yet does not look at it, and that is no fault

    async def _ask(self, request: ClientRequest) -> Reply:
        data = packed(request)
        loop = asyncio.get_running_loop()
        was_sent = False
        try:
            async with asyncio.timeout(self.timeout_s + hold_s(request)):
                while True:
                    waiting: asyncio.Future[Reply | None] = loop.create_future()
                    self._replies[request.id] = request, waiting
                    await self._socket.send(data)
                    was_sent = True
                    reply = await waiting
                    if reply is not None:
                        return reply
        except TimeoutError:
            self._has_turned()  # before the reason is looked for in the same place
            raise self.late(request, was_sent=was_sent) from None
        except zmq.ZMQError as error:
            raise self.broken(error) from error
        finally:
            self._replies.pop(request.id, None)

    def __del__(self) -> None:
        # All that could use or close it was dropped. The collector may come in any thread, at any time.
        if self._context is not None and self._loop is not None and self._may_end:
            if self._loop.is_closed():
                self._drop()
            else:
                with suppress(RuntimeError):  # closed just now
                    self._loop.call_soon_threadsafe(self._drop)
            warn_unclosed(self, f"client of the site at {self.url}")

    def _drop(self) -> None:
        self._is_closed = True
        if self._reader is not None and not self._reader.get_loop().is_closed():
            self._reader.cancel()
        self._hang_up()

    async def close(self) -> None:
        """Also if it was closed before."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._reader is None:
            return
        if not self._reader.get_loop().is_closed():
            self._reader.cancel()
            await asyncio.wait((self._reader,))
        self._hang_up()


class CallbackWorker:
    """Calls the application's function in a task of its own, until there is nothing more to tell."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.Task(work(), loop=asyncio.get_running_loop())  # not eager: stop() compares tasks

    async def stop(self) -> None:
        """Also if it is the function itself that asks for it."""
        if self._task is not asyncio.current_task() and not self._task.get_loop().is_closed():
            self._task.cancel()
            await asyncio.wait((self._task,))

    @staticmethod
    def check(function: object) -> None:
        """Raises InvalidArgumentError for what cannot be called here."""
        check_function("callback", function, awaited=True)

    @staticmethod
    async def call(function: Callable[..., object], *arguments: object) -> None:
        """What it raises is logged."""
        try:
            outcome = function(*arguments)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            logger.exception("the callback of a site's client failed")


async def _read(socket: Any, replies: Mapping[int, tuple[ClientRequest, asyncio.Future[Reply | None]]]) -> None:
    while True:
        frames = await socket.recv_multipart()
        try:
            message = decode(frames[-1])
        except RemoteProtocolError:
            continue  # whoever waits gets no answer
        if isinstance(message, REPLIES):
            _, waiting = replies.get(message.id, (None, None))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
