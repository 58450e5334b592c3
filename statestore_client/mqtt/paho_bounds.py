"""A paho client whose memory a broker cannot use up: paho itself keeps whatever comes, and whatever it has to answer.

The attributes are paho's own and not documented. Should a later paho have others, the tests of hostile brokers tell.
"""

from __future__ import annotations

from typing import Final

from paho.mqtt.client import Client

from statestore_client.errors import PacketError
from statestore_client.mqtt.messaging import MOST_WAITING, RECEIVE_MAXIMUM
from statestore_client.mqtt.packets.heads import LONGEST_HEAD, check_head

__all__ = ["BoundedClient"]

#: Bytes that paho takes from the system at once. It would ask for all that a packet lacks: a block of memory of 268 MB
#: for each read, if a broker says so.
_READ_BYTES: Final = 256 * 1024


class BoundedClient(Client):
    """See the module."""

    def _sock_recv(self, bufsize: int) -> bytes:
        return super()._sock_recv(min(bufsize, _READ_BYTES))

    def excess(self, unacknowledged: int) -> str | None:
        """What the broker does that no broker may, in words; None as long as paho's memory is safe.

        ``unacknowledged``: messages that were handed over and not acknowledged.
        """
        packet = self._in_packet
        if packet["to_process"] > LONGEST_HEAD:
            try:
                check_head(packet["command"], packet["packet"], 0, packet["remaining_length"])
            except PacketError as error:
                return str(error)
        if len(self._out_packet) > MOST_WAITING:
            return f"{MOST_WAITING} packets wait to be written, because it does not read our answers"
        if unacknowledged + len(self._in_messages) > RECEIVE_MAXIMUM:
            return f"more than {RECEIVE_MAXIMUM} messages came without waiting for their acknowledgements"
        return None
