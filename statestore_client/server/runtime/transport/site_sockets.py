"""The ØMQ sockets of a site: a ROUTER for those that dial it, a DEALER for each address that it dials.

It never blocks, has no thread of its own (libzmq has) and decides nothing.

Rules:

* The descriptor of a ØMQ socket is edge-triggered: it tells once of what has come. Code that touches a socket, also to
  send, must therefore look whether something came before anybody sleeps on its descriptor (zmq_getsockopt(3), ZMQ_FD).
* A message is one frame; what has more is dropped.
* Every queue has an end. What does not fit is dropped: floods are numbered, and requests are repeated.
* libzmq connects again by itself. A new connection is told, so that hello is said on it at once.

Source: ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

import contextlib
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs
import zmq
from zmq.utils.monitor import parse_monitor_message

from statestore_client.errors import SettingsError
from statestore_client.setting_sources import read_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.kvstore.links import LinkId

__all__ = ["Came", "ConnectionChanged", "SiteSockets"]

#: Messages that wait for one connection, in each direction. Most are small; one has 1 MiB at most.
_QUEUE: Final = 256
#: A message of 1 MiB, and some room for a newer version to say what it does not fit into.
_MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
_RECONNECT_MS: Final = 100
_RECONNECT_MAX_MS: Final = 5_000
_CONNECTED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_LOST: Final = int(zmq.EVENT_DISCONNECTED)
_WOULD_BLOCK: Final = (zmq.EAGAIN, zmq.EHOSTUNREACH)

_monitor_numbers = count(1)


@attrs.frozen
class ConnectionChanged:
    """A dialled connection began, or ended."""

    link: str
    is_connected: bool


@attrs.frozen
class Came:
    """A message."""

    link: LinkId
    data: bytes


class SiteSockets:
    """All sockets of one site. ``watch`` and ``forget`` are told of descriptors that come into use and leave it."""

    def __init__(self, watch: Callable[[int], object], forget: Callable[[int], object]) -> None:
        self._watch = watch
        self._forget = forget
        self._context = zmq.Context()
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: dict[str, tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = {}
        self._poller = zmq.Poller()
        #: Messages that were dropped: of several frames, or for a connection that takes no more.
        self.dropped = 0

    @property
    def dialled(self) -> tuple[str, ...]:
        """The addresses."""
        return tuple(self._dealers)

    def bind(self, url: str) -> str:
        """Open the door; what it is called then: a port ``*`` has become a number. Raises SettingsError."""
        _check(f"{url[:-1]}1" if url.endswith(":*") else url)
        router = self._socket(zmq.ROUTER, url)
        try:
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.bind(url)
        except zmq.ZMQError as error:
            router.close(linger=0)
            raise SettingsError(f"cannot listen for sites at {url}: {error}") from error
        self._router = router
        self._use(router)
        return str(router.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")

    def dial(self, url: str) -> None:
        """Connect, now and whenever the connection is lost, until :meth:`hang_up`. Raises SettingsError."""
        _check(url)
        if url in self._dealers:
            return
        dealer = self._socket(zmq.DEALER, url)
        dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a connection that does not stand
        dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        monitor = dealer.get_monitor_socket(_CONNECTED | _LOST, f"inproc://site-monitor-{next(_monitor_numbers)}")
        self._dealers[url] = (dealer, monitor)
        self._use(dealer)
        self._use(monitor)
        try:
            dealer.connect(url)
        except zmq.ZMQError as error:
            self.hang_up(url)
            raise SettingsError(f"no site can be at {url!r}: {error}") from error

    def hang_up(self, url: str) -> None:
        """Close the connection, and dial no more."""
        sockets = self._dealers.pop(url, None)
        if sockets is not None:
            dealer, monitor = sockets
            for socket in sockets:  # before they go: their numbers are given to others at once
                self._poller.unregister(socket)
                self._forget(socket.fileno())
            dealer.disable_monitor()
            monitor.close(linger=0)
            dealer.close(linger=0)

    def receive(self, limit: int, limit_bytes: int) -> Iterator[Came | ConnectionChanged]:
        """What has come; from each socket at most ``limit`` messages, and none after these have ``limit_bytes`` or
        more: one busy site does not hold up the rest.
        """
        readable = {socket for socket, _ in self._poller.poll(0)}
        for url, (dealer, monitor) in tuple(self._dealers.items()):
            if monitor in readable:
                yield from self._changes(url, monitor)
            if dealer in readable:
                yield from (Came(url, frames[0]) for frames in self._messages(dealer, limit, limit_bytes, 1))
        if self._router is not None and self._router in readable:
            yield from (Came(route, data) for route, data in self._messages(self._router, limit, limit_bytes, 2))

    def send(self, link: LinkId, data: bytes) -> bool:
        """False if the connection is gone, or takes no more."""
        if isinstance(link, str):
            sockets = self._dealers.get(link)
            sent = sockets is not None and _try_to_send(sockets[0], [data])
        else:
            sent = self._router is not None and _try_to_send(self._router, [link, data])
        self.dropped += not sent
        return sent

    def is_readable(self) -> bool:
        """Whether something came that nobody has taken: look before sleeping."""
        return bool(self._poller.poll(0))

    def close(self) -> None:
        """Everything, at once."""
        for url in self.dialled:
            self.hang_up(url)
        if self._router is not None:
            self._forget(self._router.fileno())
            self._router.close(linger=0)
            self._router = None
        self._context.destroy(linger=0)  # not term(): that waits for ever for a socket that could not connect

    def _socket(self, kind: int, url: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int("[" in url))
        socket.setsockopt(zmq.SNDHWM, _QUEUE)
        socket.setsockopt(zmq.RCVHWM, _QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        return socket

    def _use(self, socket: zmq.Socket[bytes]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._watch(socket.fileno())

    def _changes(self, url: str, monitor: zmq.Socket[bytes]) -> Iterator[ConnectionChanged]:
        while monitor.poll(0):
            event = int(parse_monitor_message(monitor.recv_multipart())["event"])
            yield ConnectionChanged(url, is_connected=bool(event & _CONNECTED))

    def _messages(self, socket: zmq.Socket[bytes], limit: int, limit_bytes: int, frames: int) -> Iterator[list[bytes]]:
        size = 0
        for _ in range(limit):
            if size >= limit_bytes:
                return
            try:
                message = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            size += sum(map(len, message))
            if len(message) == frames:
                yield message
            else:
                self.dropped += 1


def _check(url: str) -> None:
    """libzmq takes any port, and looks for hosts of any name."""
    scheme, _, address = url.partition("://")
    if scheme == "tcp":
        with contextlib.suppress(SettingsError):
            if read_address(address, 0)[1]:
                return
    elif scheme == "ipc" and address:
        return
    raise SettingsError(f"no site can be at {url!r}: addresses are tcp://host:port or ipc://path")


def _try_to_send(socket: zmq.Socket[bytes], frames: list[bytes]) -> bool:
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno in _WOULD_BLOCK:
            return False
        raise
    return True
