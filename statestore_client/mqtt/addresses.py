"""Which address is dialled when: those of the URL, and all that its names stand for. Pure: no socket, no clock.

An attempt to connect dials, and speaks MQTT on one connection at most. A round gives each address its turn, in as many
attempts as that takes::

    address --due()--> pending --opened()--> open --take()--> in use: CONNECT is sent
                          |                   |
                          +---- failed(), connect_timeout ----+

* *Order.* The address that was dialled longest ago comes first: they take turns. A name is looked up in each round, and
  what it stands for takes its place.
* *Head start.* A dial has 100 ms, or until one fails; then the next address is dialled beside it (RFC 8305, section 5).
  A machine that vanished costs no more than that, and neither does a look-up without an answer.
* *One CONNECT at a time*, on what is open first. Two connections with one client id would take the session over from
  each other. If it is refused, or not answered, the next open address has its turn.
* *A dial outlives its attempt*, until ``connect_timeout`` is over: a far broker is not kept out by a near one that
  refuses. But nobody waits for it once another address has refused, which may accept in a moment.
* *What each has said last* is kept until one accepts. The error of a client names all of it: of three servers the one
  that lives knows why it refuses, and the other two refuse connections.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, TypeAlias

import attrs

from statestore_client.errors import ConnectRefusedError, StateStoreError, TransportError
from statestore_client.mqtt.closing import connect_failed
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Others

Sockaddr: TypeAlias = tuple[int, int, int, str, Any]  # as getaddrinfo gives it
#: Seconds. RFC 8305 recommends 250 ms and allows 100 ms.
_HEAD_START_S: Final = 0.1
#: Of ``connect_timeout``.
_SHORTEST_S: Final = 0.001


@attrs.define(eq=False)
class Address:
    """One that can be dialled, or a host of the URL."""

    #: Those of the client, for this host alone.
    settings: ConnectionSettings
    #: None for a host, which is to be looked up, or is for the user's own function to connect to.
    sockaddr: Sockaddr | None = None
    #: Its last dial or look-up, counted in those of all. 0: never.
    dialled: int = 0


@attrs.frozen
class Turn:
    """What an open address has for TLS, WebSocket and CONNACK: ``settings.connect_timeout`` seconds from ``began``."""

    settings: ConnectionSettings
    began: float

    @property
    def deadline(self) -> float:
        """When they are over."""
        return self.began + self.settings.connect_timeout


class _Telling(IntEnum):
    """How much an error tells of what is wrong, most first: its order among those of other addresses."""

    REFUSED = 0  # by MQTT, with a reason
    DISTRUSTED = 1  # a certificate
    REACHED = 2  # and what it said is not MQTT, or nothing
    NOT_REACHED = 3
    SILENT = 4

    @classmethod
    def of(cls, error: StateStoreError) -> _Telling:
        """An error of an address that was connected to."""
        if isinstance(error, ConnectRefusedError):
            return cls.REFUSED
        return cls.DISTRUSTED if isinstance(error, TransportError) and error.fatal else cls.REACHED


@attrs.frozen
class _Said:
    """What an address has said, or what is known of it otherwise."""

    url: str
    error: StateStoreError
    telling: _Telling


def _in_one(said: Sequence[_Said]) -> StateStoreError:
    """The first error, which says the others, too; those that say the same are said once, with all of their URLs."""
    urls: dict[str, dict[str, None]] = {}
    for each in said:
        urls.setdefault(each.error.message.replace(each.url, "\0"), {})[each.url] = None
    texts = [text.replace("\0", _listed(list(of_text))) for text, of_text in urls.items()]
    error = said[0].error
    if texts == [error.message]:
        return error
    combined = copy.copy(error)
    combined.args = ("; and ".join(texts), *error.args[1:])
    return combined


def _listed(urls: Sequence[str]) -> str:
    return " and ".join([", ".join(urls[:-1]), urls[-1]] if len(urls) > 1 else urls)


class Addresses:
    """See the module. Times are monotonic seconds."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._timeout = settings.connect_timeout
        self._hosts = [Address(one) for one in settings.of_each_address()]
        self._found: dict[Address, list[Address]] = {}  # by host, from its last look-up
        self._current: set[Address] = set()  # hosts that were looked up in this round
        self._several = len(self._hosts) > 1
        self._dials = 0
        self._round_from = 0  # dials after this one are of this round
        self._round_ends = math.inf
        self._pending: dict[Address, float] = {}  # and until when
        self._open: dict[Address, float] = {}
        self._dialled_at = -math.inf  # the last time
        self._next_at = -math.inf  # the end of the head start
        self._has_failed = False  # one of them has, in this attempt, and not by saying nothing
        self._in_use: Address | None = None  # in this attempt
        self._said: dict[Address, _Said] = {}  # the last time, since one accepted
        #: Which host failed last, and how.
        self.failure: tuple[ConnectionSettings, BaseException] = (settings, TimeoutError())

    @property
    def several(self) -> bool:
        """Whether another machine may answer. A name with one address of each family (IPv4, IPv6) is one machine."""
        return self._several

    @property
    def others(self) -> Others:
        """What is left of the round."""
        if self._open or self._untried():
            return Others.UNTRIED
        return Others.PENDING if self._pending else Others.NONE

    # -- what the shell asks for, in a loop ----------------------------------------------------------------------------

    def begin(self, now: float, *, new_round: bool) -> None:
        """An attempt begins."""
        self._has_failed = False
        self._in_use = None
        self._next_at = -math.inf
        if new_round:
            self._round_from = self._dials
            self._current.clear()
        if new_round or not now < self._round_ends < math.inf:
            self._round_ends = now + self._timeout

    def late(self, now: float) -> list[Address]:
        """What has had its time; to be closed, and reported by :meth:`failed`."""
        return [one for some in (self._pending, self._open) for one, until in some.items() if until <= now]

    def take(self, now: float) -> tuple[Address, Turn] | None:
        """An open address, if there is one; in use from here on."""
        if not self._open:
            return None
        address = min(self._open, key=lambda one: one.dialled)
        del self._open[address]
        self._in_use = address
        settings = address.settings
        if self.others is Others.NONE:
            return address, Turn(settings, self._round_ends - self._timeout)
        share = max(_SHORTEST_S, self._timeout / sum(map(len, self._lists())))
        began = min(now, self._round_ends - share)
        return address, Turn(settings.evolve(connect_timeout=share), began)

    def due(self, now: float) -> Address | None:
        """What to dial, or to look up, now."""
        untried = self._untried()
        if not untried or now < self._next_at:
            return None
        address = min(untried, key=lambda one: one.dialled)
        self._dials += 1
        address.dialled = self._dials
        self._pending[address] = self._round_ends
        self._dialled_at, self._next_at = now, now + _HEAD_START_S
        return address

    def wait_until(self, now: float) -> float | None:
        """When to ask again, if nothing happens before. None: the attempt has failed."""
        moments = list(self._pending.values())
        if self._untried():
            moments.append(self._next_at)
        elif self._has_failed:
            grace = self._dialled_at + _HEAD_START_S
            if now >= grace:
                return None
            moments.append(grace)
        return min(moments, default=None)

    # -- what the shell reports ----------------------------------------------------------------------------------------

    def found(self, host: Address, sockaddrs: Sequence[Sockaddr]) -> None:
        """What a host's name stands for."""
        del self._pending[host]
        before = {one.sockaddr: one for one in self._found.get(host, ())}
        distinct = dict.fromkeys(sockaddrs)
        self._found[host] = [before.get(one) or Address(host.settings, one) for one in distinct]
        self._current.add(host)
        self._said.pop(host, None)
        self._several = len(self._hosts) > 1 or max(Counter(one[0] for one in distinct).values(), default=0) > 1
        self._next_at = -math.inf

    def opened(self, address: Address) -> None:
        """It can be spoken to."""
        self._open[address] = self._pending.pop(address)

    def failed(self, address: Address, why: BaseException) -> None:
        """It cannot be looked up or connected to, or was not in time."""
        self._pending.pop(address, None)
        self._open.pop(address, None)
        self.failure = (address.settings, why)
        telling = _Telling.SILENT if isinstance(why, TimeoutError) else _Telling.NOT_REACHED
        self._said[address] = _Said(address.settings.url, connect_failed(address.settings, why).error, telling)
        if not isinstance(why, TimeoutError):
            self._has_failed = True
        self._next_at = -math.inf

    def settled(self) -> list[Address]:
        """The broker has accepted the connection in use. Returns all others, which are to be given up."""
        left = [*self._pending, *self._open]
        self._pending.clear()
        self._open.clear()
        self._said.clear()
        self._round_ends = math.inf
        return left

    def what_all_said(self, error: StateStoreError) -> StateStoreError:
        """The attempt has ended with this error, of the address in use if one was: what each has said, in one error, of
        the kind that the most telling one has.
        """
        if self._in_use is not None:
            self._said[self._in_use] = _Said(self._in_use.settings.url, error, _Telling.of(error))
        found = [one for host in self._hosts for one in (host, *self._found.get(host, ()))]
        said = sorted((self._said[one] for one in found if one in self._said), key=lambda each: each.telling)
        if error.message not in [each.error.message for each in said]:
            return error  # it is not one of an address: a file that cannot be read
        return _in_one(said)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _lists(self) -> list[list[Address]]:
        """Per host of the URL, in its order: what it stands for, or itself if that is not known in this round."""
        return [self._found[host] if host in self._current else [host] for host in self._hosts]

    def _untried(self) -> list[Address]:
        busy = self._pending.keys() | self._open.keys()
        return [one for some in self._lists() for one in some if one.dialled <= self._round_from and one not in busy]
