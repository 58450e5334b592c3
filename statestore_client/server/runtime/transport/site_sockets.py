"""The ØMQ sockets of a site: a ROUTER for those that dial it, a DEALER for each address that it dials.

It never blocks, has no thread of its own (libzmq has) and decides nothing.

Rules:

* The descriptor of a ØMQ socket is edge-triggered: it tells once of what has come. Code that touches a socket, also to
  send, must therefore look whether something came before anybody sleeps on its descriptor (zmq_getsockopt(3), ZMQ_FD).
* A message is one frame; what has more is dropped.
* Every queue has an end. What does not fit is dropped: floods are numbered, and requests are repeated.
* libzmq connects again by itself, but after some handshakes that failed it never does: those are begun again here, ever
  more slowly. A new connection is told, so that hello is said on it at once.
* With keys, ``NAME=`` stands before an address that is dialled, and the key of this site is expected there. See
  :mod:`statestore_client.server.runtime.transport.site_sockets`.

Source: ``docs/decisions/sites.md``.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from statestore_client.clocks import monotonic
from statestore_client.dead_connections import notice_loss
from statestore_client.errors import SettingsError
from statestore_client.setting_sources import check_site_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from statestore_client.server.kvstore.peers import LinkId
    from statestore_client.server.runtime.security.site_keys import SiteKeys

#: Messages that wait for one connection, in each direction. Most are small; one has 1 MiB at most.
_QUEUE: Final = 256
#: A message of 1 MiB, and some room for a newer version to say what it does not fit into.
_MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
#: Messages of several frames that are dropped before another socket is looked at.
_DROPPED_AT_ONCE: Final = 16
#: Milliseconds that the last message of a connection has to get out, while others go on.
_LAST_WORDS_MS: Final = 500
_CONNECTED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_LOST: Final = int(zmq.EVENT_DISCONNECTED)
_WOULD_BLOCK: Final = (zmq.EAGAIN, zmq.EHOSTUNREACH)
#: Seconds until a handshake that failed is tried again, doubled each time up to the limit, less up to a half of it.
_REDIAL_S: Final = 1.0
_REDIAL_MAX_S: Final = 32.0


@attrs.frozen
class ConnectionChanged:
    """A dialled connection began, or ended."""

    link: str
    is_connected: bool


@attrs.frozen
class Came:
    """A message. With keys, ``user`` is the site whose key the other side has proved to have; empty: a client."""

    link: LinkId
    data: bytes
    user: str | None = None


@attrs.define(eq=False)
class _Dealer:
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    url: str
    address: str
    #: The site whose key is expected, and which key that is; None without keys.
    name: str | None
    key: bytes | None
    #: How the last handshake failed, if it has just done so; how many did one after the other; when to try again.
    failure: int = 0
    failures: int = 0
    redial_at: float = math.inf


class SiteSockets:
    """All sockets of one site. ``watch`` and ``forget`` are told of descriptors that come into use and leave it."""

    def __init__(
        self,
        name: str,
        watch: Callable[[int], object],
        forget: Callable[[int], object],
        random: Random,
        keys: SiteKeys | None = None,
    ) -> None:
        self._watch = watch
        self._forget = forget
        self._random = random
        self._context = zmq.Context()
        self._handshakes = SiteHandshakes(self._context, name, keys)
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: dict[str, _Dealer] = {}
        self._poller = zmq.Poller()
        #: Messages that were dropped: of several frames, or for a connection that takes no more.
        self.dropped: int = 0
        self._received = 0

    @property
    def dialled(self) -> tuple[str, ...]:
        """The addresses."""
        return tuple(self._dealers)

    @property
    def refused(self) -> int:
        """Handshakes that failed, at both ends."""
        return self._handshakes.refused

    def bind(self, url: str) -> str:
        """Open the door; what it is called then: a port ``*`` has become a number. Raises SettingsError."""
        check_site_address(f"{url[:-1]}1" if url.endswith(":*") else url)
        with contextlib.ExitStack() as undo:
            try:
                router = self._socket(zmq.ROUTER, url)
                undo.callback(router.close, linger=0)
                router.setsockopt(zmq.ROUTER_MANDATORY, 1)
                undo.callback(self._handshakes.unprotect)
                self._handshakes.protect(router)
                router.bind(url)
            except zmq.ZMQError as error:
                raise SettingsError(f"cannot listen for sites at {url}: {error}") from error
            undo.pop_all()
        self._router = router
        for socket in (router, *self._handshakes.sockets):
            self._use(socket)
        return str(router.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")

    def dial(self, url: str) -> None:
        """Connect, now and whenever the connection is lost, until :meth:`hang_up`. Raises SettingsError."""
        name, address = self._parts(url)
        check_site_address(address)
        if url in self._dealers:
            return
        key = self._key_of(name)
        try:
            socket, monitor = self._connected(address, key)
        except zmq.ZMQError as error:
            raise SettingsError(f"no site can be dialled at {url!r}: {error}") from error
        self._dealers[url] = _Dealer(socket, monitor, url, address, name, key)
        self._use(socket)
        self._use(monitor)

    def _connected(self, address: str, key: bytes | None) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A socket that is dialling, and what tells of it. There may be no file left for either of them."""
        with contextlib.ExitStack() as undo:
            socket = self._socket(zmq.DEALER, address)
            undo.callback(socket.close, linger=0)
            socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a connection that does not stand
            if key is not None:
                self._handshakes.expect(socket, key)
            undo.callback(socket.disable_monitor)
            monitor = monitored(socket, _CONNECTED | _LOST | REFUSED)
            undo.callback(monitor.close, linger=0)
            socket.connect(address)
            undo.pop_all()
        return socket, monitor

    def hang_up(self, url: str, last_words_ms: int = _LAST_WORDS_MS) -> None:
        """Close the connection, and dial no more. What was sent goes out, if it takes no longer than that."""
        dealer = self._dealers.pop(url, None)
        if dealer is not None:
            for socket in (dealer.socket, dealer.monitor):  # before they go: their numbers are given to others at once
                self._poller.unregister(socket)
                self._forget(socket.fileno())
            dealer.socket.disable_monitor()
            dealer.monitor.close(linger=0)
            dealer.socket.close(linger=last_words_ms)

    def settle(self, now: float) -> None:
        """Say to libzmq who may connect, and dial again where a handshake failed, when it is time."""
        self._handshakes.settle(now)
        for url, dealer in self._dealers.items():
            if dealer.failure:
                self._handshakes.failed(url, dealer.failure)
                dealer.failure = 0
                if dealer.redial_at == math.inf:  # else it was the last attempt of libzmq's own
                    dealer.failures += 1
                    self._disconnect(dealer)
                    self._put_off(dealer, now)
            if dealer.redial_at <= now:
                self._redial(url, dealer, now)

    def receive(self) -> Iterator[Came | ConnectionChanged]:
        """What has come, as much of it as the caller takes; close the generator then. The sockets give one message
        each in turn, and the next call goes on with the next socket: one busy site does not hold up the rest.
        """
        readable = {socket for socket, _ in self._poller.poll(0)}
        for url, dealer in tuple(self._dealers.items()):
            if dealer.monitor in readable:
                yield from self._changes(url, dealer)
        sources: deque[_Dealer | None] = deque(each for each in self._dealers.values() if each.socket in readable)
        if self._router in readable:
            sources.append(None)
        sources.rotate(-(self._received % max(1, len(sources))))
        while sources:
            source = sources.popleft()
            came = self._from_router() if source is None else self._from_dealer(source)
            if came is not None:
                sources.append(source)
                self._received += 1
                yield came

    def _from_dealer(self, dealer: _Dealer) -> Came | None:
        frames = self._message(dealer.socket, 1)
        return None if frames is None else Came(dealer.url, frames[0].bytes, dealer.name)

    def _from_router(self) -> Came | None:
        frames = None if self._router is None else self._message(self._router, 2)
        if frames is None:
            return None
        user = None if self._handshakes.keys is None else str(frames[1].get("User-Id"))
        return Came(frames[0].bytes, frames[1].bytes, user)

    def send(self, link: LinkId, data: bytes) -> bool:
        """False if the connection is gone. It is dropped then, and also if the connection takes no more."""
        if isinstance(link, str):
            dealer = self._dealers.get(link)
            error = zmq.EHOSTUNREACH if dealer is None else _try_to_send(dealer.socket, [data])
        else:
            error = zmq.EHOSTUNREACH if self._router is None else _try_to_send(self._router, [link, data])
        self.dropped += bool(error)
        return error != zmq.EHOSTUNREACH

    def is_readable(self) -> bool:
        """Whether something came that nobody has taken: look before sleeping."""
        return bool(self._poller.poll(0))

    def close(self) -> None:
        """Everything, at once."""
        for url in self.dialled:
            self.hang_up(url, 0)
        if self._router is not None:
            self._forget(self._router.fileno())
        for socket in self._handshakes.sockets if self._router is not None else ():
            self._forget(socket.fileno())
        self._handshakes.close()
        if self._router is not None:
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
        notice_loss(socket)
        return socket

    def _use(self, socket: zmq.Socket[bytes]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._watch(socket.fileno())

    def _parts(self, url: str) -> tuple[str | None, str]:
        """Whose key is expected, and the address. Raises SettingsError."""
        if self._handshakes.keys is None:
            return None, url
        head, separator, rest = url.partition("://")
        name, equals, scheme = head.rpartition("=")
        if not equals:
            raise SettingsError(f"this site has keys: say whose key is expected at {url!r}, as in NAME=tcp://host:port")
        return name, f"{scheme}{separator}{rest}"

    def _key_of(self, name: str | None, refused: bytes | None = None) -> bytes | None:
        """None without keys; of two the one that was not ``refused``. Raises SettingsError."""
        keys = self._handshakes.keys
        if keys is None or name is None:
            return None
        keys.refresh(monotonic())
        key = keys.of_site(name, refused)
        if key is None:
            raise SettingsError(f"there is no {keys.folder / name}.key, the public key of site {name}")
        return key

    def _disconnect(self, dealer: _Dealer) -> None:
        with contextlib.suppress(zmq.ZMQError):  # libzmq has given it up already
            dealer.socket.disconnect(dealer.address)

    def _put_off(self, dealer: _Dealer, now: float) -> None:
        delay = min(_REDIAL_MAX_S, _REDIAL_S * 2.0 ** min(dealer.failures - 1, 16))
        dealer.redial_at = now + delay * self._random.uniform(0.5, 1.0)

    def _redial(self, url: str, dealer: _Dealer, now: float) -> None:
        """With the key that is in the directory now; of two with the other one than before."""
        try:
            dealer.key = key = self._key_of(dealer.name, dealer.key)
        except SettingsError:
            self._handshakes.no_key(url, str(dealer.name))
            dealer.failures += 1
            self._put_off(dealer, now)
            return
        if key is not None:
            self._handshakes.expect(dealer.socket, key)
        dealer.redial_at = math.inf
        try:
            dealer.socket.connect(dealer.address)
        except zmq.ZMQError:  # too many files are open, say
            dealer.failures += 1
            self._put_off(dealer, now)

    def _changes(self, url: str, dealer: _Dealer) -> Iterator[ConnectionChanged]:
        for event in events_of(dealer.monitor):
            if event & REFUSED:
                dealer.failure = event
                continue
            if event & _CONNECTED:
                dealer.failure = dealer.failures = 0
                self._handshakes.succeeded(url)
            yield ConnectionChanged(url, is_connected=bool(event & _CONNECTED))

    def _message(self, socket: zmq.Socket[bytes], frames: int) -> list[zmq.Frame] | None:
        """The next one of so many frames; None if there is none now. Some others are dropped on the way."""
        for _ in range(_DROPPED_AT_ONCE):
            try:
                message = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            if len(message) == frames:
                return message
            self.dropped += 1
        return None


def _try_to_send(socket: zmq.Socket[bytes], frames: list[bytes]) -> int:
    """What has kept it from being sent; 0 if nothing has."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno in _WOULD_BLOCK:
            return error.errno
        raise
    return 0


# -- site handshakes ---------------------------------------------------------------------------------------------------
#
# The handshakes of a site: who may connect to it, in whose name, and what is said of those that end.
#
# libzmq asks about each handshake of a site with keys, and this answers. The questions come to a socket of the site's
# own context (ZeroMQ RFC 27, ZAP), so they are answered in a turn of its event loop, without a thread. libzmq asks only
# about those that have proved that they hold the secret key of the public one that they show, and that knew the key of
# this site.
#
# Source: ``docs/decisions/keys-and-rights.md``.


logger: Final = logging.getLogger("statestore_client.server")

_AUTH: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
#: What a handshake of one that dials ends with, if it fails.
REFUSED: Final = _AUTH | _FAILED
#: Reasons that are remembered, so each is told once. There may be as many addresses as there are machines that try.
_MOST_REASONS: Final = 1_000

_monitor_numbers = count(1)


class SiteHandshakes:
    """Of the sockets of one context. Made before the first of them is bound. Without ``keys`` all is in the clear."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str, keys: SiteKeys | None) -> None:
        self.keys = keys
        #: Handshakes that failed, at both ends.
        self.refused: int = 0
        self._name = name
        self._logged: set[tuple[str, str]] = set()
        self._asked: zmq.Socket[bytes] | None = None
        self._protected: tuple[zmq.Socket[bytes], zmq.Socket[bytes]] | None = None
        if keys is not None:
            self._asked = context.socket(zmq.REP)
            self._asked.setsockopt(zmq.LINGER, 0)
            self._asked.bind("inproc://zeromq.zap.01")

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """To be watched for readability."""
        monitors = [] if self._protected is None else [self._protected[1]]
        return monitors if self._asked is None else [self._asked, *monitors]

    def protect(self, router: zmq.Socket[bytes]) -> None:
        """Let nobody connect to this socket without a key. To be called before it is bound."""
        if self.keys is not None:
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, self.keys.pair.secret)
            self._protected = router, monitored(router, _FAILED)

    def expect(self, dealer: zmq.Socket[bytes], key: bytes) -> None:
        """Let this socket connect to nobody but the site that has this key, from the next time on."""
        if self.keys is not None:
            dealer.setsockopt(zmq.CURVE_SERVERKEY, key)
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, self.keys.pair.public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, self.keys.pair.secret)

    def settle(self, now: float) -> None:
        """Answer what libzmq has asked, and log who was refused."""
        while self._asked is not None and self.keys is not None and self._asked.poll(0):
            self.keys.refresh(now)
            self._asked.send_multipart(self._answer(self.keys, self._asked.recv_multipart()))
        if self._protected is not None:
            for _ in events_of(self._protected[1]):
                # libzmq ended it by itself, and does not say whose it was.
                self._refuse("", "it has no key, or does not know the key of this site, or does not speak ØMQ")

    def failed(self, address: str, event: int) -> None:
        """This site has dialled, and the handshake failed."""
        self.refused += 1
        if event & _AUTH:
            why = "that site does not know the key of this one"
        elif self.keys is None:
            why = "the handshake fails; this site has no keys, does that one want some (--curve-keys)?"
        else:
            why = "the handshake fails; has that site keys, and is the key that is expected there its own?"
        self._log_once(address, f"cannot connect to {address}: {why}")

    def no_key(self, address: str, name: str) -> None:
        """The key that was expected there has been taken away."""
        self._log_once(address, f"cannot connect to {address}: there is no {name}.key that can be used")

    def succeeded(self, address: str) -> None:
        """What is wrong with this address the next time is told again."""
        self._logged = {each for each in self._logged if each[0] != address}

    def unprotect(self) -> None:
        """The socket is closed next."""
        if self._protected is not None:
            router, monitor = self._protected
            router.disable_monitor()
            monitor.close(linger=0)
            self._protected = None

    def close(self) -> None:
        """Its own sockets."""
        self.unprotect()
        if self._asked is not None:
            self._asked.close(linger=0)
            self._asked = None

    def _answer(self, keys: SiteKeys, question: list[bytes]) -> list[bytes]:
        version, request_id, _domain, address, _identity, mechanism, *credentials = question
        user = None
        if mechanism == b"CURVE" and len(credentials) == 1:
            user = keys.user(z85.encode(credentials[0]))
        if user is None:
            self._refuse(address.decode("utf-8", "replace"), f"its key is not in {keys.folder}")
            return [version, request_id, b"400", b"unknown key", b"", b""]
        return [version, request_id, b"200", b"OK", user.encode(), b""]

    def _refuse(self, address: str, why: str) -> None:
        self.refused += 1
        place = f"from {address}" if address else "from an address that libzmq does not tell"
        self._log_once(place, f"refuses connections {place}: {why}")

    def _log_once(self, place: str, what: str) -> None:
        if (place, what) not in self._logged:
            if len(self._logged) >= _MOST_REASONS:
                self._logged.clear()
            self._logged.add((place, what))
            logger.warning("site %s %s", self._name, what)


def monitored(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """The socket that tells of these events of another one."""
    return socket.get_monitor_socket(events, f"inproc://site-monitor-{next(_monitor_numbers)}")


def events_of(monitor: zmq.Socket[bytes]) -> Iterator[int]:
    """What it has told, one ZMQ_EVENT after the other."""
    while not monitor.closed and monitor.poll(0):
        yield int(parse_monitor_message(monitor.recv_multipart())["event"])
