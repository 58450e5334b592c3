"""The network as ROUTER and DEALER sockets see it: frames that are late, lost, doubled, overtaken, or cut off one way.

A connection belongs to who opened it and has a routing id at the other side. When it is opened anew the routing id is
another one: answers to the former are lost. Frames, and nothing else, pass here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeAlias

import attrs
from peers_world import World

__all__ = ["Connection", "Frames", "Network", "Weather"]

#: The request id and what follows it.
Frames: TypeAlias = list[bytes]
#: At the side that bound: routing id and frames. At the side that connected: the connection and frames.
Deliver: TypeAlias = Callable[[bytes, Frames], None]


@attrs.define
class Weather:
    """How one direction between two hosts is. Shares are of one."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0  # this share comes much later, and is overtaken if order is not kept


_FAIR = Weather()
#: A late message is late by up to this many seconds: longer than an election.
_LATE_S = 0.4


@attrs.define(eq=False)
class Connection:
    """The DEALER of ``source`` that is connected to ``target``. ``deliver`` takes what comes back."""

    source: str
    target: str
    route: bytes
    deliver: Callable[[Frames], None]
    is_open: bool = True


class Network:
    """Every message has its own chance; ``in_order`` hosts have what TCP promises: no overtaking, nothing doubled, and
    nothing that was sent to a process arrives at the next one."""

    def __init__(self, world: World, *, delay_s: float, in_order: frozenset[str] | None = None) -> None:
        self._world = world
        self.delay_s = delay_s
        self._in_order = in_order  # None for everybody
        self.cut: set[tuple[str, str]] = set()
        self.cut_for_good: set[tuple[str, str]] = set()
        self.weather: dict[tuple[str, str], Weather] = {}
        self.is_bound: dict[str, Deliver] = {}
        self._chances: dict[tuple[str, str], Random] = {}
        self._last_arrival: dict[tuple[str, str], float] = {}
        self._routes: dict[bytes, Connection] = {}
        self._connections = 0
        self.messages = 0

    # -- sockets -------------------------------------------------------------------------------------------------------

    def connect(self, source: str, target: str, deliver: Callable[[Frames], None]) -> Connection:
        self._connections += 1
        connection = Connection(source, target, b"%s#%d" % (source.encode(), self._connections), deliver)
        self._routes[connection.route] = connection
        return connection

    def close(self, connection: Connection) -> None:
        """What was sent may still arrive; what comes back does not."""
        connection.is_open = False
        self._routes.pop(connection.route, None)

    def request(self, connection: Connection, frames: Frames) -> None:
        if connection.is_open:
            process = self.is_bound.get(connection.target)
            in_order = self.keeps_order(connection.source, connection.target)
            arrive = partial(self._arrive_bound, process) if in_order else self._arrive_bound_anew
            self._send(connection.source, connection.target, arrive, connection, frames)

    def answer(self, source: str, route: bytes, frames: Frames) -> None:
        connection = self._routes.get(route)
        if connection is not None:
            arrive = partial(self._arrive_back, self.is_bound.get(source))
            self._send(source, connection.source, arrive, connection, frames)

    def _arrive_bound(self, process: Deliver | None, connection: Connection, frames: Frames) -> None:
        """``process`` was bound when this was sent."""
        if process is not None and process is self.is_bound.get(connection.target):
            process(connection.route, frames)

    def _arrive_bound_anew(self, connection: Connection, frames: Frames) -> None:
        self._arrive_bound(self.is_bound.get(connection.target), connection, frames)

    def _arrive_back(self, process: Deliver | None, connection: Connection, frames: Frames) -> None:
        """``process`` has sent this. Once another one is bound in its place, the connection to it has ended."""
        now_bound = self.is_bound.get(connection.target, process)
        if connection.is_open and (now_bound is process or not self.keeps_order(connection.source, connection.target)):
            connection.deliver(frames)

    # -- the wire ------------------------------------------------------------------------------------------------------

    def keeps_order(self, source: str, target: str) -> bool:
        return self._in_order is None or source in self._in_order or target in self._in_order

    def _send(
        self,
        source: str,
        target: str,
        arrive: Callable[[Connection, Frames], None],
        connection: Connection,
        frames: Frames,
    ) -> None:
        """Always the same number of chances for a message, whatever the weather."""
        link = (source, target)
        chances = self._chances.get(link)
        if chances is None:
            chances = self._chances[link] = self._world.stream("link", *link)
        chance, delay, lateness = chances.random(), chances.random(), chances.random()
        weather = self.weather.get(link, _FAIR)
        self.messages += 1
        if link in self.cut or link in self.cut_for_good or chance < weather.lost:
            return
        now = self._world.now
        arrival = now + self.delay_s * (0.1 + delay)
        if lateness < weather.late:
            arrival += _LATE_S * delay
        if self.keeps_order(source, target):
            arrival = max(arrival, self._last_arrival.get(link, 0.0))
            self._last_arrival[link] = arrival
        elif chance > 1.0 - weather.doubled:
            self._world.at(arrival + self.delay_s + _LATE_S * lateness, self._deliver, link, arrive, connection, frames)
        self._world.at(arrival, self._deliver, link, arrive, connection, frames)

    def _deliver(
        self,
        link: tuple[str, str],
        arrive: Callable[[Connection, Frames], None],
        connection: Connection,
        frames: Frames,
    ) -> None:
        if link not in self.cut:  # a cut loses what is under way
            arrive(connection, frames)
