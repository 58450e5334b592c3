"""The server inside another program: for tests, demos and notebooks.

::

    with EmbeddedServer() as server:            # in a thread of its own
        ... connect to server.url

    async with EmbeddedServer() as server:      # in the running event loop
        ...
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from os import fspath
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypedDict

import attrs

from statestore_client import thread_locks
from statestore_client.errors import ClosedError, ReplicatedLogError
from statestore_client.server.broker import BrokerLimits
from statestore_client.server.checks import LONGEST_S, check_seconds
from statestore_client.server.runtime.replication.settings import ReplicaSettings
from statestore_client.server.runtime.security.files import AccessRules
from statestore_client.server.runtime.settings import Endpoints, ServerSettings, SiteEndpoints
from statestore_client.server.runtime.storage import erase_data
from statestore_client.server.runtime.transport.tls import ServerTls
from statestore_client.server.store import StoreLimits
from statestore_client.server.testing.controls import ControlledServer, Controls
from statestore_client.thread_locks import Flag
from statestore_client.wire.kvstore.messages import LostKey
from statestore_client.wire.protocol import Dialect

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Self

    from statestore_client.server.broker import Counters
    from statestore_client.server.kvstore.peers import Synced
    from statestore_client.server.runtime.security.security import TokenVerifier
    from statestore_client.server.runtime.server import Server
    from statestore_client.server.runtime.sites import SitePeering
    from statestore_client.server.service.service import Authorizer
    from statestore_client.server.testing.recording import Hooks


class AccessOptions(TypedDict, total=False):
    """Settings of a client, as far as a server knows them."""

    username: str
    password: str
    tls_ca_file: str


class EmbeddedServer(Controls):
    """An MQTT 3.1.1 and 5.0 broker with the state store, in this process.

    ``port=0`` takes a free port; read :attr:`url` or :attr:`port`. It listens on the loopback interface unless told
    otherwise. ``dialect`` is ``"service"`` or ``"document"``. An object can be started again after it was stopped.

    Everything is in memory, and a server that is started again is empty, unless ``data`` names a directory: then what
    was acknowledged survives the server and its process (docs/how-to/keep-data.md). ``persist`` says which keys do:
    ``"all"``, ``"none"``, ``"asked"`` for values that clients mark, a pattern of keys, or several of the last two.

    ``tls`` is a :class:`ServerTls` or a context of your own. ``passwords`` is a file that ``statestore passwd`` wrote,
    or a dictionary; ``token_verifier`` takes a service account token (bytes) and returns its user, or None to refuse
    it, and is called in a thread. With either of them nobody comes in without, or with a certificate that ``tls`` asks
    for, unless ``allow_anonymous``. ``acl`` is a file of access rules, or ``AccessRules.parse(text)``. Files are read
    again when they change. ``authorize``, a function of the client id and the command, can refuse more.

    The last ``record_messages`` messages are in :attr:`messages`; 0 records none, and is a little faster. ``hooks`` are
    functions to call for events. With ``faults``, things go wrong when :attr:`faults` or a client says so.

    More endpoints to the same broker: ``tls_port`` (then ``port`` is without TLS), ``ws_port`` and ``wss_port`` for
    WebSocket, each 0 for a free one, and ``unix_socket``, a path. :attr:`urls` has all of them. ``ws_origins`` are the
    web pages that may come in over WebSocket, beside those of the same host. ``metrics_port``: a page for Prometheus.
    ``monitor_port``: a page for people, at :attr:`monitor_url`; with ``monitor_actions`` it does not only look.

    ``site``, a :class:`SiteEndpoints`, makes it a site of the KvStore (docs/reference/kvstore.md); :attr:`site_url` is
    where it listens for other sites, and :attr:`site` tells how it is.

    ``log``, a :class:`ReplicaSettings`, makes it one of several servers that share a replicated log
    (docs/how-to/run-two-servers.md); :attr:`is_active` tells whether it is the one that serves. Without a ``data``
    then; the time cannot be moved.

    Arguments that cannot be used raise InvalidArgumentError.

    Entering raises OSError when an address cannot be had, SettingsError for a file that cannot be used, and
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
        persist: str | Collection[str] = "all",
        record_messages: int = 10_000,
        hooks: Hooks | None = None,
        faults: bool = False,
        tls_port: int | None = None,
        ws_port: int | None = None,
        wss_port: int | None = None,
        unix_socket: str | os.PathLike[str] | None = None,
        ws_origins: Collection[str] = (),
        metrics_port: int | None = None,
        monitor_port: int | None = None,
        monitor_actions: bool = False,
        site: SiteEndpoints | None = None,
        log: ReplicaSettings | None = None,
    ) -> None:
        super().__init__(record_messages=record_messages, hooks=hooks, faults=faults)
        self._settings = ServerSettings(
            endpoints=Endpoints(
                host=host,
                port=port,
                tls_port=tls_port,
                ws_port=ws_port,
                wss_port=wss_port,
                unix_socket=None if unix_socket is None else fspath(unix_socket),
                ws_origins=ws_origins,
                metrics_port=metrics_port,
                monitor_port=monitor_port,
            ),
            dialect=dialect,
            broker_limits=broker_limits,
            store_limits=store_limits,
            authorize=authorize,
            tls=tls,
            passwords=passwords,
            acl=acl,
            token_verifier=token_verifier,
            allow_anonymous=allow_anonymous,
            data=data,
            persist=persist,
            site=site,
            log=log,
            monitor_actions=monitor_actions,
        )
        self._server: ControlledServer | None = None
        self._thread: ServerThread | None = None

    def __repr__(self) -> str:
        where = "not running" if self._server is None else f"at {self.url}"
        return f"<{type(self).__name__} {where}>"

    # -- where it is --------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._settings.endpoints.host

    @property
    def port(self) -> int:
        """The port it listens on. 0 before the start, if it is to choose one."""
        return self._settings.endpoints.port if self._server is None else self._server.endpoints.port

    @property
    def url(self) -> str:
        """``mqtt://host:port``, or ``mqtts://host:port`` with TLS, as the clients of this package take it.

        Raises RuntimeError before the start, if it is to choose the port.
        """
        if not self.port:
            raise RuntimeError(
                "this server is not running, and takes a free port when it starts: use it as a context manager, or "
                "call start()"
            )
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_plain = self._settings.tls is None or self._settings.endpoints.tls_port is not None
        return f"{'mqtt' if is_plain else 'mqtts'}://{host}:{self.port}"

    @property
    def client_options(self) -> AccessOptions:
        """What a client needs beside :attr:`url`: ``StateStoreClient(server.url, **server.client_options)``.

        The first user of a dictionary of ``passwords``, unless anonymous clients may come, and the certificate of
        ``tls``, to trust. Passwords of a file, tokens and certificates of clients are not known here.
        """
        options: AccessOptions = {}
        passwords, tls = self._settings.passwords, self._settings.tls
        if isinstance(passwords, Mapping) and passwords and not self._settings.allow_anonymous:
            options["username"], options["password"] = next(iter(passwords.items()))
        if isinstance(tls, ServerTls) and self._settings.endpoints.tls_port is None:
            options["tls_ca_file"] = tls.cert_file
        return options

    @property
    def urls(self) -> dict[str, str]:
        """Of all endpoints by scheme: ``mqtt``, ``mqtts``, ``ws``, ``wss``, ``unix``, and ``http`` for the metrics."""
        return {url.partition(":")[0]: url for url in self._running().urls}

    @property
    def site_url(self) -> str:
        """Where other sites come in, with the port that a ``*`` has become. Raises RuntimeError if none can."""
        site = self._running().site
        if site is None or site.url is None:
            raise RuntimeError("this server does not listen for sites: give it site=SiteEndpoints(listen=...)")
        return site.url

    @property
    def site(self) -> EmbeddedSite:
        """The site of the KvStore that this server is: whether it has synced, and what it has lost. Raises RuntimeError
        if it is none.
        """
        server = self._running()
        if server.site is None:
            raise RuntimeError("this server is no site now: give it site=SiteEndpoints(...)")
        return EmbeddedSite(server, server.site)

    @property
    def monitor_url(self) -> str:
        """The address of the monitor, for a browser. Raises RuntimeError without a ``monitor_port``."""
        url = self._running().monitor_url
        if url is None:
            raise RuntimeError("this server has no monitor: give it monitor_port=0")
        return url

    @property
    def is_active(self) -> bool:
        """Whether clients are served here, and not by another server of the same log."""
        return self._running().is_active

    @property
    def counters(self) -> Counters:
        """What the broker counted since the start. Reading it from another thread is fine; it goes on counting."""
        return self._running().counters

    # -- in a thread of its own ---------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start in a new thread; when this returns, clients can connect. Returns the server itself."""
        self._begin()
        self._start(self._settings.endpoints)
        return self

    def _start(self, endpoints: Endpoints) -> None:
        self._server = server = self._new_server(endpoints)
        thread = ServerThread(server)
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
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- in the running event loop ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._begin()
        self._server = server = self._new_server(self._settings.endpoints)
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

    def _reopen(self, *, erase: bool) -> bool:
        if self._settings.data is None:
            return False
        if self._thread is None or self._running().is_here:
            raise RuntimeError("a server with data cannot be restarted here: leave it, and enter it again")
        endpoints = self._running().endpoints
        self.stop()
        if erase:
            erase_data(self._settings.data)
        self._start(endpoints)
        return True

    def _begin(self) -> None:
        if self._server is not None:
            raise RuntimeError("this server is running already")
        if self._recorder is not None:
            self._recorder.clear()

    def _new_server(self, endpoints: Endpoints) -> ControlledServer:
        return ControlledServer(
            attrs.evolve(self._settings, endpoints=endpoints),
            virtual_clock=self._virtual_clock,
            dispatcher=self._dispatcher,
            injection=self._injection,
        )

    def _running(self) -> ControlledServer:
        if self._server is None:
            raise RuntimeError("this server is not running")
        return self._server


