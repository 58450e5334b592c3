"""TCP connections as their ends see them: bytes in order, late, cut off in the middle, or in a black hole.

A client that closes, or dies, leaves bytes behind that may still arrive. A black hole keeps what is sent into it: when
it is over, TCP delivers that. A connection may end for one side long before the other side hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim_process import Process
    from sim_server import SimulatedServer
    from sim_world import World


#: A chunk is now and then delivered in two halves: the decoders must not mind.
_SPLIT = 0.03


class _Stream:
    """One direction. ``deliver`` gets bytes, and None for the end."""

    def __init__(self, world: World, deliver: Callable[[bytes | None], None]) -> None:
        self._world = world
        self._deliver = deliver
        self._is_blocked = False
        self._held: list[bytes | None] = []
        self._last_arrival = 0.0
        self._age = 0  # what was sent in an earlier one is lost
        self._has_ended = False

    def send(self, data: bytes | None) -> None:
        if self._has_ended:
            return
        self._has_ended = data is None
        if self._is_blocked:
            self._held.append(data)
        else:
            self._launch(data)

    def _launch(self, data: bytes | None) -> None:
        world = self._world
        if data is not None and len(data) > 1 and world.random.random() < _SPLIT:
            middle = world.random.randrange(1, len(data))
            self._launch(data[:middle])
            data = data[middle:]
        self._last_arrival = max(self._last_arrival, world.time.now + world.delay())
        age = self._age
        world.time.at(self._last_arrival, lambda: self._deliver(data) if age == self._age else None)

    def block(self) -> None:
        self._is_blocked = True

    def unblock(self) -> None:
        self._is_blocked = False
        held, self._held = self._held, []
        for data in held:
            self._launch(data)

    def lose(self) -> None:
        """What is on its way never arrives."""
        self._age += 1
        self._held.clear()


class Link:
    """One connection between a client and the server."""

    def __init__(self, world: World, client: Process, server: SimulatedServer) -> None:
        self._world = world
        self._peer_is_gone = False  # the server's host answers with a reset
        incarnation = server.incarnation

        def arrived_up(data: bytes | None) -> None:
            if server.incarnation == incarnation:
                server.do(lambda: server.arrived(self, data), is_input=True)

        self.up = _Stream(world, arrived_up)
        self.down = _Stream(world, lambda data: client.do(lambda: client.arrived(self, data), is_input=True))
        self.block(client.blocked)

    def block(self, directions: frozenset[str]) -> None:
        """The black hole swallows these directions from now on, and no others."""
        for name, stream in (("up", self.up), ("down", self.down)):
            if name in directions:
                stream.block()
            else:
                stream.unblock()

    def send_up(self, data: bytes) -> None:
        if self._peer_is_gone:
            self.down.send(None)
        else:
            self.up.send(data)

    def cut(self) -> None:
        """A reset from the middle of the network. What was on its way arrives, or does not."""
        for stream in (self.up, self.down):
            if self._world.random.random() < 0.5:
                stream.lose()
            stream.send(None)

    def server_is_gone(self) -> None:
        """The server died. Its kernel says so at once, or when the client sends something the next time."""
        self.up.lose()
        self._peer_is_gone = True
        if self._world.random.random() < 0.7:
            if self._world.random.random() < 0.5:
                self.down.lose()
            self.down.send(None)
