"""Sites in one process, with a clock that jumps: connections that delay, lose, hold back and break; sites that restart.

A connection delivers in order, like TCP. What ØMQ does on top of it is there too: after a reconnect the listening side
sees another routing id, and nobody says so.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import attrs


@attrs.define(eq=False)
class Edge:
    """A connection that one site dials to another one."""

    number: int
    dialer: Any
    listener: Any
    connection: int = 0
    is_cut: bool = False
    #: Messages wait until this moment, in both directions.
    held_until: float = 0.0
    arrivals: list[float] = attrs.field(factory=lambda: [0.0, 0.0])

    @property
    def dialled(self) -> tuple[str, int]:
        """Its name at the side that dials."""
        return ("dialled", self.number)

    @property
    def accepted(self) -> tuple[str, int, int]:
        """Its name at the other side: a new one for each connection."""
        return ("accepted", self.number, self.connection)

    def reconnect(self) -> None:
        """What is on its way is lost."""
        self.connection += 1


class World:
    """Time, chance and the network."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.edges: list[Edge] = []
        self.loss = 0.0
        self.longest_delay = 0.05
        self.violations: list[str] = []
        self.messages = 0
        self.bytes = 0
        self._turns = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment: float, do: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self._due, (max(moment, self.now), next(self._turns), do))

    def run_until(self, end: float) -> None:
        """All that happens until then."""
        while self._due and self._due[0][0] <= end and not self.violations:
            self.now, _, do = heapq.heappop(self._due)
            do()
        self.now = end

    def complain(self, text: str) -> None:
        """Something that must hold does not."""
        self.violations.append(f"at {self.now:.3f}: {text}")

    def carry(self, edge: Edge, data: bytes, *, to_listener: bool) -> None:
        """One message over a connection."""
        self.messages += 1
        self.bytes += len(data)
        if edge.is_cut or self.random.random() < self.loss:
            return
        delay = 0.001 + self.longest_delay * self.random.random()
        arrival = max(edge.arrivals[to_listener], self.now + delay, edge.held_until)
        edge.arrivals[to_listener] = arrival
        connection = edge.connection

        def arrive() -> None:
            if edge.connection == connection and not edge.is_cut:
                target, link = (edge.listener, edge.accepted) if to_listener else (edge.dialer, edge.dialled)
                target.receive(link, data)

        self.at(arrival, arrive)
