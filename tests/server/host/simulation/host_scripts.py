"""Fixed sequences of steps, for what schedules hardly ever come to."""

from __future__ import annotations

from host_world import Life, World

#: Of a world with a log.
_SEED = 3


class _Script:
    """Two hosts on one log."""

    def __init__(self) -> None:
        self.world = world = World(_SEED)
        world.receive_maximum, world.host_maximum = 20, 8
        self.old, self.new = world.lives

    def activate(self, life: Life) -> None:
        """It owns the log from now on, has read it, and is connected."""
        self.world.claim()
        while not life.is_caught_up:
            life.read_step()
        life.take_over()
        self.connect(life)

    def connect(self, life: Life) -> None:
        while self.world.speaker is not life:
            self.world.connect(life)
        self.settle(life)

    def ask(self, life: Life, *parts: bytes) -> None:
        """A client asks, while this host is connected."""
        self.world.ask("one", *parts)
        self.settle(life)

    def settle(self, life: Life) -> None:
        """What the broker, this host and the log have to do."""
        world = self.world
        while True:
            if world.may_deliver:
                world.deliver()
            elif world.to_host:
                world.host_step()
            elif world.to_broker:
                world.broker_step()
            elif world.decided:
                world.puback()
            elif world.disk.waiting:
                world.disk_step()
            elif life.loop.soon or life.loop.later:
                life.loop_step()
            else:
                return


def late_connection() -> list[str]:
    """The CONNECT of a host that was active is on its way for longer than its lease. When it arrives, the next host has
    changed what is read then. Returns violations.
    """
    script = _Script()
    world, old, new = script.world, script.old, script.new
    script.activate(old)
    script.ask(old, b"SET", b"a", b"1")
    world.lose_connection()
    world.connect(old)  # it leaves
    world.now = old.lease_until
    script.activate(new)
    script.ask(new, b"SET", b"a", b"2")
    world.connect(old)  # it arrives
    script.ask(old, b"GET", b"a")
    script.connect(new)
    if any(request.answer is None for request in world.requests.values()):
        world.complain("a request was not answered")
    return world.violations
