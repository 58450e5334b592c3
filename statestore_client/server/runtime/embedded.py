"""The server inside another program: for tests, demos and notebooks.

::

    with EmbeddedServer() as server:            # in a thread of its own
        ... connect to server.url

    async with EmbeddedServer() as server:      # in the running event loop
        ...
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final

from statestore_client.server.runtime.security import Security
from statestore_client.server.runtime.server import Server
from statestore_client.wire.dialect import Dialect

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Mapping
    from typing import Self

    from statestore_client.server.broker import BrokerLimits, Counters
    from statestore_client.server.runtime.acl import AccessRules
    from statestore_client.server.runtime.security import TokenVerifier
    from statestore_client.server.runtime.service import Authorizer
    from statestore_client.server.runtime.tls import ServerTls
    from statestore_client.server.store import StoreLimits

__all__ = ["EmbeddedServer"]

#: Starting takes milliseconds. A name server that does not answer is what may take long.
_START_TIMEOUT_S: Final = 30.0


class EmbeddedServer:
    """An MQTT 3.1.1 and 5.0 broker with the state store, in this process.

    ``port=0`` takes a free port; read :attr:`url` or :attr:`port`. It listens on the loopback interface unless told
    otherwise. ``dialect`` is ``"service"`` or ``"document"``. An object can be started again after it was stopped.

    Everything is in memory, and a server that is started again is empty, unless ``data`` names a directory: then what
    was acknowledged survives the server and its process (docs/how-to/keep-data.md).

    ``tls`` is a :class:`ServerTls` or a context of your own. ``passwords`` is a file that ``statestore passwd`` wrote,
    or a dictionary; ``token_verifier`` takes a service account token (bytes) and returns its user, or None to refuse
    it, and is called in a thread. With either of them nobody comes in without, unless ``allow_anonymous``. ``acl`` is a
    file of access rules, or ``AccessRules.parse(text)``. Files are read again when they change. ``authorize``, a
    function of the client id and the command, can refuse more.

    Entering raises OSError when the address cannot be had, SettingsError for a file that cannot be used, and
    DataDirectoryError for such a data directory. Leaving disconnects every client; it raises DataDirectoryError when
    the disk failed meanwhile, which had stopped the server.
    """

    def __init__(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        dialect: Dialect | str = Dialect.SERVICE,
        broker_limits: BrokerLimits | None = None,
        store_limits: StoreLimits | None = None,
        authorize: Authorizer | None = None,
        tls: ServerTls | ssl.SSLContext | None = None,
        passwords: str | os.PathLike[str] | Mapping[str, str] | None = None,
        acl: str | os.PathLike[str] | AccessRules | None = None,
        token_verifier: TokenVerifier | None = None,
        allow_anonymous: bool = False,
        data: str | os.PathLike[str] | None = None,
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._dialect = Dialect(dialect)
        self._broker_limits = broker_limits
        self._store_limits = store_limits
        self._authorize = authorize
        self._tls = tls
        self._passwords = passwords
        self._acl = acl
        self._token_verifier = token_verifier
        self._allow_anonymous = allow_anonymous
        self._data = data
        self._server: Server | None = None
        self._thread: _ServerThread | None = None

    # -- where it is --------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        """The port it listens on. 0 before the start, if it is to choose one."""
        return self._wanted_port if self._server is None else self._server.port

    @property
    def url(self) -> str:
        """``mqtt://host:port``, or ``mqtts://host:port`` with TLS, as the clients of this package take it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'mqtt' if self._tls is None else 'mqtts'}://{host}:{self.port}"

    @property
    def counters(self) -> Counters:
        """What the broker counted since the start. Reading it from another thread is fine; it goes on counting."""
        return self._running().counters

    # -- in a thread of its own ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start in a new thread; when this returns, clients can connect."""
        self._server = server = self._new_server()
        thread = _ServerThread(server)
        try:
            thread.start_and_wait()
        except BaseException:
            self._server = None
            raise
        self._thread = thread

    def stop(self) -> None:
        """Stop what :meth:`start` started, and wait for it. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop_and_wait()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- in the running event loop ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._server = server = self._new_server()
        try:
            await server.start()
        except BaseException:
            self._server = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
            if server.failure is not None and error is None:
                raise server.failure

    def _new_server(self) -> Server:
        if self._server is not None:
            raise RuntimeError("this server is running already")
        return Server(
            host=self._host,
            port=self._wanted_port,
            dialect=self._dialect,
            broker_limits=self._broker_limits,
            store_limits=self._store_limits,
            authorize=self._authorize,
            tls=self._tls,
            security=Security.of(
                passwords=self._passwords,
                acl=self._acl,
                token_verifier=self._token_verifier,
                allow_anonymous=self._allow_anonymous,
            ),
            data=self._data,
        )

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("this server is not running")
        return self._server


class _ServerThread:
    """An event loop in a thread, for as long as one server runs.

    A daemon thread: a program that forgets to stop its server can still end.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="statestore-server", daemon=True)

    def start_and_wait(self) -> None:
        self._thread.start()
        if not self._is_ready.wait(_START_TIMEOUT_S):
            raise TimeoutError("the server did not start")
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop_and_wait(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._error = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
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