# -- its thread --------------------------------------------------------------------------------------------------------
#
# A thread for a server, beside code that does not wait for an event loop.


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


# -- its site ----------------------------------------------------------------------------------------------------------


class EmbeddedSite:
    """The site of a server, as its program sees it: whether it has synced, and which of its keys it has lost.

    Any thread may call these. :attr:`EmbeddedServer.site` makes it, for the site that runs at that time: a server of a
    log has one while it is the active one, and another of the same name, which begins anew, another time.
    """

    def __init__(self, server: ControlledServer, peering: SitePeering) -> None:
        self._server = server
        self._peering = peering

    def __repr__(self) -> str:
        return f"<EmbeddedSite {self.name!r}, {'synced' if self.is_synced else 'not synced yet'}>"

    @property
    def name(self) -> str:
        """What the other sites call it."""
        return self._peering.site.settings.name

    @property
    def is_synced(self) -> bool:
        """Whether the syncs of its start are over: it has what the others had, or none could be reached in time."""
        return self._peering.synced.done() and self._peering.synced.result() is not None

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait for :attr:`is_synced`; False if that takes longer than ``timeout`` seconds.

        Raises ClosedError if the server is stopped before, and RuntimeError in the thread of the server's own event
        loop: await :meth:`wait_synced_async` there.
        """
        _check_timeout(timeout)
        if self._server.is_here and not self._peering.synced.done():
            raise RuntimeError("waiting here would stop the server: await wait_synced_async()")
        try:
            return _is_over(self._peering.synced.result(timeout))
        except TimeoutError:
            return False

    async def wait_synced_async(self, timeout: float | None = None) -> bool:
        """:meth:`wait_synced`, in any event loop."""
        _check_timeout(timeout)
        synced = asyncio.wrap_future(self._peering.synced)
        # One that stops waiting must not cancel what others wait for, as wait_for() would.
        done, _ = await asyncio.wait({synced}, timeout=timeout)
        return bool(done) and _is_over(synced.result())

    def lost_keys(self) -> list[LostKey]:
        """Keys that were ``set`` here and that another site has overridden since, the last one at the end; without
        those that were said anew, cleared or erased. The last 4,096 of each area are remembered.
        """
        return self._server.call(self._lost_keys)

    def _lost_keys(self) -> list[LostKey]:
        return [
            LostKey(area, loss.key, loss.originator, loss.version)
            for area, replica in self._peering.site.replicas.items()
            for loss in replica.contents.own.lost
        ]


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None:
        check_seconds("timeout", timeout, -LONGEST_S)


def _is_over(synced: Synced | None) -> bool:
    if synced is None:
        raise ClosedError("the site was stopped before it had synced")
    return True
