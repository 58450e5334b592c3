"""What is said was carried out before the server looked whether it may speak.

So an answer that comes late, because the process stood still between that look and the write to the socket, is what was
right at a moment between the request and the answer: reads stay linearizable.
"""

from __future__ import annotations

import asyncio

from support.durable_broker import DurableWorld

from statestore_client.mqtt.packets import MQTT_5_0, Connect, Pingreq, Pingresp, encode
from statestore_client.server.broker import Connection
from statestore_client.server.runtime.storage.group_commit import GroupCommit

_PONG = encode(Pingresp(), MQTT_5_0)


class _Right:
    """It may speak as often as ``times`` says."""

    def __init__(self) -> None:
        self.times = 0
        self.asked = 0

    def sent(self) -> int:
        return 0

    def holds_lease(self, since: int) -> bool:
        self.times -= 1
        return self.times >= 0

    def renew_lease(self, since: int) -> None:
        self.asked += 1


class _Served:
    """Two clients of a broker behind the gate."""

    def __init__(self) -> None:
        self.world = world = DurableWorld()
        self.right = _Right()
        loop = asyncio.get_running_loop()
        self.gate = GroupCommit(world.journal, world.storage, lambda: world.now, loop, self._failed, self.right)
        self.gate.bind(world.broker, self._send, lambda: None)
        self.said: list[tuple[Connection, bytes]] = []
        self.when_first_is_told: list[Connection] = []
        self.first, self.second = self._connect("first"), self._connect("second")
        world.commit()
        for connection in (self.first, self.second):
            connection.take()

    def _connect(self, client_id: str) -> Connection:
        connection = self.world.broker.connection_opened(self.world.now, peer="192.0.2.1")
        self.world.broker.receive(connection, [Connect(client_id)], self.world.now)
        return connection

    def _send(self, connection: Connection) -> None:
        self.said.append((connection, connection.take()))
        for other in self.when_first_is_told[:] if connection is self.first else ():
            self.when_first_is_told.clear()
            self.ping(other)

    def _failed(self, error: Exception) -> None:
        raise error

    def ping(self, connection: Connection) -> None:
        """One request."""
        self.world.broker.receive(connection, [Pingreq()], self.world.now)


async def test_what_is_carried_out_after_the_look_waits_for_the_next_one() -> None:
    """A request that is carried out while answers are written is not answered by the right of those."""
    served = _Served()
    served.ping(served.first)
    served.ping(served.second)
    served.when_first_is_told.append(served.second)
    served.right.times = 1
    served.gate.flush()
    assert served.said == [(served.first, _PONG), (served.second, _PONG)]
    assert served.right.asked == 1
    served.right.times = 1
    served.gate.flush()
    assert served.said[2:] == [(served.second, _PONG)]
    served.gate.close()


async def test_without_the_right_nothing_is_said() -> None:
    """A server whose lease is over says nothing, and asks; nothing is lost."""
    served = _Served()
    served.ping(served.first)
    served.gate.flush()
    assert not served.said
    assert served.right.asked == 1
    served.right.times = 1
    served.gate.flush()
    assert served.said == [(served.first, _PONG)]
    served.gate.close()


async def test_all_who_wait_for_rest_are_woken() -> None:
    """Two tasks that wait until all is written both go on; closing wakes one that would wait in vain."""
    served = _Served()
    served.ping(served.first)
    served.gate.flush()  # without the right: it is silent
    waiting = [asyncio.ensure_future(served.gate.wait_idle()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    served.right.times = 1
    served.gate.flush()
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    served.right.times = 0
    served.ping(served.first)
    served.gate.flush()
    in_vain = asyncio.ensure_future(served.gate.wait_idle())
    await asyncio.sleep(0)
    served.gate.close()
    await asyncio.wait_for(in_vain, 10)
