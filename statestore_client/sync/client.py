# Generated from statestore_client/aio/client.py by tools/twins.py. Edit that, and run "make twins".
"""The blocking client."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, Unpack, cast

from statestore_client.clocks import Clock, now
from statestore_client.core import arguments
from statestore_client.core.actions import ConnectionState, ErrorClasses, StateListener, WatchEvent, WatchOptions
from statestore_client.core.arguments import (
    DEFAULT_TIMEOUT,
    Bytes,
    ConditionName,
    Pairs,
    SetItems,
    Timeout,
    Token,
    check_error_classes,
    check_function,
)
from statestore_client.core.event_queue import Overflow
from statestore_client.core.request_table import ExchangeStats
from statestore_client.core.results import DeleteResult, Item, KeyPage, SetResult
from statestore_client.errors import (
    ConnectionLostError,
    PickleRefusedError,
)
from statestore_client.mqtt.connectors import share_sync, sync_connector
from statestore_client.mqtt.driver import OpenSocket
from statestore_client.settings import ClientOptions, ConnectionSettings, SharedOptions
from statestore_client.sync.engine import Engine, Link
from statestore_client.sync.leases import GuardedStore, Lease
from statestore_client.sync.locks import Election, Lock
from statestore_client.sync.primitives import check_callback
from statestore_client.sync.watch import Watch
from statestore_client.wire.hlc import HybridLogicalClock

if TYPE_CHECKING:
    from statestore_client.mqtt.paho_driver import PahoClient


class StateStoreClient:
    """A client of the state store.

    :param settings: a URL such as ``mqtt://127.0.0.1:1883``, or :class:`~statestore_client.ConnectionSettings`.
    :param client_id: the MQTT client id; unique among all connections to the broker. Default: a random one.
    :param on_state: called with each new connection state and, when it got worse, the reason; also with the reason of
        each further attempt to connect that fails, and with a :class:`SessionLostError` when it is connected again to a
        broker that has forgotten what was under way. In the blocking client it is a plain function, and may close the
        client, but not wait for it. In the asyncio client it may be a coroutine function, and may use and close the
        client: a task of the client calls it with one state after the other, awaits it, and logs what it raises.
        :meth:`close` gives it two seconds to finish, and cancels it then.
    :param give_up_on: a class of errors, or a tuple of them, that end the client when connecting again in the same way
        will not cure them (their ``fatal`` is True, or they are a :class:`SettingsError`): ``ConnectRefusedError`` for
        wrong credentials, ``StateStoreError`` for all. By default it tries again, because somebody may be at work on
        the cause; to decide otherwise, close it in ``on_state``.
    :param clock: where the client reads the time; tests pass another one.
    :param hlc: the :class:`HybridLogicalClock` of its requests. Clients of one program that share one, made with
        ``guard=threading.RLock()``, stamp what any of them asks with a later version than all that any has seen.
        Default: one of its own.
    :param open_socket: called with host, port and seconds, returns a connected TCP socket: through a proxy, say. TLS
        and WebSocket are spoken on top of it. It is called again for each reconnect, in a thread that may block,
        raises OSError when it cannot connect, and needs ``driver="native"``.
    :param options: any other setting, by name; they win over ``settings``.

    Use it as a context manager: entering connects, leaving disconnects. It reconnects by itself after that, with
    exponential back-off, and reads the files of its settings again each time. Nothing ends it but :meth:`close`,
    another client with the same client id, and what it is to ``give_up_on``. A request in flight is answered after the
    session resumed, or fails with an error whose ``may_have_been_applied`` tells if repeating it is safe.

    Any number of threads may share a client; a process forked from this one may not.

    Keys and values are bytes; text is encoded as UTF-8. ``timeout`` is in seconds, ``None`` waits for ever, and the
    default is the setting ``request_timeout``. Every method raises :class:`ServerError` when the state store refuses,
    :class:`RequestTimeoutError` and :class:`ConnectionLostError` when no answer came, :class:`InvalidArgumentError`
    when nothing was sent, :class:`BusyError` where it cannot be used, and :class:`ClosedError` after :meth:`close`, or
    when the client has ended: then the error names the cause, which is its ``__cause__``, and trying again is in vain.
    """

    def __init__(
        self,
        settings: ConnectionSettings | str,
        *,
        client_id: str | None = None,
        on_state: StateListener | None = None,
        give_up_on: ErrorClasses = (),
        clock: Clock = now,
        hlc: HybridLogicalClock | None = None,
        open_socket: OpenSocket | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        _check_functions(on_state, clock, open_socket)
        given_up = check_error_classes("give_up_on", give_up_on)
        if not isinstance(settings, ConnectionSettings):
            settings = ConnectionSettings.from_url(settings)
        settings = settings.evolve(**options) if options else settings
        settings = settings if client_id is None else settings.evolve(client_id=client_id)
        self._client_id = settings.client_id or f"statestore-client-{uuid.uuid4().hex}"
        connector = sync_connector(settings, client_id=self._client_id, open_socket=open_socket)
        self._use(Link(settings, self._client_id, on_state, given_up, clock, connector, _check_clock(hlc)))
        self._leases: set[weakref.ref[Lease]] = set()  # held by locks of this client

    def _use(self, link: Link) -> None:
        self._settings = link.settings
        self._engine = Engine(link)

    @classmethod
    def over(
        cls,
        paho_client: PahoClient,
        *,
        on_state: StateListener | None = None,
        give_up_on: ErrorClasses = (),
        clock: Clock = now,
        hlc: HybridLogicalClock | None = None,
        **options: Unpack[SharedOptions],
    ) -> Self:
        """A client over the connection of an application that uses paho-mqtt already.

        ``paho_client`` speaks MQTT 5, and has a client id and ``CallbackAPIVersion.VERSION2``; otherwise
        :class:`InvalidArgumentError` is raised, and :class:`BusyError` if it is shared already. The application
        connects it, runs its loop in a thread (``loop_start()``) and lets it reconnect: opening waits
        ``connect_timeout`` seconds for that, and while paho is away the state is suspended. ``options`` are
        ``connect_timeout``, ``max_in_flight``, ``request_timeout``, ``response_topic``, ``retry_first_connect``,
        ``tracing`` and ``watch_lifetime``.

        The application's callbacks are called as before, if they were set before; its messages stay its own. A new
        ``on_connect``, ``on_disconnect``, ``on_publish`` or ``on_subscribe`` has to call the one that it replaces:
        without it this client is deaf, and what waits in vain gets a :class:`CallbackReplacedError` that names it.
        Do not wait for this client in one of paho's callbacks: the answer would have to come through the same thread.
        :meth:`close` unsubscribes and leaves the connection alone. paho sends what was not acknowledged again by itself
        when it reconnects, so a request that failed and "may have been applied" may be applied as late as that.
        """
        _check_functions(on_state, clock, None)
        given_up = check_error_classes("give_up_on", give_up_on)
        client_id, settings, connector = share_sync(paho_client, options)
        client = cls(settings, client_id=client_id, on_state=on_state, clock=clock)
        client._use(Link(settings, client_id, on_state, given_up, clock, connector, _check_clock(hlc)))
        return client

    # -- connection ----------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The MQTT client id."""
        return self._client_id

    @property
    def settings(self) -> ConnectionSettings:
        """What the client was made with; pickle this, not the client."""
        return self._settings

    @property
    def state(self) -> ConnectionState:
        """The connection's state now."""
        return self._engine.state

    @property
    def trouble(self) -> str | None:
        """Why no request can leave just now, in words; None while connected. For a readiness probe."""
        return self._engine.trouble

    @property
    def stats(self) -> ExchangeStats:
        """Counters of requests, replies, time-outs and dropped replies since the client was made."""
        return self._engine.stats

    def open(self, timeout: float | None = None, *, wait: bool = True) -> Self:
        """Connect; returns when requests can be sent. With ``retry_first_connect``, keeps trying until ``timeout``.

        Raises :class:`ConnectionLostError` when nobody answers, :class:`ConnectRefusedError` when the broker refuses,
        :class:`SettingsError` for a file that cannot be read, and :class:`RequestTimeoutError` after ``timeout``
        seconds (None: for ever); in that last case connecting goes on, until the client is closed.

        With ``wait=False`` it returns at once and connects in the background, for as long as it takes, as with
        ``retry_first_connect``. Calls wait for the connection until their time-out, as after a loss; :attr:`trouble`
        tells how it stands, and another ``open()`` waits for it.

        A client that could not be opened, or has ended, may be opened again; one that was closed may not.
        """
        self._engine.open(arguments.check_timeout(timeout), wait=arguments.check_flag("wait", wait))
        return self

    def close(self) -> None:
        """Disconnect. What waits for an answer fails; locks are not released, their leases end by themselves.

        The broker is told to forget the session, unless the connection is down just then or is not ours (:meth:`over`).
        Closing twice is harmless.
        """
        self._engine.stop()
        for lease in filter(None, [each() for each in self._leases.copy()]):
            lease._closed()  # noqa: SLF001 - the client's own; nobody will renew them any longer
        self._engine.end()

    def __enter__(self) -> Self:
        if self._engine.is_in_background and self.state is not ConnectionState.CLOSED:
            return self
        try:
            return self.open()
        except BaseException:  # who does not get in does not get out: there will be no exit
            self._engine.stop(ConnectionLostError("it was given up before it was connected"))
            self._engine.end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._client_id!r} at {self._settings.url}, {self.state}>"

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a connected client cannot be pickled. Send client.settings instead and open a client where it is needed; "
            "in Spark, use statestore_client.spark (partition_writer, lookup), which pools one per worker"
        )

    # -- keys ----------------------------------------------------------------------------------------------------------

    def set(
        self,
        key: Bytes,
        value: Bytes,
        *,
        condition: ConditionName | None = None,
        expected: Bytes | None = None,
        expiry: float | None = None,
        fencing_token: Token | None = None,
        persist: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> SetResult:
        """Store ``value`` under ``key``. (state store protocol, "SET response")

        ``condition="NX"`` only if the key does not exist; ``"NEX"`` only if it does not exist or holds this very value,
        or holds ``expected``: the protocol's ``NEX <value>``, which the published document has and the official SDKs
        do not send. A server that answers as the official service does refuses it (:class:`RequestSyntaxError`).
        ``expiry`` deletes the key after that time (seconds); without it, an earlier expiry ends. What is left of it can
        not be read: the protocol has no command for that (Redis has TTL).
        ``fencing_token`` protects the key: from now on only writes with this token or a newer one are accepted.
        ``persist`` marks the value as one that must be on disk, for a broker that keeps on disk what is marked.
        What the broker's largest packet (of the embedded server: 16 MiB) cannot hold raises InvalidArgumentError.
        """
        command = arguments.set_command(key, value, condition, expiry, expected, persist)
        return cast("SetResult", self._engine.call(command, timeout, fencing_token))

    def get(self, key: Bytes, *, timeout: Timeout = DEFAULT_TIMEOUT) -> Item | None:
        """The value and version of ``key``, or None when there is no such key."""
        return cast("Item | None", self._engine.call(arguments.get_command(key), timeout))

    def delete(
        self, key: Bytes, *, fencing_token: Token | None = None, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> DeleteResult:
        """Delete ``key``; ``count`` is 0 when it did not exist."""
        command = arguments.delete_command(key)
        return cast("DeleteResult", self._engine.call(command, timeout, fencing_token))

    def vdelete(
        self, key: Bytes, value: Bytes, *, fencing_token: Token | None = None, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> DeleteResult:
        """Delete ``key`` only if it holds ``value`` (the protocol's VDEL); ``matched`` is False when it does not."""
        command = arguments.vdelete_command(key, value)
        return cast("DeleteResult", self._engine.call(command, timeout, fencing_token))

    def scan(self, pattern: Bytes = "*", *, timeout: Timeout = DEFAULT_TIMEOUT) -> Iterator[bytes]:
        """The keys that match a glob (``*``, ``?``, ``[abc]``, ``[!abc]``), fetched page by page while you iterate.

        Without a pattern, all keys. Keys set or deleted meanwhile may or may not appear; keys that are not UTF-8 never
        match. Raises :class:`UnknownCommandError` with older servers.
        """
        return self._pages(arguments.key_bytes(pattern, "pattern"), self._engine.seconds(timeout))

    def _pages(self, pattern: bytes, timeout: float | None) -> Iterator[bytes]:
        token: bytes | None = None
        while True:
            page = cast("KeyPage", self._engine.call(arguments.scan_command(pattern, token), timeout))
            yield from page.keys
            token = page.token
            if token is None:
                return

    def set_many(
        self,
        pairs: SetItems,
        *,
        expiry: float | None = None,
        fencing_token: Token | None = None,
        persist: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> list[SetResult]:
        """SET every pair, pipelined. Results in order; :class:`BatchError` after the last one if any item failed.

        Each item has its own ``timeout``. ``pairs`` is a mapping, or an iterable that is consumed as answers come in. A
        :class:`SetItem` in it brings an expiry, a fencing token or a ``persist`` of its own.
        """
        commands = arguments.set_commands(pairs, expiry, persist)
        return cast("list[SetResult]", self._engine.call_many(commands, timeout, fencing_token))

    def get_many(self, keys: Iterable[Bytes], *, timeout: Timeout = DEFAULT_TIMEOUT) -> list[Item | None]:
        """GET every key, pipelined. Results in order; :class:`BatchError` after the last one if any item failed."""
        return cast("list[Item | None]", self._engine.call_many(arguments.get_commands(keys), timeout))

    def delete_many(
        self, keys: Iterable[Bytes], *, fencing_token: Token | None = None, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> list[DeleteResult]:
        """DEL every key, pipelined. Results in order; :class:`BatchError` after the last one if any item failed."""
        commands = arguments.delete_commands(keys)
        return cast("list[DeleteResult]", self._engine.call_many(commands, timeout, fencing_token))

    def vdelete_many(
        self,
        pairs: Pairs,
        *,
        fencing_token: Token | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> list[DeleteResult]:
        """VDEL every pair, pipelined. Results in order; :class:`BatchError` after the last one if any item failed."""
        commands = arguments.vdelete_commands(pairs)
        return cast("list[DeleteResult]", self._engine.call_many(commands, timeout, fencing_token))

    # -- watches and locks ---------------------------------------------------------------------------------------------

    def watch(
        self,
        key: Bytes,
        *,
        initial: bool = False,
        max_queued: int = 1024,
        overflow: Overflow = "latest",
        connection_events: bool = False,
        poll: float | None = None,
        callback: Callable[[WatchEvent], object] | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> Watch:
        """A watch on the changes of ``key``. Entering it returns when no later change can be missed.

        The key is literal: ``a/*`` is the key with a star in its name. :meth:`watch_prefix` watches many keys.

        ``initial`` delivers the current value first, without a gap. When the reader falls ``max_queued`` events behind,
        ``overflow="latest"`` drops the oldest and marks the next as ``missed``, and ``"error"`` ends the watch.
        ``"block"`` loses nothing: the client acknowledges no message until the reader has caught up, so that the broker
        stops sending. That holds up everything else of this client, so give such a watch a client of its own.

        ``connection_events`` adds SUSPENDED and RESUMED, when the link breaks and when the watch is up to date again.
        ``poll`` reads the key at this interval (seconds), too, for brokers that lose notifications. ``callback`` is
        called with each event by a worker of this watch's own: it may be slow, may fail (that is logged) and may use
        the client. In the asyncio client it may be a coroutine function. ``timeout`` is for starting to watch.

        The server notifies of expiry as of a deletion. A watch ends with :class:`NotAuthorizedError` or another error
        when the server or the broker refuses it, and with :class:`ClosedError` when the client is closed.
        """
        options = WatchOptions(initial, connection_events, arguments.check_timeout(poll, "poll"))
        terms = arguments.watch_terms(key, self._client_id, options, max_queued, overflow)
        return Watch(self._engine, terms, timeout=self._engine.seconds(timeout), callback=callback)

    def watch_prefix(
        self,
        prefix: Bytes,
        *,
        rescan: float | None = arguments.DEFAULT_RESCAN_S,
        max_keys: int = arguments.DEFAULT_MAX_KEYS,
        initial: bool = False,
        max_queued: int = 1024,
        overflow: Overflow = "latest",
        connection_events: bool = False,
        callback: Callable[[WatchEvent], object] | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> Watch:
        """A watch on every key that begins with ``prefix``; an empty one stands for all keys.

        The protocol notifies of single keys only. So the keys are listed (SCAN) and each is watched (KEYNOTIFY), and
        ``rescan`` seconds after a listing they are listed again. That leaves less than :meth:`watch` gives:

        * Of a key that was listed, every change is seen, as with :meth:`watch`, until some listing after its deletion.
        * A new key is seen with the next listing: its first event is ``missed``, for it may have had other values
          before. If it is gone by then, it is never seen. ``rescan=None`` lists again after a reconnect only.
        * Changes of one key come in their order; between keys there is no order.
        * Keys that are not UTF-8 are in no listing.

        Entering it returns when the keys of the first listing are watched; thousands may need a longer ``timeout``.
        With more than ``max_keys`` keys it ends with :class:`TooManyKeysError`; the server keeps something for each.
        ``initial`` delivers the values of the first listing first. Up to ``max_queued`` plus ``max_keys`` events wait
        for the reader; ``overflow`` is that of :meth:`watch`, and ``"latest"`` keeps the latest event of each key, or
        ends as ``"error"`` does. ``connection_events``, which have ``prefix`` for a key, and ``callback`` are the same.

        A watch ends with :class:`UnknownCommandError` when the server has no SCAN, with :class:`NotAuthorizedError` or
        :class:`QuotaExceededError` when it refuses the listing or one of the keys, and as :meth:`watch` does. A client
        without the right to watch is refused with the first key that begins with ``prefix``; until there is one, it
        waits, for the protocol asks about keys only.
        """
        options = WatchOptions(initial, connection_events, prefix=arguments.prefix_terms(rescan, max_keys))
        terms = arguments.prefix_watch_terms(prefix, options, max_queued, max_keys, overflow)
        return Watch(self._engine, terms, timeout=self._engine.seconds(timeout), callback=callback)

    def lock(
        self,
        name: Bytes,
        *,
        lease: float = 10.0,
        holder: Bytes | None = None,
        renew: bool = True,
        persist: bool = False,
    ) -> Lock:
        """A lock on the key ``name``; nothing is sent before it is acquired.

        ``lease`` seconds after a holder died, the lock is free. ``renew`` extends the lease in the background for as
        long as it is held. ``holder`` must differ between all contenders; the default is unique. ``persist`` marks the
        lock's key as in :meth:`set`, so that a broker that restarts knows who holds the lock.
        """
        terms = arguments.lock_terms(name, self._client_id, holder, self._unique_name(), lease, persist)
        return Lock(self._engine, terms, self._leases, renew=renew, request_timeout=self._settings.request_timeout)

    def election(
        self, name: Bytes, *, candidate: Bytes | None = None, term: float = 10.0, persist: bool = False
    ) -> Election:
        """An election on the key ``name``; nothing is sent before somebody campaigns.

        ``term`` seconds after a leader died, another candidate can win; a living leader extends its term by itself.
        ``candidate`` is this candidate's name; it must differ between all candidates, and the default is unique.
        ``persist`` marks the election's key as in :meth:`set`, so that a broker that restarts knows who leads.
        """
        terms = arguments.election_terms(name, self._client_id, candidate, self._unique_name(), term, persist)
        return Election(self._engine, terms, self._leases, request_timeout=self._settings.request_timeout)

    def guarded(self, lease: Lease) -> GuardedStore:
        """This store with the fencing token of ``lease`` on every write, and closed once the lease has ended."""
        arguments.check_kind("a store is guarded by", lease, Lease)
        return GuardedStore(self._engine, lease)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _unique_name(self) -> bytes:
        # Two locks of one process must not own each other's lease: the client id alone would not do.
        return f"{self._client_id}:{uuid.uuid4().hex}".encode()


def _check_clock(hlc: HybridLogicalClock | None) -> HybridLogicalClock | None:
    if hlc is not None:
        arguments.check_kind("hlc must be", hlc, HybridLogicalClock)
    return hlc


def _check_functions(on_state: StateListener | None, clock: Clock, open_socket: OpenSocket | None) -> None:
    if on_state is not None:
        check_callback("on_state", on_state)
    check_function("clock", clock)
    if open_socket is not None:
        check_function("open_socket", open_socket)
