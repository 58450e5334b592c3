"""The handshakes of a site: who may connect to it, in whose name, and what is said of those that end.

libzmq asks about each handshake of a site with keys, and this answers. The questions come to a socket of the site's own
context (ZeroMQ RFC 27, ZAP), so they are answered in a turn of its event loop, without a thread. libzmq asks only about
those that have proved that they hold the secret key of the public one that they show, and that knew the key of this
site.

Source: ``docs/decisions/0051-keys-of-sites.md``.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING, Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.runtime.security.site_keys import SiteKeys

__all__ = ["REFUSED", "SiteHandshakes", "events_of", "monitored"]

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
