"""A broker's driver that tests handle from outside: everything due at once, and another broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.server.runtime.broker_driver import BrokerDriver

if TYPE_CHECKING:
    from statestore_client.server.broker import Broker

__all__ = ["ControlledDriver"]


class ControlledDriver(BrokerDriver):
    """Belongs to the thread of its event loop."""

    def catch_up(self) -> None:
        """Do all that is due by now, and all the work that follows from it, in one go."""
        broker = self._broker
        while not self._is_closing:
            while broker.has_work:
                broker.work(self._clock())
                self.flush()
            deadline = broker.next_deadline()
            if deadline is None or deadline > self._clock().monotonic:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._tick()

    def start_anew(self, broker: Broker, *, tell: bool) -> None:
        """Go on with another broker. Connections end, with a DISCONNECT if ``tell``. There must be no group commit."""
        if tell:
            self._broker.shut_down()
            self.flush()
        for connection, link in self._links.items():
            if connection.outbox or not tell:
                link.abort()
        self.replace_broker(broker)
